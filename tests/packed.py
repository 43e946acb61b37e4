"""Archives in memory."""

import io
import tarfile
import zipfile
from collections.abc import Mapping


def _raw(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


def tar(members: Mapping[str, bytes | str], mode: str = "w") -> bytes:
    """A tar file of regular files; "w:gz" and "w:xz" compress it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(_raw(content))
            archive.addfile(info, io.BytesIO(_raw(content)))
    return stream.getvalue()


def zipped(members: Mapping[str, bytes | str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()
