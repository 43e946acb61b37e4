"""Images that a person names one by one, as a source of images (`tasks.data.images.ImageSource`)."""

from __future__ import annotations

from pathlib import Path

from tasks.data.images import ImageError


class Pictures:
    """Image files below `folder`; a key is a path relative to it, or an absolute one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keys(self) -> list[str]:
        return []  # nobody asks: there may be millions

    def fingerprint(self) -> str:
        return str(self.folder)

    def read(self, key: str) -> bytes:
        """The file's bytes. Raises ImageError when there is none."""
        try:
            return (self.folder / key).read_bytes()
        except OSError as error:
            raise ImageError(f"{self.folder / key}: {error.strerror}") from error
