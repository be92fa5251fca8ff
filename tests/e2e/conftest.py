"""One running deployment for all end-to-end tests of a process, with every scripted model they need."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import Deployment

BUSY = {"command": "echo started > started.txt; sleep 60"}
TREE = (
    "printf 'two\\r\\n' > crlf.txt; printf '\\377\\000\\001' > bin.dat; chmod +x run.sh; ln -s ../etc/passwd out;"
    " ln -sf run.sh link; rm gone.txt; mkdir -p new/dir; : > new/dir/empty; printf 'no end' > 'a b\"c.txt';"
    " echo x >> run.sh"
)
SCRIPTS: dict[str, list[tuple[str, dict[str, object]]]] = {
    "tree": [("bash", {"command": TREE}), ("done", {"summary": "Made a tree."})],
    "busy": [("bash", BUSY), ("done", {"summary": "Slept."})],
    "nap": [("bash", {"command": "sleep 6; echo slept > nap.txt"}), ("done", {"summary": "Napped."})],
    "secret": [
        (
            "bash",
            {"command": 'echo "key=$TOKEN"; printf %s "$TOKEN" | base64; test "$TOKEN" = hunter2-hunter2 && echo same'},
        ),
        ("bash", {"command": "echo got > got.txt"}),
        ("done", {"summary": "Used hunter2-hunter2."}),
    ],
    "talk": [
        ("bash", {"command": "for i in $(seq 1 50); do echo $i; sleep 0.1; done; echo told > talk.txt"}),
        ("done", {"summary": "Talked."}),
    ],
    "answer": [],
    "dry": [
        ("bash", {"command": "echo x > x.txt; rm run.sh"}),
        ("write_file", {"path": "new.txt", "content": "new"}),
        ("edit_file", {"path": "gone.txt", "old": "bye", "new": "here"}),
        ("done", {"summary": "Would have changed three files."}),
    ],
    "long": [
        ("skill", {"name": "house"}),
        *(("bash", {"command": f"seq 1 4000 # {n} {'x' * 1_000}"}) for n in range(8)),
        ("done", {"summary": "Went on and on."}),
    ],
    "many": [("bash", {"command": "for i in $(seq 1 40); do echo $i > f$i.txt; done"}), ("done", {"summary": "Many."})],
    **{
        f"own{n}": [("bash", {"command": f"sleep 0.{n}; echo {n} > own.txt"}), ("done", {"summary": f"Wrote {n}."})]
        for n in range(10)
    },
}


@pytest.fixture(scope="session")
def app(sandbox_image: str, deployment: str) -> Iterator[Deployment]:
    """Three workers, real Redis, real engine; its containers bear a label of their own."""
    folder = Path(tempfile.mkdtemp(prefix="py-e2e-"))  # short: a socket path holds 107 bytes
    app = Deployment(folder, label=f"{deployment}-e2e", image=sandbox_image, workers=3)
    app.extra["PATCHYARD_MAX_PATCH_FILES"] = "30"
    for name, steps in SCRIPTS.items():
        app.script(name, steps, window=9_000 if name == "long" else 128_000)
    try:
        with app.running():
            yield app
        assert app.containers() == []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
