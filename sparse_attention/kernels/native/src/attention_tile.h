// Scores in registers: a tile of queries x keys whose products never reach memory, except the few above a query's bound.
//
// Keys are packed in panels of P = 2 W, channel by channel ([panel][channel][P]), queries in groups of R, also channel by
// channel ([channel][R]), so that each of the 2 R sums of a tile stays in one register from the first channel to the last.
#pragma once
#include "attention_row.h"
#include "simd_half.h"

namespace sa {

constexpr int panel_keys = 2 * V::W;
// Registers: 2 R sums, 2 of keys, 1 of a query; there are 32 of 512 bits, 16 of 256.
constexpr int tile_rows = V::W == 16 ? 12 : 6;
constexpr int64_t block_rows = 48;  // queries that go through the keys together: four or eight groups
constexpr int64_t page_keys = 256;  // keys that stay in the cache while all groups of a block see them

inline int64_t panels(int64_t keys) { return (keys + panel_keys - 1) / panel_keys; }

// The panels from `first` to `last` of k [m, d], zero beyond m.
inline void pack_keys(const float* k, int64_t m, int64_t d, int64_t first, int64_t last, float* packed) {
  for (int64_t p = first; p < last; p++) {
    const float* from = k + p * panel_keys * d;
    float* to = packed + p * panel_keys * d;
    if ((p + 1) * panel_keys <= m) {
      for (int64_t c = 0; c < d; c++)
        for (int64_t j = 0; j < panel_keys; j++) to[c * panel_keys + j] = from[j * d + c];
    } else {
      for (int64_t c = 0; c < d; c++)
        for (int64_t j = 0; j < panel_keys; j++) to[c * panel_keys + j] = p * panel_keys + j < m ? from[j * d + c] : 0;
    }
  }
}

// The largest |k_j|^2; infinity if some key is not finite, or so long that its square is not.
template <class E>
inline float longest(const E* k, int64_t m, int64_t d) {
  float worst = 0;
  for (int64_t j = 0; j < m; j++) {
    V n = V::all(0);
    for (int64_t c = 0; c < d; c += V::W) {
      const V x = row_floats(k + j * d, c, d);
      n = fma(x, x, n);
    }
    const float norm = sum(n);
    if (!(norm <= std::numeric_limits<float>::max())) return infinity<float>();
    worst = norm > worst ? norm : worst;
  }
  return worst;
}

// Lanes whose key base + lane is below the row's limit.
inline V::Mask visible(int64_t limit, int64_t base) {
  float lane[V::W];
  for (int i = 0; i < V::W; i++) lane[i] = static_cast<float>(i);
  const int64_t left = limit - base;
  const float bounded = static_cast<float>(left < 0 ? 0 : left > V::W ? V::W : left);
  return greater(V::all(bounded), V::load(lane));
}

// Lanes whose key base + lane the row's query sees.
inline V::Mask seen(const Row& row, int64_t base) {
  float lane[V::W];
  for (int i = 0; i < V::W; i++) lane[i] = static_cast<float>(i);
  const int64_t hidden = row.begin - base;
  const float bounded = static_cast<float>(hidden < 0 ? 0 : hidden > V::W ? V::W : hidden);
  return mask_and(visible(row.limit, base), greater(V::load(lane), V::all(bounded - 0.5f)));
}

// Lanes whose key is kept, of the `count` first ones.
inline V::Mask kept_lanes(const uint8_t* kept, int64_t count) {
#if defined(SPARSE_ATTENTION_AVX512) && defined(__AVX512BW__) && defined(__AVX512VL__)
  if (count >= V::W) {
    const __m128i k = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kept));
    return _mm_test_epi8_mask(k, k);
  }
#elif defined(__AVX2__) && !defined(SPARSE_ATTENTION_AVX512) && !defined(SPARSE_ATTENTION_PORTABLE)
  if (count >= V::W) {
    const __m256i k = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kept)));
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(k, _mm256_setzero_si256()))};
  }
#endif
  float lane[V::W];
  for (int i = 0; i < V::W; i++) lane[i] = i < count && kept[i] ? 1.f : 0.f;
  return greater(V::load(lane), V::all(0));
}

// The scores x of the keys from `base` on, with the row's bias, and -infinity where its mask hides the key. Of the lanes
// `in`, none may be NaN or infinity.
inline V completed(V x, Row& row, int64_t base, int64_t m, V::Mask in) {
  const int64_t left = m - base, count = left < 0 ? 0 : left < V::W ? left : V::W;
  if (row.bias) x = fma(V::all(row.factor), V::load_part(row.bias + base, count, 0), x);
  if (row.kept) x = select(kept_lanes(row.kept + base, count), x, V::all(-infinity<float>()));
  const auto large = greater(x, V::all(std::numeric_limits<float>::max()));
  if (any(mask_and(in, mask_or(either_nan(x, x), large)))) row.broken = true;
  return x;
}

// Whether the masks of R queries hide a whole panel.
inline bool hidden(const Row* row, int64_t base, int64_t m) {
  const int64_t count = m - base < panel_keys ? m - base : panel_keys;
  for (int i = 0; i < tile_rows; i++) {
    if (row[i].limit == 0) continue;
    if (!row[i].kept || std::memchr(row[i].kept + base, 1, static_cast<size_t>(count))) return false;
  }
  return true;
}

// Products of R queries with one panel: a with its first half, b with the second.
inline __attribute__((always_inline)) void multiply(const float* q, const float* k, int64_t d, V* a, V* b) {
  constexpr int R = tile_rows;
#pragma GCC unroll 12
  for (int i = 0; i < R; i++) a[i] = b[i] = V::all(0);
  for (int64_t c = 0; c < d; c++) {
    const V x = V::load(k + c * panel_keys), y = V::load(k + c * panel_keys + V::W);
#pragma GCC unroll 12
    for (int i = 0; i < R; i++) {
      const V s = V::all(q[c * R + i]);
      a[i] = fma(s, x, a[i]);
      b[i] = fma(s, y, b[i]);
    }
  }
}

// Scores of R queries with one panel, the keys from `base`; what exceeds a row's bound joins its candidates. `added`: with
// biases and masks, for m keys.
template <bool masked, bool added>
inline __attribute__((always_inline)) void tile(const float* q, const float* k, int64_t d, Row* row, int32_t base,
                                                [[maybe_unused]] int64_t m) {
  constexpr int R = tile_rows;
  V a[R], b[R];
  multiply(q, k, d, a, b);
#pragma GCC unroll 12
  for (int i = 0; i < R; i++) {
    if (added && row[i].limit == 0) continue;
    if (added) {
      const V zero = V::all(0);
      a[i] = completed(a[i], row[i], base, m, masked ? seen(row[i], base) : equal(zero, zero));
      b[i] = completed(b[i], row[i], base + V::W, m, masked ? seen(row[i], base + V::W) : equal(zero, zero));
    }
    const V bound = V::all(row[i].bound);
    auto left = greater(a[i], bound), right = greater(b[i], bound);
    if (masked) {
      left = mask_and(left, seen(row[i], base));
      right = mask_and(right, seen(row[i], base + V::W));
    }
    if (avx2 || any(mask_or(left, right))) {  // a branch that is guessed wrong costs more than 16 keys to pack
      int64_t c = row[i].count;
      compress_index<float>(row[i].column + c, left, base);
      c += compress(row[i].score + c, left, a[i]);
      compress_index<float>(row[i].column + c, right, base + V::W);
      row[i].count = c + compress(row[i].score + c, right, b[i]);
    }
  }
}

}  // namespace sa
