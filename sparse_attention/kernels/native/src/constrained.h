// constrained_sparsemax: argmin |p - x|^2 over p >= 0, p <= u, sum p = 1 (Malaviya et al. 2018; Martins & Kreutzer 2017).
//
// p_i = clip(b_i - tau, 0, u_i) with b = x - max x, so f(tau) = sum p_i falls from sum u to 0, linearly between the
// breakpoints b_i and b_i - u_i. Not convex, so Newton alone may cycle: it runs inside a bracket that every pass shrinks,
// entries whose breakpoints are all outside the bracket are settled, and the settled ones leave the loop.
#pragma once
#include "thresholds.h"

namespace sa {

template <class T>
struct Bounded {  // entries still in play: value and bound, packed
  T *b, *u;
  int64_t count;
  double capped = 0;       // sum of u over entries settled at their bound
  double free_sum = 0;     // sum of b over entries settled strictly between
  double free_count = 0;
};

// f(tau) and -f'(tau) over the entries in play.
template <class T>
inline void evaluate(const Bounded<T>& k, double tau, double& value, double& slope) {
  using V = Vec<T>;
  const V t = V::all(static_cast<T>(tau)), zero = V::all(0), one = V::all(1);
  value = k.capped + k.free_sum - k.free_count * tau;
  slope = k.free_count;
  for (int64_t i = 0; i < k.count;) {
    V s = zero, c = zero;
    for (int64_t end = i + block < k.count ? i + block : k.count; i < end; i += V::W) {
      V d = V::load(k.b + i) - t, u = V::load(k.u + i);
      s = s + positive_part(min(d, u));
      c = c + select_or_zero(mask_and_not(greater(d, zero), greater(d, u)), one);
    }
    value += sum(s);
    slope += sum(c);
  }
}

// Settles entries given lo < tau < hi (the bracket), and packs the others.
template <class T>
inline void settle(Bounded<T>& k, double lo, double hi) {
  using V = Vec<T>;
  const V low = V::all(static_cast<T>(lo)), high = V::all(static_cast<T>(hi)), zero = V::all(0), one = V::all(1);
  int64_t c = 0;
  for (int64_t i = 0; i < k.count;) {
    V capped = zero, free_sum = zero, free_count = zero;
    for (int64_t end = i + block < k.count ? i + block : k.count; i < end; i += V::W) {
      V b = V::load(k.b + i), u = V::load(k.u + i);
      // Rounding is on the safe side: an entry is settled only by strict comparison beyond both ends.
      auto alive = greater(b, low);
      auto at_bound = greater(b - u, high);
      auto free = mask_and_not(greater(b, high), greater(b - u, low));
      free = mask_and_not(free, equal(b - u, low));
      capped = capped + select_or_zero(at_bound, u);
      free_sum = free_sum + select_or_zero(free, b);
      free_count = free_count + select_or_zero(free, one);
      auto keep = mask_and_not(mask_and_not(alive, at_bound), free);
      if (any(keep)) {
        compress(k.b + c, keep, b);
        c += compress(k.u + c, keep, u);
      }
    }
    k.capped += sum(capped);
    k.free_sum += sum(free_sum);
    k.free_count += sum(free_count);
  }
  for (int side = 0; side < 2; side++) {
    V::all(padding).store(k.b + c + side * V::W);
    zero.store(k.u + c + side * V::W);
  }
  k.count = c;
}

template <class T>
inline double solve_bounded(Bounded<T>& k, double lo, double hi) {
  const double resolution = std::numeric_limits<T>::epsilon() * 0.25;
  double tau = lo;
  for (int pass = 0; pass < 200; pass++) {
    // Evaluate where comparisons in T see the very same number.
    tau = static_cast<double>(static_cast<T>(tau));
    double value, slope;
    evaluate(k, tau, value, slope);
    if (value >= 1)
      lo = tau;
    else
      hi = tau;
    double step = slope > 0 ? (value - 1) / slope : 0;
    double scale = 1e-6 + std::fabs(tau);
    if (std::fabs(value - 1) < resolution || (slope > 0 && std::fabs(step) < resolution * scale)) return tau + step;
    if (hi - lo < resolution * scale) return tau + (step > hi - lo ? hi - lo : step < lo - hi ? lo - hi : step);
    if (pass > 0 && k.count > 0) settle(k, lo, hi);
    if (k.count == 0 && k.free_count > 0) return (k.free_sum + k.capped - 1) / k.free_count;
    double next = tau + step;
    if (!(next > lo && next < hi) || step == 0 || pass % 4 == 3) next = 0.5 * (lo + hi);
    tau = next;
  }
  return tau;
}

// Rows whose bounds cannot hold a total of 1 have no solution and become NaN.
template <class T>
inline void constrained_row(const T* x, const T* u, T* p, int64_t n, T* packed_b, T* packed_u) {
  using V = Vec<T>;
  RowMaximum<T> m = row_maximum(x, n);
  const V zero = V::all(0), top = V::all(m.value), lowest = V::all(-infinity<T>());
  auto bad = either_nan(zero, zero);
  double capacity = 0;
  int64_t c = 0;
  if (m.usable()) {
    for (int64_t i = 0; i < n; i += V::W) {
      V v = load_row(x, i, n, -infinity<T>()), w = load_row(u, i, n, T(0));
      bad = mask_or(bad, either_nan(w, w));
      auto keep = greater(v, lowest);
      w = min(w, V::all(1));  // no entry can hold more
      if (any(keep)) {
        capacity += static_cast<double>(sum(select_or_zero(keep, w)));
        compress(packed_b + c, keep, v - top);
        c += compress(packed_u + c, keep, w);
      }
    }
  }
  const double slack = 64 * std::numeric_limits<T>::epsilon();
  if (m.usable() && (any(bad) || !(capacity >= 1 - slack))) m.nan = true;
  if (!m.usable()) return write_unusable_row(p, n, m);
  for (int side = 0; side < 2; side++) {
    V::all(padding).store(packed_b + c + side * V::W);
    zero.store(packed_u + c + side * V::W);
  }
  double least = 0, tau;
  if (capacity <= 1) {  // exactly tight: everything at its bound
    for (int64_t i = 0; i < n; i += V::W) {
      V v = load_row(x, i, n, -infinity<T>());
      store_row(p, i, n, select_or_zero(greater(v, lowest), load_row(u, i, n, T(0))));
    }
    return;
  }
  for (int64_t i = 0; i < c; i++) {
    T v = packed_b[i] - packed_u[i];
    least = v < least ? v : least;
  }
  Bounded<T> k{packed_b, packed_u, c};
  // With every entry unbounded tau is at least -1; bounds can push it down to the least b - u.
  tau = solve_bounded(k, least < -1 ? least : -1.0, 0.0);
  T hi = static_cast<T>(tau);
  Threshold<T> t{hi, static_cast<T>(tau - static_cast<double>(hi))};
  for (int64_t i = 0; i < n; i += V::W) {
    V v = load_row(x, i, n, -infinity<T>()) - top;
    store_row(p, i, n, min(above(v, t), load_row(u, i, n, T(0))));
  }
}

template <class T>
int constrained_sparsemax_forward(const T* x, const T* u, T* p, int64_t rows, int64_t n, int threads) {
  return for_rows(rows, 60 + 4.0 * n, threads, 2 * room<T>(n), [&](int64_t first, int64_t last, char* memory) {
    Scratch s{memory};
    T* b = s.take<T>(n + 32);
    T* w = s.take<T>(n + 32);
    for (int64_t r = first; r < last; r++) constrained_row(x + r * n, u + r * n, p + r * n, n, b, w);
  });
}

// With A = {0 < p < u}, m = mean of g over A: dx = g - m on A; du = g - m where p = u > 0; 0 elsewhere.
template <class T>
int constrained_sparsemax_backward(const T* g, const T* p, const T* u, T* dx, T* du, int64_t rows, int64_t n,
                                   int threads) {
  using V = Vec<T>;
  const V zero = V::all(0), one = V::all(1);
  return for_rows(rows, 20 + 1.5 * n, threads, 64, [&](int64_t first, int64_t last, char*) {
    for (int64_t r = first; r < last; r++) {
      const T *gr = g + r * n, *pr = p + r * n, *ur = u + r * n;
      double total = 0, size = 0;
      for (int64_t i = 0; i < n;) {
        V a = zero, b = zero;
        for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
          V y = load_row(pr, i, n, T(0));
          auto inside = mask_and_not(greater(y, zero), equal(y, load_row(ur, i, n, T(0))));
          a = a + select_or_zero(inside, load_row(gr, i, n, T(0)));
          b = b + select_or_zero(inside, one);
        }
        total += sum(a);
        size += sum(b);
      }
      const V mean = V::all(size > 0 ? static_cast<T>(total / size) : T(0));
      for (int64_t i = 0; i < n; i += V::W) {
        V y = load_row(pr, i, n, T(0)), d = load_row(gr, i, n, T(0)) - mean;
        auto positive = greater(y, zero), capped = equal(y, load_row(ur, i, n, T(0)));
        // y - y is 0, and NaN in a NaN row
        store_row(dx + r * n, i, n, select_or_zero(mask_and_not(positive, capped), d) + (y - y));
        store_row(du + r * n, i, n, select_or_zero(mask_and_not(positive, mask_and_not(positive, capped)), d) + (y - y));
      }
    }
  });
}

}  // namespace sa
