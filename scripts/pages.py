"""Write docs/mappings and the package's type stubs from the registry: `make pages`."""

from __future__ import annotations

import argparse
from pathlib import Path

from sparse_attention.pages import pages

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")
    print("written: docs/mappings, sparse_attention/__init__.pyi; `git diff` shows what changed")


if __name__ == "__main__":
    main()
