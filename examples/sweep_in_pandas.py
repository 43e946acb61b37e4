"""A sweep, read into pandas: scores by mapping and parameter, over seeds.

    python examples/sweep_in_pandas.py           # trains six toy cells first: two minutes
    python examples/sweep_in_pandas.py FOLDER    # reads the runs.csv of a finished sweep or comparison

In a checkout, after `make setup`. `runs.csv` has one line per cell and test set (docs/guides/sweeps.md).
"""

import subprocess
import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
SWEEP = "task=toy mapping=softmax,fusedmax mapping.lam=0.05,0.2 seed=1,2 train.max_epochs=4 sweep=in_pandas".split()


def trained() -> Path:
    """The folder of a small sweep; cells that are finished already are not trained again."""
    subprocess.run([sys.executable, str(ROOT / "scripts" / "train.py"), "-m", *SWEEP], check=True, cwd=ROOT)
    return ROOT / "outputs" / "sweeps" / "in_pandas"


def scores(folder: Path, metric: str = "bleu") -> pd.DataFrame:
    """Mean, deviation and number of the runs for each setting: the columns in which the cells differ, without the seed."""
    runs = pd.read_csv(folder / "runs.csv")
    done = runs[runs.state == "done"]
    settings = ["set", *(c for c in runs if c == "mapping" or c.startswith("mapping."))]
    return done.groupby(settings, dropna=False)[metric].agg(["mean", "std", "count"]).round(2)


def main(folder: Path | None = None) -> None:
    table = scores(folder or trained())
    print(table.to_string())
    best = table["mean"].idxmax()
    print(f"the best: {', '.join(f'{name} {value}' for name, value in zip(table.index.names, best))}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
