// Sums over a few rows of a table, named by a list of indices: all that attention needs once its support is known.
//
//     add_rows       out += sum_e w_e table[at_e]      output (P V), dQ (dS K), and, transposed, dK and dV
//     gathered_dots  out_e = x . table[at_e]           dP at the support (g V'), scores of screened keys
//
// A table is [rows, stride] with `width` <= stride channels, of float32, bfloat16 or float16 (E).
#pragma once
#include "rows.h"
#include "simd_half.h"

namespace sa {

using V = Vec<float>;

// Channels [0, Z vectors) of the sum over e in [0, count). Two entries at a time: enough independent additions.
template <int Z, class E>
inline void add_rows_block(const float* w, const int32_t* at, int64_t count, const E* table, int64_t stride, float* out) {
  V a[Z], b[Z];
#pragma GCC unroll 8
  for (int z = 0; z < Z; z++) {
    a[z] = V::load(out + z * V::W);
    b[z] = V::all(0);
  }
  int64_t e = 0;
  for (; e + 2 <= count; e += 2) {
    const E *x = table + at[e] * stride, *y = table + at[e + 1] * stride;
    const V u = V::all(w[e]), v = V::all(w[e + 1]);
#pragma GCC unroll 8
    for (int z = 0; z < Z; z++) {
      a[z] = fma(u, floats(x + z * V::W), a[z]);
      b[z] = fma(v, floats(y + z * V::W), b[z]);
    }
  }
  if (e < count) {
    const E* x = table + at[e] * stride;
    const V u = V::all(w[e]);
#pragma GCC unroll 8
    for (int z = 0; z < Z; z++) a[z] = fma(u, floats(x + z * V::W), a[z]);
  }
#pragma GCC unroll 8
  for (int z = 0; z < Z; z++) (a[z] + b[z]).store(out + z * V::W);
}

template <class E>
inline void add_rows(const float* w, const int32_t* at, int64_t count, const E* table, int64_t stride, int64_t width,
                     float* out) {
  int64_t c = 0;
  for (; c + 4 * V::W <= width; c += 4 * V::W) add_rows_block<4>(w, at, count, table + c, stride, out + c);
  for (; c + V::W <= width; c += V::W) add_rows_block<1>(w, at, count, table + c, stride, out + c);
  if (c == width) return;
  const int64_t rest = width - c;
  V a = V::load_part(out + c, rest, 0);
  for (int64_t e = 0; e < count; e++) a = fma(V::all(w[e]), floats_part(table + at[e] * stride + c, rest), a);
  a.store_part(out + c, rest);
}

// Lane j of the result is the sum of s[j].
#if defined(__AVX512F__) && !defined(SPARSE_ATTENTION_PORTABLE) && !defined(SPARSE_ATTENTION_NO_AVX512)
inline V lane_sums(const V* s) {
  __m512 pair[8], four[4], eight[2];
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++)
    pair[j] = _mm512_add_ps(_mm512_unpacklo_ps(s[2 * j].r, s[2 * j + 1].r), _mm512_unpackhi_ps(s[2 * j].r, s[2 * j + 1].r));
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++)
    four[j] = _mm512_add_ps(_mm512_shuffle_ps(pair[2 * j], pair[2 * j + 1], 0x44),
                            _mm512_shuffle_ps(pair[2 * j], pair[2 * j + 1], 0xEE));
#pragma GCC unroll 2
  for (int j = 0; j < 2; j++)
    eight[j] = _mm512_add_ps(_mm512_shuffle_f32x4(four[2 * j], four[2 * j + 1], 0x88),
                             _mm512_shuffle_f32x4(four[2 * j], four[2 * j + 1], 0xDD));
  return {_mm512_add_ps(_mm512_shuffle_f32x4(eight[0], eight[1], 0x88), _mm512_shuffle_f32x4(eight[0], eight[1], 0xDD))};
}
#elif defined(__AVX2__) && !defined(SPARSE_ATTENTION_PORTABLE)
inline V lane_sums(const V* s) {
  __m256 pair[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) pair[j] = _mm256_hadd_ps(s[2 * j].r, s[2 * j + 1].r);
  const __m256 a = _mm256_hadd_ps(pair[0], pair[1]), b = _mm256_hadd_ps(pair[2], pair[3]);
  return {_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31))};
}
#else
inline V lane_sums(const V* s) {
  float lanes[V::W];
  for (int j = 0; j < V::W; j++) lanes[j] = sum(s[j]);
  return V::load(lanes);
}
#endif

// Dots of x [width] with W rows; Z > 0: width is Z vectors, Z = 0: any.
template <int Z, class E>
inline V dots(const float* x, const E* const rows[V::W], int64_t width) {
  V s[V::W];
  if (Z > 0) {
    V q[Z > 0 ? Z : 1];
#pragma GCC unroll 8
    for (int z = 0; z < Z; z++) q[z] = V::load(x + z * V::W);
#pragma GCC unroll 16
    for (int j = 0; j < V::W; j++) {
      V a = q[0] * floats(rows[j]);
#pragma GCC unroll 8
      for (int z = 1; z < Z; z++) a = fma(q[z], floats(rows[j] + z * V::W), a);
      s[j] = a;
    }
  } else {
    for (int j = 0; j < V::W; j++) s[j] = V::all(0);
    int64_t c = 0;
    for (; c + V::W <= width; c += V::W) {
      const V q = V::load(x + c);
      for (int j = 0; j < V::W; j++) s[j] = fma(q, floats(rows[j] + c), s[j]);
    }
    if (c < width) {
      const V q = V::load_part(x + c, width - c, 0);
      for (int j = 0; j < V::W; j++) s[j] = fma(q, floats_part(rows[j] + c, width - c), s[j]);
    }
  }
  return lane_sums(s);
}

// The dots of x with `count` <= W rows of a table, in the first lanes.
template <int Z, class E>
inline V dots_at(const float* x, const int32_t* at, int64_t count, const E* table, int64_t stride, int64_t width) {
  const E* rows[V::W];
#pragma GCC unroll 16
  for (int j = 0; j < V::W; j++) rows[j] = table + static_cast<int64_t>(at[j < count ? j : 0]) * stride;
  return dots<Z>(x, rows, width);
}

// Writes full vectors: `out` has room for W values more than `count`.
template <int Z, class E>
inline void gathered_dots_of(const float* x, const int32_t* at, int64_t count, const E* table, int64_t stride,
                             int64_t width, float* out) {
  int64_t e = 0;
  for (; e + V::W <= count; e += V::W) dots_at<Z>(x, at + e, V::W, table, stride, width).store(out + e);
  if (e < count) dots_at<Z>(x, at + e, count - e, table, stride, width).store_part(out + e, count - e);
}

template <class E>
inline void gathered_dots(const float* x, const int32_t* at, int64_t count, const E* table, int64_t stride,
                          int64_t width, float* out) {
  if (width == 4 * V::W)
    gathered_dots_of<4>(x, at, count, table, stride, width, out);
  else if (width == 8 * V::W)
    gathered_dots_of<8>(x, at, count, table, stride, width, out);
  else
    gathered_dots_of<0>(x, at, count, table, stride, width, out);
}

}  // namespace sa
