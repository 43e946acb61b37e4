// Vec<float> as one 512-bit register.
#pragma once
#include <immintrin.h>

namespace sa {

template <>
struct Vec<float> {
  static constexpr int W = 16;
  using Mask = __mmask16;
  __m512 r;

  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
  static Vec all(float s) { return {_mm512_set1_ps(s)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_part(const float* p, int64_t count, float fill) {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(count), p)};
  }
  void store(float* p) const { _mm512_storeu_ps(p, r); }
  void store_part(float* p, int64_t count) const { _mm512_mask_storeu_ps(p, first(count), r); }
};

using VecF = Vec<float>;
inline VecF operator+(VecF a, VecF b) { return {_mm512_add_ps(a.r, b.r)}; }
inline VecF operator-(VecF a, VecF b) { return {_mm512_sub_ps(a.r, b.r)}; }
inline VecF operator*(VecF a, VecF b) { return {_mm512_mul_ps(a.r, b.r)}; }
inline VecF operator/(VecF a, VecF b) { return {_mm512_div_ps(a.r, b.r)}; }
inline VecF max(VecF a, VecF b) { return {_mm512_max_ps(a.r, b.r)}; }
inline VecF min(VecF a, VecF b) { return {_mm512_min_ps(a.r, b.r)}; }
inline VecF sqrt(VecF a) { return {_mm512_sqrt_ps(a.r)}; }
inline VecF fma(VecF a, VecF b, VecF c) { return {_mm512_fmadd_ps(a.r, b.r, c.r)}; }
inline VecF nearest(VecF a) { return {_mm512_roundscale_ps(a.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

inline __mmask16 greater(VecF a, VecF b) { return _mm512_cmp_ps_mask(a.r, b.r, _CMP_GT_OQ); }
inline __mmask16 equal(VecF a, VecF b) { return _mm512_cmp_ps_mask(a.r, b.r, _CMP_EQ_OQ); }
inline __mmask16 either_nan(VecF a, VecF b) { return _mm512_cmp_ps_mask(a.r, b.r, _CMP_UNORD_Q); }
inline __mmask16 mask_or(__mmask16 a, __mmask16 b) { return _mm512_kor(a, b); }
inline __mmask16 mask_and(__mmask16 a, __mmask16 b) { return _mm512_kand(a, b); }
inline __mmask16 mask_and_not(__mmask16 a, __mmask16 b) { return _mm512_kandn(b, a); }
inline uint32_t lane_bits(__mmask16 m) { return m; }
inline bool any(__mmask16 m) { return m != 0; }
inline int count(__mmask16 m) { return __builtin_popcount(m); }

inline VecF select(__mmask16 m, VecF yes, VecF no) { return {_mm512_mask_blend_ps(m, no.r, yes.r)}; }
inline VecF select_or_zero(__mmask16 m, VecF yes) { return {_mm512_maskz_mov_ps(m, yes.r)}; }

inline float sum(VecF a) { return _mm512_reduce_add_ps(a.r); }
inline float largest(VecF a) { return _mm512_reduce_max_ps(a.r); }

inline int compress(float* dst, __mmask16 keep, VecF v) {
  _mm512_storeu_ps(dst, _mm512_maskz_compress_ps(keep, v.r));
  return __builtin_popcount(keep);
}
template <class T>
int compress_index(int32_t* dst, __mmask16 keep, int32_t base) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm512_storeu_si512(dst, _mm512_maskz_compress_epi32(keep, _mm512_add_epi32(_mm512_set1_epi32(base), lanes)));
  return __builtin_popcount(keep);
}

// a = mantissa * 2^exponent with mantissa in [0.75, 1.5)
inline void split(VecF a, VecF& mantissa, VecF& exponent) {
  mantissa.r = _mm512_getmant_ps(a.r, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  // getexp counts from mantissas in [1, 2): those of 1.5 and more were halved here, so their exponent is one more.
  __m512 e = _mm512_getexp_ps(a.r);
  __mmask16 upper = _mm512_cmp_ps_mask(mantissa.r, _mm512_set1_ps(1.f), _CMP_LT_OQ);
  exponent.r = _mm512_mask_add_ps(e, upper, e, _mm512_set1_ps(1.f));
}
inline VecF scale_by_power_of_two(VecF a, VecF e) { return {_mm512_scalef_ps(a.r, e.r)}; }

}  // namespace sa
