"""Patches out of hostile workspaces: T13 (git traps), T14 (escapes), T16 (random trees), A27, A28 and odd trees.

Plain folders stand in for the boxes where the walls are not the point; the containers' own round trips are in
tests/integration/test_export_boxes.py.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from export_kit import GIT_ENV, Bench, Tree, Upload, extract, shell, snapshot

from service.blobs import DiskBlobs
from service.contracts import PatchInfo, new_id
from service.errors import PatchTooLarge
from worker.export import export
from worker.sandbox.base import BoxSpec, Sandbox

if TYPE_CHECKING:
    from worker.sandbox.docker import DockerProvider


# --------------------------------------------------------------------------------------------------- T14

_ESCAPES = {
    "hook": ("mkdir -p .git/hooks; echo evil > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout", "dot_git"),
    "case": ("mkdir .GIT; echo evil > .GIT/config", "dot_git"),
    "nested": ("mkdir -p sub/.git; echo evil > sub/.git/config", "dot_git"),
    "trailing dot": ("mkdir .git.; echo evil > .git./config", "dot_git"),
    "trailing blank": ("mkdir '.git '; echo evil > '.git /config'", "dot_git"),
    "short name": ("mkdir GIT~1; echo evil > GIT~1/config", "dot_git"),
    "joiner": ("mkdir $'.g\\u200cit'; echo evil > $'.g\\u200cit/config'", "dot_git"),
    "stream": ("echo evil > '.git::$INDEX_ALLOCATION'", "dot_git"),
    "modules link": ("ln -s evil .gitmodules", "dot_git"),
    "absolute link": ("ln -s /etc/passwd l", "symlink"),
    "link out": ("mkdir d; ln -s ../../x d/l", "symlink"),
    "link to repository": ("ln -s .git/config l", "symlink"),
}


@pytest.mark.parametrize("name", _ESCAPES)
def test_t14_an_escape_stays_out_or_is_flagged(name: str, tmp_path: Path) -> None:
    script, kind = _ESCAPES[name]
    bench = Bench(tmp_path)
    box = bench.upload("echo a > a")
    shell(script + "; echo good > good", box.root)

    info = bench.export()
    patch = bench.patch(info)

    assert {flag.kind for flag in info.flags} == {kind}
    assert b"+good" in patch
    assert (b"evil" in patch, b"root:x:0:0" in patch) == (False, False)
    assert bench.applied(patch)[b"good"] == ("file", b"good\n")


def test_t14_a_submodule_is_plain_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    box = bench.upload("git init -q -b main .; echo a > a; git add a; git commit -qm a")
    shell("git init -q s; cd s; echo x > x; git add x; git commit -qm x; cd ..; git add s 2>/dev/null", box.root)

    patch = bench.patch(bench.export())

    assert (b"160000" in patch, b"Subproject" in patch) == (False, False)
    assert bench.applied(patch) == {b"a": ("file", b"a\n"), b"s/x": ("file", b"x\n")}


# --------------------------------------------------------------------------------------------------- T13

_TRAPS = """
git init -q .; git add -A; git commit -qm base
git config core.fsmonitor "touch $CANARY-fsmonitor"; git config filter.x.clean "touch $CANARY-clean; cat"
git config filter.x.smudge "touch $CANARY-smudge; cat"; git config filter.x.process "touch $CANARY-process"
git config diff.x.textconv "touch $CANARY-textconv; cat"; git config diff.external "touch $CANARY-external"
git config core.pager "touch $CANARY-pager"; git config core.hooksPath .git/hooks; git config core.worktree /
printf '[include]\\n\\tpath = ../evil.config\\n' >> .git/config
printf '[alias]\\n\\tapply = !touch %s-alias\\n' "$CANARY" > evil.config
echo '* filter=x diff=x' > .gitattributes; mkdir -p .git/info; cp .gitattributes .git/info/attributes
for h in pre-commit post-commit post-index-change post-checkout reference-transaction; do
  printf '#!/bin/sh\\ntouch %s-hook\\n' "$CANARY" > .git/hooks/$h; chmod +x .git/hooks/$h
