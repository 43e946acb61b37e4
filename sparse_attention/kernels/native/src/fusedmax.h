// fusedmax: p = simplex projection of the TV prox of z = x / gamma (Niculae & Blondel 2017, section 3.2).
//
// Most of the row never reaches the prox. With z shifted so that max z = 0: |y_i - z_i| <= 2 lam, so max y >= -2 lam
// and the threshold tau >= c = -1 - 2 lam. Clipping commutes with the prox, max(prox(z), c) being the solution under
// y >= c, and where z_i <= c - 2 lam that solution is c for certain: a hole. Between holes the row falls into short
// runs, each of which ends in a known jump down to c, so its end values lose lam (total_variation.h).
//
// Excluded positions (-infinity) are no holes: they are taken out first and their neighbours become adjacent.
#pragma once
#include "simplex_mappings.h"
#include "total_variation_lanes.h"

namespace sa {

template <class T>
struct FusedmaxMemory {
  T *kept, *b, *column;
  int32_t* index;
  double* inverse;
  TautString string;
  static size_t bytes(int64_t n) {
    return 2 * room<T>(n) + Slab<T>::bytes() + room<int32_t>(n) + room<double>(n + 1) + TautString::bytes(n);
  }
  FusedmaxMemory(Scratch s, int64_t n)
      : kept(s.take<T>(n + 32)), b(s.take<T>(n + 32)), column(s.take<T>(slab_depth * Vec<T>::W)),
        index(s.take<int32_t>(n + 32)), inverse(s.take<double>(n + 2)),
        string(s, n) {}
};

// Packs the values above `limit` and their positions.
template <class T>
inline int64_t pack_with_index(const T* x, int64_t n, T maximum, T scale, T limit, T* b, int32_t* index) {
  using V = Vec<T>;
  const V m = V::all(maximum), s = V::all(scale), low = V::all(limit);
  int64_t c = 0;
  for (int64_t i = 0; i < n; i += V::W) {
    V v = (load_row(x, i, n, -infinity<T>()) - m) * s;
    auto keep = greater(v, low);
    if (n <= short_row || any(keep)) {  // see pack_candidates
      compress(b + c, keep, v);
      c += compress_index<T>(index + c, keep, static_cast<int32_t>(i));
    }
  }
  return c;
}

template <class T>
inline bool contains_excluded(const T* x, int64_t n) {
  using V = Vec<T>;
  const V gone = V::all(-infinity<T>());
  auto found = greater(gone, gone);
  for (int64_t i = 0; i < n; i += V::W) found = mask_or(found, equal(load_row(x, i, n, T(0)), gone));
  return any(found);
}

// The simplex projection of the c values in w.b, which stand at w.index.
template <class T>
inline void project(T* p, int64_t n, int64_t c, FusedmaxMemory<T>& w) {
  using V = Vec<T>;
  SparsemaxRule<T> rule;
  if (c == n) return map_row(ScoreRow<T>{w.b, n}, p, n, rule, w.kept);
  T top = w.b[0];
  for (int64_t i = 1; i < c; i++) top = w.b[i] > top ? w.b[i] : top;
  double total = 0;
  for (int64_t i = 0; i < c; i++) total += static_cast<double>(w.b[i] -= top);
  V::all(padding).store(w.b + c);
  V::all(padding).store(w.b + c + V::W);
  Candidates<T> k{w.b, c, total};
  const Threshold<T> tau = solve_linear(k, 1.0);
  std::memset(p, 0, sizeof(T) * static_cast<size_t>(n));
  for (int64_t i = 0; i < c; i++) {
    T d = (w.b[i] - tau.hi) - tau.lo;
    p[w.index[i]] = d > 0 ? d : 0;
  }
}

// The kept scores of a row, one behind the other. Returns how many.
template <class T>
inline int64_t pack_kept(const T* x, int64_t n, T* kept) {
  using V = Vec<T>;
  const V gone = V::all(-infinity<T>());
  int64_t c = 0;
  for (int64_t i = 0; i < n; i += V::W) {
    V v = load_row(x, i, n, -infinity<T>());
    c += compress(kept + c, greater(v, gone), v);
  }
  return c;
}

// The c values at p[0..c) to where the scores are kept, zeros between.
template <class T>
inline void spread(T* p, const T* x, int64_t n, int64_t c) {
  for (int64_t i = n - 1; i >= 0; i--) p[i] = x[i] > -infinity<T>() ? p[--c] : T(0);
}

// Rows of which much is left wait here, their values z in place of the result, until there is one for every lane. Where
// `scores` is not null, the result is spread over the scores' n positions.
template <class T>
struct DenseRows {
  T* rows[most_rows];
  const T* scores[most_rows];
  int64_t lengths[most_rows];
  int count = 0;
  double lam = 0;  // of those that wait

