// The way back through sparsemax, entmax and pnormmax, and their derivatives in the hyperparameters.
//
// Where x_i = gamma (F(p_i) + tau) on the support, a hyperparameter t that moves F moves p by -J dF/dt, J the Jacobian:
// its gradient is -gamma dx . dF/dt, and that of gamma -dx . F. Constants in F do not count: dx sums to 0.
#pragma once
#include "masked.h"
#include "power.h"
#include "steep_entmax.h"

namespace sa {

// dx = scale * (s g - s (sum s g) / (sum s)), s = weight(p); returns sum term(p, dx).
// s = 1[p > 0] for sparsemax, p^(2-alpha) for entmax.
template <class T, class Weight, class Term>
inline double weighted_row(const T* g, const T* p, T* dx, int64_t n, T scale, const Weight& weight, const Term& term) {
  using V = Vec<T>;
  double total = 0, mass = 0, sum_of_terms = 0;
  for (int64_t i = 0; i < n;) {
    V a = V::all(0), b = a;
    for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
      V s = weight(load_row(p, i, n, T(0)));
      store_row(dx, i, n, s);
      a = fma(s, load_row(g, i, n, T(0)), a);
      b = b + s;
    }
    total += sum(a);
    mass += sum(b);
  }
  const V mean = V::all(mass == 0 ? T(0) : static_cast<T>(total / mass)), c = V::all(scale);
  for (int64_t i = 0; i < n;) {
    V a = V::all(0);
    for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
      V y = load_row(p, i, n, T(0)), d = load_row(dx, i, n, T(0)) * (load_row(g, i, n, T(0)) - mean) * c;
      store_row(dx, i, n, d);
      term(y, d, a);
    }
    sum_of_terms += sum(a);
  }
  return sum_of_terms;
}

struct NoTerm {
  template <class V>
  void operator()(V, V, V&) const {}
};

template <class T>
struct Inside {  // 1 where p > 0; a NaN row stays NaN
  Vec<T> operator()(Vec<T> v) const { return select(greater(v, Vec<T>::all(0)), Vec<T>::all(1), v); }
};

// dgamma [rows] or null.
template <class T>
int sparsemax_backward(const T* g, const T* p, T* dx, Values gamma, double* dgamma, int64_t rows, int64_t n, int threads) {
  return for_rows(rows, 20 + 0.5 * n, threads, 64, [&](int64_t first, int64_t last, char*) {
    for (int64_t r = first; r < last; r++) {
      const int64_t at = r * n;
      const T scale = static_cast<T>(1 / gamma[r]);
      if (dgamma)
        dgamma[r] = -weighted_row(g + at, p + at, dx + at, n, scale, Inside<T>(),
                                  [](Vec<T> y, Vec<T> d, Vec<T>& a) { a = fma(y, d, a); });
      else
        weighted_row(g + at, p + at, dx + at, n, scale, Inside<T>(), NoTerm());
    }
  });
}

// dF/dalpha of F = (p^a - 1)/a, a = alpha - 1: L^2 f(s) with L = log p, s = a L and
// f(s) = integral_0^1 t e^(s t) dt = (1 + e^s (s - 1)) / s^2 = sum_k s^k / (k! (k + 2)).
// Above alpha = 2 the constant 1/a^2 in it is left out: dx sums to 0, but not in floating point where dx is huge.
inline double alpha_term(double p, double a) {
  const double L = std::log(p), s = a * L, e = std::exp(s);
  if (a > 1) return e * (s - 1) / (a * a);
  if (std::fabs(s) > 0.5) return (1 + e * (s - 1)) / (a * a);
  double f = 0, power = 1;
  for (int k = 0; k < 13; k++) {
    f += power / (k + 2);
    power *= s / (k + 1);
  }
  return L * L * f;
}

// The same for 1 <= alpha <= 2, to float32.
inline Vec<float> alpha_term(Vec<float> p, float a) {
  using V = Vec<float>;
  const V L = log2_positive(p) * V::all(0.69314718f), s = L * V::all(a), one = V::all(1);
  constexpr float series[] = {2.4801587e-6f, 2.2045855e-5f, 1.7361111e-4f, 1.1904762e-3f, 6.9444444e-3f,
                              0.033333333f, 0.125f, 0.33333333f, 0.5f};
  V f = V::all(series[0]);
  for (int k = 1; k < 9; k++) f = fma(f, s, V::all(series[k]));
  // s in [-1, 0] by the series, whose next term is 2.5e-7 at most; below by the formula.
  V far = (one + power(p, a) * (s - one)) / max(s * s, one);
  return L * L * select(greater(V::all(-1), s), far, f);
}

