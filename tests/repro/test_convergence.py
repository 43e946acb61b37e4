"""Converged: the best epoch is not the last, or the last gain of the selected score is below its noise.

A row of three cells or more still learns if their mean curve is shown to rise; more make that surer, not likelier.
"""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from repro.convergence import (
    CONVERGED,
    LEARNING,
    STUCK,
    UNKNOWN,
    Convergence,
    advice,
    collapsed,
    judge,
    noise,
    of,
    of_row,
    one_word,
    read_curves,
    together,
)
from repro.protocol import Metric
from repro.tables import footers
from repro.tables.blocks import Row

ACCURACY = Metric("accuracy", "%", 1, 1, 1.0, "", "mean")
LOSS = replace(ACCURACY, name="loss", unit="nats", better=-1, decimals=3)
KNOWN = {"accuracy": ACCURACY, "loss": LOSS, "best_epoch": replace(ACCURACY, name="best_epoch", better=0)}


@pytest.mark.parametrize(
    "scores, state, why",
    [
        ([60.0, 70.0, 69.0], CONVERGED, "best epoch 2 of 3"),
        ([60.0, 70.0, 71.0], LEARNING, "best epoch 3 of 3, too few epochs to know the noise"),
        ([16.1, 33.7], UNKNOWN, "best epoch 2 of 2, fewer than 3"),
        ([16.0, 16.2, 16.0, 16.1, 33.7], LEARNING, "last gain 17.50 not below noise 2.72"),
        ([60.0, 70.0, 69.6, 69.9, 69.5, 70.1], CONVERGED, "last gain 0.10 below noise 0.35"),
        ([60.0, 68.0, 72.0, 74.0, 75.0], LEARNING, "last gain 1.00 not below noise 0.35"),  # smooth: it has no noise
        ([float("nan"), 70.0], UNKNOWN, "the best epoch is not recorded"),
        ([70.0], UNKNOWN, "best epoch 1 of 1, fewer than 3"),
    ],
)
def test_a_curve_says_whether_it_has_converged(scores, state, why):
    assert judge(scores, None, None, ACCURACY) == Convergence(state, why)
    lower = [-s for s in scores]
    assert judge(lower, None, None, replace(ACCURACY, better=-1)) == Convergence(state, why), "lower is better"


LOST = "the best epoch is not recorded"
NO_CURVE = [(4.0, 6, CONVERGED, "best epoch 4 of 6"), (1.0, 2, UNKNOWN, "best epoch 1 of 2, fewer than 3")]
NO_CURVE += [(6.0, 6, UNKNOWN, "best epoch 6 of 6, no curve")]
NO_CURVE += [(*lost, UNKNOWN, LOST) for lost in ((None, 6), (3.0, None), (7.0, 6), (float("nan"), 6))]


@pytest.mark.parametrize("best, epochs, state, why", NO_CURVE)
def test_without_a_curve_only_an_earlier_best_epoch_shows_it(best, epochs, state, why):
    assert judge((), best, epochs, ACCURACY) == Convergence(state, why)


def test_noise_is_the_scatter_around_any_parabola():
    rng = random.Random(1)
    curve = [60 + 3 * t - 0.01 * t * t + rng.gauss(0, 0.5) for t in range(2000)]
    assert noise(curve) == pytest.approx(0.5, rel=0.1)
    assert noise([1.0, 4.0, 9.0, 16.0, 25.0]) == 0


def cell(folder, by="accuracy", epochs=3, known=KNOWN, **more):
    """What `of` reads of a cell's results."""
    curves = read_curves(folder)
    facts = {"metrics": {}, "baselines": {}, "tests": {}, "curves": curves}
    facts["scores_by_epoch"] = curves.get(f"dev/{by}", [])
    family, config = SimpleNamespace(METRICS=known), {"train": {"max_epochs": epochs}}
    return SimpleNamespace(**facts | {"best_metric": by, "family": family, "config": config} | more)


