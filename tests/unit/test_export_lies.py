"""A box is hostile: what it may say of itself, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from export_kit import SPEC, Bench, PlainBox, PlainProvider

from sandbox_image.toolserver.records import (
    ABSENT,
    BODY,
    CHANGE,
    END,
    EXEC,
    FILE,
    FOUND,
    LINK,
    LISTED,
    MAGIC,
    MISSING,
    body,
    record,
)
from service.contracts import Flag, PatchFile, PatchInfo
from service.errors import ExportFailed, PatchTooLarge, SandboxError
from worker.export import ExportLimits
from worker.sandbox.base import BoxSpec, ExportReport, ToolFailure


def _stream(
    changes: Iterable[tuple[bytes, int, bytes]], found: Iterable[tuple[bytes, bytes]] = (), listed: int | None = None
) -> list[bytes]:
    """A well-formed change set: path, kind, and content or target."""
    changes = list(changes)
    parts = [MAGIC]
    for path, kind, data in changes:
        parts.append(record(CHANGE, path, kind=kind, aux=data if kind == LINK else b"", size=len(data)))
    parts += [record(FOUND, path, aux=aux) for path, aux in found]
    parts.append(record(LISTED, size=len(changes) if listed is None else listed))
    for path, kind, data in changes:
        if kind in (FILE, EXEC):
            parts += [record(BODY, path), *body([data])]
    return [*parts, record(END)]


class _Says:
    """The change set of a box, as it likes."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def __call__(self, parts: Iterable[bytes], limits: ExportLimits | None = None) -> PatchInfo:
        self._bench.box.changes = lambda: iter(parts)  # type: ignore[method-assign]
        return self._bench.export(limits)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.upload("echo one > a; mkdir d; echo two > d/b; ln -s d l; mkdir -p .GIT; echo c > .GIT/config")
    return bench


@pytest.fixture
def says(bench: Bench) -> _Says:
    return _Says(bench)


def _names(bench: Bench, info: PatchInfo) -> set[bytes]:
    before, after = bench.applied(b""), bench.applied(bench.patch(info))
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (b"../out", "unsafe_path"),
        (b"d/../../out", "unsafe_path"),
        (b"/etc/passwd", "unsafe_path"),
        (b"", "unsafe_path"),
        (b"d//x", "unsafe_path"),
        (b"d/", "unsafe_path"),
        (b"./x", "unsafe_path"),
        (b"nul\0x", "unsafe_path"),
        (b"n" * 256, "unsafe_path"),
        (b"l/through", "unsafe_path"),
        (b"a/below a file", "unsafe_path"),
        (b".git/hooks/post-checkout", "dot_git"),
        (b".GIT/config", "dot_git"),
        (b"sub/.Git/config", "dot_git"),
        (b".git./config", "dot_git"),
        (b".git /config", "dot_git"),
        (b".git . ./config", "dot_git"),
        (b"GIT~1/config", "dot_git"),
        (b"git~1", "dot_git"),
        (".g\u200cit/config".encode(), "dot_git"),
        ("\ufeff.git".encode(), "dot_git"),
        (b".git::$INDEX_ALLOCATION/config", "dot_git"),
        (b".git:stream", "dot_git"),
        (b"sub\\.git\\config", "dot_git"),
    ],
)
def test_a_path_that_may_not_be_in_a_patch(path: bytes, kind: str, bench: Bench, says: _Says) -> None:
    info = says(_stream([(path, FILE, b"evil\n"), (b"good", FILE, b"good\n")]))

    assert [flag.kind for flag in info.flags] == [kind]
    assert _names(bench, info) == {b"good"}
    assert b"evil" not in bench.patch(info)
    assert (info.files, info.reproduces_tree) == (1, True)


@pytest.mark.parametrize("path", [b".gitignore", b".github/x", b"a.git", b".gitx", b"git~2", b"..a", b"...", b".g it"])
def test_a_path_that_only_looks_like_one(path: bytes, bench: Bench, says: _Says) -> None:
    info = says(_stream([(path, FILE, b"fine\n")]))
    assert (info.flags, _names(bench, info)) == ((), {path})


@pytest.mark.parametrize("path", [b".gitmodules", b".GitModules", b"gitmod~1", b"GI7EBA~1", b"d/.gitmodules ."])
def test_git_refuses_to_make_a_link_called_gitmodules(path: bytes, bench: Bench, says: _Says) -> None:
    info = says(_stream([(path, LINK, b"a")]))
    assert ([flag.kind for flag in info.flags], info.bytes) == (["dot_git"], 0)


