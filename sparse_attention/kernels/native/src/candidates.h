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
};

// Below every threshold, and far from overflow in differences and squares.
constexpr float padding = -1e9f;

constexpr int64_t short_row = 768;

template <class T, class Scores>
inline Candidates<T> pack_candidates(const Scores& row, int64_t n, T maximum, T scale, T* b) {
  using V = Vec<T>;
  const V m = V::all(maximum), s = V::all(scale), limit = V::all(-1);
  int64_t c = 0;
  double total = 0;
  if (n <= short_row) {  // a candidate in every few vectors: branching on their presence would be guessed wrong too often
    V part = V::all(0);
    for (int64_t i = 0; i < n; i += V::W) {
      V v = (row.at(i) - m) * s;
      auto keep = greater(v, limit);
      c += compress(b + c, keep, v);
      part = part + select_or_zero(keep, v);
    }
    V::all(padding).store(b + c);
    V::all(padding).store(b + c + V::W);
    return {b, c, static_cast<double>(sum(part))};
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
  return {b, c, total};
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
