"""Runs inside a box: tries kernel calls a tool has no business with, and prints one JSON object of outcomes.

Every attempt runs in a child of its own, because some would end or change the caller. An outcome is `ok`, the
name of an error, or `killed`. System calls go by their x86-64 numbers, so that no library is asked for leave.
"""

# ruff: noqa: PTH102, PTH108, PTH208

import ctypes
import errno
import json
import os
import socket
import stat

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
NEW_USER, NEW_NS, NEW_NET, SIGCHLD = 0x10000000, 0x20000, 0x40000000, 17


def call(number, *arguments):
    """A system call as is; raises OSError."""
    words = [arg if isinstance(arg, bytes) else ctypes.c_long(arg) for arg in arguments]
    if LIBC.syscall(ctypes.c_long(number), *words) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def clone_user():
    pid = LIBC.syscall(ctypes.c_long(56), ctypes.c_long(NEW_USER | SIGCHLD), *[ctypes.c_long(0)] * 4)
    if pid == 0:
        os._exit(0)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")


def io_uring():
    call(425, 4, ctypes.cast(ctypes.create_string_buffer(256), ctypes.c_void_p).value)


def write(path, data=b"1"):
    os.write(os.open(path, os.O_WRONLY), data)


def read(path):
    if not os.read(os.open(path, os.O_RDONLY), 1):
        raise OSError(errno.ENODATA, "empty")


def make(path, kind, device=0):
    os.mknod(path, kind | 0o666, device)
    os.unlink(path)


def set_priority_of_others():
    os.setpriority(os.PRIO_USER, 0, 19)


def pair(family):
    call(53, family, 1, 0, ctypes.cast(ctypes.create_string_buffer(8), ctypes.c_void_p).value)


def limits_of(pid):
    import resource

    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))


