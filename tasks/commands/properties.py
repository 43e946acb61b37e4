"""Numerical checks of the properties in Table 1 of Laha et al. 2018.

Every claim is tested on a sample of scores and at the points where the formulas can break: the zero vector, a row that
sums to 0, and the apex of the cone. "yes" means that no violation above 1e-8 was found, and "no" means that one was
found. A claim that holds for only one value of the hyperparameter is checked at that value and at another.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

import sparse_attention as sa

PROPERTIES = ("idempotence", "monotonic", "translation", "scale", "full domain", "permutation")
K, LAM, Q = 5, 0.5, 0.4  # scores in a row; the parameters of sparsegen, and of sparsecone and sparsehourglass
_TOLERANCE = 1e-8
_SAMPLES = 400
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """A function of the table.

    Attributes:
        printed: its marks in the order of `PROPERTIES`, without the last, which is "yes" for all: "yes", "no" or
            the parameter value at which the property holds, whose function is in `limits`.
        lipschitz, l2: the printed Lipschitz constant, and the true one in the l2 norm.
        apex: the sum of scores at which the denominator is 0.
    """

    label: str
    function: Function
    printed: str
    lipschitz: str = "inf"
    l2: float = math.inf
    limits: Mapping[str, Function] = field(default_factory=dict)
    apex: float | None = None


def rows() -> list[Row]:
    """The ten functions of the table."""
    lin, exp, sq = (partial(one, lam=LAM) for one in (sa.sparsegen_lin, sa.sparsegen_exp, sa.sparsegen_sq))
    cone = {"q=inf": partial(sa.sparsecone, q=1e12), "q=0": partial(sa.sparsecone, q=0.0)}
    glass = {"q=inf": partial(sa.sparsehourglass, q=1e12), "q=0": sa.sum_normalization_pp}
    steep, at, hourglass = 1 / (1 - LAM), f"lam={LAM}", partial(sa.sparsehourglass, q=Q)
    return [
        Row("sum normalization", sa.sum_normalization, "yes no no yes no", apex=0.0),
        Row("spherical softmax", sa.spherical_softmax, "no no no yes no"),
        Row("softmax", sa.softmax, "no yes yes no yes", "1", 0.5),
        Row("sparsemax", sa.sparsemax, "yes yes yes no yes", "1", 1.0),
        Row(f"sparsegen-lin {at}", lin, "lam=0 yes yes no yes", "1/(1-lam)", steep, {"lam=0": sa.sparsegen_lin}),
        Row(f"sparsegen-exp {at}", exp, "no yes no no yes"),
        Row(f"sparsegen-sq {at}", sq, "no no no no yes"),
        Row(f"sparsecone q={Q}", partial(sa.sparsecone, q=Q), "yes no q=inf q=0 no", limits=cone, apex=-K * Q),
        Row(f"sparsehourglass q={Q}", hourglass, "yes yes q=inf q=0 yes", "1+1/(Kq)", hourglass_lipschitz(K, Q), glass),
        Row("sum normalization++", sa.sum_normalization_pp, "yes yes no yes yes", apex=0.0),
    ]


def _scores() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(_SAMPLES, K, dtype=torch.float64, generator=generator)
    return z * torch.tensor([0.2, 1.0, 3.0, 8.0], dtype=torch.float64).repeat(_SAMPLES // 4)[:, None]


def _gap(a: Tensor, b: Tensor) -> float:
    """The largest difference. Rows that are NaN on one side count as different; rows NaN on both sides, as equal."""
    nan_a, nan_b = torch.isnan(a).any(-1), torch.isnan(b).any(-1)
    if bool((nan_a != nan_b).any()):
        return math.inf
    both = ~nan_a
    return (a[both] - b[both]).abs().max().item() if bool(both.any()) else 0.0


def violation(prop: str, f: Function, apex: float | None = None) -> float:
    """The size of the violation: 0 or rounding error if the function has the property."""
    z = _scores()
    if prop == "idempotence":
        p = torch.softmax(2 * z, -1)
        return _gap(f(p), p)
    if prop == "translation":
        return max(_gap(f(z + c), f(z)) for c in (-3.0, 0.7, 10.0))
    if prop == "scale":
        return max(_gap(f(z * c), f(z)) for c in (0.01, 0.7, 30.0))
    if prop == "permutation":
        order = torch.randperm(K, generator=torch.Generator().manual_seed(1))
        return _gap(f(z[:, order]), f(z)[:, order])
    if prop == "monotonic":
        # Undefined values are ignored. For sum normalization, the formula is also applied to negative scores.
        p = z / z.sum(-1, keepdim=True) if f is sa.sum_normalization else f(z)
        ordered = z[:, :, None] >= z[:, None, :]
        return torch.where(ordered, p[:, None, :] - p[:, :, None], 0.0).nan_to_num().max().item()
    if prop == "full domain":
        corners = torch.zeros(3, K, dtype=torch.float64)
        corners[1, 0], corners[1, 1] = 1.0, -1.0
        corners[2] = (apex or 0.0) / K
        p = f(torch.cat((z, corners)))
        undefined = torch.isnan(p).any(-1)
        return math.inf if bool(undefined.any()) else (p.sum(-1) - 1).abs().max().item()
    raise KeyError(prop)


def verdict(prop: str, row: Row, printed: str) -> str:
    """``yes``, ``no`` or the only parameter value at which the property holds (``lam=0``), if the paper names one."""
    if violation(prop, row.function, row.apex) < _TOLERANCE:
        return "yes"
    special = row.limits.get(printed)
    return printed if special is not None and violation(prop, special) < _TOLERANCE else "no"


def probes() -> Tensor:
    """Test points for the Lipschitz constants, most of them where the mappings are steep.

    These are random points, points close to 0 and to the planes where the sum is 0 or -Kq, large points, and the
    extremal point of the hourglass (full support, almost one-hot, sum almost 0).
    """
    z = _scores()
    plane = z - z.mean(-1, keepdim=True)
    near = [plane + shift / K for shift in (1e-6, -1e-6, 1e-3 - K * Q, 1e-5 - K * Q)]
    eps = 1e-7
    p = torch.full((1, K), eps, dtype=torch.float64)
    p[0, 0] = 1 - (K - 1) * eps
    extremal = (p - 1 / K) * (K * Q) / (1 + K * Q)
    ties = torch.zeros(1, K, dtype=torch.float64)
    ties[0, 2:] = -1e3  # softmax is steepest between two equal scores
    large, small = z.abs() * 2, z.abs() * 1e-6
    far = [large.round() + 1e-3 * z, large[:, :1] + 1e-4 * z, 1e3 + 1e-6 * z]
    return torch.cat((z, *near, extremal + 1e-10, extremal - 1e-10, ties, large, small, small - Q, *far))


def hourglass_lipschitz(K: int, q: float) -> float:
    """The l2 Lipschitz constant of sparsehourglass, ``sqrt((1 + 1/(Kq))^2 + (K-1)/(Kq)^2)``.

    It is approached as sum z -> 0 with full support and p almost one-hot.
    """
    return math.sqrt((1 + 1 / (K * q)) ** 2 + (K - 1) / (K * q) ** 2)


def table() -> list[dict[str, str]]:
    """One dictionary per function: the verdict on each property (with the printed mark if it differs) and constants."""
    result = []
    for row in rows():
        line = {"function": row.label}
        for prop, printed in zip(PROPERTIES, [*row.printed.split(), "yes"]):
            found = verdict(prop, row, printed)
            line[prop] = found if found == printed else f"{found} (printed: {printed})"
        # largest l2 operator norm of the Jacobian: a lower bound on the Lipschitz constant
        jacobian = torch.func.vmap(torch.func.jacrev(row.function))(probes())
        measured = torch.linalg.matrix_norm(jacobian.nan_to_num(), ord=2).max().item()
        line["printed constant"] = row.lipschitz
        line["true l2 constant"] = "inf" if row.l2 == math.inf else f"{row.l2:.4f}"
        line["steepest found"] = f"{measured:.4f}" if measured < 1e3 else f"{measured:.0e}"
        result.append(line)
    return result


def page() -> str:
    """The full text of docs/results/properties.md."""
    lines = table()
    rows = ["| " + " | ".join(cells) + " |" for cells in (lines[0].keys(), *(line.values() for line in lines))]
    markdown = "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])
    return (
        "# Table 1 of Laha et al. 2018: properties of the mappings, checked numerically\n\n"
        "    make properties-table\n\n"
        f"Laha et al. 2018, Table 1, checked at K = {K}, lambda = {LAM:g}, q = {Q:g}\n\n{markdown}\n\n"
        "'lam=0', 'q=0', 'q=inf': holds at that value of the parameter only. Where a check and the paper disagree the "
        "printed mark is in brackets;\ndocs/reference/errata shows the corrected constants (python docs/reference/errata/*.py).\n"
    )
