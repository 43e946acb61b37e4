"""Files of one's own as the tests write them."""

import csv

import numpy as np

SPLITS = ("train", "dev", "test")


def write_rows(folder, name, rows):
    """A csv file with the csv module's own quoting."""
    folder.mkdir(exist_ok=True)
    with open(folder / name, "w", newline="") as stream:
        csv.writer(stream).writerows(rows)


def sentence(i):
    rng = np.random.default_rng(i)
    return " ".join(f"w{chr(97 + a)}{chr(97 + b)}" for a, b in rng.integers(26, size=(9, 2)))
