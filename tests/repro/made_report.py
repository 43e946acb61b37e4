"""An experiment's store written without training anything, and a report's page taken apart."""

import functools
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_family import keep
from lxml import html
from safetensors.numpy import save

from repro.cell import Cell
from repro.plan import Plan
from repro.plan.experiment import read
from repro.plan.published import numbers
from repro.protocol import Prepared, TestSet
from repro.report import page as report
from repro.store import Store
from repro.tables import build as tables

VOID = {"meta", "img", "br", "hr", "link", "input"}
ROWS = ("softmax", "sparsemax", "fusedmax")


class Page:
    """Elements, text and attributes of a page; checks that every element is closed in order."""

    def __init__(self, text: str) -> None:
        parser = html.HTMLParser()
        root = html.document_fromstring(text, parser=parser)
        wrong = [one.message for one in parser.error_log if one.type_name != "HTML_UNKNOWN_TAG"]  # as those of HTML 5
        opened, closed = (Counter(re.findall(tag, text)) for tag in (r"<([a-z]\w*)", r"</([a-z]\w*)"))
        assert wrong == [] and {tag for tag in opened if opened[tag] != closed[tag]} <= VOID
        self.elements = [(one.tag, dict(one.attrib)) for one in root.iter("*")]
        for one in [*root.iter("style", "script", "i")]:  # i: the swatches
            one.text = None
        self.text = root.text_content()
        self.rows = [[cell.text_content() for cell in row.xpath("td|th")] for row in root.iter("tr")]

    def row(self, first: str) -> list[str]:
        return next(r for r in self.rows if r and r[0].split() and " ".join(r[0].split()) == first)


def attention(rng, steps: int, tokens: int, zeros: bool) -> np.ndarray:
    """[steps, tokens], rows summing to one."""
    weights = rng.dirichlet(np.full(tokens, 0.5), steps)
    if zeros:
        weights[weights < 0.1] = 0
    return (np.maximum(weights, 0 if zeros else 1e-7) / weights.sum(1, keepdims=True)).astype(np.float32)


class Made:
    """A small experiment whose cells were written without training anything."""

    def __init__(self, root: Path, seeds=(1,), text="plain words", label=ROWS[0], curve_zeros=0.3) -> None:
        self.store, self.root, self.curve_zeros = Store(root), root, curve_zeros
        column = {
            "label": "column & one", "select": {"metric": "dev/accuracy", "mode": "max"},
            "show": [{"metric": "test/rouge1_f", "label": "R-1"}, {"metric": "test/attention_zeros", "label": "zeros"}],
            "published": [{"label": "paper", "dataset": "D", "metrics": ["ROUGE-1"], "labels": ["R-1"], "against": ["test/rouge1_f"]}],
        }  # fmt: skip
        page = {
            "title": "Made-up table", "deviations": ["a small model"], "columns": {"c": column},
            "rows": [{"label": n if r else label, "published": n, "mapping": n} for r, n in enumerate(ROWS)],
            "profiles": {"demo": {"columns": ["c"], "seeds": list(seeds)}},
        }  # fmt: skip
        facts = {"name": "d", "provenance": "written by a test", "sizes": {"test": 30}, "sha256": "a" * 64}
        test = TestSet("test", "t", "", facts, baselines={"lead": {"test/rouge1_f": 12.5, "test/words": 7}})
        self.plan = Plan(read(page, "made_up", "demo"))
        for r, name in enumerate(ROWS):
            for seed in seeds:
                config = {
                    "task": {"name": "t"}, "data": {"name": "d"}, "mapping": {"name": name, "gamma": 1.0, "grid": {}}, "seed": seed,
                    "train": {"max_epochs": 4}, "runtime": {"device": "cpu"},
                }  # fmt: skip
                cell = Cell(config, "fake_family", Prepared("a" * 64, "", facts, (), test), (test,))
                self.plan.slots.append(replace(cell, row=r))
                self._fill(cell, r, seed, text)
        theirs = {"rows": {n: {"mapping": n} for n in ROWS}, "datasets": {"D": {"data": "d", "ROUGE-1": "rouge1_f"}}}
        scored = {"dataset": "D", "metric": "ROUGE-1"}
        theirs["results"] = [scored | {"mapping": n, "value": 35.13 + r} for r, n in enumerate(ROWS)]
        self.records = numbers(theirs)

    def _fill(self, cell: Cell, r: int, seed: int, text: str) -> None:
        rng = np.random.default_rng(100 * r + seed)
        records, arrays = [], {}
        for i in range(30):
            source = [f"s{j}" for j in range(5 + i % 6)]
            records.append(
                {
                    "index": i, "source": f"{text} {i}", "references": [f"reference {text}"], "output": f"{text} out put",
                    "sentence": {"rouge1_f": 50.0 + r}, "source_tokens": source, "output_tokens": ["out", "put", "</s>"],
                }
            )  # fmt: skip
            arrays[i] = attention(rng, 3, len(source), r > 0)
        head = "epoch,dev/accuracy,dev/ppl,dev/attention_zeros\n"
        curve = head + "".join(f"{e},{20 * e + r},{90 / e},{self.curve_zeros * r}\n" for e in (1, 2, 3))
        training = {"dev/accuracy": 60.0 + r, "best_epoch": 3.0, "train/tokens_per_second": 1234.0}
        scores = {"test/rouge1_f": 30.0 + r + seed, "test/attention_zeros": 0.3 * r, "test/attention_support": 6.0 - r}
        packed = save({f"test/{i}": a for i, a in arrays.items()})
        keep(self.store, cell, training, scores, records, packed, curve, python="3.11", started="2026", seconds=9)

    def entry(self, row: int):
        return self.plan.at(row, 0)[0].entry(self.store)

    def level(self, row: int):
        cell = self.plan.at(row, 0)[0]
        return cell.evaluation(self.store, cell.tests[0])

    def fail(self, row: int, **facts) -> None:
        self.entry(row).path("manifest.json").unlink()
        if facts:
            self.entry(row).set_status("failed", **facts)

    def write(self) -> str:
        built = tables.build(self.plan, self.store, self.records)
        path = report.write(built, self.plan, self.store, self.root / "report" / "r.html")
        return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def reported(tmp_path_factory):
    """`reported((1, 2))`: what was made with these seeds and its report, once for all tests that change neither."""

    @functools.cache
    def reported(seeds=(1,)):
        made = Made(tmp_path_factory.mktemp("reported"), seeds=seeds)
        return made, made.write()

    return reported
