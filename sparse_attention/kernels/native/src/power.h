// base^exponent for base >= 0 and exponent > 0, W lanes at a time.
//
// float32: base^y = 2^(y log2 base), with log2(m 2^e) = e + log2 m for m in [0.75, 1.5) and polynomials for log2 m and
// for 2^f, |f| <= 1/2. Both were fitted by weighted least squares (Lawson) to a relative error of 2.7e-8 and 1.9e-9.
// The rounding of y log2(base) costs |y log2(base)| * 6e-8 relative, so at most 4e-8 * y absolute for bases up to 1:
// probabilities stay within 1e-7 of the truth as long as y is a small number.
// float64: the C library's pow, lane by lane.
#pragma once
#include "simd.h"

namespace sa {

inline Vec<float> log2_positive(Vec<float> a) {
  using V = Vec<float>;
  V m, e;
  split(a, m, e);
  V t = m - V::all(1.f);
  V q = V::all(0.07806667f);
  q = fma(q, t, V::all(-0.17423017f));
  q = fma(q, t, V::all(0.21632487f));
  q = fma(q, t, V::all(-0.24272352f));
  q = fma(q, t, V::all(0.2881915f));
  q = fma(q, t, V::all(-0.3605759f));
  q = fma(q, t, V::all(0.48090208f));
  q = fma(q, t, V::all(-0.72134846f));
  q = fma(q, t, V::all(1.442695f));
  return fma(q, t, e);
}

inline Vec<float> exp2_not_positive(Vec<float> a) {
  using V = Vec<float>;
  a = max(a, V::all(-126.f));  // 2^-126 stands for anything smaller
  V e = nearest(a), f = a - e;
  V q = V::all(0.00015345811f);
  q = fma(q, f, V::all(0.0013399931f));
  q = fma(q, f, V::all(0.009618489f));
  q = fma(q, f, V::all(0.055503286f));
  q = fma(q, f, V::all(0.24022646f));
  q = fma(q, f, V::all(0.6931472f));
  q = fma(q, f, V::all(1.f));
  return scale_by_power_of_two(q, e);
}

// Zero (and anything below the normal numbers) to a positive power is zero. Bases are at most about 1 by construction.
inline Vec<float> power(Vec<float> base, Vec<float> exponent) {
  using V = Vec<float>;
  auto positive = greater(base, V::all(std::numeric_limits<float>::min()));
  V safe = select(positive, base, V::all(1.f));
  return select_or_zero(positive, exp2_not_positive(log2_positive(safe) * exponent));
}

inline Vec<double> power(Vec<double> base, Vec<double> exponent) {
  Vec<double> r;
  for (int i = 0; i < Vec<double>::W; i++)
    r.lane[i] = base.lane[i] > 0 ? std::pow(base.lane[i], exponent.lane[i]) : 0.0;
  return r;
}

template <class T>
inline Vec<T> power(Vec<T> base, T exponent) {
  return power(base, Vec<T>::all(exponent));
}

// The same as a function of the base, below 2; lanes may have exponents of their own.
template <class T>
struct AnyPower {
  Vec<T> exponent;
  Vec<T> operator()(Vec<T> base) const { return power(base, exponent); }
};

// For one exponent in [0, 3]: (m 2^e)^y = (m / 1.5)^y times a table of 1.5^y 2^(e y), m in [1, 2), by nine terms of the
// binomial series, to 3e-8 (rounding aside). Bases below 2^-30 give zero.
template <class T>
struct OnePower : AnyPower<T> {
  explicit OnePower(Vec<T> y) : AnyPower<T>{y} {}
};
#ifdef SPARSE_ATTENTION_AVX512
template <>
struct OnePower<float> {
  float term[10], scale[32];  // `scale` by the last five bits of the exponent as float32 stores it
  explicit OnePower(Vec<float> all_equal) {
    const double y = static_cast<double>(largest(all_equal));
    double c = 1;
    for (int k = 0; k < 10; c *= (y - k) / (1.5 * (k + 1)), k++) term[k] = static_cast<float>(c);
    scale[0] = 0;
    for (int e = 1; e < 32; e++) scale[e] = static_cast<float>(std::exp2(y * (std::log2(1.5) + e - 31)));
  }
  Vec<float> operator()(Vec<float> base) const {
    using V = Vec<float>;
    const V t = V{_mm512_getmant_ps(base.r, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src)} - V::all(1.5f);
    V q = V::all(term[9]);
    for (int k = 8; k >= 0; k--) q = fma(q, t, V::all(term[k]));
    const __m512i e = _mm512_srli_epi32(_mm512_castps_si512(base.r), 23);
    return q * V{_mm512_permutex2var_ps(_mm512_loadu_ps(scale), e, _mm512_loadu_ps(scale + 16))};
  }
};
#endif

// For one exponent y = n + f, n a small whole number: n by repeated multiplication, which costs at most n units in the last
// place, f in [0, 1) by OnePower. As above, zero gives zero, and what would be smaller than the normal numbers about the
// smallest of them; a base below 2^-30 gives zero if f > 0.
template <class T>
struct ProductPower {
  int n;
  bool mixed;
  Vec<T> least;
  OnePower<T> rest;
  explicit ProductPower(Vec<T> all_equal)
      : n(static_cast<int>(largest(all_equal))), mixed(largest(all_equal) > static_cast<T>(n)),
        least(Vec<T>::all(static_cast<T>(std::exp2((std::numeric_limits<T>::min_exponent + 1) / (n + 1.01))))),
        rest(all_equal - Vec<T>::all(static_cast<T>(n))) {}
  Vec<T> operator()(Vec<T> base) const {
    using V = Vec<T>;
    const auto positive = greater(base, V::all(std::numeric_limits<T>::min()));
    V x = max(base, least), y = n & 1 ? x : V::all(1);
    if (mixed) y = y * rest(base);
    for (int left = n >> 1; left; left >>= 1) {
      x = x * x;
      if (left & 1) y = y * x;
    }
    return select_or_zero(positive, y);
  }
};

inline Vec<double> log2_positive(Vec<double> a) {
  for (double& v : a.lane) v = std::log2(v);
  return a;
}

}  // namespace sa
