"""The four renderings of a table, and its files."""

from __future__ import annotations

import csv
import io
import itertools

import pytest
from made_table import AMBIGUOUS, BASELINES, RECORDS

from repro.tables import build as tables
from repro.tables import render

HEADERS = ["mapping", "n", "BLEU", "support", "converged", "BLEU", "verdict"]
SOFTMAX = ["softmax", "2", "30.50 ±0.71", "3.5 ±0.7", "yes: best epoch 2 of 3", "36.38", "not comparable"]


def test_text(made):
    lines = render.to_text(tables.build(*made(), AMBIGUOUS)).splitlines()
    start = lines.index("A | B & C_1")
    finding, groups, header, line, softmax, tuned, dashes, lead, constant = lines[start + 1 : start + 10]
    assert finding == "  No best row: fewer than two rows have converged with 3 seeds or more."
    columns = [0, *(i for i, (a, b) in enumerate(itertools.pairwise(line), 1) if a == "-" and b == " ")]
    cells = [[text[a:b].strip() for a, b in zip(columns, [*columns[1:], None])] for text in (groups, header, softmax)]
    assert cells == [["", "", "ours", "", "", "FR-EN (paper)", ""], HEADERS, SOFTMAX], "columns are aligned"
    assert tuned.split()[:6] == ["tuned", "(lam=0.5,", "best", "of", "2", "on"] and "36.9?" in tuned
    assert dashes == line and lead.split()[:5] == ["lead", "baseline", "(first", "8", "words)"] and "12.3" in lead
    assert "always the same 2 words" in constant and "hello" not in constant
    assert any(x.startswith("  Not comparable: profile demo; the experiment does not claim to") for x in lines)


def test_markdown_is_a_table(made):
    lines = render.to_markdown(tables.build(*made(), RECORDS)).splitlines()
    rows = [x for x in lines if x.startswith("|")]
    rows, further = rows[: 2 + 2 + 3], rows[2 + 2 + 3 :]
    assert {x.replace("\\|", "").count("|") for x in rows} == {8}
    assert (
        further[0] == "| mapping | n | difference | shown over seeds |" and further[2] == "| tuned | 2 | +3.50 | no |"
    )
    assert further[3] == "| mapping | BLEU | support |" and further[5] == "| softmax | 30.00, 31.00 | 3.0, 4.0 |"
    assert rows[0] == "| mapping | n | ours BLEU | ours support | ours converged | FR-EN (paper) BLEU | verdict |"
    assert rows[2] == f"| {' | '.join(SOFTMAX)} |"
    assert "**" not in "".join(lines), "nothing is bold without a ranking"


def test_the_score_of_the_best_row_is_bold(made):
    """Two seeds, or three that decide nothing, leave it as it is."""
    clear = {(1, 0.5, seed): (65.0, score) for seed, score in enumerate((43.0, 44.5, 45.0), 1)}
    text = render.to_markdown(tables.build(*made({(0, None, s): (60.0, 29.0 + s) for s in (1, 2, 3)} | clear), RECORDS))
    assert "\n\nBest: tuned (44.17 ±1.04 BLEU, n = 3), shown to be better than 1 of 1 other rows that " in text
    assert text.count("**") == 4 and "| **44.17 ±1.04†** |" in text and "- **Bold**: the main score of a row" in text


def test_csv_holds_every_number_at_full_precision(made):
    found = list(csv.DictReader(io.StringIO(render.to_csv(tables.build(*made(), RECORDS)))))
    ours = next(r for r in found if (r["row"], r["source"], r["metric"]) == ("tuned", "ours", "test/bleu"))
    assert [float(ours[k]) for k in ("mean", "n", "std")] == pytest.approx([34.0, 2, 2**0.5], rel=1e-5)
    assert ours["ci95_half"] == "", "two seeds: no interval over seeds"
    assert ours["selected"] == "lam=0.5, best of 2 on dev" and ours["column"] == "A | B & C_1"
    trained = next(r for r in found if (r["row"], r["metric"]) == ("tuned", "convergence"))
    assert trained["verdict"] == "yes: best epoch 2 of 3" and trained["mean"] == ""
    theirs = [(r["row"], float(r["mean"]), r["verdict"]) for r in found if r["source"] == "published"]
    why = "not comparable: profile demo; the experiment does not claim to be comparable"
    assert theirs == [("softmax", 36.38, why), ("tuned", 36.9, why)]
    assert {r["row"] for r in found if r["source"] == "baseline"} == {f"{b} baseline" for b in BASELINES}


def test_latex_is_escaped_and_rectangular(made):
    text = render.to_latex(tables.build(*made(), RECORDS))
    assert r"\caption{A table: 100\% \& more: A | B \& C\_1" in text and r"30.50 $\pm$0.71" in text
    rows = [
        [cell.strip() for cell in x[:-2].replace(r"\&", "").split("&")] for x in text.splitlines() if x.endswith(r"\\")
    ]
    assert rows[0] == [*HEADERS[:2], *(f"ours {h}" for h in HEADERS[2:5]), "FR-EN (paper) BLEU", "verdict"]
    assert rows[1] == [cell.replace("±", r"$\pm$") for cell in SOFTMAX] and {len(row) for row in rows} == {7}
    for begin, end in (("\\begin{table}", "\\end{table}"), ("\\begin{tabular}", "\\end{tabular}")):
        assert text.count(begin) == text.count(end) == 1


def test_files_are_written_beside_each_other(made, tmp_path):
    paths = render.write(tables.build(*made(), RECORDS), tmp_path / "tables" / "fake_demo")
    assert [p.name for p in paths] == [f"fake_demo{suffix}" for suffix in (".txt", ".md", ".csv", ".tex")]
    assert all(p.read_text() for p in paths)
