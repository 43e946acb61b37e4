"""Write requirements.lock: every package of the `repro` and `dev` extras with version and hash, as pip resolves them for this platform."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from setup import HERE, LOCK, ROOT

UNUSED = {
    "torchaudio"
}  # fairseq asks for it and imports it nowhere; one for another CUDA than torch's keeps transformers from importing models
HEAD = f"# The exact set of packages, with hashes; made by `make lock` for {HERE}.\n# Installed by `make setup`.\n"


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("--dry-run", "--ignore-installed", "--quiet", "--report", str(report))
        subprocess.run([sys.executable, "-m", "pip", "install", *options, f"{ROOT}[repro,dev]"], check=True, cwd=folder)
        found = json.loads(report.read_text())["install"]
    lines = []
    for item in found:
        hashes = item["download_info"].get("archive_info", {}).get("hashes", {})
        name, version = item["metadata"]["name"].lower(), item["metadata"]["version"]
        if "sha256" in hashes and name not in UNUSED:  # nor this project itself
            lines.append(f"{name}=={version} --hash=sha256:{hashes['sha256']}")
    LOCK.write_text(HEAD + "\n".join(sorted(lines)) + "\n", encoding="utf-8")
    print(f"requirements.lock: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
