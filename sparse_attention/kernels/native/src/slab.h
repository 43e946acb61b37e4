// Short rows, W at a time: one row per lane.
//
// On a short row a root finder spends its time waiting: every pass ends in a horizontal sum and a division. With the
// candidates of W rows transposed into columns, a pass is one sweep over the columns, its sums are complete without
// any shuffling, and one division serves W rows. Same mathematics, same names as thresholds.h, with vectors for scalars;
// the tests compare the two. A lane that has its root stands still until the others have theirs, so that a row's result does
// not depend on its neighbours.
#pragma once
#include "thresholds.h"

namespace sa {

constexpr int64_t slab_depth = 192;    // candidates per row that fit
constexpr int64_t slab_longest = short_row;  // W longer rows would leave the first cache between reading and writing

template <class T>
struct Slab {
  T* column;          // column[j * W + lane] is candidate j of the row in that lane; `padding` beyond its last
  int64_t depth = 0;  // columns in use
  int64_t size[Vec<T>::W] = {};
  double sum[Vec<T>::W] = {};
  T least[Vec<T>::W] = {};  // at most the threshold

  static size_t bytes() { return room<T>(slab_depth * Vec<T>::W); }
  void put(int lane, const T* b, int64_t c) {
    for (; depth < c; depth++) Vec<T>::all(padding).store(column + depth * Vec<T>::W);
    for (int64_t j = 0; j < c; j++) column[j * Vec<T>::W + lane] = b[j];
  }
  Vec<T> at(int64_t j) const { return Vec<T>::load(column + j * Vec<T>::W); }
};

template <class T>
inline Levels<T> levels_of(const Slab<T>& s) {
  using V = Vec<T>;
  V count[2] = {V::all(0), V::all(0)}, sum[2] = {V::all(0), V::all(0)};
  for (int64_t j = 0; j < s.depth; j++)
    for (int l = 0; l < 2; l++) {
      const auto in = greater(s.at(j), V::all(Levels<T>::level[l]));
      count[l] = count[l] + select_or_zero(in, V::all(1));
      sum[l] = sum[l] + select_or_zero(in, s.at(j));
    }
  Levels<T> found;
  for (int l = 0; l < 2; l++) {
    count[l].store(found.count[l]);
    sum[l].store(found.sum[l]);
  }
  return found;
}

template <class T>
struct Thresholds {  // one per lane
  Vec<T> hi, lo;
};

template <class T>
inline Vec<T> magnitude(Vec<T> v) {
  return max(v, Vec<T>::all(0) - v);
}

// Where all lanes would start, if their candidates were all at the mean: mean - count^-e, at least -1; see thresholds.h.
template <class T>
inline Vec<T> at_the_mean(const Slab<T>& s, Vec<T> e) {
  using V = Vec<T>;
  T count[V::W], sum[V::W];
  for (int i = 0; i < V::W; i++) {
    count[i] = static_cast<T>(s.size[i] > 0 ? s.size[i] : 1);
    sum[i] = static_cast<T>(s.sum[i]);
  }
  const V one_over = V::all(1) / V::load(count);
  return max(V::load(sum) * one_over - power(one_over, e), V::all(-1));
}

template <class T>
inline Thresholds<T> solve_linear(const Slab<T>& s) {
  using V = Vec<T>;
  const V one = V::all(1), zero = V::all(0);
  V tau = V::all(-1), step = zero, before = zero;
  for (int pass = 0; pass < 60; pass++) {
    V f = zero, size = zero;
    for (int64_t j = 0; j < s.depth; j++) {
      V d = s.at(j) - tau;
      auto inside = greater(d, zero);
      f = f + select_or_zero(inside, d);
      size = size + select_or_zero(inside, one);
    }
    step = (f - one) / size;
    auto moving = mask_and(mask_or(greater(size, before), greater(before, size)),
                           greater(magnitude(step), V::all(std::numeric_limits<T>::epsilon() / 4)));
    if (!any(moving)) break;
    before = size;
    if (pass < 59) tau = tau + select_or_zero(moving, step);
  }
  return {tau, step};
}

template <class T>
inline Thresholds<T> solve_quadratic(const Slab<T>& s) {
  using V = Vec<T>;
  const V one = V::all(1), zero = V::all(0);
  V f = zero, h = zero, size = zero, step = zero;
  V tau = V::all(-1);
  for (int64_t j = 0; j < s.depth; j++) {
    V d = s.at(j) - tau;
    auto inside = greater(d, zero);
    h = h + select_or_zero(inside, d);
    size = size + select_or_zero(inside, one);
  }
  tau = max(h / size - one - one / sqrt(size), tau);
  for (int pass = 0;; pass++) {
    f = h = size = zero;
    for (int64_t j = 0; j < s.depth; j++) {
      V d = s.at(j) - tau;
      auto inside = greater(d, zero);
      d = select_or_zero(inside, d);
      f = fma(d, d, f);
      h = h + d;
      size = size + select_or_zero(inside, one);
    }
    step = (f - sqrt(f)) / h;
    auto moving = greater(magnitude(step), V::all(T(-1e-5)) * tau);
    if (!any(moving) || pass == 40) break;
    tau = tau + select_or_zero(moving, step);
  }
  V discriminant = h * h - size * (f - one);
  V exact = (f - one) / (h + sqrt(max(discriminant, zero)));
  return {tau, select(greater(discriminant, zero), exact, step)};
}

template <class T, class Power>
inline Thresholds<T> solve_power(const Slab<T>& s, const Powers<T, Power>& powers) {
  using V = Vec<T>;
  const V zero = V::all(0), one = V::all(1), half = V::all(T(0.5)), less = powers.r - one, rest = less / powers.r;
  V tau = V::load(s.least), step = zero;
  for (int pass = 0;; pass++) {
    V f = zero, h = zero, g = zero;
    for (int64_t j = 0; j < s.depth; j++) powers.add(positive_part(s.at(j) - tau), f, h, g);
    step = (f - power(f, rest)) / h;
    auto moving = greater(magnitude(step), powers.small * (zero - tau));
    const V bent = step / max(one - half * less * (g / h - h / f) * step, half);
    step = select(powers.curved, bent, step);
    if (!any(moving) || pass == 60) break;
    tau = max(tau + select_or_zero(moving, step), V::all(-1));
  }
  return {tau, step};
}

template <class T>
inline Thresholds<T> solve_dual_norm(const Slab<T>& s, Vec<T> q) {
  using V = Vec<T>;
  const V zero = V::all(0), one = V::all(1), half = V::all(T(0.5)), two = V::all(2), three = V::all(3);
  const bool cubic = !any(mask_or(greater(q, three), greater(three, q)));
  const V e = two / q;
  T count[V::W];
  for (int i = 0; i < V::W; i++) count[i] = static_cast<T>(s.size[i] > 0 ? s.size[i] : 1);
  V lo = V::all(-1), hi = zero - power(one / V::load(count), e);
  V tau = at_the_mean(s, e), step = zero;
  for (int pass = 0;; pass++) {
    V a = zero, b = zero, c = zero;
    for (int64_t j = 0; j < s.depth; j++) {
      V d = positive_part(s.at(j) - tau), w = cubic ? d : power(d, q - two), v = w * d;
      a = a + w;
      b = b + v;
      c = fma(v, d, c);
    }
    V norm = power(c, one - e);
    V value = b / norm - one;
    V slope = ((q - two) * b * b / c - (q - one) * a) / norm;
    step = zero - value / slope;
    auto left = greater(value, zero);
    lo = select(left, tau, lo);
    hi = select(left, hi, tau);
    auto moving = greater(magnitude(step), V::all(static_cast<T>(small_step<T>(-1))) * (zero - tau));
    if (!any(moving) || pass == 60) break;
    V next = tau + step, middle = half * (lo + hi);
    auto inside = mask_and(greater(next, lo), greater(hi, next));
    tau = select(moving, select(inside, next, middle), tau);
  }
  return {tau, step};
}

}  // namespace sa
