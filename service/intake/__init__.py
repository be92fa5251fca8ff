"""Any accepted archive becomes one canonical tar, as a stream: nothing is ever extracted.

The canonical tar is what the box's loader accepts, and all of it:

- 512-byte headers with magic `ustar\\0` and version `00`, prefix empty, checksum right; uid, gid and mtime 0, no
  user or group name, no device numbers;
- types `0` file (mode 0644 or 0755), `2` symbolic link (0644), `5` folder (0755), and before one of them, where its
  name or link target is longer than 100 bytes, `K` and then `L` records named `././@LongLink` (0644) that hold the
  whole text and one NUL;
- names are raw bytes, relative, without `.`, `..`, empty parts or a slash at the end; one entry a path; a folder
  stands before what is in it or has no entry (then it is implied);
- two zero blocks at the end.

Errors are the client's: `ArchiveUnsafe` (422; `archive_unsafe` names the member, `archive_unreadable`) and
`TooLarge` (413; `archive_too_large`, `too_many_entries`, `path_too_long`, `path_too_deep`).
"""

from __future__ import annotations

from dataclasses import dataclass

from service.intake import tar, zip
from service.intake.canonical import CanonicalTar, Output
from service.intake.manifest import Entry, Manifest, PackedManifest
from service.intake.policy import IntakeLimits, Meter
from service.intake.streams import Format, Upload, open_stream, sniff

__all__ = ["Entry", "Format", "Intake", "IntakeLimits", "Manifest", "PackedManifest", "canonicalise"]


@dataclass(frozen=True, slots=True)
class Intake:
    """What an accepted archive holds."""

    format: Format
    files: int
    """Regular files and symbolic links."""
    unpacked_size: int
    """Bytes of all regular files."""
    manifest: PackedManifest
    notes: tuple[str, ...]
    """What the canonical form lacks of the upload, as sentences."""


DEFAULT_LIMITS = IntakeLimits()


def canonicalise(upload: Upload, out: Output, limits: IntakeLimits = DEFAULT_LIMITS) -> Intake:
    """Reads the archive in `upload`, a seekable file, and writes its canonical tar to `out`, open for both.

    When it raises, what `out` holds is worthless. Memory stays below 32 MiB, and a bomb ends at the limit it
    breaks, while it is unpacked.
    """
    meter = Meter(limits, uploaded=upload.seek(0, 2))
    kind = sniff(upload)
    canonical = CanonicalTar(out, limits, meter)
    members = zip.members(upload, limits) if kind == "zip" else tar.members(open_stream(upload, kind, meter), limits)
    for member in members:
        canonical.add(member)
    notes = canonical.close()
    return Intake(kind, canonical.files, canonical.unpacked_size, canonical.manifest, notes)
