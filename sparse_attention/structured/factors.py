"""Factors: sets of structures, each given by an oracle for the structure of the highest score, in plain torch."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from ..describe import Param


class Xor:
    """One of n: SparseMAP is sparsemax."""

    dims = 1

    def highest(self, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores).index_fill(0, scores.argmax(), 1.0)


class Budget:
    """At most k of n. The marginals are the projection on 0 <= mu <= 1, sum mu <= k."""

    dims = 1

    def __init__(self, k: int) -> None:
        self.k = Param("k", low=1, closed_low=True, whole=True, tensor=False).check(k)

    def highest(self, scores: Tensor) -> Tensor:
        best = scores.topk(min(self.k, len(scores))).indices
        return torch.zeros_like(scores).index_fill(0, best[scores[best] > 0], 1.0)


class Sequence:
    """One of S states at each of T positions ``[T, S]``; input: transitions ``[S, S]``, from x to. Viterbi, O(T S^2).

    Positions without a kept state are left out, and those on both sides of them become neighbours.
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
    """Pairs of rows and columns ``[n, m]``: each row takes one column, each column at most one row; if more rows than
    columns are kept, the other way round. Rows and columns without a kept pair are left out. Shortest augmenting
    paths (Jonker & Volgenant 1987), O(n^2 m)."""

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
    """The column of every row at the least total cost, ``[n][m]`` with n <= m; inf: not allowed.

    Raises:
        ValueError: no complete assignment is allowed.
    """
    n, m = len(cost), len(cost[0])
    u, v = [0.0] * (n + 1), [0.0] * (m + 1)
    row = [0] * (m + 1)  # of each column, 1 .. n; 0: none. Column 0 holds the row that is being placed.
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
    """Dependency trees of n words ``[n, n]``: ``scores[h, w]`` for the arc from head h to word w, ``scores[w, w]`` for w as
    a root; one root or more, arcs may cross. Words without a kept head are left out. Chu-Liu-Edmonds, O(n^3)."""

    dims = 2

    def highest(self, scores: Tensor) -> Tensor:
        n = len(scores)
        words = (scores > -torch.inf).any(0).nonzero().flatten().tolist()
        # Node 0 is the root of roots; arcs[head][word].
        table, size = scores.tolist(), len(words) + 1
        arcs = [[-math.inf] * size for _ in range(size)]
        for b, w in enumerate(words, 1):
            arcs[0][b] = table[w][w]
            for a, h in enumerate(words, 1):
                if a != b:
                    arcs[a][b] = table[h][w]
        m = scores.new_zeros(n, n)
        for b, head in enumerate(arborescence(arcs)[1:], 1):
            w = words[b - 1]
            m[words[head - 1] if head else w, w] = 1.0
        return m


def arborescence(arcs: list[list[float]]) -> list[int]:
    """The head of every node in the tree from node 0 with the highest sum of ``arcs[head][node]`` (-1 for node 0).

    Raises:
        ValueError: some node cannot be reached by arcs above -inf.
    """
    n = len(arcs)
    heads = [-1] + [max((h for h in range(n) if h != w), key=lambda h: arcs[h][w]) for w in range(1, n)]
    if any(arcs[heads[w]][w] == -math.inf for w in range(1, n)):
        raise ValueError("no tree is allowed: a word has no head of a score above -inf that the root reaches")
    cycle = _cycle(heads)
    if not cycle:
        return heads
    # The cycle becomes one node, the last; an arc into it costs the arc of the cycle that it replaces.
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
    """The nodes of a cycle of heads; none: empty."""
    seen = [0] * len(heads)
    for start in range(1, len(heads)):
        w = start
        while w > 0 and not seen[w]:
            seen[w] = start
            w = heads[w]
        if w > 0 and seen[w] == start:
            cycle, v = [w], heads[w]
            while v != w:
                cycle.append(v)
                v = heads[v]
            return cycle
    return []
