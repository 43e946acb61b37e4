"""The table: ours beside the published numbers, per column of the experiment, as data and as text, Markdown, CSV, LaTeX.

Selection follows the papers: of a row's grid the point with the best mean dev score, per column; its test scores are
shown. A number never travels alone: the footers carry data, seeds, signatures and code version.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sparse_attention.repro import published as pub
from sparse_attention.repro.plan import Plan, Slot
from sparse_attention.repro.stats import Summary, paired_bleu_randomization, paired_randomization, summarize
from sparse_attention.repro.store import Entry, Store, read_json, write_atomic

SIGNIFICANT = 0.05


@dataclass
class Value:
    """One place of the table: our number (None: failed or missing), how it is shown, and what it is held against."""

    metric: str
    summary: Summary | None
    decimals: int = 2
    p_value: float | None = None  # against the first row
    note: str = ""

    @property
    def significant(self) -> bool:
        return self.p_value is not None and self.p_value < SIGNIFICANT

    def text(self) -> str:
        if self.summary is None:
            return self.note or "-"
        return self.summary.text(self.decimals) + ("*" if self.significant else "")


@dataclass
class Row:
    label: str
    detail: str  # the selected hyperparameters
    values: list[Value]
    theirs: list[pub.Published | None]
    verdicts: list[str]
    cells: list[str] = field(default_factory=list)  # ids of the selected cells, one per seed
    baseline: bool = False


@dataclass
class Block:
    """One column of the experiment with all its rows."""

    label: str
    headers: list[str]  # ours
    published: list[tuple[str, list[str]]]  # (group, headers)
    rows: list[Row]
    footers: list[str]
    comparable: bool
    unavailable: str = ""


@dataclass
class Table:
    name: str
    title: str
    subtitle: str
    blocks: list[Block]
    footers: list[str]


def build(
    plan: Plan, store: Store, records: Sequence[Mapping[str, Any]], failed: Mapping[str, str] | None = None
) -> Table:
    """Collect the finished cells of a plan into its table; missing ones are shown as failed, never silently left out."""
    experiment = plan.experiment
    comparable = bool(experiment.get("comparable", False))
    blocks = []
    for c, column in enumerate(experiment["columns"]):
        if c in plan.unavailable:
            blocks.append(Block(column["label"], [], [], [], [], comparable, plan.unavailable[c]))
        else:
            blocks.append(_block(plan, store, records, c, column, comparable, failed or {}))
    seeds = sorted({slot.seed for slot in plan.slots})
    spread = "mean ± standard deviation over seeds" if len(seeds) > 1 else "one run each: no spread"
    footers = [f"Seeds: {', '.join(map(str, seeds))} ({spread}).", *experiment.get("footers", [])]
    if any(v.significant for b in blocks for r in b.rows for v in r.values):
        footers.append(f"* differs from the first row: paired randomization over test examples, p < {SIGNIFICANT}.")
    if any(t is not None and t.note for b in blocks for r in b.rows for t in r.theirs):
        notes = {t.note for b in blocks for r in b.rows for t in r.theirs if t is not None and t.note}
        footers.append("? " + " ".join(sorted(notes)))
    footers.extend(_code(plan, store))
    warning = "" if comparable else "; its numbers are not comparable with the paper's"
    return Table(experiment["name"], experiment["title"], f"profile {experiment['profile']}{warning}", blocks, footers)


def _block(plan, store, records, c, column, comparable, failed) -> Block:
    shown = column["show"]
    groups = column.get("published", [])
    rows: list[Row] = []
    losses: list[str] = []
    first: list[Slot] | None = None
    for r, row in enumerate(plan.experiment["rows"]):
        slots = plan.at(r, c)
        chosen, detail = _select(slots, store, column["select"])
        values = [_value(chosen, store, spec, failed, slots) for spec in shown]
        lost = sum(s.cell.entry(store).metrics() is None for s in slots)
        if lost:
            losses.append(f"{row['label']}: {lost} of {len(slots)} cells failed.")
        if first is None:
            first = chosen
        elif chosen:
            for value in values:
                value.p_value = _significance(first, chosen, store, value.metric)
        theirs: list[pub.Published | None] = []
        verdicts: list[str] = []
        for group in groups:
            for metric, against in zip(group["metrics"], group["against"]):
                printed = pub.lookup(records, row["published"], group["dataset"], metric)
                theirs.append(printed)
                own = next((v.summary for v in values if v.metric == against), None)
                ours_comparable = comparable and against != "none"
                verdicts.append("" if printed is None or own is None else pub.verdict(own, printed, ours_comparable))
        rows.append(Row(row["label"], detail, values, theirs, verdicts, [s.cell.cell_id for s in chosen]))
    facts = plan.at(0, c)[0].cell.prepared.facts
    baselines = plan.at(0, c)[0].cell.prepared.baselines
    for system, scores in baselines.items():
        values = [Value(s["metric"], _single(scores.get(s["metric"])), s.get("decimals", 2)) for s in shown]
        detail = _baseline_detail(scores)
        rows.append(
            Row(
                f"{system} baseline", detail, values, [None] * sum(len(g["metrics"]) for g in groups), [], baseline=True
            )
        )
    label = column["label"]
    if facts.get("name") == "toy" and facts.get("stands_for"):
        label = f"GENERATED PAIRS (no real text could be fetched), instead of: {label}"
    return Block(
        label, [s["label"] for s in shown], [(g["label"], g.get("labels", g["metrics"])) for g in groups], rows,
        _data_footers(facts, chosen_metrics(plan, store, c), [s["metric"] for s in shown]) + losses, comparable,
    )  # fmt: skip


def chosen_metrics(plan: Plan, store: Store, column: int) -> dict[str, Any] | None:
    """The metrics file of any finished cell of a column (for signatures)."""
    return next(
        (m for s in plan.slots if s.column == column and (m := s.cell.entry(store).metrics()) is not None), None
    )


def _select(slots: Sequence[Slot], store: Store, select: Mapping[str, str]) -> tuple[list[Slot], str]:
    """The finished slots of the best grid point, and that point in words."""
    by_point: dict[tuple, list[Slot]] = {}
    for slot in slots:
        by_point.setdefault(slot.point, []).append(slot)
    sign = 1.0 if select.get("mode", "max") == "max" else -1.0
    best: tuple[float, tuple] | None = None
    for point, members in by_point.items():
        scores = [m["metrics"][select["metric"]] for s in members if (m := s.cell.entry(store).metrics()) is not None]
        if not scores or math.isnan(mean := summarize(scores).mean):
            continue
        if best is None or sign * mean > best[0]:
            best = (sign * mean, point)
    if best is None:
        return [], ""
    point = best[1]
    detail = ", ".join(f"{key.removeprefix('mapping.')}={value}" for key, value in point)
    if len(by_point) > 1:
        detail += f", best of {len(by_point)} on dev"
    return [s for s in by_point[point] if s.cell.entry(store).metrics() is not None], detail


def _value(chosen, store, spec, failed, slots) -> Value:
    scores = [
        m["metrics"][spec["metric"]]
        for s in chosen
        if (m := s.cell.entry(store).metrics()) and spec["metric"] in m["metrics"]
    ]
    broken = any(s.cell.cell_id in failed for s in slots)
    note = "failed" if broken and not scores else "" if scores else "missing"
    return Value(spec["metric"], summarize(scores) if scores else None, spec.get("decimals", 2), note=note)


def _single(value: float | None) -> Summary | None:
    return None if value is None else Summary(float(value), None, 1)


def _baseline_detail(scores: Mapping[str, Any]) -> str:
    if "test/text" in scores:
        return f"“{scores['test/text']}”"
    return f"first {scores['test/words']} words" if "test/words" in scores else ""


def _significance(first: Sequence[Slot], other: Sequence[Slot], store: Store, metric: str) -> float | None:
    """p-value over test examples, seeds pooled; None where per-example values do not give the metric."""
    split, _, name = metric.partition("/")
    key, test = (f"{name}_statistics", paired_bleu_randomization) if name == "bleu" else (name, paired_randomization)
    a, b = (_sentences(slots, store, split, key) for slots in (first, other))
    return test(b, a) if a and len(a) == len(b) else None


def _sentences(slots: Sequence[Slot], store: Store, split: str, name: str) -> list[Any]:
    return [
        record["sentence"][name]
        for slot in slots
        for record in _predictions(str(slot.cell.entry(store).folder))
        if record.get("set") == split and name in record.get("sentence", {})
    ]


@lru_cache(maxsize=64)  # a finished cell's predictions never change
def _predictions(folder: str) -> list[dict[str, Any]]:
    return Entry(Path(folder)).predictions()


def _data_footers(facts: Mapping[str, Any], metrics: Mapping[str, Any] | None, shown: Sequence[str]) -> list[str]:
    lines = []
    if facts:
        lines.append(f"Data: {facts.get('provenance')}; sha256 {str(facts.get('sha256'))[:12]}.")
        lines.extend(str(n) for n in facts.get("notes", ()))
    if metrics:
        wanted = {_family(metric) for metric in shown}
        lines.append("Scores: " + "; ".join(sorted({v for k, v in metrics["signatures"].items() if k in wanted})) + ".")
    return lines


def _family(metric: str) -> str:
    """The signature's key of a metric: ROUGE-1, -2 and -L share one."""
    split, _, name = metric.partition("/")
    if name.startswith("rouge"):
        name = "rouge_f1" if name.endswith("_f") else "rouge_recall75"
    return f"{split}/{name}"


