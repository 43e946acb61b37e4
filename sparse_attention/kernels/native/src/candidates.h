// Candidates: the entries of a row that can be in the support.
//
// With b = scale * (x - max x) the thresholds of this package lie in [-1, 0), so entries with b <= -1 get 0 whatever
// the threshold turns out to be. They are dropped in one pass; what is left is usually short and sits in the first
// cache, and the root finder runs on that alone.
#pragma once
#include "rows.h"

namespace sa {

template <class T>
struct Candidates {
  T* b;           // packed values in (-1, 0], followed by at least one vector of `padding`
  int64_t count;  // >= 1
  double sum;     // of the packed values
  double least = -1;  // at most the threshold; no candidate is below
  bool fixed = false;  // none may be dropped: each has something beside it in another array
};

// Below every threshold, and far from overflow in differences and squares.
constexpr float padding = -1e9f;

constexpr int64_t short_row = 768;

// How many entries lie above -1/2 and above -1, and their sums. By Jensen's inequality each gives a lower bound of the
// threshold tau of sum (b - tau)_+^r = 1: its mean less count^(-1/r).
template <class T>
struct Levels {  // of a row per lane; 1 and 0 where there is none
  static constexpr T level[2] = {T(-0.5), -1};
  T count[2][Vec<T>::W], sum[2][Vec<T>::W];
  Levels() {
    for (int level = 0; level < 2; level++) {
      Vec<T>::all(1).store(count[level]);
      Vec<T>::all(0).store(sum[level]);
    }
  }
  template <class Scores>
  void add(int lane, const Scores& row, int64_t n, T maximum, T scale) {
    using V = Vec<T>;
    const V m = V::all(maximum), s = V::all(scale);
    const int64_t stride = n <= short_row ? V::W : 4 * V::W;  // some of the entries give a lower bound as well
    int64_t counts[2] = {0, 0};
    double sums[2] = {0, 0};
    for (int64_t i = 0; i < n;) {
      V part[2] = {V::all(0), V::all(0)};
      for (int64_t end = i + block < n ? i + block : n; i < end; i += stride) {
        const V v = (row.at(i) - m) * s;
        for (int l = 0; l < 2; l++) {
          const auto in = greater(v, V::all(level[l]));
          counts[l] += sa::count(in);
          part[l] = part[l] + select_or_zero(in, v);
        }
      }
      for (int l = 0; l < 2; l++) sums[l] += static_cast<double>(sa::sum(part[l]));
    }
    for (int l = 0; l < 2; l++) {
      count[l][lane] = static_cast<T>(counts[l]);
      sum[l][lane] = static_cast<T>(sums[l]);
    }
  }
};

template <class T, class Scores>
inline Candidates<T> pack_candidates(const Scores& row, int64_t n, T maximum, T scale, T* b, T least = -1) {
  using V = Vec<T>;
  const V m = V::all(maximum), s = V::all(scale), limit = V::all(least);
  int64_t c = 0;
  double total = 0;
  if (n <= short_row || least > -1) {  // a candidate in every few vectors: branches on their presence would be guessed wrong
    V part = V::all(0);
    for (int64_t i = 0; i < n; i += V::W) {
      V v = (row.at(i) - m) * s;
      auto keep = greater(v, limit);
      c += compress(b + c, keep, v);
      part = part + select_or_zero(keep, v);
    }
    V::all(padding).store(b + c);
    V::all(padding).store(b + c + V::W);
    return {b, c, static_cast<double>(sum(part)), static_cast<double>(least)};
  }
  for (int64_t i = 0; i < n;) {
    V part = V::all(0);
    for (int64_t end = i + block < n ? i + block : n; i < end; i += V::W) {
      V v = (row.at(i) - m) * s;
      auto keep = greater(v, limit);
      if (any(keep)) {
        c += compress(b + c, keep, v);
        part = part + select_or_zero(keep, v);
      }
    }
    total += sum(part);
  }
  V::all(padding).store(b + c);
  V::all(padding).store(b + c + V::W);
  return {b, c, total, static_cast<double>(least)};
}

// Drops the candidates at or below tau, in place. Valid once tau is known to be a lower bound of the threshold.
template <class T>
inline void drop_below(Candidates<T>& k, T tau) {
  using V = Vec<T>;
  int64_t c = 0;
  for (int64_t i = 0; i < k.count; i += V::W) {
    V v = V::load(k.b + i);  // read before the packed part can overtake it: c <= i
    auto keep = greater(v, V::all(tau));
    if (any(keep)) c += compress(k.b + c, keep, v);
  }
  V::all(padding).store(k.b + c);
  V::all(padding).store(k.b + c + V::W);
  k.count = c;
}

}  // namespace sa
