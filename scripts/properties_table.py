"""Print Table 1 of Laha et al. 2018: each property of each mapping, every mark checked numerically.

    python scripts/properties_table.py [--classes K]          K: length of the rows it is checked on

Examples: python scripts/properties_table.py
          python scripts/properties_table.py --classes 3
          python scripts/properties_table.py --classes 5 > docs/results/properties.md
"""

from __future__ import annotations

import argparse

from sparse_attention.properties import page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=5, help="number of scores K (default 5)")
    parser.add_argument("--lam", type=float, default=0.5, help="lambda of sparsegen (default 0.5)")
    parser.add_argument("--q", type=float, default=0.4, help="q of sparsecone and sparsehourglass (default 0.4)")
    args = parser.parse_args()
    if args.classes < 2 or args.lam >= 1 or args.lam == 0 or args.q <= 0:
        parser.error("needs --classes >= 2, --lam < 1 and not 0 (0 is sparsemax), --q > 0")
    print(page(args.classes, args.lam, args.q), end="")


if __name__ == "__main__":
    main()
