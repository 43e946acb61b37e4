// One query: its candidates, the bound that decides which keys become one, and the exact threshold at the end.
//
// With s_j = scale q.k_j (sparsemax, r = 1) or s_j = scale q.k_j / 2 (entmax15, r = 2) the attention is
//     p_j = (s_j - tau)_+^r,   tau the root of   F(tau) = sum_j (s_j - tau)_+^r = 1.
// F falls in tau and every key adds to it, so the root over the keys seen so far is a lower bound of tau: a key at or
// below it has probability zero whatever comes later. F (r = 1) and its root (r = 2) are convex, so a Newton step from
// the left stays left of the root, and one step is again a lower bound. The bounds here are certified: float32 sums are
// shrunk by the most that their rounding can have added before a bound is taken from them.
#pragma once
#include "thresholds.h"

namespace sa {

using V = Vec<float>;

struct Row {
  float* score;     // of the candidates, in the order of their keys
  int32_t* column;  // their keys
  int64_t count;    // candidates
  int64_t settled;  // candidates at the last raise of the bound
  float bound;      // only keys that score more can be in the support
  int32_t begin;    // this query sees the keys from here on
  int32_t limit;    // and below this one
};

// Room behind a row's candidates for the full vectors written past their end.
constexpr int64_t overhang = 64;

// x rounded to a float that is not above it.
inline float rounded_down(double x) { return static_cast<float>(x - std::fabs(x) * 1.2e-7 - 1e-37); }

inline float highest(const float* s, int64_t count) {
  V m = V::all(-infinity<float>());
  for (int64_t i = 0; i < count; i += V::W) m = max(m, load_row(s, i, count, -infinity<float>()));
  return largest(m);
}

// One certified Newton step from t, a lower bound of the root over these scores: another lower bound, at least t.
template <int power>
inline float raised(const float* s, int64_t count, float t) {
  const V shift = V::all(t), zero = V::all(0), one = V::all(1);
  V f = zero, h = zero;
  for (int64_t i = 0; i < count; i += V::W) {
    V d = load_row(s, i, count, -infinity<float>()) - shift;
    auto inside = greater(d, zero);
    d = select_or_zero(inside, d);
    if (power == 1) {
      f = f + d;
      h = h + select_or_zero(inside, one);
    } else {
      f = fma(d, d, f);
      h = h + d;
    }
  }
  // A lane adds count / W positive terms, each off by a few units in the last place.
  const double error = (static_cast<double>(count) / V::W + 16) * 6e-8;
  const double total = static_cast<double>(sum(f)) * (1 - error), slope = static_cast<double>(sum(h)) * (1 + error);
  if (!(total > 1)) return t;
  const float next = rounded_down(t + (power == 1 ? total - 1 : total - std::sqrt(total)) / slope);
  return next > t ? next : t;
}

// Drops the candidates at or below `limit`.
inline void drop(Row& row, float limit) {
  const V low = V::all(limit);
  int64_t c = 0;
  for (int64_t i = 0; i < row.count; i += V::W) {  // c <= i: reads are ahead of writes
    V s = load_row(row.score, i, row.count, -infinity<float>());
    V at = V::load(reinterpret_cast<const float*>(row.column + i));  // moved, never looked at
    auto keep = greater(s, low);
    compress(reinterpret_cast<float*>(row.column + c), keep, at);
    c += compress(row.score + c, keep, s);
  }
  row.count = c;
}

// Raises the bound from the candidates held and drops what falls below. The scores held may be lower bounds of the true
// ones, which are then at most `slack` above.
template <int power>
inline void settle(Row& row, float slack = 0) {
  if (row.count > 0) {
    float t = row.bound;
    if (row.settled == 0) t = std::fmax(t, rounded_down(static_cast<double>(highest(row.score, row.count)) - 1));
    const float next = raised<power>(row.score, row.count, t);
    if (next > row.bound) {
      row.bound = next;
      drop(row, rounded_down(static_cast<double>(next) - slack));
    }
  }
  row.settled = row.count;
}

// The exact threshold on the candidates, which hold the support: leaves probabilities and their keys in their place and
// returns how many. The root finders are those of the rows (thresholds.h), and so is the rounding.
template <int power>
inline int64_t finish(Row& row) {
  if (row.count == 0) return 0;
  const V top = V::all(highest(row.score, row.count)), lowest = V::all(padding);
  V total = V::all(0);
  for (int64_t i = 0; i < row.count; i += V::W) {
    V b = max(load_row(row.score, i, row.count, -infinity<float>()) - top, lowest);
    b.store(row.score + i);
    total = total + select_or_zero(greater(b, lowest), b);
  }
  Candidates<float> k{row.score, row.count, static_cast<double>(sum(total))};
  const Threshold<float> tau = power == 1 ? solve_linear(k, 1.0) : solve_quadratic(k);
  int64_t c = 0;
  for (int64_t i = 0; i < row.count; i += V::W) {
    V p = above(V::load(row.score + i), tau);
    if (power == 2) p = p * p;
    auto keep = greater(p, V::all(0));
    compress(reinterpret_cast<float*>(row.column + c), keep, V::load(reinterpret_cast<const float*>(row.column + i)));
    c += compress(row.score + c, keep, p);
  }
  row.count = c;
  return c;
}

}  // namespace sa