done
"""


@pytest.mark.parametrize("place", [".", "nested/deeper"])
def test_t13_nothing_that_a_repository_plants_is_run(place: str, tmp_path: Path) -> None:
    canaries = tmp_path / "canaries"
    canaries.mkdir()
    bench = Bench(tmp_path / "bench")
    plant = f"echo a > a; mkdir -p {place}; cd {place}; echo x > x{_TRAPS}"
    box = bench.upload(lambda folder: shell(plant, folder, CANARY=str(canaries / "c")))
    for planted in canaries.iterdir():  # by the planting git itself
        planted.unlink()
    (box.root / place / "x").write_text("changed\n")
    (box.root / "a").write_text("changed\n")

    info = bench.export()

    assert list(canaries.iterdir()) == []
    assert info.reproduces_tree
    assert bench.applied(bench.patch(info)) == snapshot(box.root)


# --------------------------------------------------------------------------------------------------- T16

_BYTES = [
    b"",
    b"\n",
    b"a",
    b"text\n",
    b"a\r\nb\r\n",
    b"a\r\nb\nc\r",
    b"\0\xff" * 40,
    b"caf\xe9\n",
    b"$Id$\n",
    b"x" * 3_000,
]
_STEMS = [
    "a",
    "B",
    "caf\u00e9",
    "cafe\u0301",
    "b c",
    "\t",
    "-x",
    "q\"'",
    "\udcff",
    "\U0001f680",
    ".gitignored",
    "new\nline",
]


def _content(dice: random.Random) -> bytes:
    if dice.random() < 0.5:
        return dice.choice(_BYTES)
    lines = [b"line %d" % dice.randrange(30) for _ in range(dice.randrange(40))]
    return dice.choice([b"\n", b"\r\n"]).join(lines) + dice.choice([b"", b"\n"])


def _plant(root: Path, dice: random.Random, count: int) -> None:
    """Makes, edits, renames and removes at random below `root`."""
    for _ in range(count):
        folder = root
        for _ in range(dice.randrange(3)):
            if not (folder / "d").is_symlink() and ((folder / "d").is_dir() or not os.path.lexists(folder / "d")):
                folder = folder / "d"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / dice.choice([*_STEMS, "d"])
        present = os.path.lexists(target)
        if present and target.is_dir() and not target.is_symlink():
            if dice.random() < 0.3:
                subprocess.run(["rm", "-r", str(target)], check=True)
            continue
        action = dice.randrange(6)
        if present and action == 0:
            target.unlink()
        elif present and action == 1 and not os.path.lexists(folder / "moved"):
            target.rename(folder / "moved")
        elif action == 2:
            target.unlink(missing_ok=True)
            target.symlink_to(dice.choice(["a", "../x", "nowhere", "d", b"\xff".decode("utf-8", "surrogateescape")]))
        else:
            target.unlink(missing_ok=True)
            target.write_bytes(_content(dice))
            target.chmod(dice.choice([0o644, 0o755]))


def _attributes(root: Path, dice: random.Random) -> None:
    rules = ["* text=auto", "* eol=crlf", "* ident", "a -diff", "* working-tree-encoding=UTF-16", "* filter=lfs"]
    if dice.random() < 0.4 and not os.path.lexists(root / ".gitattributes"):
        (root / ".gitattributes").write_text("\n".join(dice.sample(rules, 2)) + "\n")


def _applied_to_index(upload: Upload, patch: bytes, folder: Path) -> Tree:
    """`git apply --index` in a repository of the upload whose own attributes are switched off."""
    folder.mkdir()
    extract(upload, folder)
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "init", "-q", "."], env=GIT_ENV, check=True)
    off = "* -text -ident -filter !eol !working-tree-encoding\n"
    (folder / ".git" / "info" / "attributes").write_text(off)
    subprocess.run([*git, "add", "-A", "-f"], env=GIT_ENV, check=True, capture_output=True)
    if patch:
        subprocess.run([*git, "apply", "--index", "--whitespace=nowarn", "-"], input=patch, env=GIT_ENV, check=True)
    return snapshot(folder)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_t16_random_trees(block: int, tmp_path: Path) -> None:
    for number in range(30):
        dice = random.Random(block * 30 + number)
        bench = Bench(tmp_path / str(number))

        def plant(root: Path, dice: random.Random = dice) -> None:
            _plant(root, dice, dice.randrange(25))
            _attributes(root, dice)

        box = bench.upload(plant)
        _plant(box.root, dice, dice.randrange(1, 25))
        _attributes(box.root, dice)

        info = bench.export()
        patch, wanted = bench.patch(info), snapshot(box.root)

        assert bench.applied(patch) == wanted, f"seed {block * 30 + number}"
        assert info.reproduces_tree
        assert info.not_in_patch == tuple(note for note in info.not_in_patch if note.kind == "empty_dir")
        if number % 5 == 0:
            assert _applied_to_index(bench.uploaded, patch, bench.folder / "index") == wanted


# --------------------------------------------------------------------------------------------- A27, trees


def test_a27_the_proof_holds_inside_another_repository(tmp_path: Path) -> None:
    # `git apply` in a folder of some repository answers 0 and does nothing; every box here lies in one.
    subprocess.run(["git", "init", "-q", str(tmp_path)], env=GIT_ENV, check=True)
    inside = tmp_path / "inside"
    inside.mkdir()
    bench = Bench(inside)
    box = bench.upload("echo old > f")
    (box.root / "f").write_text("new\n")

    info = bench.export()

    assert (info.applies_cleanly, info.reproduces_tree) == (True, True)
    assert bench.applied(bench.patch(info)) == {b"f": ("file", b"new\n")}


_TREES = {
    "links": "ln -s /etc/passwd abs; ln -s ../../../etc/passwd rel; ln -s /proc/1/root pr; ln -s . self; ln -s b a\n"
    "ln -s a b; mkfifo ff; mkdir -m 0 noperm; echo n > none; chmod 0 none",
    "nested repository": "git init -q s; cd s; echo x > x; git add x; git commit -qm s; echo y >> x",
    "long line": "head -c 9000000 /dev/zero | tr '\\0' a > long",
}


@pytest.mark.parametrize("name", _TREES)
def test_an_odd_tree_gives_a_patch(name: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    box = bench.upload("echo here > here")
    shell(_TREES[name], box.root)

    info = bench.export()

    wanted = snapshot(box.root)
    assert bench.applied(bench.patch(info)) == wanted
    assert info.files == len(wanted) - 1


def test_fifty_thousand_files_are_too_many_unless_ignored(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    box = bench.upload("echo '/out/' > .gitignore")
    made = "import os\nos.mkdir(%r)\nfor i in range(50_000): open(f'%s/{i}', 'w').close()"
    subprocess.run(["python3", "-c", made % ("out", "out")], cwd=box.root, check=True)
    (box.root / "work").write_text("w\n")
    info = bench.export()
    assert (info.files, len(info.not_in_patch)) == (1, 1_000)
    assert {note.kind for note in info.not_in_patch} == {"ignored"}

    (box.root / "out").rename(box.root / "kept")
    with pytest.raises(PatchTooLarge, match="50,001 changed files") as caught:
        bench.export()
    assert caught.value.files[0] == {"path": "work", "bytes": 2}


_HOSTILE_TREE = r"""
mkdir closed; echo inside > closed/f; chmod 0 closed; echo secret > none; chmod 0 none; mkfifo ff; ln none hard
ln -s /proc/1/root pr; ln -s . self; mkdir empty; ln -s /etc/passwd abs; chmod 0 kept
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
python3 -c "import os
for _ in range(3000): os.mkdir('d' * 40); os.chdir('d' * 40)"
(trap '' TERM HUP; while :; do ln -sfn /etc swap; rm -f swap; mkdir -p swap; rmdir swap; done) > /dev/null 2>&1 &
"""


@pytest.mark.docker
def test_a_hostile_tree_in_a_container(docker_provider: DockerProvider, sandbox_image: str, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "kept").write_text("kept\n")
    upload = Upload.of(tmp_path / "before")
    spec = BoxSpec(task=new_id("task"), run=1, image=sandbox_image, cpus=2, memory_mb=256, disk_mb=128, pids=64)
    box = docker_provider.open(spec)
    try:
        box.claim(spec.task, deadline_s=60)
        box.load(upload.parts())
        for _ in box.exec(_HOSTILE_TREE, timeout_s=30):
            pass
        info = _exported(box, docker_provider, spec, upload, tmp_path)
    finally:
        box.close()

    files = {file.path: (file.status, file.new_mode) for file in info.file_list if file.path != "swap"}
    assert files == {
        "closed/f": ("added", "100644"), "none": ("added", "100644"), "hard": ("added", "100644"),
        "pr": ("added", "120000"), "self": ("added", "120000"), "abs": ("added", "120000"),
    }  # fmt: skip
    notes = {(note.kind, note.path if note.kind != "too_deep" else "") for note in info.not_in_patch}
    assert notes - {("empty_dir", "swap")} == {
        ("mode", "closed"), ("mode", "none"), ("mode", "hard"), ("mode", "kept"), ("hard_link", "none"),
        ("hard_link", "hard"), ("special", "ff"), ("special", "sock"), ("empty_dir", "empty"), ("too_deep", ""),
    }  # fmt: skip
    assert {flag.path for flag in info.flags} - {"swap"} == {"pr", "abs"}
    assert info.reproduces_tree


# --------------------------------------------------------------------------------------------------- A28

_HUGE = """
import os
os.makedirs('gen')
for i in range(30_000): open(f'gen/f{i}.txt', 'w').write(f'{i}\\n')
with open('blob.bin', 'wb') as f:
    for _ in range(256): f.write(os.urandom(1 << 20))