def test_a_cell_is_judged_by_the_score_that_picks_its_epoch(tmp_path):
    """The loss rose while the accuracy rose: the accuracy was asked for, and it was still rising."""
    (tmp_path / "curves.csv").write_text("epoch,dev/loss,dev/accuracy\n1,1.0,16.1\n2,1.2,33.7\n3,1.3,40.1\n")
    best = {"best_epoch": 3.0}
    assert of(cell(tmp_path, metrics=best)).state == LEARNING
    assert of(cell(tmp_path, "loss", metrics=best)) == Convergence(CONVERGED, "best epoch 1 of 3")
    assert of(cell(tmp_path, "bleu", metrics=best)).state == UNKNOWN
    assert of(cell(tmp_path / "none", metrics=best)) == Convergence(UNKNOWN, "best epoch 3 of 3, no curve")
    bare = of(cell(tmp_path, "None", None))
    assert bare.state == UNKNOWN and not bare.converged
    assert of(cell(tmp_path, known={})) == Convergence("") and Convergence("").converged, "a fit without epochs"


@pytest.mark.parametrize(
    ("system", "score", "chance", "n", "by", "state"),
    [
        ("majority", 49.0, 50.0, 1000, "accuracy", UNKNOWN), ("majority", 53.1, 50.0, 1000, "accuracy", UNKNOWN),
        ("majority", 53.2, 50.0, 1000, "accuracy", CONVERGED),  # two standard errors are 3.16
        ("constant", 53.1, 50.0, None, "accuracy", CONVERGED), ("most frequent answer", 50.0, 50.0, None, "accuracy", UNKNOWN),
        ("bag of words", 49.0, 50.0, 1000, "accuracy", CONVERGED),  # which has learned
        ("constant", 1.0, 0.9, 1000, "loss", UNKNOWN), ("constant", 0.8, 0.9, 1000, "loss", CONVERGED),
    ],
)  # fmt: skip
def test_of_a_model_at_chance_it_is_not_known(tmp_path, system, score, chance, n, by, state):
    trivial, tests = {f"test/{by}": chance, "test/text": "always x"}, {"test": {"sizes": {"test": n}}} if n else {}
    facts = {"metrics": {f"test/{by}": score}, "baselines": {system: trivial}, "tests": tests}
    found = of(cell(tmp_path, by, scores_by_epoch=[2.0, 1.0, 2.0], **facts))
    assert found.state == state and ("no better than a constant answer" in found.text) is (state == UNKNOWN)
    assert found.text.startswith("yes" if state == CONVERGED else "not known")


def test_a_row_has_converged_when_all_its_cells_have():
    done, more = Convergence(CONVERGED, "best epoch 4 of 6"), Convergence(LEARNING, "x")
    lost = Convergence(UNKNOWN, "y")
    assert together([done, done]) == done and together([done, more]) == more and together([more, lost, done]) == lost
    assert together([done, Convergence(CONVERGED, "best epoch 5 of 6")]).why == "best epoch 4, 5 of 6"
    assert together([more, Convergence(LEARNING, "z")]).why == "e.g. x"
    assert together([Convergence("")]).converged and not together([]).converged


RISING, REST = [40.0, 41.0, 42.0, 43.0, 44.0], [40.0, 43.0, 44.0, 44.1, 43.9]
SPREAD, FALLING = [[c + s / 9 for c in RISING] for s in range(3)], [[-v * s for v in RISING] for s in (1, 1.1, 1)]
LEARNS = [([RISING] * 3, 1), (SPREAD, 1), (FALLING, -1)]
RESTS = [([REST] * 3, 1), ([RISING] * 3, -1), ([REST, REST, RISING], 1)]


@pytest.mark.parametrize("curves, sign, learns", [*((*one, True) for one in LEARNS), *((*one, False) for one in RESTS)])
def test_a_row_still_learns_if_its_mean_curve_is_shown_to_rise(curves, sign, learns):
    assert (of_row(row(curves, sign)).state == LEARNING) is learns


def row(curves, better=1, state=CONVERGED):
    """Cells with these dev curves; a cell alone was judged as `state`."""
    family = SimpleNamespace(METRICS={"accuracy": replace(ACCURACY, better=better)})
    cells = {"family": family, "best_metric": "accuracy", "converged": Convergence(state, "x")}
    return [SimpleNamespace(scores_by_epoch=curve, **cells) for curve in curves]


