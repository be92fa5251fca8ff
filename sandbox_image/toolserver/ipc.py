"""What outlives processes: System V shared memory, semaphores and message queues, and POSIX message queues.

They belong to no process, so killing all of them leaves these; their memory counts against the box until it ends, and
with enough of it the kernel has nobody left to take but PID 1.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_IPC_RMID = 0
_QUEUES = "/dev/mqueue"


def remove_ipc() -> None:
    """Removes all of the box's; outside a box, where they are the machine's, nothing."""
    if os.getpid() != 1:
        return
    libc = ctypes.CDLL(None)
    for number in _numbers("shm"):
        libc.shmctl(number, _IPC_RMID, None)
    for number in _numbers("msg"):
        libc.msgctl(number, _IPC_RMID, None)
    for number in _numbers("sem"):
        libc.semctl(number, 0, _IPC_RMID)
    with suppress(OSError):
        for name in os.listdir(_QUEUES):
            os.unlink(f"{_QUEUES}/{name}")


def _numbers(kind: str) -> list[int]:
    """Identifiers of the System V objects of one kind: the second column, below a line of titles."""
    try:
        with open(f"/proc/sysvipc/{kind}", "rb") as table:
            return [int(row.split()[1]) for row in table.readlines()[1:]]
    except OSError:
        return []
