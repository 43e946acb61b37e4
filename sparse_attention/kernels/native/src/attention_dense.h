// The same sums where most keys have weight: products of full blocks, in which the keys off the support are zeros.
//
//     add_product    c += a b       output (P V), dQ (dS K), and, with a transposed, dK (dS' Q) and dV (P' g)
//
// A block of sums stays in registers from the first term to the last, so each value is read once for six rows. Zeros times
// NaN would spoil a sum, so all numbers must be finite. Used for powers other than 1 and 2, whose supports are often full.
#pragma once
#include "attention_support.h"
#include "attention_tile.h"

namespace sa {

constexpr int64_t dense_keys = 128;  // at a time, for the sums over keys
constexpr double dense_share = 0.5;  // of the keys seen, at least

// Lays a row's entries from key `low` to below `high` out in `to`, zeros between them. Returns how many there are.
inline int64_t lay_out(const float* x, const int32_t* column, int64_t count, int64_t low, int64_t high, float* to) {
  const int64_t width = high - low;
  if (count >= width && column[width - 1] == high - 1) {  // columns increase, from `low` on
    std::memcpy(to, x, static_cast<size_t>(width) * sizeof *to);
    return width;
  }
  fill_row(to, width, 0.f);
  int64_t e = 0;
  for (; e < count && column[e] < high; e++) to[column[e] - low] = x[e];
  return e;
}

// R rows of c, Z vectors wide (or `part` channels of one): c_i += sum_k a_ik b_k, a_ik at a[i row + k step].
template <int R, int Z, bool partial>
inline __attribute__((always_inline)) void add_product_block(const float* a, int64_t row, int64_t step, const float* b, int64_t count,
                                                            int64_t width, float* c, [[maybe_unused]] int64_t part) {
  V sum[R][Z];
#pragma GCC unroll 6
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int z = 0; z < Z; z++)
      sum[i][z] = partial ? V::load_part(c + i * width, part, 0) : V::load(c + i * width + z * V::W);
  for (int64_t k = 0; k < count; k++) {
    V x[Z];
#pragma GCC unroll 4
    for (int z = 0; z < Z; z++) x[z] = partial ? V::load_part(b + k * width, part, 0) : V::load(b + k * width + z * V::W);
#pragma GCC unroll 6
    for (int i = 0; i < R; i++) {
      const V s = V::all(a[i * row + k * step]);
#pragma GCC unroll 4
      for (int z = 0; z < Z; z++) sum[i][z] = fma(s, x[z], sum[i][z]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < R; i++)
#pragma GCC unroll 4
    for (int z = 0; z < Z; z++)
      partial ? sum[i][z].store_part(c + i * width, part) : sum[i][z].store(c + i * width + z * V::W);
}

template <int R>
inline void add_product_rows(const float* a, int64_t row, int64_t step, const float* b, int64_t count, int64_t width, float* c) {
  constexpr int Z = V::W == 16 ? 4 : 2;  // 6 Z sums, Z of b and one of a: 29 of 32 registers, or 15 of 16
  int64_t at = 0;
  for (; at + Z * V::W <= width; at += Z * V::W) add_product_block<R, Z, false>(a, row, step, b + at, count, width, c + at, 0);
  for (; at + V::W <= width; at += V::W) add_product_block<R, 1, false>(a, row, step, b + at, count, width, c + at, 0);
  if (at < width) add_product_block<R, 1, true>(a, row, step, b + at, count, width, c + at, width - at);
}

// c [rows, width] += a b, b [count, width].
inline void add_product(const float* a, int64_t row, int64_t step, int64_t rows, const float* b, int64_t count, int64_t width, float* c) {
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) add_product_rows<6>(a + i * row, row, step, b, count, width, c + i * width);
  for (; i < rows; i++) add_product_rows<1>(a + i * row, row, step, b, count, width, c + i * width);
}

// The rows of x [rows, d] times `factor`, in groups of a tile's, channel by channel: zeros beyond the last.
inline void pack_rows(const float* x, int64_t rows, int64_t d, float factor, float* packed) {
  for (int64_t i = 0; i < (rows + tile_rows - 1) / tile_rows * tile_rows; i++)
    for (int64_t c = 0; c < d; c++)
      packed[i / tile_rows * tile_rows * d + c * tile_rows + i % tile_rows] = i < rows ? x[i * d + c] * factor : 0.f;
}

// to [rows, stride] = packed rows times the panels from `first` to `last`; whole tiles are written.
inline void products(const float* packed, int64_t rows, int64_t d, const float* keys, int64_t first, int64_t last, float* to, int64_t stride) {
  for (int64_t p = first; p < last; p++)
    for (int64_t i = 0; i < rows; i += tile_rows) {
      V a[tile_rows], b[tile_rows];
      multiply(packed + i * d, keys + p * panel_keys * d, d, a, b);
      float* here = to + i * stride + (p - first) * panel_keys;
#pragma GCC unroll 12
      for (int j = 0; j < tile_rows; j++) {
        a[j].store(here + j * stride);
        b[j].store(here + j * stride + V::W);
      }
    }
}

}  // namespace sa