with open('oneline.json', 'w') as f: f.write('[' + '1,' * 60_000_000 + '1]')
"""


def _high_water_kb() -> int:
    with open("/proc/self/status") as status:  # noqa: PTH123
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def _exported(box: Sandbox, provider: DockerProvider, spec: BoxSpec, upload: Upload, folder: Path) -> PatchInfo:
    return export(box, provider, spec, upload.manifest, upload.tar, DiskBlobs(folder / "blobs"))


@pytest.mark.docker
@pytest.mark.slow
def test_a28_a_huge_change_is_named_and_costs_the_worker_nothing(
    docker_provider: DockerProvider, sandbox_image: str, tmp_path: Path
) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "a").write_text("a\n")
    upload = Upload.of(tmp_path / "before")
    spec = BoxSpec(task=new_id("task"), run=1, image=sandbox_image, cpus=2, memory_mb=512, disk_mb=1024, pids=64)
    box = docker_provider.open(spec)
    try:
        box.claim(spec.task, deadline_s=110)
        box.load(upload.parts())
        for _ in box.exec(f"python3 - <<'END'\n{_HUGE}\nEND", timeout_s=60):
            pass
        Path("/proc/self/clear_refs").write_text("5")
        before = _high_water_kb()
        with pytest.raises(PatchTooLarge, match=r"30,002 changed files with 388,\d\d\d,\d\d\d bytes") as caught:
            _exported(box, docker_provider, spec, upload, tmp_path)
        grown = _high_water_kb() - before
    finally:
        box.close()
    assert [file["path"] for file in caught.value.files[:2]] == ["blob.bin", "oneline.json"]
    assert grown <= 32 * 1024