def _code(plan: Plan, store: Store) -> list[str]:
    commits = set()
    for cell in plan.cells.values():
        record = read_json(cell.entry(store).path("provenance.json")) or {}
        code = record.get("code") or {}
        if code:
            commits.add(code["commit"] + ("+changes" if code.get("dirty") else ""))
    return [f"Code: {', '.join(sorted(commits))}."] if commits else []


# ---- renderings -------------------------------------------------------------------------------------------------------


def grid(block: Block) -> tuple[list[str], list[str], list[list[str]]]:
    """(group line, header line, body) of a block as strings; the first column is the row's label."""
    groups = ["", "ours", *[""] * (len(block.headers) - 1)]
    headers = ["mapping", *block.headers]
    for name, labels in block.published:
        groups.extend([name, *[""] * (len(labels) - 1)])
        headers.extend(labels)
    verdict = any(block.published)
    if verdict:
        groups.append("")
        headers.append("verdict")
    body = []
    for row in block.rows:
        label = f"{row.label} ({row.detail})" if row.detail else row.label
        line = [label, *(v.text() for v in row.values), *("-" if t is None else t.text() for t in row.theirs)]
        if verdict:
            line.append(_verdict_text(row))
        body.append(line)
    return groups, headers, body


def _verdict_text(row: Row) -> str:
    if row.baseline:
        return ""
    said = list(dict.fromkeys(v for v in row.verdicts if v))
    return ", ".join(said) if said else "-"


