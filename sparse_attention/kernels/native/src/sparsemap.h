// SparseMAP over sequences, matchings and trees: the factors, and the rows of a call. The solver is in active_set.h.
//
// A row of scores is [length, width]; structures are stored as length int16 each: the state at every position, the column
// of every row, the head of every word; -1 for none. Kept for the backward pass: an affinely independent basis of the optimal face.
#pragma once
#include "active_set.h"
#include "arborescence.h"
#include "assignment.h"

namespace sa {

// Positions without a state that is kept are left out: those on both sides of them are neighbours.
struct Sequence {
  int64_t length, width, kept = 0;
  double *transitions, *best, *next;
  int16_t *back, *position;

  static size_t bytes(int64_t length, int64_t width) {
    return room<double>(width * width) + 2 * room<double>(width) + room<int16_t>(length * width) + room<int16_t>(length);
  }
  Sequence(int64_t length, int64_t width, Scratch& memory) : length(length), width(width) {
    transitions = memory.take<double>(width * width);
    best = memory.take<double>(width + 8);
    next = memory.take<double>(width + 8);
    back = memory.take<int16_t>(length * width);
    position = memory.take<int16_t>(length + 8);
  }
  // Every position has one state: a shift of all its scores changes nothing but digits.
  void prepare(double* scores) {
    kept = 0;
    for (int64_t t = 0; t < length; t++) {
      double top = -infinity<double>();
      for (int64_t s = 0; s < width; s++) top = scores[t * width + s] > top ? scores[t * width + s] : top;
      if (!(top > -infinity<double>())) continue;
      position[kept++] = static_cast<int16_t>(t);
      for (int64_t s = 0; s < width; s++) scores[t * width + s] -= top;
    }
  }
  bool highest(const double* scores, int16_t* y) {
    for (int64_t t = 0; t < length; t++) y[t] = -1;
    std::memcpy(best, scores + position[0] * width, sizeof(double) * static_cast<size_t>(width));
    for (int64_t k = 1; k < kept; k++) {
      const double* here = scores + position[k] * width;
      int16_t* from = back + k * width;
      for (int64_t s = 0; s < width; s++) next[s] = best[0] + transitions[s], from[s] = 0;
      for (int64_t r = 1; r < width; r++) {
        const double* step = transitions + r * width;
        for (int64_t s = 0; s < width; s++) {
          const double value = best[r] + step[s];
          const bool better = value > next[s];
          next[s] = better ? value : next[s];
          from[s] = better ? static_cast<int16_t>(r) : from[s];
        }
      }
      for (int64_t s = 0; s < width; s++) best[s] = next[s] + here[s];
    }
    int16_t state = 0;
    for (int64_t s = 1; s < width; s++)
      if (best[s] > best[state]) state = static_cast<int16_t>(s);
    if (!(best[state] > -infinity<double>())) return false;
    for (int64_t k = kept - 1; k >= 0; k--) {
      y[position[k]] = state;
      if (k > 0) state = back[k * width + state];
    }
    return true;
  }
  template <class Body>
  void each_step(const int16_t* y, Body body) const {
    int64_t last = -1;
    for (int64_t t = 0; t < length; t++) {
      if (y[t] < 0) continue;
      if (last >= 0) body(last * width + y[t]);
      last = y[t];
    }
  }
  double extra(const int16_t* y) const {
    double sum = 0;
    each_step(y, [&](int64_t i) { sum += transitions[i]; });
    return sum;
  }
  double magnitude(const int16_t* y) const {
    double sum = 0;
    each_step(y, [&](int64_t i) { sum += std::fabs(transitions[i]); });
    return sum;
  }
};

// Rows and columns without a pair that is kept are left out. If no more rows than columns are left, every row takes a
// column; otherwise every column takes a row.
struct Matching {
  int64_t length, width, n = 0, m = 0;
  bool turned = false;
  int32_t *rows, *columns;
  Assignment assignment;