def test_a_row_that_has_converged_is_rarely_doubted_and_one_that_learns_is_found():
    rng = np.random.RandomState(0)

    def doubted(slope, seeds):
        noise = rng.normal(0, 0.1, (500, seeds, 6)) + slope * np.arange(6)
        return np.mean([of_row(row(curves.tolist())).state == LEARNING for curves in noise])

    assert doubted(0.0, 3) < 0.05 and doubted(0.0, 9) < 0.05, "more seeds do not make it worse"
    assert doubted(0.3, 3) > 0.6 and doubted(0.3, 9) > 0.99


def test_a_row_of_few_cells_or_without_curves_has_their_worst_state():
    shown = Convergence(CONVERGED, "+0.30 [-1.21, +1.81] an epoch at the end")
    assert of_row(row([REST, REST, RISING], state=LEARNING)) == shown
    few = [RISING] * 2, [[*RISING[:2]]] * 3, [[*RISING[:4], float("nan")]] * 3
    assert [of_row(row(curves)) for curves in few] == [Convergence(CONVERGED, "x")] * 3
    for state in (STUCK, UNKNOWN):
        assert of_row(row([REST] * 3, state=state)).state == state, "what the curve of the score does not show"


def curve(support, accuracy, zeros=0.8, ppl=True, **more):
    columns = {"dev/attention_support": support, "dev/accuracy": accuracy}
    return columns | {"dev/attention_zeros": [zeros] * len(support)} | ({"dev/ppl": support} if ppl else {}) | more


SPARSEMAX = {"mapping": {"name": "sparsemax", "gamma": 1.0}, "model": {"score_scale": 0.25}, "optim": {"lr": 0.01}}
COLLAPSES = {  # mean support and accuracy of each epoch, and the epoch from which the attention has collapsed
    "measured: sparsemax": ([8.8, 5.2, 1.4, 1.6, 1.2, 1.1, 1.1], [11.3, 11.3, 11.3, 12.6, 14.7, 11.7, 15.3], 5),
    "measured: fusedmax": ([8.8, 8.8, 1.06, 1.05, 1.0], [11.5, 11.3, 11.3, 13.3, 14.9], 3),
    "from the first epoch": ([1.1, 1.2, 1.1], [31.0, 38.0, 42.0], 1),
    "nothing learned": ([1.0, 1.0], [11.3, 11.3], 1),
    "an alignment, found while it narrowed": ([8.8, 4.0, 1.2, 1.1], [11.0, 60.0, 95.0, 99.0], None),
    "few words, but only after it had learned": ([8.8, 4.0, 1.2, 1.2, 1.2], [11.0, 55.0, 62.0, 64.0, 65.0], None),
    "still gaining": ([8.8, 1.2, 1.1], [11.0, 30.0, 45.0], None),
    "one epoch only": ([8.8, 5.0, 1.1], [11.0, 11.0, 12.0], None),
    "wide again": ([1.0, 1.0, 3.0], [11.0, 11.0, 12.0], None),
    "at the limit of words": ([1.3, 1.3], [11.0, 11.0], 1),
    "above it": ([1.31, 1.31], [11.0, 11.0], None),
    "not measured": ([], [], None),
    "not a number": ([float("nan"), 1.0], [11.0, 11.0], None),
}


@pytest.mark.parametrize("name", COLLAPSES)
def test_attention_that_collapses_before_anything_is_learned_is_told_apart_from_an_alignment(name):
    support, accuracy, expected = COLLAPSES[name]
    assert collapsed(curve(support, accuracy), SPARSEMAX) == expected


