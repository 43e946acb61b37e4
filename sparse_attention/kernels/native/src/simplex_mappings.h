// sparsemax, entmax and pnormmax: one pass for the maximum, one to pack candidates, Newton on those, one to write.
//
// A rule says how a mapping scales the scores, finds the threshold (of one row, or of a slab of short rows) and turns
// d = (b - tau)_+ into a probability.
// Sources: Martins & Astudillo 2016 (sparsemax); Peters, Niculae & Martins 2019 (entmax); Niculae & Blondel 2017,
// section 3.1 (pnormmax, their sq-pnorm-max), solved here through its dual.
#pragma once
#include "slab.h"
#include "steep_entmax.h"

namespace sa {

template <class T>
struct SparsemaxRule {  // argmin |p - x/gamma|^2
  T scale;
  explicit SparsemaxRule(double gamma) : scale(reciprocal<T>(gamma)) {}
  Threshold<T> solve(Candidates<T>& k) { return solve_linear(k, 1.0); }
  Thresholds<T> solve(const Slab<T>& s) { return solve_linear(s); }
  void select_lane(int) {}
  Vec<T> probability(Vec<T> d) const { return d; }
};

template <class T>
struct Entmax15Rule {  // p = (x/2 - tau)_+^2
  T scale = T(0.5);
  Threshold<T> solve(Candidates<T>& k) { return solve_quadratic(k); }
  Thresholds<T> solve(const Slab<T>& s) { return solve_quadratic(s); }
  void select_lane(int) {}
  Vec<T> probability(Vec<T> d) const { return d * d; }
};

template <class T>
struct EntmaxRule {  // p = ((alpha-1) x - tau)_+^(1/(alpha-1)), 1 < alpha < 2
  T scale, r;
  explicit EntmaxRule(double alpha) : scale(static_cast<T>(alpha - 1)), r(static_cast<T>(1 / (alpha - 1))) {}
  Threshold<T> solve(Candidates<T>& k) { return solve_power(k, r); }
  Thresholds<T> solve(const Slab<T>& s) { return solve_power(s, r); }
  void select_lane(int) {}
  Vec<T> probability(Vec<T> d) const { return any(greater(d, Vec<T>::all(0))) ? power(d, r) : d; }
};

template <class T>
struct PnormRule {  // p = d^(q-1) / sum d^(q-1), 1 < p < 2
  T scale, q, normaliser = 1, lane_normaliser[Vec<T>::W] = {};
  PnormRule(double p, double gamma) : scale(reciprocal<T>(gamma)), q(static_cast<T>(p / (p - 1))) {}
  Vec<T> weight(Vec<T> d) const {
    if (q == T(3)) return d * d;
    return any(greater(d, Vec<T>::all(0))) ? power(d, q - 1) : d;
  }
  Threshold<T> solve(Candidates<T>& k) {
    Threshold<T> tau = solve_dual_norm(k, q);
    double total = 0;
    for (int64_t i = 0; i < k.count;) {
      Vec<T> s = Vec<T>::all(0);
      for (int64_t end = i + block < k.count ? i + block : k.count; i < end; i += Vec<T>::W)
        s = s + weight(above(Vec<T>::load(k.b + i), tau));
      total += sum(s);
    }
    normaliser = static_cast<T>(1 / total);
    return tau;
  }
  Thresholds<T> solve(const Slab<T>& s) {
    Thresholds<T> tau = solve_dual_norm(s, q);
    Vec<T> total = Vec<T>::all(0);
    for (int64_t j = 0; j < s.depth; j++) total = total + weight(positive_part((s.at(j) - tau.hi) - tau.lo));
    (Vec<T>::all(1) / total).store(lane_normaliser);
    return tau;
  }
  void select_lane(int lane) { normaliser = lane_normaliser[lane]; }
  Vec<T> probability(Vec<T> d) const { return weight(d) * Vec<T>::all(normaliser); }
};

template <class T, class Rule>
inline void write_row(const T* x, T* p, int64_t n, const Rule& rule, T maximum, Threshold<T> tau) {
  using V = Vec<T>;
  const V top = V::all(maximum), scale = V::all(rule.scale);
  for (int64_t i = 0; i < n; i += V::W) {
    V b = (load_row(x, i, n, -infinity<T>()) - top) * scale;
    store_row(p, i, n, rule.probability(above(b, tau)));
  }
}

template <class T, class Rule>
inline void map_row(const T* x, T* p, int64_t n, Rule& rule, T* packed) {
  RowMaximum<T> m = row_maximum(x, n);
  if (!m.usable()) return write_unusable_row(p, n, m);
  Candidates<T> k = pack_candidates(x, n, m.value, rule.scale, packed);
  Threshold<T> tau = rule.solve(k);
  write_row(x, p, n, rule, m.value, tau);
}

// W rows of one slab. A row with too many candidates, or none, is dealt with on the spot and leaves its lane empty.
template <class T, class Rule>
inline void map_slab(const T* x, T* p, int64_t n, Rule& rule, T* packed, T* column) {
  constexpr int W = Vec<T>::W;
  Slab<T> slab{column};
  T top[W], hi[W], lo[W];
  for (int r = 0; r < W; r++) {
    RowMaximum<T> m = row_maximum(x + r * n, n);
    if (!m.usable()) {
      write_unusable_row(p + r * n, n, m);
      continue;
    }
    Candidates<T> k = pack_candidates(x + r * n, n, m.value, rule.scale, packed);
    top[r] = m.value;
    if (k.count > slab_depth) {
      Threshold<T> tau = rule.solve(k);
      write_row(x + r * n, p + r * n, n, rule, m.value, tau);
      continue;
    }
    slab.size[r] = k.count;
    slab.sum[r] = k.sum;
    slab.put(r, k.b, k.count);
  }
  if (slab.depth == 0) return;
  Thresholds<T> tau = rule.solve(slab);
  tau.hi.store(hi);
  tau.lo.store(lo);
  for (int r = 0; r < W; r++) {
    if (slab.size[r] == 0) continue;
    rule.select_lane(r);
    write_row(x + r * n, p + r * n, n, rule, top[r], Threshold<T>{hi[r], lo[r]});
  }
}

template <class T, class Rule>
int map_rows(const T* x, T* p, int64_t rows, int64_t n, const Rule& rule, double ns_per_entry, int threads) {
  return for_rows(rows, 40 + ns_per_entry * n, threads, room<T>(n) + Slab<T>::bytes(),
                  [&](int64_t first, int64_t last, char* memory) {
    Rule mine = rule;
    Scratch scratch{memory};
    T* packed = scratch.take<T>(n + 32);
    T* column = scratch.take<T>(slab_depth * Vec<T>::W);
    int64_t r = first;
    if (n <= slab_longest)
      for (; r + Vec<T>::W <= last; r += Vec<T>::W) map_slab(x + r * n, p + r * n, n, mine, packed, column);
    for (; r < last; r++) map_row(x + r * n, p + r * n, n, mine, packed);
  });
}

// For parameters where float32 inside is not good enough (powers above 10): float64 row by row.
template <class T, class Rule>
int map_rows_in_double(const T* x, T* p, int64_t rows, int64_t n, const Rule& rule, int threads) {
  return for_rows(rows, 40 + 60.0 * n, threads, 3 * room<double>(n), [&](int64_t first, int64_t last, char* memory) {
    Rule mine = rule;
    Scratch scratch{memory};
    double* in = scratch.take<double>(n);
    double* out = scratch.take<double>(n);
    double* packed = scratch.take<double>(n + 32);
    for (int64_t r = first; r < last; r++) {
      for (int64_t i = 0; i < n; i++) in[i] = static_cast<double>(x[r * n + i]);
      map_row(in, out, n, mine, packed);
      for (int64_t i = 0; i < n; i++) p[r * n + i] = static_cast<T>(out[i]);
    }
  });
}

template <class T>
int sparsemax_forward(const T* x, T* p, int64_t rows, int64_t n, double gamma, int threads) {
  return map_rows(x, p, rows, n, SparsemaxRule<T>(gamma), 1.0, threads);
}

template <class T>
int entmax_forward(const T* x, T* p, int64_t rows, int64_t n, double alpha, int threads) {
  if (alpha == 2) return sparsemax_forward(x, p, rows, n, 1.0, threads);
  if (alpha == 1.5) return map_rows(x, p, rows, n, Entmax15Rule<T>(), 1.5, threads);
  if (alpha > 2) return steep_entmax_forward(x, p, rows, n, alpha, threads);
  if (alpha < 1.1) return map_rows_in_double(x, p, rows, n, EntmaxRule<double>(alpha), threads);
  return map_rows(x, p, rows, n, EntmaxRule<T>(alpha), 8.0, threads);
}

template <class T>
int pnormmax_forward(const T* x, T* p, int64_t rows, int64_t n, double norm, double gamma, int threads) {
  if (norm == 2) return sparsemax_forward(x, p, rows, n, gamma, threads);
  if (norm < 1.05) return map_rows_in_double(x, p, rows, n, PnormRule<double>(norm, gamma), threads);
  return map_rows(x, p, rows, n, PnormRule<T>(norm, gamma), norm == 1.5 ? 1.5 : 8.0, threads);
}

// Backward of p = threshold mapping with dp/db = s(p): dx = scale * (s g - s (sum s g) / (sum s)).
// s = 1[p > 0] for sparsemax, p^(2-alpha) for entmax.
template <class T, class Weight>
int weighted_backward(const T* g, const T* p, T* dx, int64_t rows, int64_t n, T scale, int threads, double ns,
                      Weight weight) {
  using V = Vec<T>;
  return for_rows(rows, 20 + ns * n, threads, 64, [&](int64_t first, int64_t last, char*) {
    for (int64_t r = first; r < last; r++) {
      const T *gr = g + r * n, *pr = p + r * n;
      T* out = dx + r * n;
      double total = 0, mass = 0;
      for (int64_t i = 0; i < n;) {
        V a = V::all(0), b = a;
        for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
          V s = weight(load_row(pr, i, n, T(0)));
          a = fma(s, load_row(gr, i, n, T(0)), a);
          b = b + s;
        }
        total += sum(a);
        mass += sum(b);
      }
      const V mean = V::all(mass == 0 ? T(0) : static_cast<T>(total / mass)), c = V::all(scale);
      for (int64_t i = 0; i < n; i += V::W) {
        V s = weight(load_row(pr, i, n, T(0)));
        store_row(out, i, n, s * (load_row(gr, i, n, T(0)) - mean) * c);
      }
    }
  });
}

