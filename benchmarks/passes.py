"""How often the GPU's attention forward multiplies a block of queries by a block of keys: `python -m benchmarks.passes`.

The kernel is simulated in float32 on the CPU: attend_forward looks at every block once, continues with Newton's method if
its candidates do not settle the threshold, and multiplies twice for each block that may have support. For comparison: the
count without candidates: three Newton steps inside each block, then passes over the blocks until no threshold moves.
"""

from __future__ import annotations

import torch
from torch import Tensor

SIDE = 64  # queries and keys of a block


def drawn(n: int, local: bool, sharpness: float, queries: int) -> tuple[Tensor, Tensor]:
    """Scores ``[blocks, SIDE, n]`` of some blocks of queries with d = 64, and the places of these blocks among the keys.

    Keys are independent, or local: runs of 32 are alike, and so are the queries at the same places.
    """
    generator = torch.Generator().manual_seed(n)
    q, k = torch.randn(2, n, 64, generator=generator)
    if local:
        runs = torch.randn(n // 32, 64, generator=generator).repeat_interleave(32, 0)
        q, k = (0.8 * runs + 0.6 * x for x in (q, k))
    places = torch.randint(0, n // SIDE, (queries // SIDE,), generator=generator)
    return (q.view(-1, SIDE, 64)[places] @ k.T) * (sharpness / 8), places


def newton(x: Tensor, tau: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """The step of Newton's method from tau ``[..., 1]`` for the sum of (x - tau)^r, and the number of keys above tau."""
    above = (x - tau).clamp(min=0)
    f = above.pow(r).sum(-1, keepdim=True)
    size = (above > 0).sum(-1, keepdim=True)
    slope = size if r == 1 else above.sum(-1, keepdim=True)
    return torch.where(f > 1, (f - f.pow(1 - 1 / r)) / slope, 0.0), size


def passes(x: Tensor, tau: Tensor, moving: Tensor, r: int, small: float) -> Tensor:
    """How many passes over the keys each block takes until none of its thresholds ``tau [blocks, SIDE, 1]`` moves."""
    count, before = torch.zeros(len(x)), torch.zeros_like(tau)
    top = x.amax(-1, keepdim=True)
    while moving.any():
        count += moving.any(1).squeeze(-1)
        step, size = newton(x, tau, r)
        tau = torch.where(moving, tau + step, tau)
        moving = moving & ((before == 0) | (size < before) if r == 1 else step > small * (top - tau))
        before = size
    return count


def counted(x: Tensor, places: Tensor, r: int, candidates: int) -> float:
    """Products with a block of keys, in units of all blocks; without candidates if their number a column is 0."""
    x = x / r
    tiles = x.unflatten(-1, (-1, SIDE))
    blocks = tiles.shape[2]
    low = top = torch.full((len(x), SIDE, 1), -torch.inf)
    kept = torch.full((len(x), SIDE, max(candidates, 1), SIDE), -torch.inf)
    lost, may = low, torch.zeros(len(x), blocks, dtype=torch.bool)
    for i in range(blocks):
        at = (places - i) % blocks if candidates else torch.full_like(places, i)
        tile = tiles[torch.arange(len(x)), :, at]
        top = top.maximum(tile.amax(-1, keepdim=True))
        if candidates:
            may[torch.arange(len(x)), at] = (tile > low).any(-1).any(-1)
            ranked = torch.cat([kept, tile.unsqueeze(2)], 2).sort(2, descending=True).values
            kept, lost = ranked[:, :, :candidates], lost.maximum(ranked[:, :, -1].amax(-1, keepdim=True))
        low = low.maximum(top - 1)
        for _ in range(3 if not candidates else i % 8 == 0):
            low = low + newton(kept[:, :, 0] if candidates else tile, low, r)[0]
        if not candidates:
            may[:, i] = (tile > low).any(-1).any(-1)
    moving = torch.ones_like(low, dtype=torch.bool)
    if candidates:
        flat = kept.flatten(2)
        for _ in range(40):
            low = low + newton(flat, low, r)[0]
        moving = lost > low
    more = passes(x, low, moving, r, 3e-4 if candidates else 4e-6)
    return float(1 + ((more + 2) * may.float().mean(1)).mean())


def main(queries: int = 512) -> None:
    """Print the table of docs/reference/gpu.md."""
    print("| keys | n | sharpness | alpha | support a query | before | now |\n|---|---|---|---|---|---|---|")
    for local in (False, True):
        for n in (2048, 8192, 16384):
            for sharpness in (1.0, 3.0, 6.0):
                x, places = drawn(n, local, sharpness, queries)
                for r, candidates in ((1, 3), (2, 4)):
                    tau = x.amax(-1, keepdim=True) / r - 1
                    for _ in range(60):
                        tau = tau + newton(x / r, tau, r)[0]
                    support = float((x / r > tau).sum(-1).float().mean())
                    before, now = (counted(x, places, r, c) for c in (0, candidates))
                    kind = "local" if local else "random"
                    print(
                        f"| {kind} | {n:,} | {sharpness:g} | {1 + 1 / r:g} | {support:.1f} | {before:.2f} | {now:.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
