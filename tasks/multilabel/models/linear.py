r"""The linear model, its four losses, and L-BFGS.

The scores are ``z = W x + b``. The objective is ``mean loss(z, eta) + penalty / 2 ||W||^2`` with ``eta = y / ||y||_1``;
the bias is not penalised. Mappings and their losses (Laha et al. 2018, section 5.1):

=================  ===============  ==================================================
mapping            loss             predicted: labels with
=================  ===============  ==================================================
softmax            log              ``p > p0``, p0 chosen on dev
sparsemax          huber            ``p > 0`` (the sparsemax loss)
sparsemax          hinge            ``p > 0`` (Eq. 8 with lambda = 0)
sparsegen_lin      hinge            ``p > 0`` (Eq. 8)
sparsehourglass    hinge            ``p > 0`` (Eq. 7)
others             fenchel_young    ``p > 0``
=================  ===============  ==================================================

All losses are convex. The hinges are piecewise linear; for these, L-BFGS has no convergence guarantee and must not
start at a kink (see `fit`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sparse_attention as sa
from sparse_attention import losses
from sparse_attention.describe import LEARNED
from tasks.config.models import Place, nodes_at, parameters
from tasks.config.nodes import Nothing
from tasks.multilabel.options import Solver

Options = Nothing
PLACES = {"output": Place(over=("row",))}
Array = np.ndarray
# The status of scipy's L-BFGS-B for "neither converged nor out of iterations".
LINE_SEARCH_FAILED = 2
# The loss of hardmax has its minimum at zero weights; the constrained mappings need bounds.
FENCHEL_YOUNG = tuple(n for n in losses.REGULARISERS if n != "hardmax" and not n.startswith("constrained"))
ALLOWED = {"log": ("softmax",), "huber": ("sparsemax",), "hinge": ("sparsemax", "sparsegen_lin", "sparsehourglass")}
ALLOWED["fenchel_young"] = FENCHEL_YOUNG


@dataclass(frozen=True)
class Output:
    """A mapping with its parameters and the loss used to train with it.

    Raises:
        ValueError: the mapping does not have this loss; the message names the losses that it has.
    """

    mapping: str
    params: Mapping[str, Any]
    loss: str
    half_pairs: bool = False
    corrected: bool = False

    def __post_init__(self) -> None:
        allowed = [loss for loss, mappings in ALLOWED.items() if self.mapping in mappings]
        if not allowed:
            known = ", ".join(sorted({*ALLOWED["hinge"], *FENCHEL_YOUNG}))
            raise ValueError(f"mapping={self.mapping} has no multilabel loss; mappings that have one: {known}")
        if self.loss not in ("auto", *allowed):
            choices = ", ".join(["auto", *allowed])
            told = f"task.loss={self.loss!r} cannot be used with mapping={self.mapping}"
            raise ValueError(f"{told}; allowed: {choices}")
        if self.loss == "auto":
            object.__setattr__(self, "loss", allowed[0])
        if self.loss in ("log", "huber", "hinge") and float(self.params.get("gamma", 1.0)) != 1.0:
            told = f"loss {self.loss} is defined for mapping.gamma=1, not {self.params['gamma']}"
            raise ValueError(f"{told}; use task.loss=fenchel_young")

    @property
    def dense(self) -> bool:
        """Whether every label has a positive probability, so that labels are selected by a threshold."""
        return self.mapping == "softmax"

    def value(self, scores: Tensor, eta: Tensor) -> Tensor:
        """Mean loss over documents; scores, eta `[documents, classes]`."""
        if self.loss == "log":
            return losses.softmax_loss(scores, eta)
        if self.loss == "huber":
            return losses.sparsemax_loss(scores, eta)
        if self.loss == "fenchel_young":
            return losses.fenchel_young(scores, eta, sa.make(self.mapping, **self.params))
        options: dict[str, Any] = {"half_pairs": self.half_pairs, "corrected": self.corrected}
        if self.mapping == "sparsehourglass":
            return losses.sparsehourglass_hinge(scores, eta, self.params["q"], **options)
        return losses.sparsegen_hinge(scores, eta, self.params.get("lam", 0.0), **options)

    def distribution(self, scores: np.ndarray) -> np.ndarray:
        """Apply the mapping, rho(z): scores `[..., classes]` -> distributions of the same shape."""
        return sa.make(self.mapping, **self.params)(torch.as_tensor(scores)).numpy()


def output_of(task: Mapping[str, Any], mapping: Mapping[str, Any]) -> Output:
    """The output for the nodes `task` and `mapping`. Raises ValueError if loss and mapping are incompatible."""
    node = nodes_at(mapping, PLACES)["output"]
    return Output(node["name"], parameters(node), task["loss"], task["half_pairs"], task["corrected"])


def problems(config: Mapping[str, Any]) -> list[str]:
    """Conflicts between the loss, the mapping and the values tried for its parameters, one sentence each."""
    task = config["task"]
    try:
        output = output_of(task, config["mapping"])
    except ValueError as error:
        return [str(error)]
    why = "is invalid for this model, which trains weights alone; give a number"
    found = [f"mapping.{name}={LEARNED} {why}" for name, value in output.params.items() if value == LEARNED]
    for name, values in task["tune"]["parameters"].get(output.mapping, {}).items():
        for value in values:
            try:
                sa.make(output.mapping, **{**output.params, name: value})
            except (ValueError, TypeError) as error:
                found.append(f"task.tune.parameters.{output.mapping}: {error}")
    return found


@dataclass
class Fit:
    """Weights `[1 + features, classes]` (bias first), the objective at these weights, and the numbers of evaluations
    and iterations used.
    """

    weights: np.ndarray
    objective: float
    evaluations: int
    iterations: int

    def scores(self, features: np.ndarray) -> np.ndarray:
        """The scores z, `[documents, classes]`."""
        return self.weights[0] + features @ self.weights[1:]


def fit(features: Array, eta: Array, output: Output, penalty: float, solver: Solver, start: Array | None = None) -> Fit:
    """Minimise the objective in float64.

    Args:
        features: `[documents, features]`.
        eta: target distributions `[documents, classes]`.
        start: initial weights (default: zeros). The hinges use the solution of sparsemax+huber instead if it is better
            than `start` or if there is no `start`, and perturb the initial weights slightly.
    """
    from scipy.optimize import minimize

    x, target = torch.as_tensor(features), torch.as_tensor(eta)
    shape = (features.shape[1] + 1, eta.shape[1])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = torch.as_tensor(flat.reshape(shape))
        scores = torch.addmm(w[0], x, w[1:]).requires_grad_()
        loss = output.value(scores, target)
        (slope,) = torch.autograd.grad(loss, scores)
        gradient = torch.cat((slope.sum(0, keepdim=True), x.T @ slope + penalty * w[1:]))
        return loss.item() + 0.5 * penalty * w[1:].square().sum().item(), gradient.numpy().ravel()

    at = np.zeros(shape).ravel() if start is None else start.ravel()
    random = np.random.default_rng(0)
    if output.loss == "hinge":
        # The hinges have kinks where scores are equal, and the line search finds no descent there. Zero is a kink, and
        # so is often the solution for a large penalty. The smooth huber loss has its minimum nearby.
        smooth = fit(features, eta, Output("sparsemax", {}, "huber"), penalty, solver).weights.ravel()
        if start is None or objective(smooth)[0] < objective(at)[0]:
            at = smooth
        at = at + 1e-3 * np.abs(at).max() * random.standard_normal(at.shape)
    best, evaluations, iterations = None, 0, 0
    for _ in range(solver.restarts + 1):
        limits = {"maxiter": solver.iterations - iterations, "ftol": solver.tolerance, "gtol": 1e-8}
        found = minimize(objective, at, jac=True, method="L-BFGS-B", options=limits | {"maxcor": solver.memory})
        evaluations, iterations = evaluations + found.nfev, iterations + found.nit
        if best is None or found.fun < best.fun:
            best = found
        if found.status != LINE_SEARCH_FAILED or iterations >= solver.iterations:
            break
        at = best.x + 1e-3 * np.abs(best.x).max() * random.standard_normal(at.shape)
    return Fit(best.x.reshape(shape), float(best.fun), evaluations, iterations)
