"""Real boxes on a real engine: their options as the engine reports them, and what is left of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import docker
import pytest
from launch_contract import broken_promises
from sandbox_kit import image_of

from service.errors import SandboxError
from worker.sandbox.base import BoxSpec, ExecResult, Sandbox
from worker.sandbox.docker import DockerProvider, container_name, engine_health
from worker.sandbox.reaper import reap

pytestmark = pytest.mark.docker


def spec(image: str, **changes: Any) -> BoxSpec:
    values: dict[str, Any] = {
        "task": f"task_{uuid.uuid4().hex}", "run": 1, "image": image, "cpus": 1.5, "memory_mb": 512, "disk_mb": 256,
        "pids": 128,
    }  # fmt: skip
    return BoxSpec(**{**values, **changes})


def run(box: Sandbox, command: str) -> tuple[ExecResult, str]:
    output = b""
    call = box.exec(command, timeout_s=30)
    while True:
        try:
            output += next(call)
        except StopIteration as stop:
            return stop.value, output.decode()


@pytest.fixture
def opened(docker_provider: DockerProvider, sandbox_image: str) -> Iterator[tuple[BoxSpec, Sandbox]]:
    asked = spec(sandbox_image)
    box = docker_provider.open(asked)
    try:
        box.claim(asked.task, deadline_s=120)
        yield asked, box
    finally:
        box.close()


def test_t04_the_engine_reports_every_option(
    engine: docker.APIClient, opened: tuple[BoxSpec, Sandbox], deployment: str
) -> None:
    asked, _ = opened
    found = engine.inspect_container(container_name(asked))
    config, host = found["Config"], found["HostConfig"]
    assert found["State"]["Running"] is True
    assert (found["Path"], found["Args"]) == ("/usr/bin/python3", ["-I", "-S", "-B", "/opt/patchyard/boot.py"])
    assert {key: config[key] for key in ("WorkingDir", "Hostname", "StopSignal", "Tty", "OpenStdin", "StdinOnce")} == {
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "StopSignal": "SIGKILL",
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": False,
    }
    assert {key: value for key, value in config["Labels"].items() if key.startswith("patchyard.")} == {
        "patchyard.deployment": deployment,
        "patchyard.task": asked.task,
        "patchyard.run": "1",
        "patchyard.purpose": "task",
    }
    assert broken_promises(found) == []
    assert {key: host[key] for key in ("PidsLimit", "Memory", "MemorySwap", "NanoCpus", "Runtime")} == {
        "PidsLimit": 128,
        "Memory": 768 << 20,
        "MemorySwap": 768 << 20,
        "NanoCpus": 1_500_000_000,
        "Runtime": "runc",
    }
    assert {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]} == {
        "nofile": (16_384, 16_384),
        "core": (0, 0),
        "fsize": (256 << 20, 256 << 20),
    }
    assert set(host["Tmpfs"]) == {"/workspace", "/home/agent", "/tmp"}
    assert host["Tmpfs"]["/workspace"].startswith(f"rw,exec,nosuid,nodev,size={192 << 20},nr_inodes=200000,")
    no_new, seccomp = host["SecurityOpt"]
    assert no_new == "no-new-privileges"
    assert json.loads(seccomp.removeprefix("seccomp="))["defaultErrnoRet"] == 1


def test_the_process_is_confined_as_asked(opened: tuple[BoxSpec, Sandbox]) -> None:
    _, box = opened
    result, output = run(
        box,
        "id -u; id -g; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; "
        "df --output=target,size -B1 /workspace /tmp /home/agent /dev/shm | tail -n +2 | tr -s ' '; "
        "touch /x 2>&1; hostname 2>/dev/null || cat /etc/hostname",
    )
    assert result.exit_code == 0
    assert output.split("\n") == [
        "10001",
        "10001",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        f"/workspace {192 << 20}",
        f"/tmp {32 << 20}",
        f"/home/agent {32 << 20}",
        f"/dev/shm {16 << 20}",
        "touch: cannot touch '/x': Read-only file system",
        "sandbox",
        "",
    ]


def test_there_is_no_network_but_loopback_and_lookups_fail_at_once(opened: tuple[BoxSpec, Sandbox]) -> None:
    _, box = opened
    result, output = run(
        box,
        "ls /sys/class/net; cat /etc/resolv.conf; getent hosts sandbox; getent hosts example.com; echo $?; "
        "curl -sS -m 5 http://172.17.0.1/ 2>&1 | cut -c1-20; "
        'python3 -c \'import socket; s = socket.create_server(("127.0.0.1", 0)); '
        'socket.create_connection(s.getsockname()); print("loopback")\'',
    )
    assert output.split("\n") == [
        "lo",
        "nameserver 127.0.0.1",
        "127.0.0.1       sandbox",
        "2",
        "curl: (7) Failed to ",
        "loopback",
        "",
    ]
    assert result.duration_ms < 3_000


def test_nothing_is_left_after_close(
    engine: docker.APIClient, docker_provider: DockerProvider, sandbox_image: str
) -> None:
    asked = spec(sandbox_image)
    box = docker_provider.open(asked)
    box.close()
    box.close()
    assert engine.containers(all=True, filters={"label": f"patchyard.task={asked.task}"}) == []


def test_closing_a_box_that_somebody_removed_is_fine(
    engine: docker.APIClient, docker_provider: DockerProvider, sandbox_image: str
) -> None:
    asked = spec(sandbox_image)
    box = docker_provider.open(asked)
    engine.remove_container(container_name(asked), force=True)
    box.close()


def test_a_box_with_a_taken_name_is_refused_and_the_first_lives_on(
    docker_provider: DockerProvider, opened: tuple[BoxSpec, Sandbox]
) -> None:
    asked, box = opened
    with pytest.raises(SandboxError, match="the Docker engine refused"):
        docker_provider.open(asked)
    assert run(box, "echo alive")[1] == "alive\n"


def test_what_an_image_sets_does_not_reach_the_process(
    engine: docker.APIClient, docker_provider: DockerProvider, sandbox_image: str, deployment: str
) -> None:
    hostile = (
        f"FROM {sandbox_image}",
        "ENV LD_PRELOAD=/tmp/x.so PYTHONPATH=/tmp A=1",
        "USER root",
        "WORKDIR /root",
        'ENTRYPOINT ["/bin/false"]',
        'CMD ["--help"]',
        "STOPSIGNAL SIGUSR1",
        "HEALTHCHECK CMD true",
        "LABEL patchyard.deployment=another",
    )
    with image_of(engine, f"{deployment}:hostile", *hostile) as image:
        asked = spec(image)
        box = docker_provider.open(asked)
        try:
            box.claim(asked.task, deadline_s=60)
            result, output = run(box, "id -u; env | grep -E '^(LD_PRELOAD|PYTHONPATH|A)=' | wc -l")
            found = engine.inspect_container(container_name(asked))
        finally:
            box.close()
    assert (result.exit_code, output) == (0, "10001\n0\n")
    assert {"LD_PRELOAD", "PYTHONPATH", "A"} <= set(found["Config"]["Env"])
    assert found["Config"]["Labels"]["patchyard.deployment"] == deployment
    assert found["Config"]["Cmd"] in (None, [])
    assert "Health" not in found["State"]


def test_an_image_that_declares_a_volume_is_refused_before_anything_is_made(
    engine: docker.APIClient, docker_provider: DockerProvider, sandbox_image: str, deployment: str
) -> None:
    with image_of(engine, f"{deployment}:volume", f"FROM {sandbox_image}", "VOLUME /opt/patchyard") as image:
        asked = spec(image)
        with pytest.raises(SandboxError, match=r"declares volumes \(/opt/patchyard\)") as caught:
            docker_provider.open(asked)
        assert caught.value.retryable is False
        assert engine.containers(all=True, filters={"label": f"patchyard.task={asked.task}"}) == []


def test_a_box_whose_server_never_speaks_is_removed(
    engine: docker.APIClient, docker_provider: DockerProvider, sandbox_image: str, deployment: str
) -> None:
    dumb = (f"FROM {sandbox_image}", "USER root", "RUN rm /opt/patchyard/boot.py")
    with image_of(engine, f"{deployment}:dumb", *dumb) as image:
        asked = spec(image)
        with pytest.raises(SandboxError):
            docker_provider.open(asked)
        assert engine.containers(all=True, filters={"label": f"patchyard.task={asked.task}"}) == []


def test_an_unknown_image_says_so(docker_provider: DockerProvider) -> None:
    with pytest.raises(SandboxError, match="no such image"):
        docker_provider.open(spec("patchyard-nowhere:1"))


def test_the_reaper_removes_what_a_killed_worker_left(
    engine: docker.APIClient, engine_url: str, sandbox_image: str, deployment: str
) -> None:
    """Own deployment label: boxes of tests that run beside this one must not be seen."""
    name = f"{deployment}-reaper"
    provider = DockerProvider(url=engine_url, deployment=name)
    lost, held = spec(sandbox_image), spec(sandbox_image)
    boxes = [provider.open(lost), provider.open(held)]
    try:
        assert reap(engine, name, lambda task, run: task == held.task) == [container_name(lost)]
        left = engine.containers(all=True, filters={"label": f"patchyard.deployment={name}"})
        assert [container["Names"] for container in left] == [[f"/{container_name(held)}"]]
    finally:
        for box in boxes:
            box.close()
        provider.close()


def test_health_names_what_is_missing(engine_url: str, sandbox_image: str) -> None:
    def health(url: str = engine_url, runtime: str = "runc", image: str = sandbox_image) -> tuple[bool, str]:
        found = engine_health(url, runtime=runtime, image=image)
        return found.ok, found.engine

    assert health()[0] is True
    assert health()[1].startswith("Docker ")
    assert health(runtime="runq") == (False, "the Docker engine has no runtime 'runq'")
    assert health(image="patchyard-nowhere:1") == (
        False,
        "looking for patchyard-nowhere:1: the engine has no such image; build or load it first",
    )
