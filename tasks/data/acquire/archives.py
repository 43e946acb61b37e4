"""List, read and unpack untrusted zip and tar archives. Damage and names outside the target folder raise errors."""

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import publish_folder
from tasks.data.read.formats import damaged

# Errors that the standard library raises for damaged, encrypted or unusually compressed archives.
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)
BROKEN += (EOFError, OSError, ValueError, KeyError, RuntimeError, OverflowError)


@contextmanager
def reading_archive(path: Path) -> Iterator[None]:
    """Context in which errors caused by a damaged archive become a DataError that names it."""
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
        why = " ".join(str(error).split())  # tarfile repeats it for every compression, one per line
        problem = f"the archive is damaged ({type(error).__name__}: {why})"
        raise damaged(path, problem, "a whole zip or tar archive") from error


def open_archive(path: Path) -> zipfile.ZipFile | tarfile.TarFile:
    """Open a zip archive (recognised by its name) or a plain or compressed tar archive within `reading_archive`."""
    return zipfile.ZipFile(path) if path.suffix in (".zip", ".whl") else tarfile.open(path)


def tar_members(path: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members of a tar archive, in order, each with the open archive that it can be read from."""
    with reading_archive(path), tarfile.open(path) as tar:
        for member in tar:
            yield tar, member
        _to_the_end(tar)


def _to_the_end(tar: tarfile.TarFile) -> None:
    """Read everything after the last member, because the checksum of compressed data is verified at their end."""
    while tar.fileobj and tar.fileobj.read(1 << 20):
        pass


def listed(path: Path) -> list[tuple[str, int]]:
    """(name, bytes) of each file in an archive."""
    if path.suffix != ".zip":
        return [(member.name, member.size) for _, member in tar_members(path) if member.isfile()]
    with reading_archive(path), zipfile.ZipFile(path) as archive:
        return [(m.filename, m.file_size) for m in archive.infolist() if not m.is_dir()]


def unpack(path: Path, folder: Path) -> None:
    """Extract an archive into `folder`, completely or not at all; nothing is written or linked outside of it."""
    with reading_archive(path), publish_folder(folder) as temporary, open_archive(path) as archive:
        if isinstance(archive, zipfile.ZipFile):
            archive.extractall(temporary)  # verifies each member's CRC, and makes no links
        else:
            archive.extractall(temporary, filter="data")
            _to_the_end(archive)
