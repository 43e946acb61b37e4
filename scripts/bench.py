"""Time every mapping against torch.softmax and installed peers; write docs/benchmarks.md.

Examples: python scripts/bench.py                                                      # the whole page: about ten minutes
          python scripts/bench.py --seconds .2 --only sparsemax --shapes 1280x30 --output -
          python scripts/bench.py --only fusedmax,top_k --no-peers --output -          # two mappings; no page is written
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--threads", type=int, default=1, help="torch threads (default 1; more only on an idle machine)"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time per shape and direction (default 2)")
    parser.add_argument("--only", help="comma-separated beginnings of labels, or names of mappings")
    parser.add_argument("--shapes", help="comma-separated, rows x length, like 1280x30,64x32000")
    parser.add_argument("--no-peers", action="store_true", help="leave other packages out")
    parser.add_argument("--output", default=str(ROOT / "docs" / "benchmarks.md"), help="file to write, - for none")
    choice = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(choice.threads)

    import torch

    import benchmarks as bench
    import sparse_attention as sa
    from benchmarks.peers import versions

    torch.set_num_threads(choice.threads)
    bench.keep_freed_memory()
    shapes = bench.SHAPES
    if choice.shapes:
        shapes = tuple(tuple(int(v) for v in s.split("x")) for s in choice.shapes.split(","))  # type: ignore[assignment]
    wanted = tuple(choice.only.split(",")) if choice.only else ("",)
    cases = [case for case in bench.CASES if case.label.startswith(wanted)]
    continuous = tuple(case for case in bench.CONTINUOUS_CASES if case.label.startswith(wanted))
    structured = tuple(case for case in bench.STRUCTURED_CASES if case.label.startswith(wanted))
    known = {case.name for case in bench.CASES}
    cases += [bench.Case(name, name, {}) for name in wanted if name in sa.names("simplex") and name not in known]
    if not cases and not continuous and not structured:
        every = (*bench.CASES, *bench.CONTINUOUS_CASES, *bench.STRUCTURED_CASES)
        labels = ", ".join([*(case.label for case in every), *sa.names("simplex")])
        parser.error(f"--only {choice.only!r} names no mapping; there are {labels}")
    backend = sa.kernels.select("sparsemax", torch.zeros(1, 1))
    kernels = backend.__name__.rsplit(".", 1)[1]
    if kernels == "native":
        kernels += f" ({backend.instruction_set()})"
    rows = []
    for done, case in enumerate(cases, 1):
        print(f"[{done}/{len(cases)}] {case.label}", file=sys.stderr, flush=True)
        rows += bench.measure(case, shapes, choice.seconds, {} if choice.no_peers else bench.peers(case.label))
    page = bench.markdown(rows, shapes, versions(), kernels)
    if continuous:
        print(f"continuous attention: {len(continuous)} cases", file=sys.stderr, flush=True)
        page += "\n" + bench.markdown_continuous(bench.measure_continuous(continuous, choice.seconds))
    if structured:
        print(f"structured attention: {len(structured)} cases", file=sys.stderr, flush=True)
        page += "\n" + bench.markdown_structured(bench.measure_structured(structured, choice.seconds))
    print(page)
    if choice.output != "-":
        output = Path(choice.output)  # what follows these headings is of bench_attention.py and bench_training.py
        old = output.read_text() if output.exists() else ""
        kept = re.search(r"\n## (Fused attention|Training and decoding)\n.*", old, re.S)
        output.write_text(page + (kept[0] if kept else ""))
        print(f"Written to {choice.output}. Compare with `git diff {choice.output}`.", file=sys.stderr)


if __name__ == "__main__":
    main()