  static size_t bytes(int64_t length, int64_t width) {
    return Assignment::bytes(length < width ? length : width, length < width ? width : length) + 2 * room<int32_t>(length + width);
  }
  Matching(int64_t length, int64_t width, Scratch& memory)
      : length(length),
        width(width),
        rows(memory.take<int32_t>(length)),
        columns(memory.take<int32_t>(width)),
        assignment(length < width ? length : width, length < width ? width : length, memory) {}
  void prepare(double* scores) {
    n = m = 0;
    assignment.warm = false;
    for (int64_t i = 0; i < length; i++) {
      bool some = false;
      for (int64_t j = 0; j < width; j++) some |= scores[i * width + j] > -infinity<double>();
      if (some) rows[n++] = static_cast<int32_t>(i);
    }
    for (int64_t j = 0; j < width; j++) {
      bool some = false;
      for (int64_t i = 0; i < length; i++) some |= scores[i * width + j] > -infinity<double>();
      if (some) columns[m++] = static_cast<int32_t>(j);
    }
    turned = n > m;
    // What takes exactly one partner can have all its scores shifted.
    for (int64_t a = 0; a < (turned ? m : n); a++) {
      double top = -infinity<double>();
      for (int64_t b = 0; b < (turned ? n : m); b++) top = at(scores, a, b) > top ? at(scores, a, b) : top;
      for (int64_t b = 0; b < (turned ? n : m); b++) at(scores, a, b) -= top;
    }
  }
  template <class U>
  U& at(U* scores, int64_t a, int64_t b) const {
    return turned ? scores[rows[b] * width + columns[a]] : scores[rows[a] * width + columns[b]];
  }
  bool highest(const double* scores, int16_t* y) {
    const int64_t few = turned ? m : n, many = turned ? n : m;
    for (int64_t a = 0; a < few; a++)
      for (int64_t b = 0; b < many; b++) assignment.cost[a * many + b] = -at(scores, a, b);
    if (!assignment.solve(few, many)) return false;
    for (int64_t i = 0; i < length; i++) y[i] = -1;
    for (int64_t a = 0; a < few; a++) {
      const int32_t b = assignment.column[a];
      y[turned ? rows[b] : rows[a]] = static_cast<int16_t>(turned ? columns[a] : columns[b]);
    }
    return true;
  }
  double extra(const int16_t*) const { return 0; }
  double magnitude(const int16_t*) const { return 0; }
};

// Trees of words: scores [word, head], the diagonal for roots, of which there may be several. Words without a head that is
// kept are left out, as words and as heads.
struct Tree {
  int64_t length, kept = 0;
  int16_t* words;
  Arborescence tree;

