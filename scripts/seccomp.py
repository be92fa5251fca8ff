"""Writes sandbox_image/seccomp.json: which system calls a sandbox may make, and with which arguments.

An allow list: what is not named fails with EPERM (calls newer than the list with ENOSYS, by runc). Rules for
one call are OR-ed, so a call with a filter must not stand in the plain list as well: there the filter would do
nothing. x86-64 only; calls of the i386 and x32 ABIs kill the caller.

Run `.venv/bin/python scripts/seccomp.py` after a change; tests/unit/test_seccomp.py compares.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "sandbox_image" / "seccomp.json"

ENOSYS = 38
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS|NEWCGROUP|NEWUTS|NEWIPC|NEWUSER|NEWPID|NEWNET
PRIO_PROCESS = 0
IOPRIO_WHO_PROCESS = 1
PERSONALITIES = (0, 0xFFFFFFFF)  # PER_LINUX, and asking which one it is

PLAIN = """
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown clock_getres clock_gettime
clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64
fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork
fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_waitv futimesat get_robust_list get_thread_area
getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid
getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid
gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
io_getevents io_pgetevents io_setup io_submit ioctl ioprio_get kill landlock_add_rule landlock_create_ruleset
landlock_restrict_self lchown lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat
madvise membarrier memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mmap mprotect mq_getsetattr mq_notify
mq_open mq_timedreceive mq_timedsend mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free
pkey_mprotect poll ppoll prctl pread64 preadv preadv2 process_mrelease pselect6 pwrite64 pwritev pwritev2 read
readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2
restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
sched_getparam sched_getscheduler sched_rr_get_interval sched_yield seccomp select semctl semget semop semtimedop
sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups
setitimer setpgid setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl shmdt
shmget shutdown sigaltstack signalfd signalfd4 splice stat statfs statx symlink symlinkat sync sync_file_range syncfs
sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork wait4
waitid write writev
""".split()  # noqa: SIM905 - a block of words is the readable form

OWN_PROCESS_ONLY = ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
"""Their first argument is a pid. PID 1 has the same uid as the tools, which could otherwise starve it."""

IP_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
"""Sockets work on loopback; SMC, SCTP, MPTCP and the like are only attack surface."""


def equals(*values: int | None) -> list[dict[str, Any]]:
    """A filter: the argument at each position has that value; None leaves it free."""
    return [
        {"index": index, "value": value, "op": "SCMP_CMP_EQ"} for index, value in enumerate(values) if value is not None
    ]


def allow(name: str, *values: int | None) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": equals(*values)}


def profile() -> dict[str, Any]:
    no_namespace = [{"index": 0, "value": NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}],
        "syscalls": [
            {"names": PLAIN, "action": "SCMP_ACT_ALLOW"},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": no_namespace},
            # Its flags lie behind a pointer, out of a filter's sight; with ENOSYS the C library falls back to clone.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
            {"names": ["io_uring_setup"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
            *(allow("personality", value) for value in PERSONALITIES),
            *(allow(name, 0) for name in OWN_PROCESS_ONLY),
            allow("setpriority", PRIO_PROCESS, 0),
            allow("ioprio_set", IOPRIO_WHO_PROCESS, 0),
            allow("socket", socket.AF_UNIX),
            *(allow("socket", family, None, ip) for family in (socket.AF_INET, socket.AF_INET6) for ip in IP_PROTOCOLS),
            # NETLINK_ROUTE is how Node and Python list interfaces.
            allow("socket", socket.AF_NETLINK, None, 0),
            allow("socketpair", socket.AF_UNIX),
        ],
    }


def text() -> str:
    return json.dumps(profile(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
