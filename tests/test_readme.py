"""README: its code runs as pasted and prints what it shows; its numbers are those of the claims and the benchmarks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README, CLAIMS, TIMES, GPU, DELAY = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", *(f"docs/{p}.md" for p in ("claims", "reference/benchmarks", "reference/gpu", "results/evidence_delay_cpu")))
)  # fmt: skip
WORDS = {"+": "it is better", "-": "it is worse"}


@pytest.mark.slow
def test_the_code_runs_in_a_fresh_process_and_prints_what_is_shown(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.S)
    code, shown = ("".join(parts) for parts in zip(*blocks, strict=True))
    assert README.count("```python") == len(blocks) == 1
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (shown, 0), done.stderr


def _section(title: str, text: str = README) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _range(values: list[float], decimals: int = 1) -> str:
    return f"{min(values):.{decimals}f} to {max(values):.{decimals}f} times"


def test_speeds_are_those_of_the_benchmarks():
    rows = dict(re.findall(r"^\| ([^|]+?) \| (.*) \|", _section("Forward and backward", TIMES).replace("*", ""), re.M))
    ours, peer = ([float(v) for v in rows[name].split(" | ")[:6]] for name in ("sparsemax", "- entmax.sparsemax"))
    sold = re.sub(r"\n(?!\||$)", " ", _section("Is it fast?"))
    faster = [theirs / own for own, theirs in zip(ours, peer)]
    assert f"| {_range(faster, 0)} as fast |" in sold and f"takes {_range(ours)} as long" in sold
    attention = re.findall(r"^\| \d+ x \d \| sparsemax(?:, causal)? \| (.*) \|", TIMES, re.M)
    parts = []
    for support in (2, 10, 30):
        cells = [row.replace("*", "").split(" | ") for row in attention]
        near = [float(c[4]) for c in cells if len(c) > 4 and abs(float(c[0].split()[0]) - support) < 0.2]
        parts.append((_range(near), f"{support} %"))
    (first, _), *others = parts
    assert f"{first} as fast if 2 % of the weights are not 0; {'; '.join(f'{r} if {s}' for r, s in others)}" in sold
    row = re.search(r"sparsemax: random; local, ms \| \S+ / (\S+) \| \S+ / (\S+); \S+ / (\S+) \|", GPU)
    assert row, "the row of bfloat16 in docs/reference/gpu.md"
    theirs, random, local = map(float, row.groups())
    told = f"{theirs / local:.1f} times as fast if similar keys are neighbours, {theirs / random:.1f} times if keys are random"
    assert told in sold


def _claim(number: int) -> str:
    return re.split(r"\n##+ ", CLAIMS.partition(f"\n### Claim {number}\n")[2])[0]


@pytest.mark.parametrize("task, mapping, number", [("translation", "sparsemax", 21), ("entailment", "sparsemax", 35), ("headlines", "sparsemax", 27), ("several labels", "sparsemax+huber, scene_long", 12), ("long film", "continuous sparsemax, N = 64", 16)])  # fmt: skip
def test_effects_are_those_of_the_mapping_that_is_named(task, mapping, number):
    (named, told, runs, answer) = re.search(rf"^\| {task}[^|]*\| ([^|]*) \| ([^|]*) \| (\d+) \| ([^|]*) \|", README, re.M).groups()  # fmt: skip
    effect, n = re.search(rf"^\| {re.escape(mapping)} \| ([^|]*) \| (\d+)", _claim(number), re.M).groups()
    assert told.startswith(effect) and runs == n and named.partition(" with ")[0].startswith(mapping.split("+")[0])
    low, high = re.findall(r"[-+][\d.]+", effect)[1:]
    assert answer == (WORDS[low[0]] if low[0] == high[0] else "no difference shown")


def test_counts_and_all_other_numbers():
    head = CLAIMS.partition("\n## ")[0]
    counts = re.search(
        r"(\d+ claims of \w+ papers).*?\*\*(\d+ hold), (\d+ fail), (\d+) are open, (\d+) are not testable here\*\*",
        head,
    )
    assert counts, head[:400]
    said = re.search(
        r"looked at (\d+ claims of \w+ papers): (\d+ hold), (\d+ fail), (\d+) are open and (\d+) are", README
    )
    assert said and said.groups() == counts.groups()
    assert len(re.findall(r"(?m)^\| (?:sparsemax|oscarmax), factor \.25 ~? ?\| 5 \|", DELAY)) == 2
    prose = re.sub(r"(?ms)```.*?```|\]\([^)]*\)|^\|[^\n]*|`[^`]*`", "", README)
    numbers = r"(?<!\w)\d[\d.,]*\d|(?<!\w)\d"
    left = {*re.findall(numbers, prose)} - {*re.findall(numbers, counts[0])}
    # sparsemax beside softmax (tested above), versions of Python, minutes, disk (GB), dates, the weight of 0, the interval of 95 %
    assert left <= {"0.8", "1.5", "3.10", "3.11", "3.14", "10", "15", "2017", "2018", "2020", "2026", "0", "95"}


def test_the_numbers_of_the_choice_are_those_of_the_claims():
    page = (ROOT / "docs" / "start" / "which.md").read_text(encoding="utf-8")
    told = re.findall(r"\[([-+][\d.]+)[^()|]*?(?:\[([^]]*)\])?\]\(\.\./claims\.md#claim-(\d+)\)", page)
    assert len(told) >= 8
    for effect, interval, number in told:
        assert effect + (f" [{interval}]" if interval else "") in _claim(int(number)), (effect, number)
    (of_entmax,) = re.findall(r"\[([-+][\d.]+) BLEU (\[[^]]*\])\]\(\.\./results/evidence_translation_cpu\.md\)", page)
    rows = (ROOT / "docs/results/evidence_translation_cpu.md").read_text(encoding="utf-8")
    assert re.search(rf"(?m)^\| entmax 1.5 .*\| {re.escape(' '.join(of_entmax))} \|$", rows)
