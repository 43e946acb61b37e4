"""pip's work, a line a package: what scripts/setup.py shows while it fetches and unpacks. Needs nothing that is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path


def pip(venv: Path, *arguments: str, count: int = 0) -> int:
    """pip install, a line for each package that is fetched and unpacked; its exit status, and its last lines when it fails."""
    command = [
        str(venv / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        *arguments,
    ]
    last, number, ended = [], 0, threading.Event()
    watcher = threading.Thread(target=watch, args=(venv, ended))  # pip says nothing while it unpacks
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            last = [*last[-15:], line]
            if found := re.match(r"(?:Collecting|Processing) ([^\s(]+)", line):
                number += 1
                print(f"  {number}{f' of {count}' if count else ''}  {Path(found[1]).name}", flush=True)
            elif line.startswith("Installing collected"):
                watcher.start()
    ended.set()
    if watcher.ident:
        watcher.join()
    if process.returncode:
        print("".join(last), file=sys.stderr)
    return process.returncode


def watch(venv: Path, ended: threading.Event) -> None:
    """Name every package as soon as it lies in the environment."""
    known = set(venv.glob("lib/*/site-packages/*.dist-info/RECORD"))
    while True:
        last = ended.wait(1.0)
        for path in sorted(set(venv.glob("lib/*/site-packages/*.dist-info/RECORD")) - known):
            known.add(path)
            print(f"  unpacked {path.parent.name.removesuffix('.dist-info')}", flush=True)
        if last:
            return
