"""The doorbell on a real Valkey and a real RQ worker: bells ring and are answered, and nothing else ever runs (T23)."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from ulid import ULID

from service.embedded import EmbeddedRedis
from service.errors import Unavailable
from service.queue import Doorbell, DoorbellWorker

REPOSITORY = Path(__file__).parents[2]

WORKER = """
import logging, os, signal, sys, time, types
import redis
logging.basicConfig(level=logging.WARNING)
url, queue, name = sys.argv[1:4]
client = redis.Redis.from_url(url)

def answer_bell():
    client.rpush(queue + ":answered", os.getpid())
    if client.get(queue + ":slow"):
        def told(signum, frame):
            client.rpush(queue + ":told", "SIGTERM")
            os._exit(0)
        signal.signal(signal.SIGTERM, told)
        client.rpush(queue + ":working", os.getpid())
        time.sleep(60)

job = types.ModuleType("worker.job")
job.answer_bell = answer_bell
sys.modules["worker.job"] = job
from service.queue import DoorbellWorker
DoorbellWorker.over(url, name=name, queue=queue).work()
"""


class Yard:
    """One queue of its own name on the shared server, its worker processes and what they have done."""

    def __init__(self, url: str, errors: Path) -> None:
        self.url, self.name, self.errors = url, f"q{ULID()}", errors
        self.redis = redis.Redis.from_url(url)
        self.bell = Doorbell(url, name=self.name)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        name = f"w{ULID()}"
        with self.errors.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER, self.url, self.name, name], cwd=REPOSITORY, stderr=log, stdout=log
            )
        self.processes.append(process)
        self.until(lambda: self.redis.sismember(f"rq:workers:{self.name}", f"rq:worker:{name}"))
        return process

    def answered(self) -> int:
        return int(self.redis.llen(f"{self.name}:answered"))

    def idle(self) -> bool:
        return not self.redis.exists(f"rq:queue:{self.name}", f"rq:queue:{self.name}:intermediate")

    def until(self, condition: Callable[[], object], seconds: float = 15) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.errors.read_text() if self.errors.exists() else "no worker"
            time.sleep(0.02)

    def push(self, **fields: Any) -> str:
        """A job as someone with access to Redis would write it, past our own code."""
        job_id = str(ULID())
        record = {"created_at": "2026-01-01T00:00:00.000000Z", "origin": self.name, "status": "queued", **fields}
        self.redis.hset(f"rq:job:{job_id}", mapping=record)
        self.redis.rpush(f"rq:queue:{self.name}", job_id)
        return job_id


@pytest.fixture
def yard(redis_url: str, tmp_path: Path) -> Iterator[Yard]:
    made = Yard(redis_url, tmp_path / "worker.log")
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()
        for key in made.redis.scan_iter("rq:*"):
            made.redis.delete(key)
        made.bell.close()
        made.redis.close()


def bell_data() -> bytes:
    return zlib.compress(b'["worker.job.answer_bell", null, [], {}]')


def test_a_bell_is_answered_once_and_leaves_nothing_behind(yard: Yard) -> None:
    others = set(yard.redis.scan_iter("rq:job:*"))  # the server is shared with other tests
    yard.start()
    assert yard.bell.ring() == 1
    yard.until(lambda: yard.answered() == 1 and yard.idle())
    yard.until(lambda: set(yard.redis.scan_iter("rq:job:*")) <= others)
    assert yard.bell.bells_out() == 0
    assert yard.answered() == 1


def test_each_bell_is_answered_in_a_process_of_its_own(yard: Yard) -> None:
    worker = yard.start()
    for count in (1, 2, 3):
        yard.bell.ring()
        yard.until(lambda count=count: yard.answered() == count)
    pids = {int(pid) for pid in yard.redis.lrange(f"{yard.name}:answered", 0, -1)}
    assert len(pids) == 3
    assert worker.pid not in pids


def test_no_more_bells_than_workers_are_ever_out(yard: Yard) -> None:
    assert [yard.bell.ring(), yard.bell.ring()] == [1, 0]
    assert yard.bell.bells_out() == 1
    yard.redis.sadd(f"rq:workers:{yard.name}", "a", "b", "c")
    assert yard.bell.ring(10) == 2
    assert yard.bell.bells_out() == 3
    assert yard.bell.ring(10) == 0


def test_a_bell_waits_for_the_first_worker(yard: Yard) -> None:
    yard.bell.ring()
    yard.start()
    yard.until(lambda: yard.answered() == 1)


def canary(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "CANARY"
    return path, f"touch {shlex.quote(str(path))}"


class Trap:
    """Unpickling it runs a command: what a pickle blob in Redis would do."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def hostile_jobs(command: str) -> dict[str, dict[str, Any]]:
    call = json.dumps(["os.system", None, [command], {}]).encode()
    trap = pickle.dumps(Trap(command))
    bell = bell_data()
    return {
        "json": {"data": call},
        "json_compressed": {"data": zlib.compress(call)},
        "pickle": {"data": trap},
        "pickle_compressed": {"data": zlib.compress(trap)},
        "pickled_call": {"data": zlib.compress(pickle.dumps(("os.system", None, (command,), {})))},
        "instance": {"data": json.dumps(["system", "os", [command], {}]).encode()},
        "bell_with_arguments": {"data": json.dumps(["worker.job.answer_bell", None, [command], {}]).encode()},
        "pickled_meta": {"data": bell, "meta": trap},
        "pickled_result": {"data": bell, "result": trap},
        "callbacks": {
            "data": bell,
            "success_callback_name": "os.system",
            "failure_callback_name": "os.system",
            "stopped_callback_name": "os.system",
        },
        "repeats_and_retries": {"data": bell, "repeats_left": 5, "retries_left": 5, "repeat_intervals": "[0]"},
        "not_a_job": {"hello": "world"},
        "broken_numbers": {"data": bell, "timeout": "soon", "retries_left": "x"},
        "broken_date": {"data": bell, "created_at": "never"},
        "broken_text": {"data": b"\xff\xfe", "origin": b"\xff\xfe", "worker_name": b"\xff"},
        "unknown_status": {"data": bell, "status": "odd"},
    }


