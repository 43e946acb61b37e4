// Entmax for alpha > 2: p = (a x - tau)_+^(1/a), a = alpha - 1 > 1, float64 inside.
//
// p rises from 0 with infinite slope, and the threshold may lie within 1e-300 of a score, where no float64 can tell the
// two apart. So the unknown is the least positive probability w. With x_K the last score of the support and
// d_j = a (x_j - x_K), p_j = (d_j + w^a)^(1/a): a norm of (d_j^(1/a), w), so the sum is convex in w, and Newton from the
// right is monotone. Score k is in the support if the scores above it hold less than 1 at tau = a x_k.
#pragma once
#include <algorithm>

#include "rows.h"

namespace sa {

// sum_{j < k} (a (s_j - s_k))^(1/a) < 1, s in decreasing order
inline bool in_support(const double* s, int64_t k, double a) {
  double total = 0;
  for (int64_t j = 0; j < k && s[j] > s[k] && total < 1; j++) total += std::pow(a * (s[j] - s[k]), 1 / a);
  return total < 1;
}

template <class T>
inline void steep_entmax_row(const T* x, T* p, int64_t n, double a, double* s) {
  RowMaximum<T> m = row_maximum(x, n);
  if (!m.usable()) return write_unusable_row(p, n, m);
  const double top = static_cast<double>(m.value), r = 1 / a;
  int64_t c = 0;
  for (int64_t i = 0; i < n; i++)
    if (a * (static_cast<double>(x[i]) - top) > -1) s[c++] = static_cast<double>(x[i]);
  std::sort(s, s + c, [](double u, double v) { return u > v; });
  // Large powers leave few scores: double the reach until it is too far, then bisect.
  int64_t first = 0, last = 1;
  while (last < c && in_support(s, last, a)) {
    first = last;
    last *= 2;
  }
  if (last > c) last = c;
  while (last - first > 1) {
    int64_t middle = (first + last) / 2;
    (in_support(s, middle, a) ? first : last) = middle;
  }
  const double lowest = s[first];
  int64_t higher = 0, size = first + 1;  // tied scores stand together
  while (higher < size && s[higher] > lowest) higher++;
  while (size < c && s[size] == lowest) size++;
  double held = 0;
  for (int64_t j = 0; j < higher; j++) held += std::pow(a * (s[j] - lowest), r);
  const double ties = static_cast<double>(size - higher);
  double w = std::min((1 - held) / ties, 1 / static_cast<double>(size)), total = 1;
  for (int pass = 0; pass < 100; pass++) {
    double w_a = std::pow(w, a), slope = 0;
    total = ties * w;
    for (int64_t j = 0; j < higher; j++) {
      double d = a * (s[j] - lowest) + w_a, value = std::pow(d, r);
      total += value;
      slope += w_a / d * value;  // dp/dw = (w/p)^(a-1)
    }
    double following = w - (total - 1) / (ties + slope / w);
    if (!(following < w)) break;
    w = following;
  }
  const double w_a = std::pow(w, a);
  for (int64_t i = 0; i < n; i++) {
    double d = static_cast<double>(x[i]) - lowest;
    p[i] = static_cast<T>(d > 0 ? std::pow(a * d + w_a, r) / total : d == 0 ? w / total : 0);
  }
}

template <class T>
int steep_entmax_forward(const T* x, T* p, int64_t rows, int64_t n, double alpha, int threads) {
  return for_rows(rows, 40 + 60.0 * n, threads, room<double>(n), [&](int64_t first, int64_t last, char* memory) {
    for (int64_t r = first; r < last; r++)
      steep_entmax_row(x + r * n, p + r * n, n, alpha - 1, reinterpret_cast<double*>(memory));
  });
}

// dx = s (g - mean), s = p^(2-alpha): the least p has by far the largest s. So g counts relative to its own there, the
// weights of the mean relative to its s, and its own entry is what makes the sum 0.
template <class T>
inline void steep_entmax_vjp(const T* g, const T* p, T* dx, int64_t n, double e) {
  const double limit = static_cast<double>(std::numeric_limits<T>::max());
  int64_t at = -1;
  for (int64_t i = 0; i < n; i++) {
    if (p[i] != p[i]) return fill_row(dx, n, p[i]);
    if (p[i] > 0 && (at < 0 || p[i] < p[at])) at = i;
  }
  if (at < 0) return fill_row(dx, n, T(0));
  const double least = static_cast<double>(p[at]), pivot = static_cast<double>(g[at]);
  double mass = 0, mean = 0, sum = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!(p[i] > 0)) continue;
    double relative = std::pow(static_cast<double>(p[i]) / least, e);
    mass += relative;
    mean += relative * (static_cast<double>(g[i]) - pivot);
  }
  mean /= mass;
  auto finite = [=](double v) { return static_cast<T>(v > limit ? limit : v < -limit ? -limit : v); };
  for (int64_t i = 0; i < n; i++) {
    double weight = p[i] > 0 && i != at ? std::min(std::pow(static_cast<double>(p[i]), e), 1e300) : 0.0;
    double v = weight * (static_cast<double>(g[i]) - pivot - mean);
    dx[i] = finite(v);
    sum += v;
  }
  dx[at] = finite(-sum);
}

template <class T>
int steep_entmax_backward(const T* g, const T* p, T* dx, int64_t rows, int64_t n, double alpha, int threads) {
  return for_rows(rows, 20 + 60.0 * n, threads, 64, [&](int64_t first, int64_t last, char*) {
    for (int64_t r = first; r < last; r++) steep_entmax_vjp(g + r * n, p + r * n, dx + r * n, n, 2 - alpha);
  });
}

}  // namespace sa
