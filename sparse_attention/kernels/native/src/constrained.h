// constrained_sparsemax: argmin |p - x|^2 over p >= 0, p <= u, sum p = 1 (Malaviya et al. 2018; Martins & Kreutzer 2017).
//
// p_i = clip(b_i - tau, 0, u_i) with b = x - max x, so f(tau) = sum p_i falls from sum u to 0, linearly between the
// breakpoints b_i and b_i - u_i. Not convex, so Newton alone may cycle: it runs inside a bracket that every pass shrinks,
// entries whose breakpoints are all outside the bracket are settled, and the settled ones leave the loop.
#pragma once
#include "slab.h"

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

// f(lo) = capacity > 1 and f(hi) = 0; the first guess is where the line between the two is 1.
template <class T>
inline double solve_bounded(Bounded<T>& k, double capacity, double lo, double hi) {
  const double resolution = std::numeric_limits<T>::epsilon();  // finer would chase the rounding of f
  double tau = lo + (hi - lo) * (1 - 1 / capacity);
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
    if (k.count > 0) settle(k, lo, hi);
    if (k.count == 0 && k.free_count > 0) return (k.free_sum + k.capped - 1) / k.free_count;
    double next = tau + step;
    if (!(next > lo && next < hi) || step == 0 || pass % 4 == 3) next = 0.5 * (lo + hi);
    tau = next;
  }
  return tau;
}

// The same for W short rows at once, one per lane (slab.h); lo, hi, capacity per lane as above.
template <class T>
inline Thresholds<T> solve_bounded(const Slab<T>& b, const Slab<T>& u, Vec<T> capacity, Vec<T> lo, Vec<T> hi) {
  using V = Vec<T>;
  const V zero = V::all(0), one = V::all(1), half = V::all(T(0.5));
  const V resolution = V::all(std::numeric_limits<T>::epsilon());  // finer would chase the rounding of f
  V tau = lo + (hi - lo) * (one - one / capacity), step = zero;
  for (int pass = 0; pass < 100; pass++) {
    V value = zero, slope = zero;
    for (int64_t j = 0; j < b.depth; j++) {
      V d = b.at(j) - tau, bound = u.at(j);
      value = value + positive_part(min(d, bound));
      slope = slope + select_or_zero(mask_and_not(greater(d, zero), greater(d, bound)), one);
    }
    V excess = value - one;
    auto left = mask_or(greater(value, one), equal(value, one));
    lo = select(left, tau, lo);
    hi = select(left, hi, tau);
    auto sloped = greater(slope, zero);
    step = select_or_zero(sloped, excess / max(slope, one));
    // A lane is open while its sum is off, a step would move it, and the bracket has room.
    auto open = greater(magnitude(excess), resolution);
    V fine = resolution * (magnitude(tau) + V::all(T(1e-6)));
    open = mask_and_not(open, mask_and_not(sloped, greater(magnitude(step), fine)));
    open = mask_and(open, greater(hi - lo, fine));
    if (!any(open)) break;
    V next = tau + step, middle = half * (lo + hi);
    auto inside = mask_and(sloped, mask_and(greater(next, lo), greater(hi, next)));
    if (pass % 4 == 3) inside = greater(zero, one);
    tau = select(open, select(inside, next, middle), tau);
  }
  return {tau, max(min(step, hi - tau), lo - tau)};
}

template <class T>
struct BoundedRow {
  RowMaximum<T> maximum;
  int64_t count = 0;     // entries kept
  double capacity = 0;   // sum of their bounds, none above 1
  double least = -1;     // tau is at least this
  bool doubtful = false; // a bound is negative or NaN, or all hold less than 1: for the caller to look at
};

