// Short rows, W at a time: one row per lane.
//
// On a short row a root finder spends its time waiting: every pass ends in a horizontal sum and a division. With the
// candidates of W rows transposed into columns, a pass is one sweep over the columns, its sums are complete without
// any shuffling, and one division serves W rows. Same mathematics, same names as thresholds.h, with vectors for scalars;
// the tests compare the two.
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

  static size_t bytes() { return room<T>(slab_depth * Vec<T>::W); }
  void put(int lane, const T* b, int64_t c) {
    for (; depth < c; depth++) Vec<T>::all(padding).store(column + depth * Vec<T>::W);
    for (int64_t j = 0; j < c; j++) column[j * Vec<T>::W + lane] = b[j];
  }
  Vec<T> at(int64_t j) const { return Vec<T>::load(column + j * Vec<T>::W); }
};

template <class T>
struct Thresholds {  // one per lane
  Vec<T> hi, lo;
};

template <class T>
inline Vec<T> magnitude(Vec<T> v) {
  return max(v, Vec<T>::all(0) - v);
}

// Where all lanes would start: the threshold if their candidates were all at the mean; see thresholds.h.
template <class T>
inline Vec<T> per_lane(const Slab<T>& s, double (*f)(double count, double sum, double r), double r) {
  T start[Vec<T>::W];
  for (int i = 0; i < Vec<T>::W; i++) {
    double v = s.size[i] > 0 ? f(static_cast<double>(s.size[i]), s.sum[i], r) : -1;
    start[i] = static_cast<T>(v > -1 ? v : -1);
  }
  return Vec<T>::load(start);
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
    if (!any(mask_or(greater(size, before), greater(before, size)))) break;
    if (!any(greater(magnitude(step), V::all(std::numeric_limits<T>::epsilon() / 4)))) break;
    before = size;
    if (pass < 59) tau = tau + step;
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
    if (!any(greater(magnitude(step), V::all(T(-1e-5)) * tau)) || pass == 40) break;
    tau = tau + step;
  }
  V discriminant = h * h - size * (f - one);
  V exact = (f - one) / (h + sqrt(max(discriminant, zero)));
  return {tau, select(greater(discriminant, zero), exact, step)};
}

template <class T>
inline Thresholds<T> solve_power(const Slab<T>& s, T r) {
  using V = Vec<T>;
  const V zero = V::all(0);
  V tau = per_lane(s, [](double c, double sum, double e) { return sum / c - std::pow(c, -1 / e); },
                   static_cast<double>(r));
  V step = zero;
  for (int pass = 0;; pass++) {
    V f = zero, h = zero;
    for (int64_t j = 0; j < s.depth; j++) {
      V d = positive_part(s.at(j) - tau), q = power(d, r - 1);
      f = fma(q, d, f);
      h = h + q;
    }
    step = (f - power(f, 1 - 1 / r)) / h;
    if (!any(greater(magnitude(step), V::all(static_cast<T>(small_step<T>(-1)))* (zero - tau))) || pass == 60) break;
    tau = tau + step;
  }
  return {tau, step};
}

template <class T>
inline Thresholds<T> solve_dual_norm(const Slab<T>& s, T q) {
  using V = Vec<T>;
  const bool cubic = q == T(3);
  const V zero = V::all(0), one = V::all(1), half = V::all(T(0.5));
  V lo = V::all(-1);
  V hi = per_lane(s, [](double c, double, double e) { return -std::pow(c, -2 / e); }, static_cast<double>(q));
  V tau = per_lane(s, [](double c, double sum, double e) { return sum / c - std::pow(c, -2 / e); },
                   static_cast<double>(q));
  V step = zero;
  for (int pass = 0;; pass++) {
    V a = zero, b = zero, c = zero;
    for (int64_t j = 0; j < s.depth; j++) {
      V d = positive_part(s.at(j) - tau), w = cubic ? d : power(d, q - 2), v = w * d;
      a = a + w;
      b = b + v;
      c = fma(v, d, c);
    }
    V norm = power(c, cubic ? T(1) / T(3) : (q - 2) / q);
    V value = b / norm - one;
    V slope = (V::all(q - 2) * b * b / c - V::all(q - 1) * a) / norm;
    step = zero - value / slope;
    auto left = greater(value, zero);
    lo = select(left, tau, lo);
    hi = select(left, hi, tau);
    if (!any(greater(magnitude(step), V::all(static_cast<T>(small_step<T>(-1))) * (zero - tau))) || pass == 60) break;
    V next = tau + step, middle = half * (lo + hi);
    auto inside = mask_and(greater(next, lo), greater(hi, next));
    tau = select(inside, next, middle);
  }
  return {tau, step};
}

}  // namespace sa
