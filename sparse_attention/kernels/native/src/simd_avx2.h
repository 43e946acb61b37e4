// Vec<float> as one 256-bit register.
#pragma once
#include <immintrin.h>

namespace sa {

alignas(32) inline constexpr int32_t part_table[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

struct Mask8 {
  __m256 r;  // all bits set in the lanes that hold
};

template <>
struct Vec<float> {
  static constexpr int W = 8;
  using Mask = Mask8;
  __m256 r;

  static __m256i first(int64_t count) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(part_table + 8 - count));
  }
  static Vec all(float s) { return {_mm256_set1_ps(s)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load_part(const float* p, int64_t count, float fill) {
    __m256i m = first(count);
    return {_mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, m), _mm256_castsi256_ps(m))};
  }
  void store(float* p) const { _mm256_storeu_ps(p, r); }
  void store_part(float* p, int64_t count) const { _mm256_maskstore_ps(p, first(count), r); }
};

using VecF = Vec<float>;
inline VecF operator+(VecF a, VecF b) { return {_mm256_add_ps(a.r, b.r)}; }
inline VecF operator-(VecF a, VecF b) { return {_mm256_sub_ps(a.r, b.r)}; }
inline VecF operator*(VecF a, VecF b) { return {_mm256_mul_ps(a.r, b.r)}; }
inline VecF operator/(VecF a, VecF b) { return {_mm256_div_ps(a.r, b.r)}; }
inline VecF max(VecF a, VecF b) { return {_mm256_max_ps(a.r, b.r)}; }
inline VecF min(VecF a, VecF b) { return {_mm256_min_ps(a.r, b.r)}; }
inline VecF sqrt(VecF a) { return {_mm256_sqrt_ps(a.r)}; }
inline VecF fma(VecF a, VecF b, VecF c) { return {_mm256_fmadd_ps(a.r, b.r, c.r)}; }
inline VecF nearest(VecF a) { return {_mm256_round_ps(a.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

inline Mask8 greater(VecF a, VecF b) { return {_mm256_cmp_ps(a.r, b.r, _CMP_GT_OQ)}; }
inline Mask8 equal(VecF a, VecF b) { return {_mm256_cmp_ps(a.r, b.r, _CMP_EQ_OQ)}; }
inline Mask8 either_nan(VecF a, VecF b) { return {_mm256_cmp_ps(a.r, b.r, _CMP_UNORD_Q)}; }
inline Mask8 mask_or(Mask8 a, Mask8 b) { return {_mm256_or_ps(a.r, b.r)}; }
inline Mask8 mask_and(Mask8 a, Mask8 b) { return {_mm256_and_ps(a.r, b.r)}; }
inline Mask8 mask_and_not(Mask8 a, Mask8 b) { return {_mm256_andnot_ps(b.r, a.r)}; }
inline uint32_t lane_bits(Mask8 m) { return static_cast<uint32_t>(_mm256_movemask_ps(m.r)); }
inline int bits(Mask8 m) { return _mm256_movemask_ps(m.r); }
inline bool any(Mask8 m) { return bits(m) != 0; }
inline int count(Mask8 m) { return __builtin_popcount(bits(m)); }

inline VecF select(Mask8 m, VecF yes, VecF no) { return {_mm256_blendv_ps(no.r, yes.r, m.r)}; }
inline VecF select_or_zero(Mask8 m, VecF yes) { return {_mm256_and_ps(m.r, yes.r)}; }

inline float sum(VecF a) {
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(a.r), _mm256_extractf128_ps(a.r, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
inline float largest(VecF a) {
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(a.r), _mm256_extractf128_ps(a.r, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

inline __m256i front_lanes(int m) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(compress_table.lane[m]));
}
inline int compress(float* dst, Mask8 keep, VecF v) {
  int m = bits(keep);
  _mm256_storeu_ps(dst, _mm256_permutevar8x32_ps(v.r, front_lanes(m)));
  return __builtin_popcount(m);
}
template <class T>
int compress_index(int32_t* dst, Mask8 keep, int32_t base) {
  int m = bits(keep);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), _mm256_add_epi32(_mm256_set1_epi32(base), front_lanes(m)));
  return __builtin_popcount(m);
}

// a = mantissa * 2^exponent with mantissa in [0.75, 1.5): adding half a mantissa before the shift rounds 1.5 up.
inline void split(VecF a, VecF& mantissa, VecF& exponent) {
  __m256i bits = _mm256_castps_si256(a.r);
  __m256i e = _mm256_sub_epi32(_mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x00400000)), 23),
                               _mm256_set1_epi32(127));
  mantissa.r = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23)));
  exponent.r = _mm256_cvtepi32_ps(e);
}
inline VecF scale_by_power_of_two(VecF a, VecF e) {
  __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(e.r), _mm256_set1_epi32(127)), 23);
  return {_mm256_mul_ps(a.r, _mm256_castsi256_ps(power))};
}

}  // namespace sa
