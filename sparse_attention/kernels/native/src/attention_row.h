// One query: its candidates, the bound that decides which keys become one, and the exact threshold at the end.
//
// With r = 1 / (alpha - 1) and s_j = (alpha - 1) scale q.k_j the attention is
//     p_j = (s_j - tau)_+^r,   tau the root of   F(tau) = sum_j (s_j - tau)_+^r = 1.
// F falls in tau and every key adds to it, so the root over the keys seen so far is a lower bound of tau: a key at or
// below it has probability zero whatever comes later. For r >= 1 the r-norm, F's root, is convex, so a Newton step from
// the left stays left of the root, and one step is again a lower bound. For r < 1 a point is one if F exceeds 1 there. The
// bounds here are certified: float32 sums are shrunk by the most that their rounding can have added before a bound is taken
// from them.
//
// `power` is r where it is 1 (sparsemax) or 2 (entmax 1.5), and any_power otherwise: then an AnyAlpha comes with it.
#pragma once
#include <type_traits>

#include "simplex_gradients.h"
#include "thresholds.h"

namespace sa {

using V = Vec<float>;

struct Row {
  float* score;     // of the candidates, in the order of their keys
  int32_t* column;  // their keys
  int64_t count;    // candidates
  int64_t settled;  // candidates at the last raise of the bound; twice that if it dropped few (any power)
  float bound;      // only keys that score more can be in the support
  int32_t begin;    // this query sees the keys from here on
  int32_t limit;    // and below this one
  const float* bias = nullptr;    // of the keys, added times `factor`, or null
  const uint8_t* kept = nullptr;  // or null: of those keys, the ones it sees
  float factor = 1;
  float lift = 0;  // of `bound` over the bound of sparsemax, downwards (attention_segments.h)
  bool broken = false;  // a score with its bias is NaN or infinity
};

constexpr int any_power = 0;

// The powers of one alpha.
struct AnyAlpha {
  double alpha, r;
  enum Way { products, one_power, logarithm } way;
  Powers<float, ProductPower<float>> product;
  Powers<float, OnePower<float>> one;
  Powers<float, AnyPower<float>> any;
  double* memory;  // alpha > 2: 3 numbers for each key
  AnyAlpha(double given, double* memory)
      : alpha(given), r(1 / (given - 1)), way(way_of(r)), product(V::all(way == products ? rounded(r) : 3.f)),
        one(V::all(way == one_power ? rounded(r) : 1.f)), any(V::all(rounded(r))), memory(memory) {}

