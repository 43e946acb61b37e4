"""The report: complete in itself, true to the store, and written whatever is missing."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from sparse_attention.repro import report, table
from sparse_attention.repro.cell import Cell
from sparse_attention.repro.experiment import read
from sparse_attention.repro.files import write_json
from sparse_attention.repro.plan import Plan, Slot
from sparse_attention.repro.protocol import Prepared, TestSet
from sparse_attention.repro.report.heat import groups, runs
from sparse_attention.repro.report.samples import SAMPLES, choose
from sparse_attention.repro.store import Store

pytest.importorskip("jinja2")

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>'
ROWS = ("softmax", "sparsemax", "fusedmax")
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Elements, text and attributes of a page; checks that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("style", "script"):
            return
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

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

    def __init__(
        self, root: Path, comparable: bool = False, seeds: tuple[int, ...] = (1,), text: str = "plain words", label: str = ROWS[0],
        curve_zeros: float = 0.3,
    ) -> None:  # fmt: skip
        self.store, self.root, self.curve_zeros = Store(root), root, curve_zeros
        column = {
            "label": "column & one", "select": {"metric": "dev/accuracy", "mode": "max"},
            "show": [{"metric": "test/rouge1_f", "label": "R-1"}, {"metric": "test/attention_zeros", "label": "zeros"}],
            "published": [{"label": "paper", "dataset": "D", "metrics": ["ROUGE-1"], "labels": ["R-1"], "against": ["test/rouge1_f"]}],
        }  # fmt: skip
        page = {
            "title": "Made-up table", "deviations": ["a small model"], "columns": {"c": column},
            "rows": [{"label": n if r else label, "published": n, "mapping": n} for r, n in enumerate(ROWS)],
            "profiles": {p: {"columns": ["c"], "seeds": list(seeds), "comparable": comparable} for p in ("demo", "paper")},
        }  # fmt: skip
        facts = {"name": "d", "provenance": "written by a test", "sizes": {"test": 30}, "sha256": "a" * 64}
        test = TestSet("test", "t", "", facts, baselines={"lead": {"test/rouge1_f": 12.5, "test/words": 7}})
        self.plan = Plan(read(page, "made_up", "paper" if comparable else "demo"))
        self.weights: dict[str, dict[int, np.ndarray]] = {}
        for r, name in enumerate(ROWS):
            for seed in seeds:
                config = {
                    "task": {"name": "t"}, "data": {"name": "d"}, "mapping": {"name": name, "gamma": 1.0, "grid": {}}, "seed": seed,
                    "train": {"max_epochs": 3}, "runtime": {"device": "cpu"},
                }  # fmt: skip
                cell = Cell(config, "fake_family", Prepared("a" * 64, "", facts, (), test), (test,))
                self.plan.slots.append(Slot(r, 0, (), seed, cell))
                self._fill(cell, r, name, seed, text)
        self.records = [
            {"mapping": n, "dataset": "D", "metric": "ROUGE-1", "value": 35.13 + r} for r, n in enumerate(ROWS)
        ]

    def _fill(self, cell: Cell, r: int, name: str, seed: int, text: str) -> None:
        rng = np.random.default_rng(100 * r + seed)
        entry, level, test = cell.entry(self.store), cell.evaluation(self.store, cell.tests[0]), cell.tests[0]
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
        if seed == 1:
            self.weights[name] = arrays
        level.write_predictions(records)
        level.path("attention.safetensors").write_bytes(save({f"test/{i}": a for i, a in arrays.items()}))
        head = "epoch,dev/accuracy,dev/ppl,dev/attention_zeros\n"
        rows = "".join(f"{e},{20 * e + r},{90 / e},{self.curve_zeros * r}\n" for e in (1, 2, 3))
        entry.path("curves.csv").write_text(head + rows)
        write_json(
            entry.path("provenance.json"),
            {"code": {"commit": "c0ffee"}, "python": "3.11", "started": "2026", "seconds": 9},
        )
        training = {"dev/accuracy": 60.0 + r, "best_epoch": 3.0, "train/tokens_per_second": 1234.0}
        scores = {"test/rouge1_f": 30.0 + r + seed, "test/attention_zeros": 0.3 * r, "test/attention_support": 6.0 - r}
        write_json(
            entry.path("metrics.json"), {"metrics": training, "seconds": 9.0, "facts": dict(cell.prepared.facts)}
        )
        write_json(
            level.path("metrics.json"),
            {"metrics": scores, "facts": dict(test.facts), "baselines": dict(test.baselines)},
        )
        entry.finish()
        level.finish()

    def entry(self, row: int):
        return self.plan.at(row, 0)[0].cell.entry(self.store)

    def level(self, row: int):
        cell = self.plan.at(row, 0)[0].cell
        return cell.evaluation(self.store, cell.tests[0])

    def fail(self, row: int, **facts) -> None:
        self.entry(row).path("manifest.json").unlink()
        if facts:
            self.entry(row).set_status("failed", **facts)

    def write(self, failed=None) -> str:
        built = table.build(self.plan, self.store, self.records, failed)
        path = report.write([built], [self.plan], self.store, self.root / "report" / "r.html", failed)
        return path.read_text(encoding="utf-8")


def test_the_page_is_whole_and_loads_nothing(tmp_path):
    text = Made(tmp_path, seeds=(1, 2)).write()
    page = Page(text)
    assert len(text) < 3_000_000
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base"), tag
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name) or ""
            assert not re.match(r"(?i)(https?:|//|file:|data:|javascript:|/)", value), f"{tag} {name}={value}"
    assert "@import" not in text and "could not be made" not in text
    identifiers = [a["id"] for _, a in page.elements if "id" in a]
    assert len(identifiers) == len(set(identifiers)), "two drawings share an id: one may borrow the other's clip path"
    targets = {i for _, a in page.elements for v in a.values() for i in re.findall(r"url\(#([^)]+)\)", v or "")}
    targets |= {a[n][1:] for _, a in page.elements for n in ("href", "xlink:href") if (a.get(n) or "").startswith("#")}
    assert targets and targets <= set(identifiers)


def test_the_table_shows_our_numbers_their_spread_and_the_best(tmp_path):
    text = Made(tmp_path, seeds=(1, 2)).write()
    page = Page(text)
    # Two seeds score 30 + row + seed: mean 31.5 + row, sample standard deviation sqrt(1/2).
    # t of 97.5 % with one degree of freedom is 12.706; every example scores one more than softmax's, with both seeds.
    assert page.row("sparsemax")[1:6] == [
        "2",
        "32.50 ±0.71*†[26.15, 38.85]",
        "0.30 ±0.00[0.30, 0.30]",
        "36.13",
        "not comparable ",
    ]
    assert [v.strip() for v in page.row("lead baseline first 7 words")[1:4]] == ["", "12.50", "-"]
    (differences,) = [r for r in page.rows if r and r[0].strip() == "sparsemax" and r[-1].startswith("-3.63")]
    assert differences[1:] == ["-3.63 [-9.98, +2.72]"]
    best = re.findall(r'<td class="best"[^>]*>([\d.]+)', text)
    assert best == ["33.50"], "the best score is marked, the attention's zeros and the baseline are not"
    assert "not comparable with the paper" in page.text and "a small model" in page.text


def test_the_page_escapes_what_models_and_data_say(tmp_path):
    made = Made(tmp_path, text=EVIL, label=f"row {EVIL} $x$")
    made.fail(2, error=EVIL, traceback=f"Traceback\n{EVIL}")
    text = made.write()
    page = Page(text)
    assert EVIL in page.text and "<img" not in text
    assert [tag for tag, _ in page.elements].count("script") == 1


def test_a_failed_cell_is_shown_with_its_traceback(tmp_path):
    made = Made(tmp_path)
    made.fail(1, error="ValueError: broken", traceback="Traceback (most recent call last):\n  deep inside\n")
    page = Page(made.write())
    assert "ValueError: broken" in page.text and "deep inside" in page.text
    assert page.row("sparsemax")[2] == "missing"
    assert "2 cells done" in page.text and "1 cells failed" in page.text
    assert any(tag == "details" and "open" not in attributes for tag, attributes in page.elements)


def test_a_failure_that_the_store_does_not_know_is_shown_too(tmp_path):
    made = Made(tmp_path)
    made.fail(1)
    page = Page(made.write({made.plan.at(1, 0)[0].cell.cell_id: "OSError: no space\nTraceback: full disk"}))
    assert "OSError: no space" in page.text and "full disk" in page.text


FILES = ("curves.csv", "provenance.json", "metrics.json", "manifest.json")
OF_EVALUATION = ("predictions.jsonl.gz", "attention.safetensors", "metrics.json", "manifest.json")


@pytest.mark.parametrize("how", ["absent", "damaged"])
@pytest.mark.parametrize(("level", "name"), [*(("entry", n) for n in FILES), *(("level", n) for n in OF_EVALUATION)])
def test_missing_and_damaged_files_leave_a_report(tmp_path, level, name, how):
    made = Made(tmp_path)
    for r in range(len(ROWS)):
        path = getattr(made, level)(r).path(name)
        path.unlink()
        if how == "damaged":
            path.write_bytes(b"\xff\x00not what was asked for\n{")
    page = Page(made.write())
    assert "Made-up table" in page.text and any(a.get("class") == "note" for _, a in page.elements)
    if (name, how) != ("manifest.json", "absent"):
        assert "is damaged" in page.text and "3 cells damaged" in page.text


def test_damage_after_the_table_was_built_leaves_a_report(tmp_path):
    made = Made(tmp_path)
    built = table.build(made.plan, made.store, made.records)
    made.level(1).path("predictions.jsonl.gz").write_bytes(b"\x1f\x8b broken")
    made.entry(0).path("curves.csv").unlink()
    text = report.write([built], [made.plan], made.store, tmp_path / "r.html").read_text()
    assert "no output stored" in text and Page(text).row("softmax")


def test_zeros_are_those_of_the_metric_not_of_what_is_drawn(tmp_path):
    text = Made(tmp_path).write()
    assert re.findall(r"test set: (\d+)% zeros, support ([\d.]+)", text)[:3] == [
        ("0", "6.0"),
        ("30", "5.0"),
        ("60", "4.0"),
    ]
    curves = text[text.index('id="e1-curves"') : text.index('id="e1-attention"')]
    assert "dev attention: share of exact zeros" in curves


def test_a_curve_of_other_weights_than_the_table_s_is_not_drawn(tmp_path):
    """Training may count the zeros of a softmax beside the density that the table is about."""
    text = Made(tmp_path, curve_zeros=0.0).write()
    section = text[text.index('id="e1-curves"') : text.index('id="e1-attention"')]
    plot = re.findall(r'<svg class="plot".*?</svg>', section, re.S)[-1]
    assert re.findall(r"clip-path[^>]*style=\"fill: none; stroke: var\(--c(\d)\)", plot) == ["0"], (
        "softmax has no zeros in either"
    )


def test_an_experiment_without_cells_has_a_report(tmp_path):
    made = Made(tmp_path)
    made.plan.unavailable[0] = "the corpus is licensed"
    made.plan.slots = []
    page = Page(made.write())
    assert "the corpus is licensed" in page.text and "No finished cell has left a provenance record" in page.text


def test_without_matplotlib_the_report_says_so(tmp_path, monkeypatch):
    made = Made(tmp_path)
    for module in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = made.write()
    assert "pip install matplotlib" in text and 'class="plot"' not in text
    assert 'class="heat" viewBox' in text, "heat maps need no matplotlib"


def test_heat_maps_leave_exactly_the_zeros_grey(tmp_path):
    made = Made(tmp_path)
    text = made.write()
    for label in ROWS[1:]:
        indices = [int(i) for i in re.findall(r"<b>Test example (\d+)\.</b>", text)]
        assert len(indices) == 3
        panels = re.findall(rf'<g transform="[^"]*"><title>{label}</title>(.*?)</g>', text)
        assert len(panels) == 3
        for index, panel in zip(indices, panels):
            weights = made.weights[label][index]  # [outputs, source]: output down, source across
            steps, tokens = weights.shape
            assert re.search(rf'class="zero" width="{tokens * 15}" height="{steps * 15}"', panel)
            (ground, *tints) = re.findall(r'<path class="(paper|w\d+)" d="([^"]*)"', panel)
            drawn = [tuple(map(int, m)) for m in re.findall(r"M(\d+) (\d+)h(\d+)", ground[1])]
            covered = {(y // 15, (x + k) // 15) for x, y, width in drawn for k in range(0, width, 15)}
            assert ground[0] == "paper" and covered == set(zip(*map(list, np.nonzero(weights))))
            assert sum(d.count("M") for _, d in tints) == len(drawn)
            strongest = max(tints, key=lambda t: int(t[0][1:]))[1]
            step, token = np.unravel_index(weights.argmax(), weights.shape)
            assert f"M{token * 15} {step * 15}h" in strongest


def test_equal_neighbours_have_no_border_and_other_equal_weights_a_letter():
    row = [0.0, 0.0, 0.2, 0.2, 0.1, 0.2, 0.0, 0.3 + 1e-3]
    assert runs(row) == [(0, 2), (2, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    assert groups(row) == [[2, 3, 5]], "three equal weights, one of them apart"
    assert groups([0.5, 0.5, 0.0, 0.0]) == [], "neighbours need no letter, zeros never have one"
    third = float(np.float32(1) / np.float32(3))
    assert runs([third, third + 2e-8]) == [(0, 2)] and runs([1e-9, 0.0]) == [(0, 1), (1, 2)]


def test_curves_have_one_line_per_row_in_the_row_s_colour(tmp_path):
    made = Made(tmp_path)
    text = made.write()
    section = text[text.index('id="e1-curves"') : text.index('id="e1-attention"')]
    plots = re.findall(r'<svg class="plot".*?</svg>', section, re.S)
    assert len(plots) == 3
    for plot in plots:
        strokes = re.findall(r'<path d="(M[^"]*)" clip-path[^>]*style="fill: none; stroke: var\(--c(\d)\)', plot)
        assert [int(colour) for _, colour in strokes] == [0, 1, 2]
        # Three epochs, equally far apart.
        for path, _ in strokes:
            x = [float(v) for v in re.findall(r"[ML] ([\d.]+) ", path)]
            assert len(x) == 3 and x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.05)


@pytest.mark.parametrize("comparable", [True, False])
def test_published_against_ours_is_drawn_only_where_comparable(tmp_path, comparable):
    text = Made(tmp_path, comparable).write()
    assert ("paper R-1: ours minus published; line: 95 % interval" in text) is comparable
    assert ('class="verdict not-comparable"' in text) is not comparable


def shown(page) -> list[int]:
    return [int(i) for i in re.findall(r"<summary><span class=\"dim\">(\d+)</span>", page)]


def test_samples_are_the_same_examples_for_every_row_and_spread_over_the_test_set(tmp_path):
    text = Made(tmp_path).write()
    found = shown(text)
    assert len(found) == SAMPLES and found == sorted(set(found))
    assert np.diff([-1, *found, 30]).max() <= 6 and "not picked by hand" in text
    outputs = [r for r in Page(text).rows if len(r) == 3 and r[0].split() and r[0].split()[-1] in ROWS]
    assert len(outputs) == len(found) * len(ROWS)


def test_half_of_the_samples_are_failures_where_there_are_any():
    scores = [
        {i: {"sentence": {"accuracy": float(i % 10 != 0)}} for i in range(100)},
        {i: {"sentence": {"accuracy": 1.0}} for i in range(100)},
    ]
    found, how = choose(range(100), scores, ["accuracy"])
    assert len(found) == SAMPLES == len(set(found)) and sum(i % 10 == 0 for i in found) >= 4
    assert "4 of these are failures" in how and "the 10 of 100 test examples" in how
    all_right, how = choose(range(100), scores[1:], ["accuracy"])
    assert len(all_right) == SAMPLES and "failures" not in how
    all_wrong, _ = choose(range(3), [{i: {"sentence": {"accuracy": 0.0}} for i in range(3)}], ["accuracy"])
    assert all_wrong == [0, 1, 2]


def test_images_of_questions_stand_beside_them(tmp_path, monkeypatch):
    import fake_family

    monkeypatch.setattr(fake_family, "pictures", lambda config: lambda key: f"image {key}".encode(), raising=False)
    made = Made(tmp_path)
    for r in range(len(ROWS)):
        level = made.level(r)
        level.write_predictions([record | {"image": f"k{record['index']}"} for record in level.predictions()])
        level.finish()
    text = made.write()
    drawn = [base64.b64decode(x).decode() for x in re.findall(r'<img src="data:image/png;base64,([^"]+)"', text)]
    maps, samples = drawn[:3], drawn[3:]
    assert samples == [f"image k{i}" for i in shown(text)]
    assert maps == [f"image k{i}" for i in re.findall(r"<b>Test example (\d+)\.</b>", text)]


def test_the_cells_have_their_scores(tmp_path):
    page = Page(Made(tmp_path, seeds=(1, 2)).write())
    head = next(r for r in page.rows if r and r[0] == "state")
    assert head[5:8] == ["dev accuracy", "R-1", "zeros"]
    of_fusedmax = [r[5:8] for r in page.rows if len(r) == len(head) and r[2] == "fusedmax"]
    assert of_fusedmax == [["62.00", "33.00", "0.60"], ["62.00", "34.00", "0.60"]]


def test_several_tables_have_an_overview(tmp_path):
    made = Made(tmp_path, seeds=(1, 2))
    built = [table.build(made.plan, made.store, made.records) for _ in range(2)]
    text = report.write(built, [made.plan] * 2, made.store, tmp_path / "r.html").read_text()
    page = Page(text)
    lines = [r for r in page.rows if r and r[0].startswith("column & one made_up")]
    assert [line[1:] for line in lines] == [["R-1", "+1.00 (3)", "31.50", "32.50", "33.50"]] * 2
    assert 'id="overview"' not in made.write(), "one table is its own overview"


def test_backticks_are_code_and_still_escaped(tmp_path):
    made = Made(tmp_path)
    built = table.build(made.plan, made.store, made.records)
    built.deviations.append(f"`mapping.mode=paper` {EVIL}")
    text = report.write([built], [made.plan], made.store, tmp_path / "r.html").read_text()
    assert "<code>mapping.mode=paper</code>" in text and "<img" not in text


@pytest.mark.slow
def test_two_hundred_cells(tmp_path):
    made = Made(tmp_path, seeds=tuple(range(1, 68)))
    started = time.process_time()
    text = made.write()
    assert len(made.plan.slots) == 201 and time.process_time() - started < 60 and len(text) < 20_000_000


def test_links_lead_to_the_cells(tmp_path):
    made = Made(tmp_path)
    page = Page(made.write())
    links = [a["href"] for tag, a in page.elements if tag == "a" and "cells/" in (a.get("href") or "")]
    assert len(links) == len(ROWS)
    assert all((tmp_path / "report" / link / "metrics.json").is_file() for link in links)


def test_one_table_per_plan(tmp_path):
    made = Made(tmp_path)
    with pytest.raises(ValueError, match="0 tables and 1 plans"):
        report.write([], [made.plan], made.store, tmp_path / "r.html")


def test_importing_the_report_is_light():
    code = "import sys, sparse_attention.repro.report; print([m for m in ('matplotlib', 'jinja2', 'safetensors') if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