def test_attention_to_one_word_is_no_collapse_by_definition_without_a_choice_or_for_a_classifier():
    stuck = ([1.0, 1.0, 1.0], [50.0, 51.0, 52.0])
    assert collapsed(curve(*stuck), SPARSEMAX) == collapsed(curve(*stuck, ppl=False), SPARSEMAX) == 1
    assert collapsed(curve(*stuck, zeros=0.4), SPARSEMAX) is None, "texts of one or two words"
    for node in ({"name": "hardmax"}, {"name": "top_k", "k": 1}):
        assert collapsed(curve(*stuck), {"mapping": node}) is None
    assert collapsed(curve(*stuck), {"mapping": {"name": "top_k", "k": 2}}) == 1
    assert collapsed(curve([1.0, 1.0, 1.0], [50.0, 70.0, 72.0], ppl=False), SPARSEMAX) is None, "it found the word"


@pytest.mark.parametrize(
    "config, said",
    [
        (SPARSEMAX, "Set model.score_scale=0.02 (it is 0.25) or a lower optim.lr (it is 0.01);"),
        (SPARSEMAX | {"model": {"score_scale": 0.02}}, "Set a larger mapping.gamma (it is 1) or a lower optim.lr"),
        (SPARSEMAX | {"model": {}}, "Set a larger mapping.gamma (it is 1) or a lower optim.lr"),
        ({"mapping": {"name": "sparsehourglass", "q": 1}, "optim": {"lr": 0.1}}, "Set a lower optim.lr (it is 0.1);"),
    ],
)
def test_the_advice_names_only_keys_that_there_are(config, said):
    assert advice(config).startswith(said)


def stored(tmp_path, columns, config=SPARSEMAX):
    """A finished cell whose best epoch is the best of dev/accuracy."""
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]
    (tmp_path / "curves.csv").write_text("\n".join(rows) + "\n")
    scores = columns["dev/accuracy"]
    metrics, train = {"best_epoch": float(scores.index(max(scores)) + 1)}, {"max_epochs": len(scores)}
    return cell(tmp_path, metrics=metrics, config={**config, "train": train})


def test_a_row_whose_attention_collapsed_has_not_converged_and_says_what_to_set(tmp_path):
    cell = stored(tmp_path, curve(*COLLAPSES["measured: sparsemax"][:2]))
    found = of(cell)
    assert (found.state, found.converged) == (STUCK, False) and "model.score_scale=0.02" in found.advice
    assert found.text == "no: attention on one word in at least 90 % of steps since epoch 5"
    said = ["on one word in at least 80 %", "on one word in 100 %", "on one word or on none in 100 %"]
    assert [one_word(support) for support in (1.2, 1.0, 0.1)] == said, "below 1, a sink has it"
    whole = together([Convergence(CONVERGED, "best epoch 2 of 3"), found, Convergence(UNKNOWN, "x")])
    assert (whole.state, whole.advice) == (STUCK, found.advice), "the worst cell counts"
    row = Row("sparsemax", "", [], [], [], [cell], convergence=found)
    (said,) = footers.stuck([SimpleNamespace(rows=[row])])
    assert said.startswith("! sparsemax: WARNING: attention on one word") and "model.score_scale=0.02" in said
    earlier = curve([8.8, 5.0, 1.1, 1.1, 1.1], [11.0, 16.0, 12.0, 15.0, 15.5])
    assert of(stored(tmp_path, earlier)).state == CONVERGED, "the kept epoch is one before the collapse"


@pytest.mark.parametrize(
    "losses, said",
    [
        ([8.0, 12.0, 24.0], "diverged: train/loss rose from 8 in epoch 1 to 24"),
        ([8.0, 4.0, 5.1], "diverged: train/loss rose from 4 in epoch 2 to 5.1"),
        ([8.0, 4.0, 4.9], ""),
        ([0.3, 0.1, 0.25], ""),
        ([8.0, 24.0, 6.0], ""),
        ([8.0, float("nan")], ""),
    ],
)
def test_a_training_whose_loss_ends_well_above_its_lowest_has_diverged(tmp_path, losses, said):
    """Overfitting raises the loss on dev, never on the training data."""
    accuracy, dev = [50.0, 45.0, 40.0][: len(losses)], [2.0, 4.0, 9.0][: len(losses)]
    found = of(stored(tmp_path, {"dev/accuracy": accuracy, "train/loss": losses, "dev/loss": dev}))
    assert (found.state == STUCK) == bool(said) and (not said or found.text == f"no: {said}")
