// Vec<float> by the vector extensions that GCC and Clang share: the path for machines without AVX2.
//
// The compiler maps 8 lanes to whatever registers there are. A mask is a vector of integers, all bits set in the lanes
// that hold. What has no operator of its own is a loop over the lanes, which compilers vectorise.
#pragma once

namespace sa {

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));

inline Ints as_ints(Floats a) {
  Ints r;
  std::memcpy(&r, &a, sizeof r);
  return r;
}
inline Floats as_floats(Ints a) {
  Floats r;
  std::memcpy(&r, &a, sizeof r);
  return r;
}
// The first count < 8 values of `from` to `to`, by blocks of 4, 2 and 1.
inline void copy_part(float* to, const float* from, int64_t count) {
  const int64_t two = count & 4, one = count & 6;
  if (count & 4) std::memcpy(to, from, 16);
  if (count & 2) std::memcpy(to + two, from + two, 8);
  if (count & 1) to[one] = from[one];
}

struct MaskF {
  Ints r;
};

template <>
struct Vec<float> {
  static constexpr int W = 8;
  using Mask = MaskF;
  Floats r;

  static Vec all(float s) { return {s - Floats{}}; }
  static Vec load(const float* p) {
    Vec v;
    std::memcpy(&v.r, p, sizeof v.r);
    return v;
  }
  static Vec load_part(const float* p, int64_t count, float fill) {
    if (count == W) return load(p);
    float part[W];
    all(fill).store(part);
    copy_part(part, p, count);
    return load(part);
  }
  void store(float* p) const { std::memcpy(p, &r, sizeof r); }
  void store_part(float* p, int64_t count) const {
    if (count == W) return store(p);
    float part[W];
    store(part);
    copy_part(p, part, count);
  }
};

using VecF = Vec<float>;
inline VecF operator+(VecF a, VecF b) { return {a.r + b.r}; }
inline VecF operator-(VecF a, VecF b) { return {a.r - b.r}; }
inline VecF operator*(VecF a, VecF b) { return {a.r * b.r}; }
inline VecF operator/(VecF a, VecF b) { return {a.r / b.r}; }
inline VecF fma(VecF a, VecF b, VecF c) { return {a.r * b.r + c.r}; }
inline VecF max(VecF a, VecF b) { return {a.r > b.r ? a.r : b.r}; }
inline VecF min(VecF a, VecF b) { return {a.r < b.r ? a.r : b.r}; }
inline VecF sqrt(VecF a) {
  for (int i = 0; i < VecF::W; i++) a.r[i] = std::sqrt(a.r[i]);
  return a;
}
inline VecF nearest(VecF a) {  // |a| < 2^22: adding 1.5 * 2^23 leaves nothing behind the point
  const VecF shift = VecF::all(12582912.f);
  return (a + shift) - shift;
}

inline MaskF greater(VecF a, VecF b) { return {a.r > b.r}; }
inline MaskF equal(VecF a, VecF b) { return {a.r == b.r}; }
inline MaskF either_nan(VecF a, VecF b) { return {(a.r != a.r) | (b.r != b.r)}; }
inline MaskF mask_or(MaskF a, MaskF b) { return {a.r | b.r}; }
inline MaskF mask_and(MaskF a, MaskF b) { return {a.r & b.r}; }
inline MaskF mask_and_not(MaskF a, MaskF b) { return {a.r & ~b.r}; }
inline uint64_t folded(Ints a) {  // the lanes or-ed together, two by two
  uint64_t q[4];
  std::memcpy(q, &a, sizeof q);
  return (q[0] | q[1]) | (q[2] | q[3]);
}
inline uint32_t lane_bits(MaskF m) {
  const uint64_t pair = folded(m.r & Ints{1, 2, 4, 8, 16, 32, 64, 128});
  return static_cast<uint32_t>(pair | pair >> 32);
}
inline bool any(MaskF m) { return folded(m.r) != 0; }
inline int count(MaskF m) { return __builtin_popcount(lane_bits(m)); }
inline VecF select(MaskF m, VecF yes, VecF no) { return {m.r ? yes.r : no.r}; }
inline VecF select_or_zero(MaskF m, VecF yes) { return {as_floats(as_ints(yes.r) & m.r)}; }

inline float sum(VecF a) {
  return ((a.r[0] + a.r[4]) + (a.r[2] + a.r[6])) + ((a.r[1] + a.r[5]) + (a.r[3] + a.r[7]));
}
inline float largest(VecF a) {
  float m = a.r[0];
  for (int i = 1; i < VecF::W; i++) m = a.r[i] > m ? a.r[i] : m;
  return m;
}

inline Ints front_lanes(uint32_t bits) {
  Ints lanes;
  std::memcpy(&lanes, compress_table.lane[bits], sizeof lanes);
  return lanes;
}
inline int compress(float* dst, MaskF keep, VecF v) {
  const uint32_t bits = lane_bits(keep);
#if defined(__GNUC__) && !defined(__clang__)
  VecF{__builtin_shuffle(v.r, front_lanes(bits))}.store(dst);
#else
  for (int i = 0; i < VecF::W; i++) dst[i] = v.r[compress_table.lane[bits][i]];
#endif
  return __builtin_popcount(bits);
}
template <class T>
int compress_index(int32_t* dst, MaskF keep, int32_t base) {
  const uint32_t bits = lane_bits(keep);
  Ints at = front_lanes(bits) + base;
  std::memcpy(dst, &at, sizeof at);
  return __builtin_popcount(bits);
}

// a = mantissa * 2^exponent with mantissa in [0.75, 1.5): adding half a mantissa before the shift rounds 1.5 up.
inline void split(VecF a, VecF& mantissa, VecF& exponent) {
  Ints bits = as_ints(a.r), e = ((bits + 0x00400000) >> 23) - 127;
  mantissa.r = as_floats(bits - (e << 23));
  exponent.r = __builtin_convertvector(e, Floats);
}
inline VecF scale_by_power_of_two(VecF a, VecF e) {
  return {a.r * as_floats((__builtin_convertvector(e.r, Ints) + 127) << 23)};
}

}  // namespace sa
