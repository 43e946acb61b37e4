// Vec<T> in plain C++: the meaning of every operation, and the path for float64.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace sa {

template <class T>
struct Vec {
  static constexpr int W = 8;
  using Mask = uint32_t;  // bit i belongs to lane i
  T lane[W];

  static Vec all(T s) {
    Vec r;
    for (int i = 0; i < W; i++) r.lane[i] = s;
    return r;
  }
  static Vec load(const T* p) {
    Vec r;
    std::memcpy(r.lane, p, sizeof r.lane);
    return r;
  }
  static Vec load_part(const T* p, int64_t count, T fill) {
    Vec r = all(fill);
    for (int i = 0; i < count; i++) r.lane[i] = p[i];
    return r;
  }
  void store(T* p) const { std::memcpy(p, lane, sizeof lane); }
  void store_part(T* p, int64_t count) const {
    for (int i = 0; i < count; i++) p[i] = lane[i];
  }
};

#define SA_LANEWISE(expression)                                   \
  Vec<T> r;                                                       \
  for (int i = 0; i < Vec<T>::W; i++) r.lane[i] = (expression);   \
  return r;
#define SA_COMPARE(expression)                                                            \
  uint32_t r = 0;                                                                         \
  for (int i = 0; i < Vec<T>::W; i++) r |= static_cast<uint32_t>((expression) ? 1 : 0) << i; \
  return r;

template <class T> inline Vec<T> operator+(Vec<T> a, Vec<T> b) { SA_LANEWISE(a.lane[i] + b.lane[i]) }
template <class T> inline Vec<T> operator-(Vec<T> a, Vec<T> b) { SA_LANEWISE(a.lane[i] - b.lane[i]) }
template <class T> inline Vec<T> operator*(Vec<T> a, Vec<T> b) { SA_LANEWISE(a.lane[i] * b.lane[i]) }
template <class T> inline Vec<T> operator/(Vec<T> a, Vec<T> b) { SA_LANEWISE(a.lane[i] / b.lane[i]) }
template <class T> inline Vec<T> max(Vec<T> a, Vec<T> b) { SA_LANEWISE(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]) }
template <class T> inline Vec<T> min(Vec<T> a, Vec<T> b) { SA_LANEWISE(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]) }
template <class T> inline Vec<T> sqrt(Vec<T> a) { SA_LANEWISE(std::sqrt(a.lane[i])) }
// a * b + c; the compiler may or may not fuse it
template <class T> inline Vec<T> fma(Vec<T> a, Vec<T> b, Vec<T> c) { SA_LANEWISE(a.lane[i] * b.lane[i] + c.lane[i]) }

template <class T> inline uint32_t greater(Vec<T> a, Vec<T> b) { SA_COMPARE(a.lane[i] > b.lane[i]) }
template <class T> inline uint32_t equal(Vec<T> a, Vec<T> b) { SA_COMPARE(a.lane[i] == b.lane[i]) }
template <class T> inline uint32_t either_nan(Vec<T> a, Vec<T> b) {
  SA_COMPARE(a.lane[i] != a.lane[i] || b.lane[i] != b.lane[i])
}
inline uint32_t mask_or(uint32_t a, uint32_t b) { return a | b; }
inline uint32_t mask_and(uint32_t a, uint32_t b) { return a & b; }
inline uint32_t mask_and_not(uint32_t a, uint32_t b) { return a & ~b; }  // a and not b
inline uint32_t lane_bits(uint32_t m) { return m; }  // bit i for lane i
inline bool any(uint32_t m) { return m != 0; }
inline int count(uint32_t m) { return __builtin_popcount(m); }

template <class T> inline Vec<T> select(uint32_t m, Vec<T> yes, Vec<T> no) {
  SA_LANEWISE((m >> i & 1) ? yes.lane[i] : no.lane[i])
}
template <class T> inline Vec<T> select_or_zero(uint32_t m, Vec<T> yes) { SA_LANEWISE((m >> i & 1) ? yes.lane[i] : T(0)) }

template <class T> inline T sum(Vec<T> a) {
  T s = 0;
  for (int i = 0; i < Vec<T>::W; i++) s += a.lane[i];
  return s;
}
template <class T> inline T largest(Vec<T> a) {
  T m = a.lane[0];
  for (int i = 1; i < Vec<T>::W; i++) m = a.lane[i] > m ? a.lane[i] : m;
  return m;
}

template <class T> inline int compress(T* dst, uint32_t keep, Vec<T> v) {
  int c = 0;
  for (int i = 0; i < Vec<T>::W; i++)
    if (keep >> i & 1) dst[c++] = v.lane[i];
  return c;
}
// Writes base + i for every kept lane i.
template <class T> inline int compress_index(int32_t* dst, uint32_t keep, int32_t base) {
  int c = 0;
  for (int i = 0; i < Vec<T>::W; i++)
    if (keep >> i & 1) dst[c++] = base + i;
  return c;
}

#undef SA_LANEWISE
#undef SA_COMPARE

// For every pattern of kept lanes, the permutation that moves them to the front.
struct CompressTable {
  alignas(32) int32_t lane[256][8];
  constexpr CompressTable() : lane() {
    for (int m = 0; m < 256; m++) {
      int c = 0;
      for (int i = 0; i < 8; i++)
        if (m >> i & 1) lane[m][c++] = i;
      while (c < 8) lane[m][c++] = 7;
    }
  }
};
inline constexpr CompressTable compress_table{};

}  // namespace sa