@pytest.mark.parametrize("kind", sorted(hostile_jobs("")))
def test_nothing_but_a_bell_ever_runs(yard: Yard, tmp_path: Path, kind: str) -> None:
    """T23: whatever is pushed, no command runs, and the worker goes on answering bells."""
    path, command = canary(tmp_path)
    job_id = yard.push(**hostile_jobs(command)[kind])
    worker = yard.start()
    yard.until(lambda: not yard.redis.exists(f"rq:queue:{yard.name}"))
    before = yard.answered()
    yard.bell.ring()
    yard.until(lambda: yard.answered() > before)
    yard.until(lambda: not yard.redis.exists(f"rq:job:{job_id}"))
    assert worker.poll() is None
    assert not path.exists()
    assert yard.answered() <= 2


@pytest.mark.parametrize("name", ["../../etc", "x" * 300, "", "\N{SNOWMAN}", pickle.dumps(print), b"\xff"])
def test_an_id_that_is_none_does_not_stop_the_worker(yard: Yard, name: str | bytes) -> None:
    yard.redis.rpush(f"rq:queue:{yard.name}", name)
    yard.redis.rpush(f"rq:queue:{yard.name}", "string-key")
    yard.redis.set("rq:job:string-key", "not a hash")
    worker = yard.start()
    yard.until(lambda: not yard.redis.exists(f"rq:queue:{yard.name}"))
    yard.bell.ring()
    yard.until(lambda: yard.answered() == 1)
    assert worker.poll() is None


@pytest.mark.parametrize("key", ["rq:queue:{}:intermediate", "rq:wip:{}", "rq:failed:{}", "rq:groups"])
def test_a_name_that_is_no_text_does_not_stop_maintenance(yard: Yard, key: str) -> None:
    """A worker tidies RQ's registries before its first bell."""
    key, name = key.format(yard.name), pickle.dumps(print)
    if key == "rq:groups":
        yard.redis.sadd(key, name)
    elif key.endswith(":intermediate"):
        yard.redis.rpush(key, name)
    else:
        yard.redis.zadd(key, {name: 1})
    worker = yard.start()
    yard.bell.ring()
    yard.until(lambda: yard.answered() == 1)
    assert worker.poll() is None


def test_maintenance_unpickles_nothing(yard: Yard, tmp_path: Path) -> None:
    """RQ's maintenance fetches the jobs in its registries and of lost workers."""
    path, command = canary(tmp_path)
    trap = pickle.dumps(Trap(command))
    for key in ("wip", "failed", "deferred", "finished"):
        job_id = f"trap-{key}"
        yard.redis.hset(f"rq:job:{job_id}", mapping={"data": trap, "meta": trap, "status": "started"})
        yard.redis.zadd(f"rq:{key}:{yard.name}", {job_id: 1})
        yard.redis.sadd("rq:group:trap", job_id)
    yard.redis.sadd("rq:groups", "trap")
    yard.redis.rpush(f"rq:queue:{yard.name}:intermediate", "trap-wip")
    yard.start()
    yard.bell.ring()
    yard.until(lambda: yard.answered() == 1)
    yard.until(lambda: not yard.redis.exists("rq:job:trap-wip"))
    assert not path.exists()