template <class T>
int sparsemax_backward(const T* g, const T* p, T* dx, int64_t rows, int64_t n, double gamma, int threads) {
  const Vec<T> one = Vec<T>::all(1), zero = Vec<T>::all(0);
  return weighted_backward(g, p, dx, rows, n, static_cast<T>(1 / gamma), threads, 0.5, [=](Vec<T> v) {
    // a NaN row must stay NaN, so the comparison only ever replaces positive entries
    return select(greater(v, zero), one, v);
  });
}

template <class T>
int entmax_backward(const T* g, const T* p, T* dx, int64_t rows, int64_t n, double alpha, int threads) {
  const Vec<T> zero = Vec<T>::all(0);
  if (alpha == 2) return sparsemax_backward(g, p, dx, rows, n, 1.0, threads);
  if (alpha == 1.5)
    return weighted_backward(g, p, dx, rows, n, T(1), threads, 0.8, [](Vec<T> v) { return sqrt(v); });
  if (alpha > 2) return steep_entmax_backward(g, p, dx, rows, n, alpha, threads);
  const T e = static_cast<T>(2 - alpha);
  return weighted_backward(g, p, dx, rows, n, T(1), threads, 3.0, [=](Vec<T> v) {
    auto positive = greater(v, zero);
    return any(positive) ? select(positive, power(v, e), v) : v;
  });
}

