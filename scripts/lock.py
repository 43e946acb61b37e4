"""Write requirements.lock: every package of the `repro` extra with version and hash, as pip resolves it for this platform."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """\
# The exact set of packages, with hashes; made by `make lock` for {system} {machine}, CPython {python}.
#   python -m pip install --require-hashes -r requirements.lock && python -m pip install --no-deps -e .
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--ignore-installed",
            "--quiet",
            "--report",
            str(report),
        ]
        subprocess.run([*command, f"{ROOT}[repro]"], check=True, cwd=folder)
        found = json.loads(report.read_text())["install"]
    lines = []
    for item in found:
        hashes = item["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" in hashes:  # everything but this project itself
            lines.append(
                f"{item['metadata']['name'].lower()}=={item['metadata']['version']} --hash=sha256:{hashes['sha256']}"
            )
    head = HEAD.format(system=platform.system(), machine=platform.machine(), python=platform.python_version())
    (ROOT / "requirements.lock").write_text(head + "\n".join(sorted(lines)) + "\n", encoding="utf-8")
    print(f"requirements.lock: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
