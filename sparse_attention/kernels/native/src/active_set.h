// The active set of SparseMAP (Niculae, Martins, Blondel & Cardie 2018): max_p b'p - 1/2 |M p|^2 over distributions p of
// structures, a few of which are held at a time. A structure is a list of `length` choices, y[t] in 0 .. width-1 or -1
// for none; its column of M has a 1 at coordinate (t, y[t]) for every choice made.
//
// The structures held are kept affinely independent, also where their weights are not unique: L L' = M'M + 11' is then
// positive definite (with 11', which adds a constant on the simplex, even for a structure without choices).
#pragma once
#include <cstring>

#include "rows.h"

namespace sa {

constexpr double no_weight = 1e-13;    // a weight at or below is rounding
constexpr double dependent = 1e-9;     // squared distance to an affine hull, relative: integers are further away or in it

inline double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

// Structures stand in memory at a multiple of whole vectors, filled up with -1.
constexpr int64_t padded(int64_t length) { return (length + 31) & ~static_cast<int64_t>(31); }

// Choices that two structures share; `stride` entries each.
inline int shared(const int16_t* a, const int16_t* b, int64_t stride) {
  uint16_t count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t t = 0; t < stride; t++) count = static_cast<uint16_t>(count + ((a[t] == b[t]) & (a[t] >= 0)));
  return count;
}

struct ActiveSet {
  int64_t length, width, capacity, stride, count = 0;
  int16_t* structures;  // [capacity, stride]
  double *L;            // rows of the lower triangle, one after the other
  double *w, *e;        // L w = b, L e = 1
  double *p, *target;   // weights, and those that solve the problem without p >= 0
  double *row, *cosine, *sine;

  static size_t bytes(int64_t length, int64_t capacity) {
    return room<double>(capacity * (capacity + 1) / 2) + 7 * room<double>(capacity) + room<int16_t>(capacity * padded(length));
  }
  ActiveSet(int64_t length, int64_t width, int64_t capacity, Scratch& memory)
      : length(length), width(width), capacity(capacity), stride(padded(length)) {
    w = memory.take<double>(capacity + 8);
    e = memory.take<double>(capacity + 8);
    p = memory.take<double>(capacity + 8);
    target = memory.take<double>(capacity + 8);
    row = memory.take<double>(capacity + 8);
    cosine = memory.take<double>(capacity + 8);
    sine = memory.take<double>(capacity + 8);
    structures = memory.take<int16_t>(capacity * stride);
    L = memory.take<double>(capacity * (capacity + 1) / 2);
  }
  const int16_t* at(int64_t k) const { return structures + k * stride; }
  double* L_row(int64_t k) const { return L + k * (k + 1) / 2; }

