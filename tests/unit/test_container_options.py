"""The whole policy for a container, as exact values: whoever changes one changes it here too, on purpose."""

from __future__ import annotations

import json

from worker.sandbox.base import BoxSpec
from worker.sandbox.docker import container_name, container_options

SPEC = BoxSpec(task="task_01", run=2, image="img:1", cpus=1.5, memory_mb=1024, disk_mb=512, pids=200)
OPTIONS = container_options(
    SPEC, image_id="sha256:abc", image_env=("LD_PRELOAD", "PATH"), deployment="team-a", runtime="runc"
)
HOST = OPTIONS["HostConfig"]


def test_the_image_decides_nothing_about_the_process() -> None:
    assert {key: value for key, value in OPTIONS.items() if key not in ("HostConfig", "Labels")} == {
        "Image": "sha256:abc",
        "Entrypoint": ["/usr/bin/python3", "-I", "-S", "-B", "/opt/patchyard/boot.py"],
        "Cmd": [],
        "WorkingDir": "/",
        "User": "10001:10001",
        "Env": ["LD_PRELOAD", "PATH"],
        "Hostname": "sandbox",
        "Domainname": "",
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": False,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": False,
    }


def test_every_container_says_whose_it_is() -> None:
    assert OPTIONS["Labels"] == {
        "patchyard.deployment": "team-a",
        "patchyard.task": "task_01",
        "patchyard.run": "2",
        "patchyard.purpose": "task",
    }
    assert container_name(SPEC) == "patchyard-task_01-2"
    export = BoxSpec(task="task_01", run=2, image="i", cpus=1, memory_mb=1, disk_mb=1, pids=1, purpose="export")
    assert container_name(export) == "patchyard-task_01-2-export"


def test_the_host_side_is_closed() -> None:
    assert {key: value for key, value in HOST.items() if key not in ("SecurityOpt", "Tmpfs", "Ulimits")} == {
        "NetworkMode": "none",
        "ExtraHosts": ["sandbox:127.0.0.1"],
        "Dns": ["127.0.0.1"],
        "DnsSearch": ["."],
        "ReadonlyRootfs": True,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "Privileged": False,
        "PidsLimit": 200,
        "Memory": 1536 << 20,
        "MemorySwap": 1536 << 20,
        "OomKillDisable": False,
        "NanoCpus": 1_500_000_000,
        "Binds": [],
        "Devices": [],
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "ShmSize": 16 << 20,
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
        "PublishAllPorts": False,
        "Init": False,
        "Runtime": "runc",
    }


def test_the_disk_is_three_sized_tmpfs_mounts() -> None:
    assert HOST["Tmpfs"] == {
        "/workspace": "rw,exec,nosuid,nodev,size=402653184,nr_inodes=200000,mode=0755,uid=10001,gid=10001",
        "/home/agent": "rw,exec,nosuid,nodev,size=67108864,nr_inodes=20000,mode=0755,uid=10001,gid=10001",
        "/tmp": "rw,exec,nosuid,nodev,size=67108864,nr_inodes=20000,mode=1777",
    }


def test_process_limits() -> None:
    assert HOST["Ulimits"] == [
        {"Name": "nofile", "Soft": 16384, "Hard": 16384},
        {"Name": "core", "Soft": 0, "Hard": 0},
        {"Name": "fsize", "Soft": 512 << 20, "Hard": 512 << 20},
    ]


def test_no_new_privileges_and_our_seccomp_profile_by_value() -> None:
    no_new, seccomp = HOST["SecurityOpt"]
    assert no_new == "no-new-privileges"
    assert seccomp.startswith("seccomp={")
    assert json.loads(seccomp.removeprefix("seccomp="))["defaultAction"] == "SCMP_ACT_ERRNO"