// Packs the kept entries of a row.
template <class T>
inline BoundedRow<T> pack_bounded(const T* x, const T* u, int64_t n, T* packed_b, T* packed_u) {
  using V = Vec<T>;
  BoundedRow<T> row{row_maximum(x, n)};
  if (!row.maximum.usable()) {
    row.doubtful = row.maximum.nan || row.maximum.value > 0;  // not if all are excluded
    return row;
  }
  const V top = V::all(row.maximum.value), lowest = V::all(-infinity<T>()), one = V::all(1);
  auto bad = greater(lowest, lowest), negative = bad;
  V total = V::all(0), least = V::all(-1);
  int64_t c = 0;
  for (int64_t i = 0; i < n;) {
    for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
      V v = load_row(x, i, n, -infinity<T>()), w = load_row(u, i, n, T(0));
      auto keep = greater(v, lowest);
      bad = mask_or(bad, mask_and(keep, either_nan(w, w)));
      negative = mask_or(negative, mask_and(keep, greater(V::all(0), w)));
      w = positive_part(min(w, one));  // no entry can hold more, or less than nothing
      V b = v - top;
      total = total + select_or_zero(keep, w);
      least = min(select(keep, b - w, least), least);
      compress(packed_b + c, keep, b);
      c += compress(packed_u + c, keep, w);
    }
    row.capacity += static_cast<double>(sum(total));
    total = V::all(0);
  }
  row.count = c;
  row.least = -static_cast<double>(largest(V::all(0) - least));
  if (any(bad)) row.maximum.nan = true;
  row.doubtful = any(mask_or(bad, negative)) || row.capacity < 1 - 1e-4;
  for (int side = 0; side < 2; side++) {
    V::all(padding).store(packed_b + c + side * V::W);
    V::all(0).store(packed_u + c + side * V::W);
  }
  return row;
}

template <class T>
inline void write_bounded(const T* x, const T* u, T* p, int64_t n, T maximum, Threshold<T> tau) {
  const Vec<T> top = Vec<T>::all(maximum);
  for (int64_t i = 0; i < n; i += Vec<T>::W) {
    Vec<T> v = load_row(x, i, n, -infinity<T>()) - top;
    // No entry can hold more than 1; larger bounds would let rounding in tau, or a flat piece of f, show.
    store_row(p, i, n, min(above(v, tau), positive_part(min(load_row(u, i, n, T(0)), Vec<T>::all(1)))));
  }
}

// Rows without a root to find: unusable ones, and those whose bounds hold no more than 1, which get their bounds (the
// nearest point of the box; the constraint set is empty below 1). `threshold` is such that x > threshold holds where the
// bound decides.
template <class T>
inline bool write_simple_bounded(const T* x, const T* u, T* p, T& threshold, int64_t n, const BoundedRow<T>& row) {
  if (!row.maximum.usable()) {
    write_unusable_row(p, n, row.maximum);
    threshold = infinity<T>();
    return true;
  }
  if (row.capacity > 1) return false;
  for (int64_t i = 0; i < n; i++) p[i] = x[i] > -infinity<T>() && u[i] > 0 ? (u[i] < 1 ? u[i] : T(1)) : T(0);
  threshold = -infinity<T>();
  return true;
}

template <class T>
inline bool constrained_row(const T* x, const T* u, T* p, T& threshold, int64_t n, T* packed_b, T* packed_u) {
  BoundedRow<T> row = pack_bounded(x, u, n, packed_b, packed_u);
  if (write_simple_bounded(x, u, p, threshold, n, row)) return row.doubtful;
  Bounded<T> k{packed_b, packed_u, row.count};
  double tau = solve_bounded(k, row.capacity, row.least, 0.0);
  T hi = static_cast<T>(tau);
  threshold = row.maximum.value + hi;
  write_bounded(x, u, p, n, row.maximum.value, Threshold<T>{hi, static_cast<T>(tau - static_cast<double>(hi))});
  return row.doubtful;
}

constexpr int64_t bounded_slab_longest = 224;  // beyond, two columns of 16 rows no longer fit a first-level cache