  // Solves L row = (inner products with y, plus 1); returns the squared distance from y to the affine hull, or -1 where
  // y is held already.
  double distance(const int16_t* y) {
    const double size = shared(y, y, stride);
    double rest = size + 1;
    for (int64_t k = 0; k < count; k++) {
      const double common = shared(y, at(k), stride);
      if (common == size && common == shared(at(k), at(k), stride)) return -1;
      const double* l = L_row(k);
      row[k] = (common + 1 - dot(l, row, k)) / l[k];
      rest -= row[k] * row[k];
    }
    return rest > dependent * (size + 1) ? rest : 0;
  }
  // After `distance` returned `rest` > 0: y joins, with the linear score b and weight 0.
  void append(const int16_t* y, double rest, double b) {
    const double diagonal = std::sqrt(rest);
    std::memcpy(L_row(count), row, sizeof(double) * static_cast<size_t>(count));
    L_row(count)[count] = diagonal;
    w[count] = (b - dot(row, w, count)) / diagonal;
    e[count] = (1 - dot(row, e, count)) / diagonal;
    std::memmove(structures + count * stride, y, sizeof(int16_t) * static_cast<size_t>(stride));
    p[count++] = 0;
  }
  // Structure d leaves; Givens rotations make L triangular again.
  void drop(int64_t d) {
    for (int64_t k = d + 1; k < count; k++) {
      double* l = L_row(k);
      double carried = l[d];
      for (int64_t j = d; j < k - 1; j++) {
        const double next = l[j + 1];
        l[j] = cosine[j] * carried + sine[j] * next;
        carried = cosine[j] * next - sine[j] * carried;
      }
      const double last = l[k], norm = std::sqrt(carried * carried + last * last);
      const double c = cosine[k - 1] = carried / norm, s = sine[k - 1] = last / norm;
      l[k - 1] = norm;
      std::memmove(L_row(k - 1), l, sizeof(double) * static_cast<size_t>(k));
      for (double* v : {w, e}) {
        const double a = v[k - 1], b = v[k];
        v[k - 1] = c * a + s * b;
        v[k] = c * b - s * a;
      }
      p[k - 1] = p[k];
    }
    std::memmove(structures + d * stride, structures + (d + 1) * stride,
                 sizeof(int16_t) * static_cast<size_t>((count - 1 - d) * stride));
    count--;
  }
  // L' x = x, in place.
  void back_substitute(double* x) const {
    for (int64_t k = count - 1; k >= 0; k--) {
      const double* l = L_row(k);
      const double value = x[k] /= l[k];
      for (int64_t j = 0; j < k; j++) x[j] -= value * l[j];
    }
  }
  // target = the maximiser of b'p - 1/2 |M p|^2 with 1'p = total, of any sign.
  void solve(double total) {
    const double tau = (dot(e, w, count) - total) / dot(e, e, count);
    for (int64_t k = 0; k < count; k++) target[k] = w[k] - tau * e[k];
    back_substitute(target);
  }
  // The weights go to `target` as far as none becomes negative; structures that stop them leave. False where the newest
  // leaves at once: what it gains is rounding.
  bool improve() {
    for (bool first = true;; first = false) {
      solve(1);
      double step = 1;
      int64_t stops = -1;
      for (int64_t k = 0; k < count; k++) {
        if (target[k] > no_weight) continue;
        const double s = p[k] <= 0 ? 0 : p[k] / (p[k] - target[k]);
        if (stops < 0 || s < step) step = s < 1 ? s : 1, stops = k;
      }
      for (int64_t k = 0; k < count; k++) p[k] += step * (target[k] - p[k]);
      if (stops < 0 || count == 1) return true;
      const bool newest = first && stops == count - 1;
      drop(stops);
      if (newest) return false;
    }
  }
  // y lies in the affine hull and yet gains, by its linear score: M p stays as it is while weight moves to y, until a
  // structure has none left and y takes its place (a pivot of the simplex method).
  void exchange(const int16_t* y, double b) {
    std::memcpy(target, row, sizeof(double) * static_cast<size_t>(count));
    back_substitute(target);
    double step = infinity<double>();
    int64_t leaves = 0;
    for (int64_t k = 0; k < count; k++)
      if (target[k] > 1e-9 && p[k] / target[k] < step) step = p[k] / target[k], leaves = k;
    for (int64_t k = 0; k < count; k++) p[k] -= step * target[k];
    drop(leaves);
    double rest = distance(y);
    if (rest <= 0) return;
    append(y, rest, b);
    p[count - 1] = step;
  }
  // mu = M x.
  void marginals(const double* x, double* mu) const {
    std::memset(mu, 0, sizeof(double) * static_cast<size_t>(length * width));
    for (int64_t k = 0; k < count; k++)
      for (int64_t t = 0; t < length; t++)
        if (at(k)[t] >= 0) mu[t * width + at(k)[t]] += x[k];
  }
  double score(const double* scores, const int16_t* y) const {
    double sum = 0;
    for (int64_t t = 0; t < length; t++)
      if (y[t] >= 0) sum += scores[t * width + y[t]];
    return sum;
  }
  // What the rounding of `score` is relative to.
  double magnitude(const double* scores, const int16_t* y) const {
    double sum = static_cast<double>(length);
    for (int64_t t = 0; t < length; t++)
      if (y[t] >= 0) sum += std::fabs(scores[t * width + y[t]]);
    return sum;
  }
};

enum Outcome : int { nothing_kept = 0, not_a_number = -1, infeasible = -2 };  // in place of a count of structures

