// bfloat16 and float16 as elements of a table: loaded as float32, stored rounded to nearest, ties to even.
#pragma once
#include "simd.h"

namespace sa {

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float as_float(float x) { return x; }
inline float as_float(Bfloat16 x) { return of_bits(static_cast<uint32_t>(x.bits) << 16); }
inline float as_float(Float16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31u, mantissa = x.bits & 1023u;
  if (exponent == 31) return of_bits(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) return (sign ? -1.f : 1.f) * static_cast<float>(mantissa) * 0x1p-24f;
  return of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline void store_rounded(float* p, float x) { *p = x; }
inline void store_rounded(Bfloat16* p, float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  if ((b & 0x7fffffffu) <= 0x7f800000u) b += 0x7fffu + (b >> 16 & 1u);
  else b |= 0x400000u;  // NaN stays NaN
  p->bits = static_cast<uint16_t>(b >> 16);
}
inline void store_rounded(Float16* p, float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  const uint32_t sign = b >> 16 & 0x8000u;
  b &= 0x7fffffffu;
  if (b > 0x7f800000u) b = 0x7e00u;
  else if (b >= 0x477ff000u) b = 0x7c00u;  // from 65520 on: infinity
  else if (b < 0x38800000u) b = static_cast<uint32_t>(std::nearbyint(std::fabs(x) * 0x1p24f));  // below 2^-14
  else b = (b + 0xfffu + (b >> 13 & 1u) - 0x38000000u) >> 13;
  p->bits = static_cast<uint16_t>(sign | b);
}

// W elements as float32.
inline Vec<float> floats(const float* p) { return Vec<float>::load(p); }
#if defined(SPARSE_ATTENTION_AVX512)
inline __m256i sixteen(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Vec<float> floats(const Bfloat16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen(p)), 16))};
}
inline Vec<float> floats(const Float16* p) { return {_mm512_cvtph_ps(sixteen(p))}; }
#elif defined(__AVX2__) && defined(__F16C__) && !defined(SPARSE_ATTENTION_PORTABLE)
inline __m128i eight(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline Vec<float> floats(const Bfloat16* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight(p)), 16))};
}
inline Vec<float> floats(const Float16* p) { return {_mm256_cvtph_ps(eight(p))}; }
#else
template <class E>
inline Vec<float> floats(const E* p) {
  float x[Vec<float>::W];
  for (int i = 0; i < Vec<float>::W; i++) x[i] = as_float(p[i]);
  return Vec<float>::load(x);
}
#endif

// The first `count` < W of them, and zeros.
inline Vec<float> floats_part(const float* p, int64_t count) { return Vec<float>::load_part(p, count, 0.f); }
template <class E>
inline Vec<float> floats_part(const E* p, int64_t count) {
  E x[Vec<float>::W] = {};
  std::memcpy(x, p, static_cast<size_t>(count) * sizeof(E));
  return floats(x);
}
// Elements i..i+W-1 of a row of n, zero beyond.
template <class E>
inline Vec<float> row_floats(const E* x, int64_t i, int64_t n) {
  return i + Vec<float>::W <= n ? floats(x + i) : floats_part(x + i, n - i);
}

}  // namespace sa