  // r as a float, and as a whole number if that is meant: 1 / (1.1 - 1) is not.
  static float rounded(double r) {
    return static_cast<float>(std::fabs(r - std::nearbyint(r)) < 1e-9 * r ? std::nearbyint(r) : r);
  }
  static Way way_of(double r) {
    const bool whole = rounded(r) == std::nearbyint(r);
    if (r > 2.5 && r < 33 && (whole || (V::W == 16 && r > 5))) return products;  // OnePower is fast with AVX-512 alone
    return r >= 1 && r <= 5 ? one_power : logarithm;
  }
  template <class Body>
  auto with(const Body& body) const {
    return way == products ? body(product) : way == one_power ? body(one) : body(any);
  }
};

// body(power) with the power of this alpha as a constant.
template <class Body>
inline auto with_power(double alpha, const Body& body) {
  if (alpha == 2) return body(std::integral_constant<int, 1>());
  if (alpha == 1.5) return body(std::integral_constant<int, 2>());
  return body(std::integral_constant<int, any_power>());
}

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

// The most that rounding adds to a sum of `count` powers, as a share of it; d^r is 2^(r log2 d), off by up to 126 units.
inline double power_error(int64_t count) { return (static_cast<double>(count) / V::W + 16) * 6e-8 + 2e-5; }

// The same for other powers, r >= 1. d is at most about 1, since the largest score is not below tau + 1.
template <class P>
inline float raised_by(const P& powers, double r, const float* s, int64_t count, float t) {
  const V shift = V::all(t), zero = V::all(0), one = V::all(1), tiny = V::all(1e-8f);
  V f = zero, h = zero, unused = zero;
  for (int64_t i = 0; i < count; i += V::W) {
    const V d = positive_part(load_row(s, i, count, -infinity<float>()) - shift);
    V term = zero, slope = zero;
    powers.add(d, term, slope, unused);
    f = f + term;
    // a power of what is nearly nothing may come out as 0 and be nearly 1
    h = h + select_or_zero(greater(d, zero), select(greater(d, tiny), slope, one));
  }
  const double error = power_error(count);
  const double total = static_cast<double>(sum(f)) * (1 - error), slope = static_cast<double>(sum(h)) * (1 + error);
  if (!(total > 1)) return t;
  const float next = rounded_down(t + (total - std::pow(total, 1 - 1 / r)) / slope);
  return next > t ? next : t;
}

// And for r < 1: bisection.
inline float bisected(double r, const float* s, int64_t count, float t, float top) {
  const V exponent = V::all(static_cast<float>(r));
  const double error = power_error(count);
  float low = t, high = top;
  for (int pass = 0; pass < 8; pass++) {
    const float middle = low + 0.5f * (high - low);
    if (!(middle > low && middle < high)) break;
    const V shift = V::all(middle);
    V f = V::all(0);
    for (int64_t i = 0; i < count; i += V::W)
      f = f + power(positive_part(load_row(s, i, count, -infinity<float>()) - shift), exponent);
    (static_cast<double>(sum(f)) * (1 - error) > 1 ? low : high) = middle;
  }
  return low;
}

inline float raised(const AnyAlpha& a, const float* s, int64_t count, float t) {
  const float top = highest(s, count), least = rounded_down(static_cast<double>(top) - 1);
  t = t > least ? t : least;
  if (a.alpha > 2) return bisected(a.r, s, count, t, top);
  return a.with([&](const auto& powers) { return raised_by(powers, a.r, s, count, t); });
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

#if defined(__AVX2__) && !defined(SPARSE_ATTENTION_AVX512) && !defined(SPARSE_ATTENTION_PORTABLE)
constexpr bool avx2 = true;
#else
constexpr bool avx2 = false;
#endif
// Newton's steps where the candidates have doubled, else one. With few lanes, a key that passes in vain costs more than a step.
constexpr int newton_steps = avx2 ? 4 : 1;

// Raises the bound from the candidates held and drops what falls below. The scores held may be lower bounds of the true
// ones, which are then at most `slack` above.
template <int power>
inline void settle(Row& row, float slack = 0, [[maybe_unused]] const AnyAlpha* any = nullptr) {
  const int64_t before = row.count;
  if (row.count > 0) {
    float t = row.lift > 0 ? rounded_down(static_cast<double>(row.bound) + row.lift) : row.bound;
    if (row.settled == 0) t = std::fmax(t, rounded_down(static_cast<double>(highest(row.score, row.count)) - 1));
    float next = t;
    if constexpr (power == any_power)
      next = raised(*any, row.score, row.count, t);
    else
      for (int left = before > 2 * row.settled ? newton_steps : 1; left > 0; left--) {
        next = raised<power>(row.score, row.count, t);
        if (!(next > t)) break;
        t = next;
      }
    if (row.lift > 0) next = rounded_down(static_cast<double>(next) - row.lift);
    if (next > row.bound) {
      row.bound = next;
      drop(row, rounded_down(static_cast<double>(next) - slack));
    }
  }
  row.settled = power == any_power && row.count > before - before / 8 ? 2 * row.count : row.count;
}

// What is left of `score` after the threshold: (b - tau)_+ with b the scores less the largest, in `b`, which is followed by
// at least one vector. For alpha > 2, P itself. `least` is a lower bound of tau.
template <int power>
inline void to_roots(float* score, int64_t count, float* b, float top, double total, [[maybe_unused]] double least,
                     [[maybe_unused]] const AnyAlpha* any) {
  Candidates<float> k{b, count, total};
  Threshold<float> tau;
  if constexpr (power == any_power) {
    if (any->alpha > 2) {
      double *x = any->memory, *p = x + count, *sorted = p + count;
      const double a = any->alpha - 1;
      for (int64_t i = 0; i < count; i++) x[i] = static_cast<double>(b[i]) / a;
      steep_entmax_row(x, p, count, a, sorted);
      for (int64_t i = 0; i < count; i++) score[i] = static_cast<float>(p[i]);
      return;
    }
    k.fixed = true;
    const double n = static_cast<double>(count), jensen = total / n - std::pow(n, -1 / any->r);  // all at their mean
    k.least = least - static_cast<double>(top) > -1 ? static_cast<double>(rounded_down(least - static_cast<double>(top))) : -1;
    k.least = jensen > k.least ? jensen : k.least;
    tau = any->with([&](const auto& powers) { return solve_power(k, powers); });
  } else {
    tau = power == 1 ? solve_linear(k, 1.0) : solve_quadratic(k);
  }
  for (int64_t i = 0; i < count; i += V::W) store_row(score, i, count, above(V::load(b + i), tau));
}

// P of the roots that `to_roots` leaves, except for alpha > 2.
template <int power, class P>
inline V from_root(V d, [[maybe_unused]] const P* powers) {
  if constexpr (power == any_power)
    return powers->but_one(d) * d;
  else
    return power == 2 ? d * d : d;
}

// The exact threshold on the candidates, which hold the support: leaves probabilities and their keys in their place and
// returns how many. The root finders are those of the rows (thresholds.h), and so is the rounding.
template <int power>
inline int64_t finish(Row& row, const AnyAlpha* any = nullptr) {
  if (row.count == 0) return 0;
  const float most = highest(row.score, row.count);
  const V top = V::all(most), lowest = V::all(padding);
  V total = V::all(0);
  for (int64_t i = 0; i < row.count; i += V::W) {
    V b = max(load_row(row.score, i, row.count, -infinity<float>()) - top, lowest);
    b.store(row.score + i);
    total = total + select_or_zero(greater(b, lowest), b);
  }
  const double least = row.bound < most ? static_cast<double>(row.bound) : -infinity<double>();
  to_roots<power>(row.score, row.count, row.score, most, static_cast<double>(sum(total)), least, any);
  auto keep_positive = [&](const auto* powers) {
    const bool ready = power == any_power && any->alpha > 2;
    int64_t c = 0;
    for (int64_t i = 0; i < row.count; i += V::W) {
      V p = load_row(row.score, i, row.count, 0.f);
      if (!ready) p = from_root<power>(p, powers);
      auto keep = greater(p, V::all(0));
      compress(reinterpret_cast<float*>(row.column + c), keep, V::load(reinterpret_cast<const float*>(row.column + i)));
      c += compress(row.score + c, keep, p);
    }
    row.count = c;
  };
  if constexpr (power == any_power)
    any->with([&](const auto& powers) { keep_positive(&powers); });
  else
    keep_positive(static_cast<const Powers<float, AnyPower<float>>*>(nullptr));
  return row.count;
}

}  // namespace sa
