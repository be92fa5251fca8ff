"""What every box must do, on the local double and on the engine: the file tools."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from sandbox_kit import run, text

from worker.sandbox.base import Entry, Match, Sandbox, ToolFailure


def refused(do: Callable[[], object]) -> str:
    """The code of the refusal, which comes at once."""
    started = time.monotonic()
    with pytest.raises(ToolFailure) as caught:
        do()
    assert time.monotonic() - started < 2
    return caught.value.code


def put(box: Sandbox, path: str, data: bytes) -> None:
    box.write(path, data, overwrite=True)


# ----------------------------------------------------------------------------------------------- read, write


def test_a_file_is_written_and_read_back(box: Sandbox) -> None:
    written = box.write("new/deep/f.txt", b"1\0\xff", overwrite=False)
    assert (written.created, written.size) == (True, 3)
    found = box.read("/workspace/new/../new/./deep//f.txt")
    assert (found.data, found.size, found.mode, found.stamp) == (b"1\0\xff", 3, 0o644, written.stamp)
    assert box.read("new/deep/f.txt", limit=1).data == b"1"
    assert text(box, "stat -c %a new new/deep") == "755\n755\n"


def test_overwriting_is_told_apart_from_creating(box: Sandbox) -> None:
    put(box, "f", b"long content")
    assert refused(lambda: box.write("f", b"x", overwrite=False)) == "exists"
    assert box.read("f").data == b"long content"
    assert box.write("f", b"x", overwrite=True).created is False
    assert text(box, "cat f") == "x"
    put(box, "empty", b"")
    assert box.write("empty", b"y", overwrite=False).created is False


def test_a_large_file_goes_both_ways(box: Sandbox) -> None:
    data = os.urandom(3 << 20)
    box.write("big", data, overwrite=False)
    assert box.read("big").data == data


def test_b15_a_write_keeps_mode_links_and_inode(box: Sandbox) -> None:
    run(
        box, "printf '#!/bin/sh\\necho a\\n' >s.sh; chmod 755 s.sh; echo q >t.txt; ln -s t.txt ln; echo h >h1; ln h1 h2"
    )
    inode = text(box, "stat -c %i s.sh t.txt")
    box.edit("s.sh", "echo a", "echo b")
    box.edit("ln", "q", "r")
    box.write("h1", b"H\n", overwrite=True)
    assert text(box, "stat -c %i s.sh t.txt") == inode
    assert text(box, "stat -c %A s.sh; readlink ln; cat t.txt h2; ./s.sh") == "-rwxr-xr-x\nt.txt\nr\nH\nb\n"


def test_b18_nothing_outside_is_reached(box: Sandbox) -> None:
    run(
        box,
        "ln -s /etc e; ln -s ../outside_new dang; ln -s /workspace-evil sib; ln -s /proc/self/root root; ln -s .. up",
    )
    for path in ("../../etc/passwd", "/etc/passwd", "e/passwd", "/workspace-evil/x", "sib", "root/etc/passwd", "up/x"):
        assert refused(lambda path=path: box.read(path)) == "outside"
    for path in ("dang", "e/x", "a/../../b.txt", "up/up/y"):
        assert refused(lambda path=path: box.write(path, b"x", overwrite=True)) == "outside"
    assert refused(lambda: box.glob("../*")) == "outside"
    assert refused(lambda: box.list("e")) == "outside"
    box.write("%2e%2e/x", b"y", overwrite=False)
    assert text(box, "ls '%2e%2e'") == "x\n"
    assert refused(lambda: box.read("a\0b")) == "bad_path"
    assert refused(lambda: box.read("a/" * 2500)) == "bad_path"
    assert refused(lambda: box.read("n" * 256)) == "bad_path"
    assert refused(lambda: box.read("")) == "bad_path"


def test_home_and_tmp_are_inside(box: Sandbox) -> None:
    box.write("/home/agent/h", b"1", overwrite=False)
    box.write("/tmp/t", b"2", overwrite=False)
    assert text(box, 'cat "$HOME/h" "$TMPDIR/t"') == "12"
    assert [entry.path for entry in box.list("/tmp").entries] == ["/tmp/t"]
    run(box, 'ln -s "$TMPDIR/t" l; ln -s /tmp/t m')
    assert box.read("m").data == b"2"
    assert box.read("l").data == b"2"


def test_t12_loops_fifos_sockets_and_devices_are_refused_at_once(box: Sandbox) -> None:
    run(box, "ln -s loop2 loop; ln -s loop loop2; ln -s self self; mkfifo fifo; mkdir d; ln -s fifo tofifo; echo x >f")
    run(box, "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'")
    for path in ("loop", "self", "self/x", "loop/x"):
        assert refused(lambda path=path: box.read(path)) == "link_loop"
        assert refused(lambda path=path: box.write(path, b"", overwrite=True)) == "link_loop"
    for path in ("fifo", "sock", "tofifo"):
        assert refused(lambda path=path: box.read(path)) == "not_regular"
        assert refused(lambda path=path: box.write(path, b"", overwrite=True)) == "not_regular"
        assert refused(lambda path=path: box.edit(path, "a", "b")) == "not_regular"
        assert refused(lambda path=path: box.search("x", path)) == "not_regular"
    assert refused(lambda: box.read("/dev/zero")) == "outside"
    assert refused(lambda: box.read("f/x")) == "not_directory"
    assert refused(lambda: box.write("f/x", b"", overwrite=True)) == "not_directory"


def test_b21_odd_targets(box: Sandbox) -> None:
    run(box, "mkdir dir; echo r >ro; chmod 444 ro; ln -s dir l")
    assert refused(lambda: box.write("dir", b"x", overwrite=True)) == "is_directory"
    assert refused(lambda: box.read("l")) == "is_directory"
    assert refused(lambda: box.read(".")) == "is_directory"
    assert refused(lambda: box.edit("ro", "r", "w")) == "permission"
    assert text(box, "stat -c %a ro; cat ro") == "444\nr\n"
    assert refused(lambda: box.write("f/", b"x", overwrite=True)) == "not_found"
    assert refused(lambda: box.write("ro/", b"x", overwrite=True)) == "not_directory"
    assert refused(lambda: box.read("nope")) == "not_found"
    assert refused(lambda: box.read("nope/nope")) == "not_found"


def test_b20_names_and_text_in_another_normal_form(box: Sandbox) -> None:
    run(box, "printf 're\\u0301sume\\u0301\\n' >$(printf 'cafe\\u0301.txt')")
    assert box.read("café.txt").data == "re\u0301sume\u0301\n".encode()
    put(box, "café.txt", "re\u0301sume\u0301\n".encode())
    assert text(box, "ls | wc -l") == "1\n"
    with pytest.raises(ToolFailure, match="normal form") as caught:
        box.edit("café.txt", "résumé", "cv")
    assert caught.value.code == "no_match"


# ------------------------------------------------------------------------------------------------------ edit


def test_b12_an_edit_matches_exactly_once(box: Sandbox) -> None:
    put(box, "o.txt", b"foo\nfoo\nfoo\n")
    put(box, "e.txt", b"abc")
    assert refused(lambda: box.edit("o.txt", "foo\nfoo\n", "X")) == "not_unique"
    assert refused(lambda: box.edit("e.txt", "", "X", replace_all=True)) == "empty_old"
    assert refused(lambda: box.edit("e.txt", "abc", "abc")) == "no_change"
    assert refused(lambda: box.edit("e.txt", "zzz", "y")) == "no_match"
    assert refused(lambda: box.edit("nope", "a", "b")) == "not_found"
    assert text(box, "cat o.txt e.txt") == "foo\nfoo\nfoo\nabc"
    assert box.edit("o.txt", "foo", "bar", replace_all=True).replacements == 3
    assert text(box, "cat o.txt") == "bar\nbar\nbar\n"


def test_b13_line_ends_bom_and_last_line_stay(box: Sandbox) -> None:
    put(box, "c.txt", b"\xef\xbb\xbfa\r\nb\r\nc\r\n")
    put(box, "m.txt", b"a\rb\rc")
    put(box, "n.txt", b"x\ny")
    box.edit("c.txt", "a\nb\n", "a\nB\nnew\n")
    box.edit("m.txt", "b", "B")
    box.edit("n.txt", "y", "z")
    assert box.read("c.txt").data == b"\xef\xbb\xbfa\r\nB\r\nnew\r\nc\r\n"
    assert box.read("m.txt").data == b"a\rB\rc"
    assert box.read("n.txt").data == b"x\nz"


def test_b16_the_replacement_is_literal(box: Sandbox) -> None:
    new = "C:\\new\\g<0>\\1 $& $1 \\\\ %s {x}"
    put(box, "r.txt", b"old\n")
    box.edit("r.txt", "old", new)
    assert box.read("r.txt").data == new.encode() + b"\n"
    box.edit("r.txt", new, "a.b*")
    box.edit("r.txt", "a.b*", "done")
    assert text(box, "cat r.txt") == "done\n"


def test_b10_a_large_edit(box: Sandbox) -> None:
    old = "0123456789abcdef\n" * 20_000
    put(box, "big.txt", old.encode() + b"end\n")
    assert box.edit("big.txt", old, "q\n").replacements == 1
    assert text(box, "cat big.txt") == "q\nend\n"


# ---------------------------------------------------------------------------------------- list, glob, search


def test_a_directory_is_listed_by_name(box: Sandbox) -> None:
    run(box, "mkdir b; echo 123 >c; chmod 755 c; ln -s c a; mkfifo d")
    listing = box.list()
    assert [(e.path, e.kind, e.mode) for e in listing.entries if e.kind in ("file", "other")] == [
        ("c", "file", 0o755),
        ("d", "other", 0o644),
    ]
    assert [(entry.path, entry.kind) for entry in box.list("/workspace", limit=2).entries] == [
        ("a", "link"),
        ("b", "dir"),
    ]
    assert (listing.total, box.list(limit=2).total) == (4, 4)
    assert box.list("b").entries == ()
    put(box, "b/x", b"12")
    assert box.list("b/").entries == (Entry("b/x", "file", 2, 0o644),)
    assert refused(lambda: box.list("c")) == "not_directory"
    assert refused(lambda: box.list("nope")) == "not_found"


def test_a_listing_longer_than_a_frame(box: Sandbox) -> None:
    run(box, "mkdir many; cd many; for i in $(seq 1000 2999); do : >$(printf 'x%.0s' $(seq 60))$i; done")
    listing = box.list("many", limit=1500)
    assert (len(listing.entries), listing.total) == (1500, 2000)
    assert listing.entries[1499].path == "many/" + "x" * 60 + "2499"


def test_names_that_are_not_utf8_come_and_go(box: Sandbox) -> None:
    run(box, "echo 1 >$'\\xff\\n\"'")
    (entry,) = box.list().entries
    assert entry.path == '\udcff\n"'
    assert box.read(entry.path).data == b"1\n"


GLOBS = {
    "*.py": ["a.py"],
    "**/*.py": ["a.py", "d/b.py", "d/e/c.py"],
    "d/**": ["d/b.py", "d/e/c.py", "d/x.js"],
    "/workspace/d/*.{js,py}": ["d/b.py", "d/x.js"],
    "**/e/*": ["d/e/c.py"],
    "d/**/**/c.py": ["d/e/c.py"],
    "?.py": ["a.py"],
    "[!a].py": [],
    "D/*": [],
    ".h*": [".hidden"],
    "**": [".hidden", "a.py", "d/b.py", "d/e/c.py", "d/x.js"],
}


def test_glob(box: Sandbox) -> None:
    run(box, "mkdir -p d/e .git; touch a.py d/b.py d/e/c.py d/x.js .hidden .git/config")
    for pattern, found in GLOBS.items():
        listing = box.glob(pattern)
        assert [entry.path for entry in listing.entries] == found, pattern
        assert listing.total == len(found)


def test_glob_refuses_what_is_no_pattern(box: Sandbox) -> None:
    assert refused(lambda: box.glob("")) == "bad_pattern"
    assert refused(lambda: box.glob("/etc/*")) == "outside"
    assert refused(lambda: box.glob("{a,b}" * 10)) == "bad_pattern"
    assert refused(lambda: box.glob("x" * 3000)) == "bad_pattern"


in_the_image = pytest.mark.parametrize("box", [pytest.param("docker", marks=pytest.mark.docker)], indirect=True)
"""ripgrep is a part of the image, not of every machine."""


@in_the_image
def test_search_ranks_definitions_then_more_then_shorter(box: Sandbox) -> None:
    put(box, "docs/mentions_it.txt", b"parse\nparse\nparse\n")
    put(box, "src/long/path/def.py", b"x\ndef parse(text):\n")
    put(box, "b.txt", b"parse\n")
    put(box, "a/c.txt", b"parse\n")
    put(box, ".git/x", b"parse\n")
    result = box.search("parse")
    assert result.matches == (
        Match("src/long/path/def.py", 2, "def parse(text):"),
        Match("docs/mentions_it.txt", 1, "parse"),
        Match("docs/mentions_it.txt", 2, "parse"),
        Match("docs/mentions_it.txt", 3, "parse"),
        Match("b.txt", 1, "parse"),
        Match("a/c.txt", 1, "parse"),
    )
    assert (result.total_matches, result.total_files) == (6, 4)
    few = box.search("parse", limit=2)
    assert (len(few.matches), few.total_matches) == (2, 6)


@in_the_image
def test_search_below_a_folder_or_in_a_file(box: Sandbox) -> None:
    put(box, "d/e/f.txt", b"one\ntwo\r\n")
    put(box, "g.txt", b"two\n")
    run(box, "ln -s /etc etc; ln -s d l")
    assert box.search("two", "d").matches == (Match("d/e/f.txt", 2, "two"),)
    assert box.search("tw.$", "d/e/f.txt").matches == (Match("d/e/f.txt", 2, "two"),)
    assert box.search("two", "l/e").matches == (Match("d/e/f.txt", 2, "two"),)
    assert box.search("nothing like it").matches == ()
    assert refused(lambda: box.search("root", "etc")) == "outside"
    assert refused(lambda: box.search("x", "nope")) == "not_found"


@in_the_image
def test_search_of_odd_patterns_and_huge_lines(box: Sandbox) -> None:
    run(box, "head -c 3000000 /dev/zero | tr '\\0' a >min.js; echo needle >>min.js; printf 'x --help\\n' >h")
    (match,) = box.search("needle").matches
    assert (match.path, match.line) == ("min.js", 1)
    assert len(match.text) < 1_000
    assert box.search("--help").total_matches == 1
    for pattern in ("(", "a\nb", "", "a\0"):
        assert refused(lambda pattern=pattern: box.search(pattern)) == "bad_pattern"
