"""Limits of lines, for `make lint`: of a file, of a script, of a room, and of files that name a mapping; exit status 1 if one is passed."""

import statistics
import sys

from test_architecture import ROOT, tracked

# The most lines of Python in a room, 5 % above what is there; NAMING: files that may name a mapping.
LINES = {
    "sparse_attention": 17_285,  # rows and attention on a GPU, built kernels, segments
    "repro": 8_550,  # options and errors came from tasks
    "tasks": 22_230,
    "tasks/fairseq_plugin": 905,
    "scripts": 680,
    "benchmarks": 2_320,  # length generalisation, and the host of a GPU that is there
}
NAMING = 33  # the fused attention knows fusedmax (6 files)


def offenders() -> list[str]:
    """What is too long, in words."""
    texts = {
        str(f.relative_to(ROOT)): f.read_text(encoding="utf-8")
        for room in (*LINES, "configs", "docs")
        for f in tracked(*(f"{room}/*{end}" for end in (".py", ".cpp", ".h", ".yaml")))
    }
    code = {name: len(text.splitlines()) for name, text in texts.items() if not name.endswith(".yaml")}
    most = {name: 50 if name.startswith("scripts/") else 400 for name in code}
    most["scripts/setup.py"] = 205  # it stands alone: it runs before the environment exists
    found = [f"{name}: {n} lines of at most {most[name]}" for name, n in code.items() if n > most[name]]
    if (median := statistics.median(code.values())) >= 150:
        found.append(f"the median file has {median} lines of at most 150")
    for room, limit in LINES.items():
        n = sum(n for name, n in code.items() if name.startswith(f"{room}/") and name.endswith(".py"))
        if n > limit:
            found.append(f"{room}/: {n} lines; LINES in tests/sizes.py says {limit}: shorten, or raise it and say why")
    apart = {"experiment", "published", "claims"}  # what papers and experiments say of it
    naming = [name for name, text in texts.items() if "fusedmax" in text and not apart & {*name.split("/")}]
    if len(naming) > NAMING:
        found.append(f"{len(naming)} files name fusedmax, of at most {NAMING}")
    return found


if __name__ == "__main__":
    found = offenders()
    print(*found, sep="\n")
    sys.exit(bool(found))