def test_a_remote_command_does_nothing(yard: Yard) -> None:
    yard.redis.set(f"{yard.name}:slow", 1)
    worker = yard.start()
    yard.bell.ring()
    yard.until(lambda: yard.redis.llen(f"{yard.name}:working") == 1)
    name = next(yard.redis.sscan_iter(f"rq:workers:{yard.name}")).decode().split(":")[2]
    assert yard.redis.publish(f"rq:pubsub:{name}", '{"command": "shutdown"}') == 0
    assert worker.poll() is None


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_child_dies_with_its_worker(yard: Yard) -> None:
    yard.redis.set(f"{yard.name}:slow", 1)
    worker = yard.start()
    yard.bell.ring()
    yard.until(lambda: yard.redis.llen(f"{yard.name}:working") == 1)
    child = int(yard.redis.lindex(f"{yard.name}:working", 0))
    assert alive(child)
    worker.kill()
    worker.wait(5)
    yard.until(lambda: not alive(child), 5)
    assert yard.redis.llen(f"{yard.name}:told") == 0


def test_a_worker_told_to_end_tells_its_child(yard: Yard) -> None:
    yard.redis.set(f"{yard.name}:slow", 1)
    worker = yard.start()
    yard.bell.ring()
    yard.until(lambda: yard.redis.llen(f"{yard.name}:working") == 1)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert yard.redis.lrange(f"{yard.name}:told", 0, -1) == [b"SIGTERM"]


def test_an_idle_worker_ends_at_once(yard: Yard) -> None:
    worker = yard.start()
    time.sleep(0.3)  # let it reach its blocking read
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(5) == 0


def test_a_worker_outlives_a_restart_of_redis(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="py-q-") as name:
        folder = Path(name) / "r"
        server = EmbeddedRedis(folder).start()
        yard = Yard(server.url, tmp_path / "worker.log")
        try:
            worker = yard.start()
            server.stop()
            with pytest.raises(Unavailable):
                yard.bell.ring()
            server.start()
            assert worker.poll() is None
            yard.bell.ring()
            yard.until(lambda: yard.answered() == 1)
        finally:
            for process in yard.processes:
                process.kill()
                process.wait()
            server.stop()


def test_a_run_outlives_a_redis_that_is_away(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="py-q-") as name:
        server = EmbeddedRedis(Path(name) / "r").start()
        yard = Yard(server.url, tmp_path / "worker.log")
        try:
            yard.redis.set(f"{yard.name}:slow", 1)
            worker = yard.start()
            yard.bell.ring()
            yard.until(lambda: yard.redis.llen(f"{yard.name}:working") == 1)
            child = int(yard.redis.lindex(f"{yard.name}:working", 0))
            server.stop()
            time.sleep(6)  # past the worker's next heartbeat
            server.start()
            assert worker.poll() is None
            assert alive(child)
        finally:
            for process in yard.processes:
                process.kill()
                process.wait()
            server.stop()


def test_without_redis_a_ring_fails_soon(tmp_path: Path) -> None:
    began = time.monotonic()
    bell = Doorbell(f"unix://{tmp_path}/none.sock")
    for call in (bell.ring, bell.bells_out):
        with pytest.raises(Unavailable) as refused:
            call()
        assert (refused.value.code, refused.value.status, refused.value.retry_after_s) == ("store_unavailable", 503, 5)
    assert time.monotonic() - began < 2


def test_a_ring_that_redis_has_no_memory_for_is_unavailable(tmp_path: Path) -> None:
    """Not a defect: the task is stored, and the sweeper rings when there is room again."""
    with EmbeddedRedis(tmp_path / "r") as server, redis.Redis.from_url(server.url) as raw:
        bell = Doorbell(server.url)
        raw.config_set("maxmemory", "1")
        with pytest.raises(Unavailable) as refused:
            bell.ring()
        assert (refused.value.code, refused.value.retry_after_s) == ("store_unavailable", 5)
        assert bell.bells_out() == 0
        raw.config_set("maxmemory", "0")
        assert bell.ring() == 1
        bell.close()


def test_the_payload_is_what_rq_makes_of_a_bell(yard: Yard) -> None:
    yard.bell.ring()
    job_id = yard.redis.lindex(f"rq:queue:{yard.name}", 0).decode()
    assert zlib.decompress(yard.redis.hget(f"rq:job:{job_id}", "data")) == zlib.decompress(bell_data())
    assert yard.redis.hget(f"rq:job:{job_id}", "timeout") == b"-1"


def test_a_worker_name_is_never_used_twice_at_once(yard: Yard) -> None:
    first = DoorbellWorker.over(yard.url, name=f"twin{yard.name}", queue=yard.name)
    first.register_birth()
    with pytest.raises(ValueError, match="active worker"):
        DoorbellWorker.over(yard.url, name=f"twin{yard.name}", queue=yard.name).register_birth()


def test_the_trap_would_work(tmp_path: Path) -> None:
    """The tests above prove something only if unpickling the trap does leave the canary."""
    path, command = canary(tmp_path)
    pickle.loads(pickle.dumps(Trap(command)))
    assert path.exists()
