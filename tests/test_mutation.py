"""The tool behind `make mutants`: what it changes, what it leaves alone, and which tests it asks."""

from pathlib import Path

from mutation import equivalent, mutants, nearest, sample

ROOT = Path(__file__).resolve().parents[1]
SOURCE = '''"""Doc: 1 < 2."""
LIMIT: "a < b" = 3
def f(x, y=True):
    if x < 2 and not y:
        raise ValueError("x - 1 is < 2")
    g(x, y)
    for row in x["key"]:
        if row.is_cuda:
            return row + 1
        break
    return a if x is None else f"{x + 1}"
'''


def test_every_kind_of_change_is_made_and_nothing_else():
    found = {line: {m.after for m in mutants("a.py", SOURCE) if m.line == line} for line in range(1, 12)}
    assert found[1] == found[9] == set()  # a docstring; what only a GPU reaches
    assert found[2] == {f'LIMIT: "a < b" = {n}' for n in (4, 2, 6)}
    assert found[3] == {"def f(x, y=False):"}
    compared = {"if (x <= 2) and not y:", "if (x >= 2) and not y:", "if x < 3 and not y:"}
    assert compared | {"if x < 2 and (y):", "if (x < 2 or not y):"} <= found[4]
    assert found[5] == {"pass"} and found[6] == {"(g(y, x))", "pass"} and found[7] == {"for row in x['keyX']:"}
    assert found[8] == {"if not (row.is_cuda):"} and found[10] == {"continue"}
    assert {"return None", 'return a if (x is not None) else f"{x + 1}"'} < found[11] and len(found[11]) == 3


def test_the_sample_is_the_seeds_and_leaves_out_what_cannot_run_here(tmp_path):
    for name in ("tasks/one.py", "scripts/two.py", "repro/three.py", "scripts/setup.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SOURCE)
    one, more, other = (sample(tmp_path, n, seed) for n, seed in ((5, 1), (8, 1), (5, 2)))
    assert one == more[:5] != other and len({(m.path, m.line) for m in more}) == 8
    assert {m.path for m in sample(tmp_path, 99, 1)} == {"tasks/one.py", "scripts/two.py", "repro/three.py"}
    assert {m.path for m in sample(tmp_path, 99, 1, "two.py")} == {"scripts/two.py"}
    changed = [old != new for old, new in zip(SOURCE.split("\n"), one[0].applied(SOURCE).split("\n"), strict=True)]
    assert changed.count(True) == 1 and changed[one[0].line - 1]


def test_the_nearest_tests_come_first_and_equivalent_mutants_stand_in_the_code():
    assert nearest(ROOT, "tasks/seq2seq/scores.py")[0].endswith("test_text_scores.py")
    for key, why in equivalent(ROOT).items():
        path = key.partition(" | ")[0]
        assert why and key in {m.key for m in mutants(path, (ROOT / path).read_text(encoding="utf-8"))}
