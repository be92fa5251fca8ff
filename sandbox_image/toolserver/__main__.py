"""Entry of the tool server: `boot.py [WORKSPACE HOME TMP SKILLS]`.

In a box it is PID 1 and the folders are the usual ones.
"""

from __future__ import annotations

import os
import sys

from sandbox_image.toolserver.operations import Operations
from sandbox_image.toolserver.paths import WORKSPACE, Paths
from sandbox_image.toolserver.processes import Children, ChildSignal, adopt_orphans, ignore_signals, set_dumpable
from sandbox_image.toolserver.server import Server

_NAMES = (WORKSPACE, b"/home/agent", b"/tmp", b"/opt/patchyard/skills")
"""The last one is part of the image: root's, on a file system that is read-only."""


def main() -> None:
    """Serves until the box's end, then ends everything it started."""
    set_dumpable(False)
    ignore_signals()
    if os.getpid() != 1:
        adopt_orphans()
    os.umask(0o022)
    source, sink = _take_protocol_pipes()
    os.chdir("/")
    folders = [os.fsencode(folder) for folder in sys.argv[1:5]] or list(_NAMES)
    paths = Paths(list(zip(_NAMES, folders, strict=True)))
    child_signal = ChildSignal()
    children = Children(child_signal)
    operations = Operations(paths, children, (source, sink))
    try:
        Server(source, sink, operations, children, child_signal).run()
    finally:
        operations.backgrounds.kill_all()
    os._exit(0)  # nothing is left to tidy, and a pipe nobody reads cannot hold us


def _take_protocol_pipes() -> tuple[int, int]:
    """Moves stdin and stdout out of every child's reach and leaves /dev/null in their place.

    As PID 1 also stderr: nobody reads it there, and an unread pipe would stop us.
    """
    source, sink = os.dup(0), os.dup(1)  # dup makes them close-on-exec
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2) if os.getpid() == 1 else (0, 1):
        os.dup2(null, fd)
    os.close(null)
    return source, sink


if __name__ == "__main__":
    main()
