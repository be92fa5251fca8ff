"""A child process that never outlives its parent. Linux only, like the service."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded here: nothing may be imported between fork and exec


def die_with_parent(parent: int, sign: signal.Signals = signal.SIGTERM) -> None:
    """Called in a child: the kernel sends `sign` when the parent's *thread* that forked it ends.

    `parent` is the pid that forked; a parent that died before this call is noticed too.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, int(sign), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), sign)
