// The gradient of one row of the support: its scores become P again, and dP becomes dS (formulas: attention_backward.h).
#pragma once
#include <algorithm>

#include "attention_gather.h"
#include "attention_segments.h"
#include "attention_support.h"

namespace sa {

// One worker's memory: a tile's entries, by row and by key.
struct Transposed {
  float *ds, *p;    // by row, as in the support: dP, then dS; scores, then roots of P, then P
  float *dsk, *pk;  // by key: dS and P,
  int32_t* row;     // and the query, counted from the tile's first
  int32_t* column;  // by row
  int32_t* end;     // [keys of a page + 1]: where a key's entries end
  float *one, *query;  // a row's candidates; a query times the scale
  double* numbers;     // for alpha > 2, three numbers a key

  static size_t bytes(int64_t entries, int64_t keys, int64_t d) {
    return static_cast<size_t>(entries + 64) * 24 + static_cast<size_t>(keys + 64) * 32 + static_cast<size_t>(d) * 4 + 1024;
  }
  void take(int64_t entries, int64_t keys, int64_t d, char* memory) {
    Scratch scratch{reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + 63) & ~static_cast<uintptr_t>(63))};
    ds = scratch.take<float>(entries + 16);
    dsk = scratch.take<float>(entries + 16);
    pk = scratch.take<float>(entries + 16);
    row = scratch.take<int32_t>(entries + 16);
    column = scratch.take<int32_t>(entries + 16);
    end = scratch.take<int32_t>(keys + 2);
    p = scratch.take<float>(entries + 16);
    one = scratch.take<float>(keys + 32);
    query = scratch.take<float>(d);
    numbers = scratch.take<double>(3 * keys);
  }
};

// The scores of a row's support in `p` become (s - tau)_+, the roots of P. False if a score is not finite. `b` is memory.
template <int power>
inline bool to_roots(float* p, int64_t count, float* b, const AnyAlpha* other) {
  const float most = highest(p, count);
  const V top = V::all(most), lowest = V::all(padding);
  V total = V::all(0);
  auto broken = greater(total, total);
  for (int64_t i = 0; i < count; i += V::W) {
    const V x = load_row(p, i, count, -infinity<float>()) - top;
    broken = mask_or(broken, either_nan(x, x));  // of NaN, and of infinity
    max(x, lowest).store(b + i);
    total = total + select_or_zero(greater(x, lowest), x);
  }
  if (any(broken)) return false;
  to_roots<power>(p, count, b, most, static_cast<double>(sum(total)), -infinity<double>(), other);
  return true;
}

// A row of scores that overflowed: again one by one, as finish_carefully has them.
template <int power>
inline void to_roots_carefully(float* p, const int32_t* column, int64_t count, const float* q, const float* k, int64_t d,
                               float* b, const AnyAlpha* any, const float* bias, float of_bias) {
  for (int64_t e = 0; e < count; e++) {
    float s = 0;
    for (int64_t c = 0; c < d; c++) s += q[c] * k[column[e] * d + c];
    if (bias) s += of_bias * bias[column[e]];
    p[e] = s;
  }
  if (!to_roots<power>(p, count, b, any)) fill_row(p, count, std::numeric_limits<float>::quiet_NaN());
}

inline void multiply(float* x, int64_t count, float factor) {
  for (int64_t e = 0; e < count; e += V::W) store_row(x, e, count, load_row(x, e, count, 0.f) * V::all(factor));
}

// P^(2 - alpha) of a root of P.
template <int power, class Powers>
inline V weight_of(V root, [[maybe_unused]] const Powers* powers) {
  if constexpr (power == any_power)
    return powers->but_one(root);
  else
    return root;
}

