// Linear assignment by shortest augmenting paths (Jonker & Volgenant 1987, in the form of Crouse 2016): each of n rows takes
// one of m >= n columns at the least total cost; +infinity is a pair that is not allowed.
#pragma once
#include "rows.h"

namespace sa {

struct Assignment {
  double *cost, *u, *v, *shortest;  // [n, m], [n], [m], [m]
  int32_t *column, *row, *path, *open, *in_tree;  // of each row, of each column, -1 for none; work
  bool warm = false;

  static size_t bytes(int64_t n, int64_t m) { return room<double>(n * m) + 2 * room<double>(n + m) + 5 * room<int32_t>(n + m); }
  Assignment(int64_t n, int64_t m, Scratch& memory) {
    cost = memory.take<double>(n * m);
    u = memory.take<double>(n);
    v = memory.take<double>(m);
    shortest = memory.take<double>(m);
    column = memory.take<int32_t>(n);
    row = memory.take<int32_t>(m);
    path = memory.take<int32_t>(m);
    open = memory.take<int32_t>(m);
    in_tree = memory.take<int32_t>(m);
  }
  // False where no complete assignment is allowed.
  bool solve(int64_t n, int64_t m) {
    // Column prices of an earlier, similar problem are a start, but a column without a row must have price 0.
    if (!warm || n < m)
      for (int64_t j = 0; j < m; j++) v[j] = 0;
    warm = true;
    for (int64_t j = 0; j < m; j++) row[j] = -1;
    for (int64_t i = 0; i < n; i++) {
      const double* c = cost + i * m;
      int64_t best = 0;
      double least = infinity<double>();
      for (int64_t j = 0; j < m; j++) {
        const double r = c[j] - v[j];
        if (r < least || (r == least && row[best] >= 0 && row[j] < 0)) least = r, best = j;
      }
      if (!(least < infinity<double>())) return false;
      u[i] = least;
      column[i] = -1;
      if (row[best] < 0) column[i] = static_cast<int32_t>(best), row[best] = static_cast<int32_t>(i);
    }
    for (int64_t i = 0; i < n; i++)
      if (column[i] < 0 && !augment(i, m)) return false;
    return true;
  }

 private:
  // Dijkstra from a row without a column to a column without a row; the prices keep every reduced cost >= 0.
  bool augment(int64_t start, int64_t m) {
    for (int64_t j = 0; j < m; j++) shortest[j] = infinity<double>(), open[j] = static_cast<int32_t>(j);
    int64_t i = start, left = m, reached = 0;
    double distance = 0;
    int32_t end = -1;
    while (end < 0) {
      const double* c = cost + i * m;
      const double base = distance - u[i];
      double least = infinity<double>();
      int64_t pick = -1;
      for (int64_t k = 0; k < left; k++) {
        const int32_t j = open[k];
        const double r = base + c[j] - v[j];
        if (r < shortest[j]) shortest[j] = r, path[j] = static_cast<int32_t>(i);
        if (shortest[j] < least || (shortest[j] == least && pick >= 0 && row[j] < 0)) least = shortest[j], pick = k;
      }
      if (pick < 0) return false;
      distance = least;
      const int32_t j = open[pick];
      open[pick] = open[--left];
      if (row[j] < 0)
        end = j;
      else
        i = row[j], in_tree[reached++] = j;
    }
    u[start] += distance;
    for (int64_t k = 0; k < reached; k++) {
      const int32_t j = in_tree[k];
      u[row[j]] += distance - shortest[j];
      v[j] -= distance - shortest[j];
    }
    for (int32_t j = end;;) {
      const int32_t r = path[j], next = column[r];
      row[j] = r;
      column[r] = j;
      if (r == start) return true;
      j = next;
    }
  }
};

}  // namespace sa