@pytest.mark.parametrize(
    ("path", "target", "flagged"),
    [
        (b"d/x", b"../a", False),
        (b"x", b"d/../d/./b", False),
        (b"x", b"/etc/passwd", True),
        (b"x", b"..", True),
        (b"d/x", b"../../out", True),
        (b"x", b"d/../../out", True),
        (b"x", b".GIT/config", True),
    ],
)
def test_a_link_that_leads_out_is_data_but_is_said(
    path: bytes, target: bytes, flagged: bool, bench: Bench, says: _Says
) -> None:
    info = says(_stream([(path, LINK, target)]))
    assert [flag.kind for flag in info.flags] == ["symlink"] * flagged
    assert bench.applied(bench.patch(info))[path] == ("link", target)


def test_a_new_link_and_a_file_through_it(bench: Bench, says: _Says) -> None:
    info = says(_stream([(b"up", LINK, b".."), (b"up/CANARY", FILE, b"x")]))
    assert [(flag.kind, flag.path) for flag in info.flags] == [("unsafe_path", "up/CANARY"), ("symlink", "up")]
    assert _names(bench, info) == {b"up"}


def test_a_folder_whose_contents_must_stay_keeps_its_place(bench: Bench, says: _Says) -> None:
    info = says(_stream([(b".GIT/config", ABSENT, b""), (b"d", FILE, b"flat")]))
    assert [(flag.kind, flag.path) for flag in info.flags] == [("dot_git", ".GIT/config"), ("unsafe_path", "d")]
    assert info.bytes == 0


def test_claims_about_what_was_never_changed_or_never_there(says: _Says) -> None:
    info = says(_stream([(b"a", FILE, b"one\n"), (b"l", LINK, b"d"), (b"never", ABSENT, b"")]))
    assert (info.bytes, info.files, info.reproduces_tree) == (0, 0, True)
    assert info.base_tree == info.result_tree


def test_new_repository_data_is_flagged_and_the_uploads_own_is_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.upload("git init -q -b main .; mkdir s; git init -q s; echo a > a; rm -r .git/hooks")
    info = _Says(bench)(_stream([], [(b".git", b"git_data\0"), (b"s/.git", b"git_data\0"), (b"n/.git", b"git_data\0")]))
    detail = "a repository that the upload did not have; its data stays out"
    assert info.flags == (Flag(kind="dot_git", path="n/.git", detail=detail),)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"HTTP/1.1 200 OK\r\n"],
        _stream([(b"x", FILE, b"1")])[:-2],
        _stream([(b"x", FILE, b"1")])[:2],
        _stream([(b"x", FILE, b"1")], listed=0),
        _stream([(b"x", FILE, b"1")], listed=2),
        _stream([(b"x", FILE, b"1"), (b"x", FILE, b"2")]),
        _stream([(b"a", FILE, b"1"), (b"a", FILE, b"2")]),
        _stream([], [(b"x", b"nonsense\0")]),
        [MAGIC, record(END)],
        [MAGIC, record(CHANGE, b"x", size=1), record(LISTED, size=1), record(END)],
        [MAGIC, record(CHANGE, b"x", size=1), record(LISTED, size=1), record(FOUND, b"x"), record(END)],
    ],
)
def test_a_stream_that_is_no_change_set(parts: list[bytes], says: _Says) -> None:
    with pytest.raises(ExportFailed, match="no change set"):
        says(parts)


def test_the_stream_is_read_no_further_than_needed(says: _Says) -> None:
    def costly() -> Iterator[bytes]:
        yield from _stream([(b"x", FILE, b"1")])[:-1]
        raise AssertionError("the rest, perhaps gigabytes of ignored files, was asked for")

    assert says(costly()).files == 1


def test_bodies_that_nobody_asked_for_are_dropped(bench: Bench, says: _Says) -> None:
    parts = _stream([(b"x", FILE, b"1")])
    info = says([*parts[:-4], record(BODY, b"a"), *body([b"evil"]), *parts[-4:]])
    assert _names(bench, info) == {b"x"}


def test_a_file_that_grows_past_every_limit_while_it_is_read(says: _Says) -> None:
    parts = [MAGIC, record(CHANGE, b"x", size=1), record(LISTED, size=1), record(BODY, b"x"), *body([b"x" * 11])]
    with pytest.raises(ExportFailed, match="larger than it may be"):
        says(parts, ExportLimits(max_change_bytes=10))