def to_text(table: Table) -> str:
    """For a terminal."""
    lines = [table.title, f"({table.subtitle})"]
    for block in table.blocks:
        lines += ["", block.label]
        if block.unavailable:
            lines.append(f"  not run: {block.unavailable}")
            continue
        groups, headers, body = grid(block)
        widths = [max(len(line[i]) for line in (headers, *body)) for i in range(len(headers))]
        widths[0] = min(widths[0], 48)
        spans = _spans(groups, widths)
        lines.append("  " + spans.rstrip())
        lines.append("  " + _aligned(headers, widths))
        lines.append("  " + "-" * (sum(widths) + 2 * len(widths) - 2))
        separated = False
        for line, row in zip(body, block.rows):
            if row.baseline and not separated:
                lines.append("  " + "- " * ((sum(widths) + 2 * len(widths) - 2) // 2))
                separated = True
            lines.append("  " + _aligned(line, widths))
        lines += [f"  {footer}" for footer in block.footers]
    return "\n".join([*lines, "", *table.footers])


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first = line[0] if len(line[0]) <= widths[0] else line[0][: widths[0] - 1] + "…"
    return "  ".join([first.ljust(widths[0]), *(t.rjust(w) for t, w in zip(line[1:], widths[1:]))])


def _spans(groups: Sequence[str], widths: Sequence[int]) -> str:
    out, position = "", 0
    for group, width in zip(groups, widths):
        if group:
            out = out.ljust(position) + group + "  "
        position += width + 2
    return out


def to_markdown(table: Table) -> str:
    lines = [f"## {table.title}", "", f"*{table.subtitle}*"]
    for block in table.blocks:
        lines += ["", f"### {block.label}", ""]
        if block.unavailable:
            lines.append(f"not run: {block.unavailable}")
            continue
        _, _, body = grid(block)
        headers = ["mapping", *(f"ours {h}" for h in block.headers)]
        headers += [f"{name} {h}" for name, labels in block.published for h in labels]
        headers += ["verdict"] if block.published else []
        lines += ["| " + " | ".join(headers) + " |", "|---|" + "---:|" * (len(headers) - 1)]
        lines += ["| " + " | ".join(t.replace("|", "\\|") for t in line) + " |" for line in body]
        lines += ["", *block.footers]
    return "\n".join([*lines, "", *table.footers]) + "\n"


def to_csv(table: Table) -> str:
    """Long format: one line per number."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["table", "column", "row", "selected", "source", "metric", "mean", "std", "n", "p_value", "verdict"])
    for block in table.blocks:
        published = [f"{name}: {h}" for name, labels in block.published for h in labels]
        for row in block.rows:
            for v in row.values:
                s = v.summary
                numbers = [f"{s.mean:.6g}", "" if s.std is None else f"{s.std:.6g}", s.n] if s else ["", "", 0]
                p = "" if v.p_value is None else f"{v.p_value:.4g}"
                source = "baseline" if row.baseline else "ours"
                out.writerow([table.name, block.label, row.label, row.detail, source, v.metric, *numbers, p, ""])
            for name, t, verdict in zip(published, row.theirs, [*row.verdicts, *[""] * len(row.theirs)]):
                if t is not None:
                    out.writerow(
                        [table.name, block.label, row.label, "", "published", name, t.value, "", "", "", verdict]
                    )
    return text.getvalue()


def to_latex(table: Table) -> str:
    """A `table` environment per block; needs booktabs."""
    parts = []
    for block in table.blocks:
        if block.unavailable:
            parts.append(f"% {block.label}: not run: {block.unavailable}")
            continue
        groups, headers, body = grid(block)
        spans, i = [], 1
        while i < len(groups):
            width = 1
            while i + width < len(groups) and not groups[i + width]:
                width += 1
            spans.append(f"\\multicolumn{{{width}}}{{c}}{{{_tex(groups[i])}}}")
            i += width
        lines = [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_tex(table.title)}: {_tex(block.label)} ({_tex(table.subtitle)})}}",
        ]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(headers) - 1)}}}", "\\toprule", " & ".join(["", *spans]) + " \\\\"]
        lines += [" & ".join(_tex(h) for h in headers) + " \\\\", "\\midrule"]
        lines += [" & ".join(_tex(t) for t in line) + " \\\\" for line in body]
        parts.append("\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]))
    return "\n\n".join(parts) + "\n"


_TEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "±": r"$\pm$",
    "“": "``",
    "”": "''",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


def write(table: Table, stem: Path) -> list[Path]:
    """Write text, Markdown, CSV and LaTeX beside each other; returns the paths."""
    written = []
    for suffix, text in (
        (".txt", to_text(table) + "\n"),
        (".md", to_markdown(table)),
        (".csv", to_csv(table)),
        (".tex", to_latex(table)),
    ):
        path = stem.with_name(stem.name + suffix)
        write_atomic(path, text.encode())
        written.append(path)
    return written
