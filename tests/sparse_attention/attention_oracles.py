"""Attention by its definition in float64, with any mapping, and which keys a query sees."""

from collections.abc import Callable

import entmax
import torch
from torch import Tensor

import sparse_attention as sa


def distances(n: int, m: int) -> Tensor:
    """Key's position less the query's, ``[n, m]``; the last query is at the last key."""
    return torch.arange(m) - torch.arange(m - n, m)[:, None]


def visible(n: int, m: int, left=None, right=None, causal=False, lengths=None, ends=None) -> Tensor:
    """bool ``[n, m]``, or ``[B, H or 1, n, m]`` with lengths ``[B]`` or ``[B, H]``; ``ends``: of packed sequences, from 0."""
    far = distances(n, m)
    keep = (far >= -(n + m if left is None else left)) & (far <= (n + m if right is None else right))
    keep = keep & (far <= 0) if causal else keep
    if lengths is not None:
        lengths = torch.as_tensor(lengths)
        keep = keep & (torch.arange(m) < lengths.view(len(lengths), -1, 1, 1))
    if ends is not None:
        of = (torch.arange(m)[:, None] >= ends[1:]).sum(-1)
        keep = keep & (of[:, None] == of)
    return keep


def formula(
    mapped: Callable, q, k, v, keep=None, scale=None, added=0.0, sink=None, factors=1.0
) -> tuple[Tensor, Tensor]:
    """Output and weights of the keys. ``mapped(scores, keep)`` gives the weights, and ``factors`` multiply them (dropout).

    A group's keys are repeated for its heads. ``scale`` and ``sink`` may have a number for each head.
    """
    q, k, v = (x.double() for x in (q, k, v))
    heads = q.shape[-3]
    k, v = (x.repeat_interleave(heads // x.shape[-3], -3) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else per_head(scale)
    x = q @ k.mT * scale + added
    if sink is not None:
        x = torch.cat([sink.double().view(heads, 1, 1).expand(*x.shape[:-1], 1), x], -1)
        there = (sink > -torch.inf).view(heads, 1, 1).expand(*x.shape[:-1], 1)  # one of -inf is none
        keep = True if keep is None else keep
        keep = torch.cat([there, torch.as_tensor(keep).expand(*x.shape[:-1], k.shape[-2])], -1)
    p = mapped(x, keep)
    p = p if sink is None else p[..., 1:]
    return p * factors @ v, p


def per_head(number):
    return number.view(-1, 1, 1) if isinstance(number, Tensor) and number.ndim == 1 else number


def named(name: str, **params) -> Callable:
    """A mapping of this library, on rows."""
    return lambda x, keep: getattr(sa, name)(x, mask=keep, **params)


def bisected(alpha) -> Callable:
    """entmax by the entmax package's bisection; ``alpha`` may be a tensor."""

    def mapped(x, keep):
        each = per_head(alpha).expand(*x.shape[:-1], 1) if isinstance(alpha, Tensor) else alpha
        p = entmax.entmax_bisect(x if keep is None else x.masked_fill(~keep, -1e4), each, n_iter=60)
        return p if keep is None else torch.where(keep, p, 0.0)

    return mapped