ATTEMPTS = {
    "unshare user": lambda: call(272, NEW_USER),
    "unshare mount": lambda: call(272, NEW_NS),
    "unshare net": lambda: call(272, NEW_NET),
    "clone user": clone_user,
    "clone3": lambda: call(435, 0, 0),
    "setns": lambda: call(308, os.open("/proc/self/ns/net", os.O_RDONLY), 0),
    "mount": lambda: call(165, b"none", b"/tmp", b"tmpfs", 0, 0),
    "umount": lambda: call(166, b"/tmp", 0),
    "fsopen": lambda: call(430, b"tmpfs", 0),
    "open_tree": lambda: call(428, -100, b"/", 0),
    "move_mount": lambda: call(429, 0, 0, 0, 0, 0),
    "mount_setattr": lambda: call(442, -100, b"/", 0, 0, 0),
    "pivot_root": lambda: call(155, b"/tmp", b"/tmp"),
    "chroot": lambda: call(161, b"/tmp"),
    "ptrace traceme": lambda: call(101, 0, 0, 0, 0),
    "ptrace seize 1": lambda: call(101, 0x4206, 1, 0, 0),
    "process_vm_readv": lambda: call(310, 1, 0, 0, 0, 0, 0),
    "pidfd_getfd": lambda: call(438, 0, 0, 0),
    "kcmp": lambda: call(312, 1, 1, 0, 0, 0),
    "keyctl": lambda: call(250, 0, -3, 0, 0, 0),
    "add_key": lambda: call(248, b"user", b"x", b"y", 1, -2),
    "request_key": lambda: call(249, b"user", b"x", 0, 0),
    "bpf": lambda: call(321, 0, 0, 0),
    "perf_event_open": lambda: call(298, 0, 0, -1, -1, 0),
    "io_uring_setup": io_uring,
    "io_uring_enter": lambda: call(426, 0, 0, 0, 0, 0, 0),
    "userfaultfd": lambda: call(323, 1),
    "memfd_secret": lambda: call(447, 0),
    "personality": lambda: call(135, 0x40000),
    "open_by_handle_at": lambda: call(304, -100, 0, 0),
    "name_to_handle_at": lambda: call(303, -100, b"/", 0, 0, 0),
    "kexec_load": lambda: call(246, 0, 0, 0, 0),
    "init_module": lambda: call(175, 0, 0, 0),
    "finit_module": lambda: call(313, -1, 0, 0),
    "syslog": lambda: call(103, 10, 0, 0),
    "acct": lambda: call(163, 0),
    "swapon": lambda: call(167, 0, 0),
    "iopl": lambda: call(172, 3),
    "ioperm": lambda: call(173, 0x80, 1, 1),
    "modify_ldt": lambda: call(154, 0, 0, 0),
    "clock_settime": lambda: call(227, 0, 0),
    "sethostname": lambda: call(170, b"x", 1),
    "quotactl": lambda: call(179, 0, 0, 0, 0),
    "fanotify_init": lambda: call(300, 0, 0),
    "vmsplice": lambda: call(278, -1, 0, 0, 0),
    "a call of the future": lambda: call(600),
    "prlimit of 1": lambda: limits_of(1),
    "setaffinity of 1": lambda: os.sched_setaffinity(1, {0}),
    "setscheduler of 1": lambda: os.sched_setscheduler(1, os.SCHED_BATCH, os.sched_param(0)),
    "setparam of 1": lambda: os.sched_setparam(1, os.sched_param(0)),
    "sched_setattr of 1": lambda: call(314, 1, 0, 0),
    "renice 1": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    "renice the user": set_priority_of_others,
    "ionice 1": lambda: call(251, 1, 1, 3 << 13),
    "ionice the user": lambda: call(251, 3, 0, 3 << 13),
    "own limits": lambda: limits_of(0),
    "own nice": lambda: os.nice(1),
    "own affinity": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "socket inet": lambda: socket.socket(socket.AF_INET),
    "socket inet6 udp": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "socket unix": lambda: socket.socket(socket.AF_UNIX),
    "socket netlink route": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "socket netlink netfilter": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12),
    "socket raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "socket sctp": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132),
    "socket packet": lambda: socket.socket(17, socket.SOCK_RAW, 3),
    "socket alg": lambda: socket.socket(38, socket.SOCK_SEQPACKET, 0),
    "socket vsock": lambda: socket.socket(40, socket.SOCK_STREAM, 0),
    "socket xdp": lambda: socket.socket(44, socket.SOCK_RAW, 0),
    "socket tipc": lambda: socket.socket(30, socket.SOCK_STREAM, 0),
    "socketpair unix": lambda: pair(1),
    "socketpair tipc": lambda: pair(30),
    "write core_pattern": lambda: write("/proc/sys/kernel/core_pattern"),
    "write memory limit": lambda: write("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "write oom_score_adj of 1": lambda: write("/proc/1/oom_score_adj", b"1000"),
    "lower own oom_score_adj": lambda: write("/proc/self/oom_score_adj", b"-500"),
    "write memory of 1": lambda: write("/proc/1/mem"),
    "write stdout of 1": lambda: write("/proc/1/fd/1"),
    "read environ of 1": lambda: read("/proc/1/environ"),
    "read memory map of 1": lambda: read("/proc/1/maps"),
    "list descriptors of 1": lambda: os.listdir("/proc/1/fd"),
    "read kcore": lambda: read("/proc/kcore"),
    "read shadow": lambda: read("/etc/shadow"),
    "write the tool server": lambda: write("/opt/patchyard/boot.py"),
    "device": lambda: make("/workspace/.probe", stat.S_IFCHR, os.makedev(1, 3)),
    "block device": lambda: make("/workspace/.probe", stat.S_IFBLK, os.makedev(254, 0)),
    "fifo": lambda: make("/workspace/.probe", stat.S_IFIFO),
    "chown": lambda: os.chown("/workspace", 0, 0),
    "write /etc": lambda: write("/etc/hosts"),
    "make in /": lambda: os.mkdir("/probe"),
}


def outcome(attempt):
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
            word = "ok"
        except OSError as error:
            word = errno.errorcode.get(error.errno, str(error.errno))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the outcome
            word = type(error).__name__
        os.write(writable, word.encode())
        os._exit(0)
    os.close(writable)
    word = os.read(readable, 100).decode()
    os.close(readable)
    os.waitpid(child, 0)
    return word or "killed"


print(json.dumps({name: outcome(attempt) for name, attempt in ATTEMPTS.items()}))