// dP of a row in `ds` becomes the gradient of the scores times `scale`, and the roots in `p` P, in place.
template <int power, class Powers>
inline void through_mapping(float* p, float* ds, int64_t count, float scale, const Powers* powers) {
  if (p[0] != p[0]) return fill_row(ds, count, p[0]);
  V weights = V::all(0), weighted = weights;
  for (int64_t e = 0; e < count; e += V::W) {
    const V d = load_row(ds, e, count, 0.f);
    if (power == 1) {
      weighted = weighted + d;
    } else {
      const V w = weight_of<power>(load_row(p, e, count, 0.f), powers);
      weights = weights + w;
      weighted = fma(w, d, weighted);
    }
  }
  const V mean = V::all(sum(weighted) / (power == 1 ? static_cast<float>(count) : sum(weights))), factor = V::all(scale);
  for (int64_t e = 0; e < count; e += V::W) {
    V d = (load_row(ds, e, count, 0.f) - mean) * factor;
    if (power != 1) {
      const V root = load_row(p, e, count, 0.f), w = weight_of<power>(root, powers);
      d = d * w;
      store_row(p, e, count, root * w);
    }
    store_row(ds, e, count, d);
  }
}
template <int power>
inline void through_mapping(float* p, float* ds, int64_t count, float scale, [[maybe_unused]] const AnyAlpha* any) {
  if constexpr (power != any_power) {
    through_mapping<power>(p, ds, count, scale, static_cast<const Powers<float, AnyPower<float>>*>(nullptr));
  } else if (any->alpha > 2) {
    steep_entmax_vjp(ds, p, ds, count, 2 - any->alpha);
    multiply(ds, count, scale);
  } else {
    any->with([&](const auto& powers) { through_mapping<power>(p, ds, count, scale, &powers); });
  }
}

struct Gradients {
  const float *q, *k, *v, *g;
  float *dq, *dk, *dv;  // dk, dv: of one group, added to
  double* dalpha;       // of each query, or null
  float* dscores;       // of each entry, before the scale, or null
  const float* weights;  // of each entry, as finish_segments leaves them, or null
};

constexpr int64_t tile_queries = 512;  // at most

// Queries of a tile: so many that a key that is seen at all is seen about eight times.
inline int64_t queries_per_tile(int64_t entries, int64_t rows, int64_t m) {
  const int64_t rows_for_eight = entries > 0 ? 8 * m * rows / entries : tile_queries;
  return rows_for_eight < 64 ? 64 : rows_for_eight > tile_queries ? tile_queries : rows_for_eight;
}

// Row i of a tile, times the scale of the roots.
inline const float* scaled_query(const Shape& s, double alpha, Transposed& t, const Gradients& x, int64_t i) {
  const float factor = static_cast<float>((alpha - 1) * s.scale);
  for (int64_t c = 0; c < s.d; c++) t.query[c] = x.q[i * s.d + c] * factor;
  return t.query;
}

// Row i of the tile from row `first` on, whose entries are the ones from `from` on: its scores in `p` become P, and dP in `ds` dS.
template <int power>
inline void row_gradient(const Shape& s, double alpha, Transposed& t, const Gradients& x, int64_t first, int64_t i, const int32_t* column,
                         int64_t count, float* p, float* ds, int64_t from, const AnyAlpha* any) {
  if (x.weights) {
    std::memcpy(p, x.weights + from, static_cast<size_t>(count) * sizeof *p);
  } else {
    const float *bias = s.bias_of((first + i) / s.n, (first + i) % s.n), of_bias = static_cast<float>(alpha - 1);
    for (int64_t e = 0; bias && e < count; e++) p[e] += of_bias * bias[column[e]];
    if (!to_roots<power>(p, count, t.one, any))
      to_roots_carefully<power>(p, column, count, scaled_query(s, alpha, t, x, i), x.k, s.d, t.one, any, bias, of_bias);
  }
  const bool alone = !x.dalpha && !x.dscores;
  const Dropout dropout(s.dropout, s.seed, first + i);
  if (s.dropout > 0) dropout.apply(ds, column, count);
  const float back = alone ? static_cast<float>(s.scale) : 1.f;
  if (x.weights)
    through_segments(p, ds, count, back);
  else
    through_mapping<power>(p, ds, count, back, any);
  if (x.dalpha) x.dalpha[i] = alpha_gradient(p, ds, count, alpha);
  if (x.dscores) std::memcpy(x.dscores + from, ds, static_cast<size_t>(count) * sizeof *ds);
  if (!alone) multiply(ds, count, static_cast<float>(s.scale));
  if (s.dropout > 0) dropout.apply(p, column, count);
}

}  // namespace sa
