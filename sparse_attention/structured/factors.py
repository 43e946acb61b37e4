"""Factors in plain torch: sets of structures, each with an oracle that finds the structure with the highest score."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..describe import Param


class Xor:
    """Exactly one of n. SparseMAP of this factor is sparsemax."""

    dims = 1

    def highest(self, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores).index_fill(0, scores.argmax(), 1.0)


class Budget:
    """At most k of n: the marginals are the projection onto 0 <= mu <= 1, sum mu <= k. Or ``exactly`` k, with sum mu = k
    (all kept ones, if they are fewer), as `sparsemap_budget` computes without a loop."""

    dims = 1

    def __init__(self, k: int, exactly: bool = False) -> None:
        self.k = Param("k", low=1, closed_low=True, whole=True, tensor=False).check(k)
        self.least = -torch.inf if exactly else 0.0

    def highest(self, scores: Tensor) -> Tensor:
        best = scores.topk(min(self.k, len(scores))).indices
        return torch.zeros_like(scores).index_fill(0, best[scores[best] > self.least], 1.0)


class Sequence:
    """One of S states at each of T positions, with scores ``[T, S]``. The input is transitions ``[S, S]``, indexed
    [from, to].

    Positions without a kept state are left out, and the positions on both sides of them become neighbours. The oracle
    is the Viterbi algorithm, O(T S^2).
    """

    dims, inputs = 2, (2,)

    def highest(self, scores: Tensor, transitions: Tensor) -> tuple[Tensor, Tensor]:
        kept = (scores > -torch.inf).any(-1).nonzero().flatten().tolist()
        best, back = scores[kept[0]], []
        for t in kept[1:]:
            top, origin = (best.unsqueeze(-1) + transitions).max(0)
            best = top + scores[t]
            back.append(origin)
        if float(best.max()) == -math.inf:
            raise ValueError("no sequence is allowed: each has a state or a transition of score -inf")
        states = [int(best.argmax())]
        for origin in reversed(back):
            states.append(int(origin[states[-1]]))
        states.reverse()
        m, steps = torch.zeros_like(scores), torch.zeros_like(transitions)
        m[kept, states] = 1.0
        for pair in pairwise(states):
            steps[pair] += 1
        return m, steps


class Matching:
    """Matchings of rows and columns, with scores ``[n, m]``.

    Each row takes one column, and each column takes at most one row; if more rows than columns are kept, the roles are
    swapped. Rows and columns without a kept pair are left out. The oracle uses shortest augmenting paths (Jonker &
    Volgenant 1987), O(n^2 m).
    """

    dims = 2

    def highest(self, scores: Tensor) -> Tensor:
        keep = scores > -torch.inf
        rows, columns = keep.any(1).nonzero().flatten(), keep.any(0).nonzero().flatten()
        turned = len(rows) > len(columns)
        kept = scores[rows][:, columns]
        found = assignment((-kept.T if turned else -kept).tolist())
        few, many = (columns, rows) if turned else (rows, columns)
        m = torch.zeros_like(scores)
        pairs = (many[found], few) if turned else (few, many[found])
        m[pairs] = 1.0
        return m


def assignment(cost: list[list[float]]) -> list[int]:
    """The column of every row at the lowest total cost; ``cost`` is ``[n][m]`` with n <= m, and inf forbids a pair.

    Raises:
        ValueError: no complete assignment is allowed.
    """
    n, m = len(cost), len(cost[0])
    u, v = [0.0] * (n + 1), [0.0] * (m + 1)
    row = [0] * (m + 1)  # row of each column, from 1; 0 means none. Column 0 holds the row being placed.
    for i in range(1, n + 1):
        row[0], j0 = i, 0
        nearest, way, done = [math.inf] * (m + 1), [0] * (m + 1), [False] * (m + 1)
        while row[j0]:
            done[j0] = True
            i0, least, j1 = row[j0], math.inf, 0
            for j in range(1, m + 1):
                if done[j]:
                    continue
                distance = cost[i0 - 1][j - 1] - u[i0] - v[j]
                if distance < nearest[j]:
                    nearest[j], way[j] = distance, j0
                if nearest[j] < least:
                    least, j1 = nearest[j], j
            if least == math.inf:
                raise ValueError("no matching is allowed: some rows have only columns of score -inf left")
            for j in range(m + 1):
                if done[j]:
                    u[row[j]] += least
                    v[j] -= least
                else:
                    nearest[j] -= least
            j0 = j1
        while j0:
            row[j0] = row[way[j0]]
            j0 = way[j0]
    columns = [0] * n
    for j in range(1, m + 1):
        if row[j]:
            columns[row[j] - 1] = j - 1
    return columns


class Tree:
    """Dependency trees of n words, with scores ``[n, n]``.

    ``scores[h, w]`` is the score of the arc from head h to word w, and ``scores[w, w]`` is the score of w as a root.
    There may be several roots, and arcs may cross. Words without a kept head are left out. The oracle is
    Chu-Liu-Edmonds, O(n^3).
    """

    dims = 2

    def highest(self, scores: Tensor) -> Tensor:
        words = (scores > -torch.inf).any(0).nonzero().flatten()
        kept = scores[words][:, words]
        # Node 0 is an artificial head of all roots.
        arcs = pad(kept.clone().fill_diagonal_(-torch.inf), (1, 0, 1, 0), value=-torch.inf)  # [head, word]
        arcs[0, 1:] = kept.diagonal()
        heads, m = torch.tensor(arborescence(arcs.tolist())[1:]), torch.zeros_like(scores)
        m[torch.where(heads > 0, words[heads - 1], words), words] = 1.0
        return m


def arborescence(arcs: list[list[float]]) -> list[int]:
    """The head of every node (-1 for node 0) in the tree with root 0 that has the highest sum of ``arcs[head][node]``.

    Raises:
        ValueError: some node cannot be reached by arcs above -inf.
    """
    n = len(arcs)
    heads = [-1] + [max((h for h in range(n) if h != w), key=lambda h: arcs[h][w]) for w in range(1, n)]
    if any(arcs[heads[w]][w] == -math.inf for w in range(1, n)):
        raise ValueError("no tree is allowed: some word cannot be reached from a root by arcs of score above -inf")
    cycle = _cycle(heads)
    if not cycle:
        return heads
    # The cycle becomes a single node, the last. From the score of an arc into it, subtract the arc that it replaces.
    outside = [w for w in range(n) if w not in cycle]
    smaller = [[arcs[a][b] for b in outside] + [-math.inf] for a in outside] + [[-math.inf] * (len(outside) + 1)]
    enters, leaves = {}, {}
    for k, a in enumerate(outside):
        enters[k] = max(cycle, key=lambda w: arcs[a][w] - arcs[heads[w]][w])
        smaller[k][-1] = arcs[a][enters[k]] - arcs[heads[enters[k]]][enters[k]]
        leaves[k] = max(cycle, key=lambda w: arcs[w][a])
        smaller[-1][k] = arcs[leaves[k]][a]
    found = arborescence(smaller)
    for k, a in enumerate(outside):
        if k:
            heads[a] = leaves[k] if found[k] == len(outside) else outside[found[k]]
    heads[enters[found[-1]]] = outside[found[-1]]
    return heads


def _cycle(heads: list[int]) -> list[int]:
    """The nodes of a cycle in ``heads``; an empty list if there is no cycle."""
    seen: set[int] = set()
    for w in range(1, len(heads)):
        path = []
        while w > 0 and w not in seen:
            seen.add(w)
            path.append(w)
            w = heads[w]
        if w in path:
            return path[path.index(w) :]
    return []