def test_files_that_vanished_or_cannot_be_read(bench: Bench, says: _Says) -> None:
    names = [record(CHANGE, path, size=1) for path in (b"a", b"d/b", b"x", b"y")]
    gone = [
        record(MISSING, path, kind=kind)
        for path, kind in ((b"a", ABSENT), (b"d/b", FILE), (b"x", ABSENT), (b"y", FILE))
    ]
    info = says([MAGIC, *names, record(LISTED, size=4), *gone, record(END)])
    assert _names(bench, info) == {b"a"}
    assert info.not_in_patch == (Flag(kind="unreadable", path="d/b"), Flag(kind="unreadable", path="y"))


def test_too_many_files_name_the_largest(says: _Says) -> None:
    files = [(b"f%d" % number, FILE, b"x" * number) for number in range(150)]
    with pytest.raises(PatchTooLarge, match="150 changed files with 11,175 bytes") as caught:
        says(_stream(files), ExportLimits(max_files=149))
    assert len(caught.value.files) == 100
    assert caught.value.files[0] == {"path": "f149", "bytes": 149}


def test_a_size_that_cannot_be_is_too_large_before_any_byte(says: _Says) -> None:
    parts = [MAGIC, record(CHANGE, b"sparse", size=1 << 40), record(LISTED, size=1)]
    with pytest.raises(PatchTooLarge) as caught:
        says(parts)
    assert caught.value.files == [{"path": "sparse", "bytes": 1 << 40}]


def test_a_deleted_file_counts_with_its_old_size(says: _Says) -> None:
    with pytest.raises(PatchTooLarge, match="1 changed files with 4 bytes") as caught:
        says(_stream([(b"a", ABSENT, b"")]), ExportLimits(max_change_bytes=3))
    assert caught.value.files == [{"path": "a", "bytes": 4}]


def test_a_patch_larger_than_its_files(bench: Bench, says: _Says) -> None:
    with pytest.raises(PatchTooLarge, match="the patch has more than 200 bytes") as caught:
        says(_stream([(b"x", FILE, b"x\n" * 99), (b"y", FILE, b"\n")]), ExportLimits(max_patch_bytes=200))
    assert caught.value.files == [{"path": "x", "bytes": 198}, {"path": "y", "bytes": 1}]
    assert [path.name for path in (bench.folder / "blobs").iterdir()] == ["tmp"]


def test_time_ends_an_endless_stream(says: _Says) -> None:
    def endless() -> Iterator[bytes]:
        yield MAGIC
        while True:
            yield record(FOUND, b"x", aux=b"mode\0")

    with pytest.raises(ExportFailed, match=r"longer than 0\.2 s"):
        says(endless(), ExportLimits(timeout_s=0.2))


def test_the_task_boxs_failure_is_the_exports(bench: Bench) -> None:
    def broken() -> Iterator[bytes]:
        raise ToolFailure("io_error", "the disk is gone")
        yield b""

    bench.box.changes = broken  # type: ignore[method-assign]
    with pytest.raises(ExportFailed, match="the disk is gone"):
        bench.export()


class _OddProvider(PlainProvider):
    """Its export boxes do something else."""

    def __init__(self, folder: Path, change: Callable[[PlainBox], None]) -> None:
        super().__init__(folder)
        self._change = change

    def open(self, spec: BoxSpec) -> Any:
        box = super().open(spec)
        self._change(box)
        return box


def _odd(bench: Bench, change: Callable[[PlainBox], None]) -> _OddProvider:
    bench.box.root.joinpath("a").write_text("changed\n")
    bench.provider = _OddProvider(bench.folder / "odd", change)
    return bench.provider


def _spoil_load(box: PlainBox) -> None:
    honest = box.load

    def load(tar: Iterable[bytes]) -> Any:
        report = honest(tar)
        box.root.joinpath("d", "b").write_text("not as uploaded\n")
        return report

    box.load = load  # type: ignore[method-assign]


