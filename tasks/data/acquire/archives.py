"""List, read and unpack untrusted zip and tar archives. Damage and names outside the target folder raise errors."""

import lzma
import re
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


def tar_files(path: Path, wanted: re.Pattern) -> Iterator[tuple[re.Match, bytes]]:
    """The files of a tar archive in whose names `wanted` is found, in order: that match, and their bytes."""
    with reading_archive(path), tarfile.open(path) as tar:
        for member in tar:
            if member.isfile() and (found := wanted.search(member.name)):
                yield found, tar.extractfile(member).read()
        _to_the_end(tar)


def _to_the_end(tar: tarfile.TarFile) -> None:
    """Read everything after the last member, because the checksum of compressed data is verified at their end."""
    while tar.fileobj and tar.fileobj.read(1 << 20):
        pass


def zipped(path: Path) -> list[tuple[str, int]]:
    """(name, bytes) of each file in a zip archive."""
    with reading_archive(path), zipfile.ZipFile(path) as archive:
        return [(m.filename, m.file_size) for m in archive.infolist() if not m.is_dir()]


def unpack(path: Path, folder: Path) -> None:
    """Extract an archive (zip, by its name, or tar) into `folder`, completely or not at all; nothing is written or linked outside."""
    with reading_archive(path), publish_folder(folder) as temporary:
        if path.suffix in (".zip", ".whl"):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(temporary)  # verifies each member's CRC, and makes no links
        else:
            with tarfile.open(path) as tar:
                tar.extractall(temporary, filter="data")
                _to_the_end(tar)
