"""Untrusted zip and tar archives: listed, read and unpacked; damage and names that leave the folder are errors."""

from __future__ import annotations

import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import publish_folder
from tasks.data.read.formats import damaged

LONGEST_NAME, LONGEST_PATH = 255, 4000  # bytes of a file's name and of its path, as file systems have it
# What the standard library raises for damaged, encrypted or oddly compressed archives.
BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, ValueError, KeyError,
    RuntimeError, OverflowError,
)  # fmt: skip


class _Member(tarfile.TarInfo):
    """A member of an archive that must end with its end mark: tarfile takes a damaged header for the end."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> tarfile.TarInfo:
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"no member and no end mark at byte {tar.offset:,}: {error}") from error


@contextmanager
def reading_archive(path: Path) -> Iterator[None]:
    """Context in which what a damaged archive raises becomes a DataError that names it."""
    try:
        if not path.is_file():
            if path.exists() or path.is_symlink():
                raise damaged(path, "it is not a file", "a zip or tar archive")
            step = "fetch it, or correct data.path or data.mirror"
            raise DataUnavailable(f"{path.name} is missing", str(path), step)
        yield
    except DataError:
        raise
    except BROKEN as error:
        why = " ".join(str(error).split())  # tarfile says it for every compression, in lines
        problem = f"the archive is damaged ({type(error).__name__}: {why})"
        raise damaged(path, problem, "a whole zip or tar archive") from error


def open_archive(path: Path) -> zipfile.ZipFile | tarfile.TarFile:
    """A zip archive (by its name) or a tar archive, plain or compressed; for use within `reading_archive`."""
    return zipfile.ZipFile(path) if path.suffix in (".zip", ".whl") else tarfile.open(path, tarinfo=_Member)


def tar_members(path: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members of a tar archive, in order, each with the archive that it can be read from now."""
    with reading_archive(path), tarfile.open(path, tarinfo=_Member) as tar:
        for member in tar:
            check_name(path, member.name)
            yield tar, member
        _to_the_end(tar)


def _to_the_end(tar: tarfile.TarFile) -> None:
    """Read what follows the last member: packed data are checked where they end."""
    while tar.fileobj and tar.fileobj.read(1 << 20):
        pass


def listed(path: Path) -> list[tuple[str, int]]:
    """(name, bytes) of the files in an archive."""
    if path.suffix != ".zip":
        return [(member.name, member.size) for _, member in tar_members(path) if member.isfile()]
    with reading_archive(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            check_name(path, member.filename)
        return [(m.filename, m.file_size) for m in archive.infolist() if not m.is_dir()]


def check_name(path: Path, name: str) -> None:
    """Raise DataError for a member's name that no file system takes, or that leaves the folder."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise damaged(path, f"its member {name[:80]!r} leaves the folder", "names below the archive's own folder")
    size = len(name.encode("utf-8", "surrogateescape"))
    if size > LONGEST_PATH or any(len(part.encode("utf-8", "surrogateescape")) > LONGEST_NAME for part in parts):
        raise damaged(
            path, f"its member {name[:40]!r}... has a name of {size:,} bytes",
            f"at most {LONGEST_NAME} bytes a name, {LONGEST_PATH:,} a path",
        )  # fmt: skip


def unpack(path: Path, folder: Path, extra: dict[str, str] | None = None) -> None:
    """Extract an archive into `folder`, whole or not at all; `extra` files (name -> text) are added."""
    with reading_archive(path), publish_folder(folder) as temporary, open_archive(path) as archive:
        if isinstance(archive, zipfile.ZipFile):
            for member in archive.infolist():
                check_name(path, member.filename)
                if stat.S_ISLNK(member.external_attr >> 16):
                    raise damaged(path, f"its member {member.filename!r} is a link", "files and folders")
            archive.extractall(temporary)  # verifies each member's CRC
        else:
            for one in archive:
                check_name(path, one.name)
            archive.extractall(temporary, filter="data")
            _to_the_end(archive)
        for name, text in (extra or {}).items():
            (temporary / name).write_text(text, encoding="utf-8")