template <class T>
inline bool constrained_slab(const T* x, const T* u, T* p, T* threshold, int64_t n, T* packed_b, T* packed_u,
                             T* b_column, T* u_column) {
  constexpr int W = Vec<T>::W;
  Slab<T> b{b_column}, bound{u_column};
  T top[W], least[W], capacity[W], tau_hi[W], tau_lo[W];
  bool doubtful = false;
  for (int r = 0; r < W; r++) {
    BoundedRow<T> row = pack_bounded(x + r * n, u + r * n, n, packed_b, packed_u);
    doubtful = doubtful || row.doubtful;
    least[r] = -1;
    capacity[r] = 2;
    if (write_simple_bounded(x + r * n, u + r * n, p + r * n, threshold[r], n, row)) continue;
    top[r] = row.maximum.value;
    least[r] = static_cast<T>(row.least);
    capacity[r] = static_cast<T>(row.capacity);
    b.size[r] = row.count;
    b.put(r, packed_b, row.count);
    bound.put(r, packed_u, row.count);
  }
  if (b.depth == 0) return doubtful;
  Thresholds<T> tau = solve_bounded(b, bound, Vec<T>::load(capacity), Vec<T>::load(least), Vec<T>::all(0));
  tau.hi.store(tau_hi);
  tau.lo.store(tau_lo);
  for (int r = 0; r < W; r++) {
    if (b.size[r] == 0) continue;
    threshold[r] = top[r] + tau_hi[r];
    write_bounded(x + r * n, u + r * n, p + r * n, n, top[r], Threshold<T>{tau_hi[r], tau_lo[r]});
  }
  return doubtful;
}

// The rows here return whether they are doubtful. `threshold` [rows] is kept for the backward pass.
template <class T>
int constrained_sparsemax_forward(const T* x, const T* u, T* p, T* threshold, int64_t rows, int64_t n, int threads) {
  const int64_t depth = bounded_slab_longest * Vec<T>::W;
  int doubted = 0;
  int status = for_rows(rows, 60 + 4.0 * n, threads, 2 * room<T>(n) + 2 * room<T>(depth),
                        [&](int64_t first, int64_t last, char* memory) {
    Scratch s{memory};
    bool doubtful = false;
    T *b = s.take<T>(n + 32), *w = s.take<T>(n + 32), *b_column = s.take<T>(depth), *u_column = s.take<T>(depth);
    int64_t r = first;
    if (n <= bounded_slab_longest)
      for (; r + Vec<T>::W <= last; r += Vec<T>::W)
        doubtful |= constrained_slab(x + r * n, u + r * n, p + r * n, threshold + r, n, b, w, b_column, u_column);
    for (; r < last; r++) doubtful |= constrained_row(x + r * n, u + r * n, p + r * n, threshold[r], n, b, w);
    if (doubtful) __atomic_store_n(&doubted, 1, __ATOMIC_RELAXED);
  });
  return status == ok && doubted ? doubtful_bounds : status;
}

// With A = {0 < p < u}, m = mean of g over A: dx = g - m on A; du = g - m where p = u, 0 elsewhere. Where u = p = 0, the
// bound decides if x is above the threshold.
template <class T>
int constrained_sparsemax_backward(const T* g, const T* p, const T* u, const T* x, const T* threshold, T* dx, T* du,
                                   int64_t rows, int64_t n, int threads) {
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
      const V tau = V::all(threshold[r]);
      for (int64_t i = 0; i < n; i += V::W) {
        V y = load_row(pr, i, n, T(0)), d = load_row(gr, i, n, T(0)) - mean;
        auto positive = greater(y, zero), capped = equal(y, load_row(ur, i, n, T(0)));
        auto wants_more = mask_or(positive, greater(load_row(x + r * n, i, n, -infinity<T>()), tau));
        // y - y is 0, and NaN in a NaN row
        store_row(dx + r * n, i, n, select_or_zero(mask_and_not(positive, capped), d) + (y - y));
        store_row(du + r * n, i, n, select_or_zero(mask_and(wants_more, capped), d) + (y - y));
      }
    }
  });
}

}  // namespace sa