// pnormmax on the support: H = gamma * Hessian of |y|_p^2/2 is diagonal plus rank one, so with N = |y|_p, w = y^(2-p)
//   H^-1 v = (N^(p-2) w v - (2-p) N^-2 y (y.v)) / (gamma (p-1))          (Sherman-Morrison)
//   dx = H^-1 g - H^-1 1 (1.H^-1 g) / (1.H^-1 1)                         (Niculae & Blondel 2017, Prop. 1, restricted)
template <class T>
int pnormmax_backward(const T* g, const T* p, T* dx, int64_t rows, int64_t n, double norm, double gamma, int threads) {
  using V = Vec<T>;
  if (norm == 2) return sparsemax_backward(g, p, dx, rows, n, gamma, threads);
  const V zero = V::all(0);
  const T e = static_cast<T>(2 - norm);
  auto weight = [=](V y) {
    if (norm == 1.5) return sqrt(y);
    auto positive = greater(y, zero);
    return any(positive) ? select(positive, power(y, e), y) : y;
  };
  return for_rows(rows, 20 + (norm == 1.5 ? 1.0 : 3.0) * n, threads, 64, [&](int64_t first, int64_t last, char*) {
    for (int64_t r = first; r < last; r++) {
      const T *gr = g + r * n, *pr = p + r * n;
      T* out = dx + r * n;
      double w_sum = 0, wg_sum = 0, yg_sum = 0, power_sum = 0;
      for (int64_t i = 0; i < n;) {
        V a = zero, b = zero, c = zero, d = zero;
        for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
          V y = load_row(pr, i, n, T(0)), v = load_row(gr, i, n, T(0)), w = weight(y);
          a = a + w;
          b = fma(w, v, b);
          c = fma(y, v, c);
          // y^p, which is y^2 / w wherever y > 0
          d = d + (norm == 1.5 ? y * w : y * power(y, static_cast<T>(norm - 1)));
        }
        w_sum += sum(a);
        wg_sum += sum(b);
        yg_sum += sum(c);
        power_sum += sum(d);
      }
      if (power_sum == 0) {  // an empty row
        fill_row(out, n, T(0));
        continue;
      }
      double inverse = norm == 1.5 ? 1 / std::cbrt(power_sum) : std::pow(power_sum, (norm - 2) / norm);  // N^(p-2)
      double square = norm == 1.5 ? inverse * inverse * inverse * inverse : std::pow(power_sum, -2 / norm);  // N^-2
      double front = 1 / (gamma * (norm - 1)), diagonal = front * inverse, rank = front * (2 - norm) * square;
      double along_g = diagonal * wg_sum - rank * yg_sum;  // 1 . H^-1 g
      double along_1 = diagonal * w_sum - rank;            // 1 . H^-1 1, with sum y = 1
      double mean = along_g / along_1;
      // H^-1 (g - mean 1), entry by entry
      const V m = V::all(static_cast<T>(mean)), a = V::all(static_cast<T>(diagonal));
      const V b = V::all(static_cast<T>(rank * (yg_sum - mean)));
      for (int64_t i = 0; i < n; i += V::W) {
        V y = load_row(pr, i, n, T(0)), v = load_row(gr, i, n, T(0));
        store_row(out, i, n, a * weight(y) * (v - m) - b * y);
      }
    }
  });
}

}  // namespace sa
