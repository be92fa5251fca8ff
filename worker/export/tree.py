"""The tree before and after, on the host's side: from the upload's manifest and the accepted changes alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from sandbox_image.toolserver.records import ABSENT, EXEC, FILE, LINK, TreeEntry, is_git_data, tree_hash
from service.intake import Entry
from worker.export.changeset import Change
from worker.export.findings import Findings


def in_tree(path: bytes, entry: Entry) -> bool:
    """Folders are not part of a tree, repository data neither."""
    return entry.kind != "d" and not is_git_data(path)


def kind_of(entry: Entry) -> int:
    if entry.kind == "l":
        return LINK
    return EXEC if entry.exec else FILE


def base_tree(manifest: Mapping[bytes, Entry]) -> str:
    """Hash of the upload, by `tree_hash` of records.py."""
    return tree_hash(_of_upload(path, entry) for path, entry in manifest.items() if in_tree(path, entry))


def result_tree(manifest: Mapping[bytes, Entry], accepted: Mapping[bytes, Change]) -> str:
    """Hash of the upload with the changes in it: what applying the patch must give."""
    return tree_hash(_result(manifest, accepted))


def _result(manifest: Mapping[bytes, Entry], accepted: Mapping[bytes, Change]) -> Iterator[TreeEntry]:
    for path, entry in manifest.items():
        if path not in accepted and in_tree(path, entry):
            yield _of_upload(path, entry)
    for path, change in accepted.items():
        if change.kind == LINK:
            yield TreeEntry(path, LINK, hashlib.sha256(change.target).digest())
        elif change.kind != ABSENT:
            yield TreeEntry(path, change.kind, change.digest)


def _of_upload(path: bytes, entry: Entry) -> TreeEntry:
    if entry.kind == "l":
        return TreeEntry(path, LINK, hashlib.sha256(entry.target).digest())
    return TreeEntry(path, kind_of(entry), bytes.fromhex(entry.sha256))


def drop_unchanged(manifest: Mapping[bytes, Entry], accepted: dict[bytes, Change]) -> None:
    """Takes out what is as it was uploaded, and deletions of what never was."""
    for path, change in list(accepted.items()):
        entry = manifest.get(path)
        before = None if entry is None or not in_tree(path, entry) else entry
        if before is None:
            same = change.kind == ABSENT
        elif change.kind == LINK:
            same = before.kind == "l" and before.target == change.target
        else:
            same = kind_of(before) == change.kind and before.sha256 == change.digest.hex()
        if same:
            del accepted[path]


def refuse_conflicts(manifest: Mapping[bytes, Entry], accepted: dict[bytes, Change], findings: Findings) -> None:
    """Takes out changes that no tree can hold: a path below a file or through a link.

    A real workspace has none, except where a refused or unreadable path keeps an old file in place; a lying box
    may have any. Each refusal takes one entry away, so one pass settles it.
    """
    present = {path for path, entry in manifest.items() if in_tree(path, entry) and path not in accepted}
    present |= {path for path, change in accepted.items() if change.kind != ABSENT}
    for path in sorted(present, key=len, reverse=True):
        for folder in _folders(path):
            if folder not in present or path not in present:
                continue
            added = path in accepted and (path not in manifest or manifest[path].kind == "d")
            refused = path if added else folder
            findings.flag("unsafe_path", refused, "another file or link is in the place of its folder or contents")
            present.discard(refused)
            accepted.pop(refused, None)


def _folders(path: bytes) -> Iterator[bytes]:
    end = path.find(b"/")
    while end != -1:
        yield path[:end]
        end = path.find(b"/", end + 1)
