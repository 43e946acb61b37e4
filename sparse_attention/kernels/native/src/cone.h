// sparsecone and sparsehourglass (Laha et al. 2018): sparsemax(alpha z), alpha = (1 + K q) / (s + K q) with K the number of
// kept positions and s the sum of their scores z (sparsecone) or its size (sparsehourglass).
#pragma once
#include "simplex_gradients.h"
#include "simplex_mappings.h"

namespace sa {

struct Cone {
  double sum, below, alpha, count;
};

template <class T>
inline Cone cone_of(const T* x, const uint8_t* kept, int64_t n, double q, bool mirrored) {
  const T gone = -infinity<T>();
  double sum = 0, count = 0;
  for (int64_t i = 0; i < n;) {
    using V = Vec<T>;
    V s = V::all(0), c = s;
    for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
      V v = kept ? load_kept(x, kept, i, n) : load_row(x, i, n, gone);
      auto out = equal(v, V::all(gone));
      s = s + select(out, V::all(0), v);
      c = c + select(out, V::all(0), V::all(1));
    }
    sum += sa::sum(s);
    count += sa::sum(c);
  }
  const volatile double offset = count * q;  // rounded by itself, not by a fused multiply-add: sum = -Kq gives 0, and so NaN
  const double below = (mirrored ? std::fabs(sum) : sum) + offset;
  return {sum, below, (1 + count * q) / below, count};
}

template <class T>
struct ConeInput {  // the rows alpha z, -infinity where excluded
  const T* x;
  int64_t n;
  Mask mask;
  Values q;
  bool mirrored;
  struct Scaled {
    const T* x;
    const uint8_t* kept;
    int64_t n;
    T alpha;
    Vec<T> at(int64_t i) const {
      const Vec<T> gone = Vec<T>::all(-infinity<T>());
      Vec<T> v = kept ? load_kept(x, kept, i, n) : load_row(x, i, n, -infinity<T>());
      return select(equal(v, gone), gone, Vec<T>::all(alpha) * v);
    }
  };
  static constexpr bool copies = true;
  Scaled operator()(int64_t r) const {
    const uint8_t* kept = mask.kept ? mask.of(r, n) : nullptr;
    const T alpha = static_cast<T>(cone_of(x + r * n, kept, n, q[r], mirrored).alpha);
    // an infinite alpha has no value; times a negative score it would look like a mask
    return {x + r * n, kept, n, std::isinf(alpha) ? std::numeric_limits<T>::quiet_NaN() : alpha};
  }
};

template <class T>
int cone_forward(const T* x, T* p, Mask mask, Values q, bool mirrored, int64_t rows, int64_t n, int threads) {
  return map_rows(ConeInput<T>{x, n, mask, q, mirrored}, p, rows, n, [](int64_t) { return SparsemaxRule<T>(1.0); }, 1.5,
                  threads, Nobody());
}

// With u the gradient of sparsemax: dz = alpha u - (u.z) alpha / below ds/dz, dq = (u.z) dalpha/dq. dq [rows] or null.
template <class T>
int cone_backward(const T* g, const T* x, const T* p, T* dx, Mask mask, Values q, double* dq, bool mirrored, int64_t rows,
                  int64_t n, int threads) {
  using V = Vec<T>;
  return for_rows(rows, 20 + 1.5 * n, threads, 64, [&](int64_t first, int64_t last, char*) {
    for (int64_t r = first; r < last; r++) {
      const T *xr = x + r * n, gone = -infinity<T>();
      const uint8_t* kept = mask.kept ? mask.of(r, n) : nullptr;
      T* out = dx + r * n;
      const Cone c = cone_of(xr, kept, n, q[r], mirrored);
      weighted_row(g + r * n, p + r * n, out, n, T(1), Inside<T>(), NoTerm());
      double uz = 0;
      for (int64_t i = 0; i < n;) {
        V s = V::all(0);
        for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
          V u = load_row(out, i, n, T(0)), z = load_row(xr, i, n, T(0));
          auto zero = equal(u, V::all(0));
          s = s + select(zero, V::all(0), u * z);
        }
        uz += sum(s);
      }
      const double sign = !mirrored ? 1 : c.sum > 0 ? 1 : c.sum < 0 ? -1 : 0;
      const V a = V::all(static_cast<T>(c.alpha)), b = V::all(static_cast<T>(-uz * c.alpha / c.below * sign));
      for (int64_t i = 0; i < n; i += V::W) {
        V v = kept ? load_kept(xr, kept, i, n) : load_row(xr, i, n, gone);
        store_row(out, i, n, select(equal(v, V::all(gone)), V::all(0), fma(a, load_row(out, i, n, T(0)), b)));
      }
      if (dq) dq[r] = c.count == 0 ? 0 : uz * c.count * (c.below - (1 + c.count * q[r])) / (c.below * c.below);
    }
  });
}

}  // namespace sa