  static size_t bytes(int64_t length, int64_t) { return Arborescence::bytes(length + 1) + room<int16_t>(length); }
  Tree(int64_t length, int64_t, Scratch& memory)
      : length(length), words(memory.take<int16_t>(length + 8)), tree(length + 1, memory) {}
  void prepare(double* scores) {
    kept = 0;
    for (int64_t w = 0; w < length; w++) {
      bool some = false;
      for (int64_t h = 0; h < length; h++) some |= scores[w * length + h] > -infinity<double>();
      if (some) words[kept++] = static_cast<int16_t>(w);
    }
    // Every word has one head: a shift of all its scores changes nothing but digits.
    for (int64_t b = 0; b < kept; b++) {
      double *of = scores + words[b] * length, top = -infinity<double>();
      for (int64_t a = 0; a < kept; a++) top = of[words[a]] > top ? of[words[a]] : top;
      for (int64_t a = 0; a < kept && top > -infinity<double>(); a++) of[words[a]] -= top;
    }
  }
  bool highest(const double* scores, int16_t* y) {
    const int64_t n = kept + 1;
    for (int64_t b = 1; b < n; b++) {
      const double* of = scores + words[b - 1] * length;
      tree.arcs[b] = of[words[b - 1]];
      for (int64_t a = 1; a < n; a++) tree.arcs[a * n + b] = of[words[a - 1]];
    }
    for (int64_t a = 0; a < n; a++) tree.arcs[a * n] = -infinity<double>();
    if (!tree.solve(n)) return false;
    for (int64_t w = 0; w < length; w++) y[w] = -1;
    for (int64_t b = 1; b < n; b++) y[words[b - 1]] = words[(tree.heads[b] ? tree.heads[b] : b) - 1];
    return true;
  }
  double extra(const int16_t*) const { return 0; }
  double magnitude(const int16_t*) const { return 0; }
};

// One row. Structures [capacity, length]; counts: with weight and in all (Outcome where there is none). Returns a Status.
template <class T, class Factor>
int sparsemap_row(Factor& factor, ActiveSet& set, const T* scores, T* mu, T* weights, int16_t* structures,
                   int64_t* counts, double& gap, double* work, int16_t* y, bool bad) {
  const int64_t size = set.length * set.width;
  double *wide = work, *marginals = work + size, *slope = work + 2 * size, *direction = work + 3 * size;
  bool some = false;
  for (int64_t i = 0; i < size; i++) {
    wide[i] = static_cast<double>(scores[i]);
    bad |= !(wide[i] < infinity<double>());
    some |= wide[i] > -infinity<double>();
  }
  gap = bad ? std::numeric_limits<double>::quiet_NaN() : 0;
  counts[0] = bad ? not_a_number : nothing_kept;
  counts[1] = 0;
  fill_row(mu, size, bad ? std::numeric_limits<T>::quiet_NaN() : T(0));
  if (bad || !some) return ok;
  factor.prepare(wide);
  set.count = 0;
  bool converged = true;
  counts[0] = solve_sparsemap(factor, set, wide, y, marginals, slope, gap, 1000 + 50 * set.capacity, converged);
  if (counts[0] < 0) return no_structure;
  for (int64_t i = 0; i < size; i++) mu[i] = static_cast<T>(marginals[i]);
  for (int64_t k = 0; k < set.count; k++) weights[k] = static_cast<T>(set.p[k]);
  if (converged) span_face(factor, set, wide, y, marginals, slope, direction);
  counts[1] = set.count;
  for (int64_t k = 0; k < set.count; k++)
    std::memcpy(structures + k * set.length, set.at(k), sizeof(int16_t) * static_cast<size_t>(set.length));
  return converged ? ok : not_converged;
}

// A structure without choices.
inline int16_t* blank(Scratch& scratch, int64_t length) {
  int16_t* y = scratch.take<int16_t>(padded(length));
  std::memset(y, -1, sizeof(int16_t) * static_cast<size_t>(padded(length)));
  return y;
}

// The worst Status of the rows so far, of all threads.
inline void note(int& worst, int status) {
  int before = ok;  // no_structure stays; anything else gives way to it alone
  while (status != ok && before != no_structure && (before == ok || status == no_structure) &&
         !__atomic_compare_exchange_n(&worst, &before, status, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

template <class T>
int sparsemap_sequence_forward(const T* scores, const T* transitions, T* mu, T* weights, double* gap,
                               int16_t* structures, int64_t* counts, int64_t rows, int64_t length, int64_t width,
                               int64_t capacity, int64_t stride, int threads) {
  const int64_t size = length * width;
  const size_t memory = Sequence::bytes(length, width) + ActiveSet::bytes(length, capacity) + room<double>(4 * size) +
                        room<int16_t>(padded(length));
  int worst = ok;
  const int status = for_rows(rows, 500.0 * size, threads, memory, [=, &worst](int64_t first, int64_t last, char* start) {
    Scratch scratch{start};
    Sequence factor(length, width, scratch);
    double* work = scratch.take<double>(4 * size);
    int16_t* y = blank(scratch, length);
    ActiveSet set(length, width, capacity, scratch);
    for (int64_t r = first; r < last; r++) {
      bool bad = false;
      for (int64_t i = 0; i < width * width; i++) {
        factor.transitions[i] = static_cast<double>(transitions[r * stride + i]);
        bad |= !(factor.transitions[i] < infinity<double>());
      }
      const int found = sparsemap_row(factor, set, scores + r * size, mu + r * size, weights + r * capacity,
                                      structures + r * capacity * length, counts + 2 * r, gap[r], work, y, bad);
      note(worst, found);
    }
  });
  return status ? status : worst;
}

// Of a factor without inputs.
template <class Factor, class T>
int sparsemap_factor_forward(const T* scores, T* mu, T* weights, double* gap, int16_t* structures, int64_t* counts,
                             int64_t rows, int64_t length, int64_t width, int64_t capacity, int threads) {
  const int64_t size = length * width;
  const size_t memory = Factor::bytes(length, width) + ActiveSet::bytes(length, capacity) + room<double>(4 * size) +
                        room<int16_t>(padded(length));
  int worst = ok;
  const int status = for_rows(rows, 2000.0 * size, threads, memory, [=, &worst](int64_t first, int64_t last, char* start) {
    Scratch scratch{start};
    Factor factor(length, width, scratch);
    double* work = scratch.take<double>(4 * size);
    int16_t* y = blank(scratch, length);
    ActiveSet set(length, width, capacity, scratch);
    for (int64_t r = first; r < last; r++) {
      const int found = sparsemap_row(factor, set, scores + r * size, mu + r * size, weights + r * capacity,
                                      structures + r * capacity * length, counts + 2 * r, gap[r], work, y, false);
      note(worst, found);
    }
  });
  return status ? status : worst;
}

// dscores = M Q M' g and, of each step of a sequence, dtransitions = sum_s (Q M' g)_s count_s with
// Q = Z^-1 - Z^-1 1 1' Z^-1 / 1' Z^-1 1, Z = M'M + 11'. dtransitions is null except for sequences.
template <class T>
int sparsemap_backward(const T* g, const int16_t* structures, const int64_t* counts, T* dscores, T* dtransitions,
                       int64_t rows, int64_t length, int64_t width, int64_t capacity, int threads) {
  const int64_t size = length * width;
  const size_t memory = ActiveSet::bytes(length, capacity) + 2 * room<double>(size) + room<double>(width * width) +
                        room<int16_t>(padded(length));
  return for_rows(rows, 50.0 * size, threads, memory, [=](int64_t first, int64_t last, char* start) {
    Scratch scratch{start};
    double *wide = scratch.take<double>(size), *result = scratch.take<double>(size);
    double* steps = scratch.take<double>(width * width);
    int16_t* y = blank(scratch, length);
    ActiveSet set(length, width, capacity, scratch);
    for (int64_t r = first; r < last; r++) {
      T* dx = dscores + r * size;
      T* dt = dtransitions ? dtransitions + r * width * width : nullptr;
      const T nothing = counts[2 * r] == not_a_number ? std::numeric_limits<T>::quiet_NaN() : T(0);
      if (counts[2 * r + 1] < 2) {  // mu is a corner, or there is none
        fill_row(dx, size, nothing);
        if (dt) fill_row(dt, width * width, nothing);
        continue;
      }
      for (int64_t i = 0; i < size; i++) wide[i] = static_cast<double>(g[r * size + i]);
      set.count = 0;
      for (int64_t k = 0; k < counts[2 * r + 1]; k++) {
        std::memcpy(y, structures + (r * capacity + k) * length, sizeof(int16_t) * static_cast<size_t>(length));
        set.append(y, set.distance(y), set.score(wide, y));
      }
      set.solve(0);
      set.marginals(set.target, result);
      for (int64_t i = 0; i < size; i++) dx[i] = static_cast<T>(result[i]);
      if (!dt) continue;
      std::memset(steps, 0, sizeof(double) * static_cast<size_t>(width * width));
      for (int64_t k = 0; k < set.count; k++) {
        int64_t before = -1;
        for (int64_t t = 0; t < length; t++) {
          const int16_t state = set.at(k)[t];
          if (state < 0) continue;
          if (before >= 0) steps[before * width + state] += set.target[k];
          before = state;
        }
      }
      for (int64_t i = 0; i < width * width; i++) dt[i] = static_cast<T>(steps[i]);
    }
  });
}

}  // namespace sa