// Maximises scores.mu + extra - 1/2 |mu|^2. A factor has `length`, `width`, `bool highest(scores, y)` (the structure of the
// highest score plus extra; false where none is allowed), `double extra(y)` (what is not in the scores) and `magnitude(y)`
// (the sum of the absolute values in it). Returns the number of structures with weight; `gap` is the certificate: no
// point of the polytope is better by more, and mu is within sqrt(2 gap) of the best.
template <class Factor>
int64_t solve_sparsemap(Factor& factor, ActiveSet& set, const double* scores, int16_t* y, double* mu, double* slope,
                        double& gap, int64_t most, bool& converged) {
  const int64_t size = set.length * set.width;
  const double rounding = 64 * std::numeric_limits<double>::epsilon();
  if (!factor.highest(scores, y)) return infeasible;
  auto linear = [&](const int16_t* s) { return set.score(scores, s) + factor.extra(s); };
  set.append(y, set.distance(y), linear(y));
  set.p[0] = 1;
  for (int64_t turn = 0;; turn++) {
    set.marginals(set.p, mu);
    for (int64_t i = 0; i < size; i++) slope[i] = scores[i] - mu[i];
    double value = 0;
    for (int64_t k = 0; k < set.count; k++) value += set.p[k] * (set.score(slope, set.at(k)) + factor.extra(set.at(k)));
    factor.highest(slope, y);
    gap = set.score(slope, y) + factor.extra(y) - value;
    if (gap <= rounding * (set.magnitude(slope, y) + factor.magnitude(y)) ||
        !(converged = turn < most && set.count < set.capacity))
      break;
    const double rest = set.distance(y);
    if (rest < 0) break;
    if (rest > 0)
      set.append(y, rest, linear(y));
    else
      set.exchange(y, linear(y));
    if (!set.improve()) break;
  }
  if (gap < 0) gap = 0;
  return set.count;
}

// Adds structures without weight until those held span the whole face of optimal structures on the support of mu: with
// ties, mu can move in directions that those with weight do not show, and a gradient without them is wrong. An oracle
// finds such a structure, if there is one, in a random direction that is 0 on the hull of those held.
template <class Factor>
void span_face(Factor& factor, ActiveSet& set, const double* scores, int16_t* y, const double* mu, double* slope,
               double* direction) {
  const int64_t size = set.length * set.width;
  const double scale = (set.magnitude(scores, set.at(0)) + factor.magnitude(set.at(0))) / static_cast<double>(set.length);
  const double step = 1e-8 * scale, tight = 1e-11 * scale;
  int64_t support = 0;
  for (int64_t i = 0; i < size; i++) support += mu[i] > 0;
  const int64_t choices = shared(set.at(0), set.at(0), set.stride);
  uint64_t state = 0x9E3779B97F4A7C15u;
  double value = -infinity<double>();
  for (int64_t i = 0; i < size; i++) slope[i] = scores[i] - mu[i];
  for (int64_t k = 0; k < set.count; k++) {
    const double v = set.score(slope, set.at(k)) + factor.extra(set.at(k));
    value = v > value ? v : value;
  }
  // No more than support - choices + 1 structures are affinely independent.
  while (set.count <= support - choices && set.count < set.capacity) {
    for (int64_t i = 0; i < size; i++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      direction[i] = mu[i] > 0 ? static_cast<double>(state >> 40) / (1 << 24) - 0.5 : 0;
    }
    double constant = 0;
    for (int64_t k = 0; k < set.count; k++) {
      const double* l = set.L_row(k);
      set.row[k] = (set.score(direction, set.at(k)) - dot(l, set.row, k)) / l[k];
    }
    set.back_substitute(set.row);
    for (int64_t k = 0; k < set.count; k++) {
      constant += set.row[k];
      for (int64_t t = 0; t < set.length; t++)
        if (set.at(k)[t] >= 0) direction[t * set.width + set.at(k)[t]] -= set.row[k];
    }
    bool found = false;
    for (int side = 0; side < 2 && !found; side++) {
      const double h = side ? -step : step;
      for (int64_t i = 0; i < size; i++)
        slope[i] = mu[i] > 0 ? scores[i] - mu[i] + h * direction[i] : -infinity<double>();
      if (!factor.highest(slope, y)) continue;
      double off = set.score(direction, y) - constant;
      if (std::fabs(off) < 1e-7 || set.score(slope, y) + factor.extra(y) - h * (off + constant) < value - tight) continue;
      const double rest = set.distance(y);
      if (rest <= 0) continue;
      set.append(y, rest, 0);
      found = true;
    }
    if (!found) return;
  }
}

}  // namespace sa
