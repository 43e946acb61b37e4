// One vector of scores, whatever the machine: Vec<T> with W lanes.
//
// Kernels are written once against this interface. simd_portable.h implements it in plain loops for every type;
// simd_vectors.h (any machine), simd_avx2.h and simd_avx512.h replace Vec<float> and no other type.
// Define SPARSE_ATTENTION_PORTABLE or SPARSE_ATTENTION_NO_AVX512 to leave the faster ones out: the tests build all
// of them and compare.
//
// Conventions
//   max(a, b) is (a > b ? a : b): a NaN in `a` is passed over, a NaN in `b` is kept.
//   *_part(p, count) touches only the first `count` lanes, 0 <= count <= W.
//   compress(dst, keep, v) writes the kept lanes side by side, may write W lanes in all, and returns how many count.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "simd_portable.h"
#if defined(__AVX512F__) && defined(__AVX512DQ__) && !defined(SPARSE_ATTENTION_PORTABLE) && \
    !defined(SPARSE_ATTENTION_NO_AVX512)
#include "simd_avx512.h"
#define SPARSE_ATTENTION_ISA "avx512"
#define SPARSE_ATTENTION_AVX512
#elif defined(__AVX2__) && defined(__FMA__) && !defined(SPARSE_ATTENTION_PORTABLE)
#include "simd_avx2.h"
#define SPARSE_ATTENTION_ISA "avx2"
#else
#include "simd_vectors.h"
#define SPARSE_ATTENTION_ISA "portable"
#endif

namespace sa {

template <class T>
constexpr T infinity() {
  return std::numeric_limits<T>::infinity();
}

// The lanes of row positions i..i+W-1, with `fill` beyond the end of the row.
template <class T>
inline Vec<T> load_row(const T* x, int64_t i, int64_t n, T fill) {
  return i + Vec<T>::W <= n ? Vec<T>::load(x + i) : Vec<T>::load_part(x + i, n - i, fill);
}

template <class T>
inline void store_row(T* p, int64_t i, int64_t n, Vec<T> v) {
  if (i + Vec<T>::W <= n)
    v.store(p + i);
  else
    v.store_part(p + i, n - i);
}

template <class T>
inline Vec<T> positive_part(Vec<T> v) {
  return max(v, Vec<T>::all(0));
}

}  // namespace sa
