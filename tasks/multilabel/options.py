"""Options of the multilabel task, apart from those of data and mapping."""

from collections.abc import Mapping
from typing import Any

from repro.options import choice, flag, integer, listing, number, text
from tasks.config.files import defaults
from tasks.config.nodes import Nothing

KIND = "features"
# Nodes that change nothing here, and what to set instead.
NOT_USED = dict.fromkeys(
    ("optim", "schedule", "train"),
    "this task fits a linear model by L-BFGS (task.fit.iterations, task.fit.tolerance) and selects by dev F1 (task.tune)",
)
LOSSES = ("auto", "log", "huber", "hinge", "fenchel_young")


@defaults("task/multilabel", "task", "fit")
class Solver:
    """L-BFGS-B of scipy."""

    iterations: int = integer(low=1, help="maximum number of iterations, including restarts")
    memory: int = integer(low=1, help="pairs of differences kept")
    tolerance: float = number(low=0, high=1, help="stop when an iteration lowers the objective by less than this share")
    restarts: int = integer(low=0, help="maximum number of restarts near the best point when the line search fails")


@defaults("task/multilabel", "task", "tune")
class Tune:
    """Chosen by dev micro-F1; without a dev set by cross-validation on the training documents, then fitted on all."""

    penalties: list = listing(
        number(above=0, high=1e12), least=1, help="from large to small: each fit starts from the one before"
    )
    thresholds: list = listing(number(low=0, high=1), least=1, help="p0 of a dense mapping")
    parameters: Mapping[
        str, Any
    ]  # mapping -> parameter -> values; a parameter that is set, as mapping.q=0.1, is not searched
    folds: int = integer(low=2, high=50, help="folds of the cross-validation")

    def problems(self) -> list[str]:
        found = []
        if self.penalties != sorted(self.penalties, reverse=True):
            found.append(f"penalties={self.penalties} must go from large to small: each fit starts from the one before")
        for mapping, grid in self.parameters.items():
            whole = isinstance(grid, dict) and all(
                isinstance(v, list) and v and all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in v)
                for v in grid.values()
            )
            if not whole:
                must = "must be {parameter: [values]}, all numbers, at least one each"
                found.append(f"parameters.{mapping}={grid!r} {must}")
        return found


@defaults("task/multilabel", "task")
class Task:
    """Multilabel classification with a linear model."""

    loss: str = choice(
        *LOSSES,
        help="log (softmax), huber (sparsemax), hinge (sparsemax, sparsegen_lin, sparsehourglass), fenchel_young",
    )
    half_pairs: bool = flag(
        help="hinge: count each pair of true labels once, as the authors' code does (the printed sum counts it twice)"
    )
    corrected: bool = flag(help="hinge: the formula for non-uniform targets; no effect here, as targets are uniform")
    fit: Solver
    tune: Tune
    keep_predictions: int = integer(low=0, help="test documents whose prediction is stored")
    deviations: list = listing(text(), help="what differs from the paper; printed below tables")


Encode = Decode = Nothing  # features are numbers already, and the output determines the labels
