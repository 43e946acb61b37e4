"""Time sa.sparse_attention against torch's attention and the composition; write its section of docs/benchmarks.md.

Examples: python scripts/bench_attention.py                                   # all: about ten minutes on a quiet core
          python scripts/bench_attention.py --n 512 --seconds .2 --no-memory --no-decoding --output -
          python scripts/bench_attention.py --n 4096 8192 --no-decoding --output /tmp/attention.md
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", help="positions: 512, 1024, 4096, 8192 (default all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time per case and direction (default 2)")
    parser.add_argument("--no-memory", action="store_true", help="leave the peaks of memory out")
    parser.add_argument("--no-decoding", action="store_true", help="leave one query on a long cache out")
    root = os.environ.get("SPARSE_ATTENTION_DATA", "data/cache")
    parser.add_argument(
        "--trained", default=f"{root}/language_model", help="folder of tensors of scripts/language_model.py"
    )
    parser.add_argument(
        "--output", default=str(ROOT / "docs" / "benchmarks.md"), help="page with the section, - for none"
    )
    choice = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"

    import torch

    from benchmarks import attention as bench
    from benchmarks import decoding

    torch.set_num_threads(1)
    cases = [case for case in bench.ATTENTION_CASES if choice.n is None or case.n in choice.n]
    if not cases:
        parser.error(f"--n {choice.n} names no case; there are 512, 1024, 4096, 8192")
    rows = []
    for done, case in enumerate(cases, 1):
        print(f"[{done}/{len(cases)}] {case}", file=sys.stderr, flush=True)
        rows += bench.measure_attention((case,), choice.seconds)
    for mapping in bench.ALPHA:
        if (file := Path(choice.trained) / f"{mapping}_qkv.pt").exists():
            rows += bench.measure_trained(file, mapping, choice.seconds)
    memory = {} if choice.no_memory else bench.measure_memory(cases)
    page = bench.markdown_attention(rows, memory)
    if not choice.no_decoding:
        page += "\n" + decoding.markdown_decoding(decoding.measure_decoding(decoding.DECODING_CASES, choice.seconds))
    print(page)
    if choice.output != "-":
        bench.write_section(Path(choice.output), page)
        print(f"Written to {choice.output}. Compare with `git diff {choice.output}`.", file=sys.stderr)


if __name__ == "__main__":
    main()