def _answer(parts: list[bytes], **report: Any) -> Callable[[PlainBox], None]:
    def export(job: Iterable[bytes]) -> Generator[bytes, None, ExportReport]:
        list(job)
        yield from parts
        return ExportReport(**{"tree": "", "applied": True, "patch_bytes": 0, "message": "", **report})

    return lambda box: setattr(box, "export", export)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_spoil_load, "does not give the workspace's tree"),
        (_answer([MAGIC, record(b"P"), *body([]), record(END)]), "does not give the workspace's tree"),
        (_answer([MAGIC, record(b"P"), *body([]), record(END)], patch_bytes=7), "was not applied"),
        (_answer([MAGIC, record(b"P"), *body([]), record(END)], applied=False), "was not applied"),
        (_answer([MAGIC, record(END)], message="git apply failed"), "git apply failed"),
        (_answer([MAGIC, record(END)]), "another question"),
        (_answer([MAGIC, record(b"I"), record(END)]), "another question"),
        (_answer([MAGIC, record(b"P"), *body([]), record(b"S", b"other", aux=b"1 1"), record(END)]), "no changed path"),
        (_answer([MAGIC, record(b"P"), *body([]), record(b"S", b"a", aux=b"-1 1"), record(END)]), "no changed path"),
        (_answer([MAGIC, record(b"P"), *body([]), record(END), b"more"]), "follow the end"),
        (_answer([MAGIC, record(b"P")]), "ends in the middle"),
    ],
)
def test_nothing_is_kept_that_was_not_proven(change: Callable[[PlainBox], None], why: str, bench: Bench) -> None:
    provider = _odd(bench, change)
    with pytest.raises(ExportFailed, match=why):
        bench.export()
    assert [box.closed for box in provider.boxes] == [True]
    assert [path.name for path in (bench.folder / "blobs").iterdir()] == ["tmp"]
    assert list((bench.folder / "blobs" / "tmp").iterdir()) == []


def test_a_lost_export_box_is_a_sandbox_error(bench: Bench) -> None:
    def lost(box: PlainBox) -> None:
        def load(_: Iterable[bytes]) -> Any:
            raise SandboxError("the box is gone")

        box.load = load  # type: ignore[method-assign]

    _odd(bench, lost)
    with pytest.raises(SandboxError, match="the box is gone"):
        bench.export()


def test_ignored_paths_out_of_order_or_out_of_range(tmp_path: Path) -> None:
    for number, ordinals in enumerate(((0, 0), (1, 0), (2,))):
        bench = Bench(tmp_path / str(number))
        bench.upload("echo '*.log' > .gitignore; echo a > a")
        (bench.box.root / "x").write_text("x")
        (bench.box.root / "y.log").write_text("y")
        answer = [MAGIC, *(record(b"I", size=ordinal) for ordinal in ordinals), record(END)]
        _odd(bench, _answer(answer))
        with pytest.raises(ExportFailed, match="ignored path"):
            bench.export()


def test_what_is_said_of_a_patch(bench: Bench, says: _Says) -> None:
    info = says(
        _stream(
            [(b"a", EXEC, b"one\nmore\n"), (b"d/b", ABSENT, b""), (b"l", FILE, b"text\n"), (b"n\xff\n", FILE, b"\0")],
            [(b"e\x1b", b"empty_dir\0added"), (b"h", b"hard_link\0002 names")],
        )
    )
    patch = bench.patch(info)
    assert (info.status, info.as_of_turn, info.bytes, info.files) == ("complete", 0, len(patch), 4)
    assert (info.additions, info.deletions) == (2, 2)
    assert info.file_list == (
        PatchFile(path="a", status="modified", additions=1, deletions=0, old_mode="100644", new_mode="100755"),
        PatchFile(path="d/b", status="deleted", additions=0, deletions=1, old_mode="100644", new_mode=None),
        PatchFile(path="l", status="type_changed", additions=1, deletions=1, old_mode="120000", new_mode="100644"),
        PatchFile(path="n\\xff\\x0a", status="added", additions=None, deletions=None, old_mode=None, new_mode="100644"),
    )
    assert info.not_in_patch == (
        Flag(kind="empty_dir", path="e\\x1b", detail="added"),
        Flag(kind="hard_link", path="h", detail="2 names"),
    )
    assert info.base_tree is not None
    assert info.result_tree not in (None, info.base_tree)


def test_no_change_is_a_proven_empty_patch(bench: Bench) -> None:
    info = bench.export()
    assert (info.status, info.bytes, info.files, info.applies_cleanly, info.reproduces_tree) == (
        "complete", 0, 0, True, True,
    )  # fmt: skip
    assert info.base_tree == info.result_tree
    assert bench.patch(info) == b""
    assert len(bench.provider.boxes) == 1


def test_a_task_without_a_workspace_has_a_patch_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    box = bench.upload("")
    (box.root / "made").write_text("made\n")
    assert bench.applied(bench.patch(bench.export())) == {b"made": ("file", b"made\n")}


def test_the_export_box_is_sized_for_its_work(bench: Bench) -> None:
    (bench.box.root / "big").write_bytes(bytes(8 << 20))
    bench.export()
    spec = bench.provider.boxes[1].spec
    assert (spec.purpose, spec.image, spec.task, spec.run) == ("export", SPEC.image, SPEC.task, SPEC.run)
    assert (spec.disk_mb, spec.memory_mb) == (449, 288)