template <class T>
inline double alpha_gradient(const T* p, const T* dx, int64_t n, double alpha) {
  double total = 0;
  for (int64_t i = 0; i < n; i++)
    if (p[i] > 0)
      total += static_cast<double>(dx[i]) * alpha_term(static_cast<double>(p[i]), alpha - 1);
    else if (p[i] != p[i])
      return std::numeric_limits<double>::quiet_NaN();
  return -total;
}

inline double alpha_gradient(const float* p, const float* dx, int64_t n, double alpha) {
  using V = Vec<float>;
  if (alpha < 1 || alpha > 2) return alpha_gradient<float>(p, dx, n, alpha);
  const V zero = V::all(0), one = V::all(1);
  const float a = static_cast<float>(alpha - 1);
  double total = 0;
  for (int64_t i = 0; i < n;) {
    V s = zero;
    for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
      V y = load_row(p, i, n, 0.f), d = load_row(dx, i, n, 0.f);
      auto positive = greater(y, zero);
      if (any(mask_or(positive, either_nan(y, y)))) s = fma(d, alpha_term(select(positive, y, one), a), s);
    }
    total += sum(s);
  }
  return -total;
}

// dalpha [rows] or null.
template <class T>
int entmax_backward(const T* g, const T* p, T* dx, Values alpha, double* dalpha, int64_t rows, int64_t n, int threads) {
  const double ns = alpha.row ? 4.0 : alpha.one == 1.5 ? 0.8 : alpha.one > 2 ? 60.0 : 3.0;
  return for_rows(rows, 20 + ns * n, threads, 64, [&](int64_t first, int64_t last, char*) {
    using V = Vec<T>;
    const V zero = V::all(0), least = V::all(T(1e-9));
    const OnePower<T> shared(V::all(static_cast<T>(alpha.one <= 2 ? 2 - alpha.one : 1)));
    for (int64_t r = first; r < last; r++) {
      const T *gr = g + r * n, *pr = p + r * n;
      T* out = dx + r * n;
      const double one = alpha[r];
      if (one > 2)
        steep_entmax_vjp(gr, pr, out, n, 2 - one);
      else if (one == 2)
        weighted_row(gr, pr, out, n, T(1), Inside<T>(), NoTerm());
      else if (one == 1.5)
        weighted_row(gr, pr, out, n, T(1), [](Vec<T> v) { return sqrt(v); }, NoTerm());
      else {
        const V e = V::all(static_cast<T>(2 - one));
        weighted_row(gr, pr, out, n, T(1), [&](V v) {
          const auto positive = greater(v, zero);
          const bool quick = !alpha.row && !any(mask_and(positive, greater(least, v)));
          return quick ? select(positive, shared(v), v) : select(positive, power(v, e), v);
        }, NoTerm());
      }
      if (dalpha) dalpha[r] = alpha_gradient(pr, out, n, one);
    }
  });
}

