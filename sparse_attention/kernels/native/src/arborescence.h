// The spanning tree of a directed graph with root 0 of the highest total score (Chu & Liu 1965; Edmonds 1967): cycles of best
// arcs are contracted as they appear. O(n^2) time, in dense matrices as Tarjan (1977) has it; -infinity is no arc.
#pragma once
#include "rows.h"

namespace sa {

struct Arborescence {
  double* arcs;           // [nodes, nodes]: from a head to a node; the caller fills it. A contracted cycle is one node.
  int16_t *from, *to;     // [nodes, nodes]: the arc of the graph that this one stands for
  int16_t *heads;         // the result: of every node of the graph
  int16_t *best, *state;  // the head of a node; 0: none yet, -1: the root reaches it, else the path that it is on
  int16_t *node, *earlier;  // the node that a node of the graph is in, now and before each contraction, [nodes, nodes]
  int16_t *member, *tail, *tip, *first;  // the nodes of all cycles, the arc of the graph into each, where each cycle starts
  bool *alive, *inside;

  static size_t bytes(int64_t n) {
    return room<double>(n * n) + 3 * room<int16_t>(n * n) + 8 * room<int16_t>(2 * n) + 2 * room<bool>(n);
  }
  Arborescence(int64_t n, Scratch& memory) {
    arcs = memory.take<double>(n * n);
    for (int16_t** x : {&from, &to, &earlier}) *x = memory.take<int16_t>(n * n);
    for (int16_t** x : {&heads, &best, &state, &node, &member, &tail, &tip, &first}) *x = memory.take<int16_t>(2 * n);
    alive = memory.take<bool>(n);
    inside = memory.take<bool>(n);
  }
  // False where the root does not reach every node.
  bool solve(int64_t nodes) {
    n = nodes, cycles = members = 0;
    for (int64_t a = 0; a < n; a++) {
      heads[a] = -1, state[a] = 0, node[a] = static_cast<int16_t>(a), alive[a] = true, inside[a] = false;
      for (int64_t b = 0; b < n; b++) from[a * n + b] = static_cast<int16_t>(a), to[a * n + b] = static_cast<int16_t>(b);
    }
    for (int64_t start = 1; start < n; start++) {
      if (!alive[start] || state[start]) continue;
      for (int64_t b = start; b && state[b] != -1;) {
        if (state[b]) {
          contract(b);
        } else {
          if (!choose(b)) return false;
          state[b] = static_cast<int16_t>(start);
          b = best[b];
        }
      }
      for (int64_t b = 1; b < n; b++) state[b] = state[b] ? -1 : 0;
    }
    for (int64_t b = 1; b < n; b++)
      if (alive[b]) heads[to[best[b] * n + b]] = from[best[b] * n + b];
    while (cycles--) expand();
    return true;
  }

 private:
  int64_t n = 0, cycles = 0, members = 0;

  bool choose(int64_t b) {
    double top = -infinity<double>();
    for (int64_t a = 0; a < n; a++)
      if (a != b && alive[a] && arcs[a * n + b] > top) top = arcs[a * n + b], best[b] = static_cast<int16_t>(a);
    return top > -infinity<double>();
  }
  // The cycle through node c, where the path came to it, becomes node c. The score of an arc into it is less by that of
  // the arc that it replaces.
  void contract(int64_t c) {
    first[cycles] = static_cast<int16_t>(members);
    for (int64_t w = 0; w < n; w++) earlier[cycles * n + w] = node[w];
    cycles++;
    const int64_t start = members;
    int64_t m = c;
    do {
      inside[m] = true;
      member[members] = static_cast<int16_t>(m), tail[members] = from[best[m] * n + m], tip[members] = to[best[m] * n + m];
      members++;
      m = best[m];
    } while (m != c);
    for (int64_t a = 0; a < n; a++) {
      if (!alive[a] || inside[a]) continue;
      int64_t out = c, in = c;
      double highest = -infinity<double>();
      for (int64_t k = start; k < members; k++) {
        m = member[k];
        if (arcs[m * n + a] > arcs[out * n + a]) out = m;
        const double gain = arcs[a * n + m] - arcs[best[m] * n + m];
        if (gain > highest) highest = gain, in = m;
      }
      move(out * n + a, c * n + a, arcs[out * n + a]);
      move(a * n + in, a * n + c, highest);
    }
    for (int64_t w = 0; w < n; w++)
      if (inside[node[w]]) node[w] = static_cast<int16_t>(c);
    for (int64_t k = start; k < members; k++) alive[member[k]] = inside[member[k]] = false;
    alive[c] = true, state[c] = 0;
  }
  void move(int64_t source, int64_t target, double score) {
    arcs[target] = score, from[target] = from[source], to[target] = to[source];
  }
  // In the last cycle, every node keeps its arc except the one that has a head by now.
  void expand() {
    const int16_t* of = earlier + cycles * n;
    for (; members > first[cycles]; members--) {
      const int16_t m = member[members - 1];
      bool entered = false;
      for (int64_t w = 0; w < n; w++) entered |= of[w] == m && heads[w] >= 0;
      if (!entered) heads[tip[members - 1]] = tail[members - 1];
    }
  }
};

}  // namespace sa