  void flush(int64_t n, FusedmaxMemory<T>& w) {
    if (count == 0) return;
    constexpr int W = Vec<T>::W;
    if constexpr (rows_in_lanes) total_variation_rows(rows, lengths, count, lam, w.inverse, w.string);
    for (int first = 0; first < count; first += W) {
      const int held = count - first < W ? count - first : W;
      ScoreRow<T> proximal[W];
      SparsemaxRule<T> rules[W];
      for (int r = 0; r < held; r++) proximal[r] = {rows[first + r], lengths[first + r]};
      map_slab(proximal, rows + first, held, rules, w.b, w.column);
    }
    for (int r = 0; r < count; r++)
      if (scores[r]) spread(rows[r], scores[r], n, lengths[r]);
    count = 0;
  }
};

// One row without excluded positions. Returns whether it waits in `dense`, since more than a third of it is left and it is
// not flat; the caller flushes when every lane has one.
template <class T>
inline bool fusedmax_row(const T* x, T* p, int64_t n, T maximum, T scale, double lam, FusedmaxMemory<T>& w,
                         DenseRows<T>& dense) {
  const T limit = static_cast<T>(-1 - 4 * lam);
  int64_t c = pack_with_index(x, n, maximum, scale, limit, w.b, w.index);
  if (rows_in_lanes && 3 * c > n && n > 1 && lam > 0 && (c < n || !is_flat(w.b, n, lam))) {
    const T floor = limit - 1;  // a hole as well, and far from overflow
    for (int64_t i = 0; i < n; i++) {
      const T z = (x[i] - maximum) * scale;
      p[i] = std::copysign(z > floor ? z : floor, T(-1));  // none is positive
    }
    dense.rows[dense.count] = p;
    dense.lengths[dense.count++] = n;
    return true;
  }
  const T shift = static_cast<T>(lam);
  for (int64_t a = 0; a < c;) {
    int64_t e = a + 1;
    while (e < c && w.index[e] == w.index[e - 1] + 1) e++;
    if (w.index[a] > 0) w.b[a] -= shift;
    if (w.index[e - 1] < n - 1) w.b[e - 1] -= shift;
    total_variation(w.b + a, e - a, lam, w.inverse, w.string);
    a = e;
  }
  project(p, n, c, w);
  return false;
}

// Returns has_excluded if any row has -infinity beside usable scores: the backward pass then needs the scores to know
// which zeros were not there.
template <class T>
int fusedmax_forward(const T* x, T* p, Values lams, Values gammas, int64_t rows, int64_t n, int threads) {
  int excluded = 0;
  int status = for_rows(rows, 60 + 12.0 * n, threads, FusedmaxMemory<T>::bytes(n),
                        [&](int64_t first, int64_t last, char* memory) {
    FusedmaxMemory<T> w(Scratch{memory}, n);
    for (int64_t i = 1; i <= n; i++) w.inverse[i] = 1.0 / static_cast<double>(i);
    DenseRows<T> dense;
    for (int64_t r = first; r < last; r++) {
      const T* xr = x + r * n;
      T* pr = p + r * n;
      const double lam = lams[r];
      const T scale = reciprocal<T>(gammas[r]);
      RowMaximum<T> m = row_maximum(xr, n);
      m.nan = m.nan || lam != lam || gammas[r] != gammas[r];
      if (!m.usable()) {
        write_unusable_row(pr, n, m);
        continue;
      }
      if (dense.lam != lam) dense.flush(n, w);
      dense.lam = lam;
      const T *kept = xr, *holes = nullptr;
      int64_t c = n;
      if (contains_excluded(xr, n)) {
        __atomic_store_n(&excluded, 1, __ATOMIC_RELAXED);
        c = pack_kept(xr, n, w.kept);
        if (contains_excluded(xr, c)) kept = w.kept, holes = xr;
        if (!holes) std::memset(pr + c, 0, sizeof(T) * static_cast<size_t>(n - c));  // right padding
      }
      if (fusedmax_row(kept, pr, c, m.value, scale, lam, w, dense)) {
        dense.scores[dense.count - 1] = holes;
        if (dense.count == most_rows) dense.flush(n, w);
      } else if (holes) {
        spread(pr, xr, n, c);
      }
    }
    dense.flush(n, w);
  });
  return status == ok && excluded ? has_excluded : status;
}

// sum over edges of sign(p_j - p_i) (d_i - d_j), i and j neighbours among the kept.
template <class T>
inline double total_variation_slope(const T* p, const T* x, const T* d, int64_t n) {
  double total = 0;
  int64_t before = -1;
  for (int64_t i = 0; i < n; i++) {
    if (x[i] == -infinity<T>()) continue;
    if (before >= 0 && p[i] != p[before]) {
      const double change = static_cast<double>(d[before]) - static_cast<double>(d[i]);
      total += p[i] > p[before] ? change : -change;
    }
    before = i;
  }
  return total;
}

// sum x d, x taken from one that counts: d sums to 0, and is 0 where x may be infinite.
template <class T>
inline double score_slope(const T* x, const T* d, int64_t n) {
  double total = 0, origin = 0;
  bool any_yet = false;
  for (int64_t i = 0; i < n; i++) {
    if (d[i] == 0) continue;
    if (!any_yet) origin = static_cast<double>(x[i]);
    any_yet = true;
    total += (static_cast<double>(x[i]) - origin) * static_cast<double>(d[i]);
  }
  return total;
}

// Jacobian: average over runs of equal neighbours (TV prox), then the support's mean is taken off (simplex). Runs are
// read off p: two neighbouring runs never share a value, and a true zero ends a run. `x` is null unless some position
// was excluded; excluded positions are stepped over. dlam, dgamma [rows] or null; they need `x` too.
//
// With h = gamma dx: on an edge up between neighbours lam pulls the lower one up and the higher one down, so dlam is the
// sum of h before the edge minus h behind it, times the sign of the edge; and dgamma = - x . dx / gamma.
template <class T>
int fusedmax_backward(const T* g, const T* p, const T* x, T* dx, Values gamma, double* dlam, double* dgamma, int64_t rows,
                      int64_t n, int threads) {
  using V = Vec<T>;
  const V zero = V::all(0), one = V::all(1);
  return for_rows(rows, 30 + 2.0 * n, threads, 64, [&](int64_t first, int64_t last, char*) {
    for (int64_t r = first; r < last; r++) {
      const T *gr = g + r * n, *pr = p + r * n, *xr = x ? x + r * n : nullptr;
      T* out = dx + r * n;
      const double scale = 1 / gamma[r];
      double total = 0, size = 0;
      auto broken = greater(zero, zero);
      for (int64_t i = 0; i < n;) {
        V a = zero, b = zero;
        for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
          V y = load_row(pr, i, n, T(0));
          auto positive = greater(y, zero);
          broken = mask_or(broken, either_nan(y, y));
          a = a + select_or_zero(positive, load_row(gr, i, n, T(0)));
          b = b + select_or_zero(positive, one);
        }
        total += sum(a);
        size += sum(b);
      }
      if (any(broken)) {
        fill_row(out, n, std::numeric_limits<T>::quiet_NaN());
        if (dlam) dlam[r] = dgamma[r] = std::numeric_limits<double>::quiet_NaN();
        continue;
      }
      double mean = size > 0 ? total / size : 0;
      for (int64_t i = 0; i < n;) {
        T y = pr[i];
        if (!(y > 0)) {
          out[i++] = 0;
          continue;
        }
        int64_t end = i, members = 0;  // end: one past the run's last member
        double sum_g = 0;
        for (int64_t j = i; j < n; j++) {
          if (pr[j] == y) {
            sum_g += static_cast<double>(gr[j]);
            members++;
            end = j + 1;
          } else if (!(xr && xr[j] == -infinity<T>())) {
            break;
          }
        }
        T value = static_cast<T>((sum_g / static_cast<double>(members) - mean) * scale);
        for (; i < end; i++) out[i] = pr[i] == y ? value : T(0);
      }
      if (dlam) {
        dlam[r] = total_variation_slope(pr, xr, out, n) * gamma[r];
        dgamma[r] = -score_slope(xr, out, n) * scale;
      }
    }
  });
}

}  // namespace sa
