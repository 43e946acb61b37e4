"""Compare rows, attention and a training step with the committed ratios to torch; fail if one is 15 % slower in every try.

    --quick    the shortest part, under 40 s
    --record   write this machine's ratios for its instruction set into benchmarks/gate.json (ten minutes, without other work)

Examples: python scripts/bench_gate.py
          python scripts/bench_gate.py --record
          SPARSE_ATTENTION_NATIVE_ISA=avx2 ATEN_CPU_CAPABILITY=avx2 python scripts/bench_gate.py --quick
"""

from _entry import command


@command
def main(*, quick: bool = False, record: bool = False) -> int:
    from benchmarks import gate

    return gate.run(quick, record)
