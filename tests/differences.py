"""A gradient against the central difference of the loss along a random direction."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def along_a_random_direction(
    loss: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    seed: int = 5,
    step: float = 1e-6,
) -> tuple[float, float]:
    """The slope by `gradients` and the one that `loss` has, along a direction in the space of all `parameters`."""
    generator = torch.Generator().manual_seed(seed)
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    before, losses = [p.detach().clone() for p in parameters], []
    with torch.no_grad():
        for distance in (step, -step):
            for p, start, direction in zip(parameters, before, directions):
                p.copy_(start + distance * direction)
            losses.append(float(loss()))
        for p, start in zip(parameters, before):
            p.copy_(start)
    promised = sum(float((g * d).sum()) for g, d in zip(gradients, directions))
    return promised, (losses[0] - losses[1]) / (2 * step)