// On the support H = gamma * Hessian of |y|_p^2/2 is diagonal plus rank one, so with N = |y|_p, w = y^(2-p)
//   H^-1 v = (N^(p-2) w v - (2-p) N^-2 y (y.v)) / (gamma (p-1))          (Sherman-Morrison)
//   dx = H^-1 g - H^-1 1 (1.H^-1 g) / (1.H^-1 1)                         (Niculae & Blondel 2017, Prop. 1, restricted)
// and F = y^(p-1) N^(2-p).
template <class T>
inline void pnormmax_vjp(const T* g, const T* y, T* dx, int64_t n, double norm, double gamma, double* dnorm,
                         double* dgamma) {
  using V = Vec<T>;
  const V zero = V::all(0), one = V::all(1);
  const T e = static_cast<T>(2 - norm), less = static_cast<T>(norm - 1);
  auto weight = [=](V v) {
    if (norm == 1.5) return sqrt(v);
    auto positive = greater(v, zero);
    return any(positive) ? select(positive, norm == 2 ? one : power(v, e), v) : v;
  };
  double w_sum = 0, wg_sum = 0, yg_sum = 0, power_sum = 0;
  for (int64_t i = 0; i < n;) {
    V a = zero, b = zero, c = zero, d = zero;
    for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
      V v = load_row(y, i, n, T(0)), u = load_row(g, i, n, T(0)), w = weight(v);
      a = a + w;
      b = fma(w, u, b);
      c = fma(v, u, c);
      d = fma(v, norm == 1.5 ? w : power(v, less), d);  // y^p, which is y^2 / w wherever y > 0
    }
    w_sum += sum(a);
    wg_sum += sum(b);
    yg_sum += sum(c);
    power_sum += sum(d);
  }
  if (dnorm) *dnorm = 0;
  if (dgamma) *dgamma = 0;
  if (power_sum == 0 && w_sum == 0) return fill_row(dx, n, T(0));  // an empty row
  double inverse = norm == 1.5 ? 1 / std::cbrt(power_sum) : std::pow(power_sum, (norm - 2) / norm);  // N^(p-2)
  double square = norm == 1.5 ? inverse * inverse * inverse * inverse : std::pow(power_sum, -2 / norm);  // N^-2
  double front = 1 / (gamma * (norm - 1)), diagonal = front * inverse, rank = front * (2 - norm) * square;
  double along_g = std::fma(diagonal, wg_sum, -(rank * yg_sum));  // 1 . H^-1 g
  double along_1 = std::fma(diagonal, w_sum, -rank);              // 1 . H^-1 1, with sum y = 1
  double mean = along_g / along_1;
  // H^-1 (g - mean 1), entry by entry
  const V m = V::all(static_cast<T>(mean)), a = V::all(static_cast<T>(diagonal));
  const V minus_b = V::all(static_cast<T>(rank * (mean - yg_sum)));
  for (int64_t i = 0; i < n; i += V::W) {
    V v = load_row(y, i, n, T(0)), u = load_row(g, i, n, T(0));
    store_row(dx, i, n, fma(minus_b, v, a * weight(v) * (u - m)));
  }
  if (!dnorm && !dgamma) return;
  double flat = 0, logs = 0, entropy = 0;  // sum dx y^(p-1), the same with log2 y, sum y^p log2 y
  for (int64_t i = 0; i < n;) {
    V s = zero, t = zero, u = zero;
    for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
      V v = load_row(y, i, n, T(0)), d = load_row(dx, i, n, T(0));
      auto positive = greater(v, zero);
      V w = power(v, less), L = log2_positive(select(positive, v, one));
      s = fma(d, w, s);
      t = fma(d * w, L, t);
      u = fma(v * w, L, u);
    }
    flat += sum(s);
    logs += sum(t);
    entropy += sum(u);
  }
  const double ln2 = 0.69314718055994531, N = std::log(power_sum) / norm;
  const double N_p = -std::log(power_sum) / (norm * norm) + ln2 * entropy / (norm * power_sum);  // d log N / dp
  if (dgamma) *dgamma = -flat / inverse;
  if (dnorm) *dnorm = -gamma / inverse * (ln2 * logs + ((2 - norm) * N_p - N) * flat);
}

// dnorm, dgamma [rows] or null.
template <class T>
int pnormmax_backward(const T* g, const T* y, T* dx, Values norm, Values gamma, double* dnorm, double* dgamma, int64_t rows,
                      int64_t n, int threads) {
  const double ns = !norm.row && norm.one == 1.5 ? 1.0 : 3.0;
  return for_rows(rows, 20 + ns * n, threads, 64, [&](int64_t first, int64_t last, char*) {
    for (int64_t r = first; r < last; r++) {
      const int64_t at = r * n;
      if (norm[r] == 2 && !dnorm && !dgamma)
        weighted_row(g + at, y + at, dx + at, n, static_cast<T>(1 / gamma[r]), Inside<T>(), NoTerm());
      else
        pnormmax_vjp(g + at, y + at, dx + at, n, norm[r], gamma[r], dnorm ? dnorm + r : nullptr,
                     dgamma ? dgamma + r : nullptr);
    }
  });
}

}  // namespace sa
