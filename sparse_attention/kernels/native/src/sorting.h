// Decreasing order of c values with their positions.
//
// Short lists: every value's rank is the number of values before it, counted W at a time without a single branch.
// Long lists: three stable counting passes over 11 bits each (radix sort).
#pragma once
#include "rows.h"

namespace sa {

constexpr int64_t rank_sort_limit = 256;

// `values` must have W entries of room behind it. Equal values keep their order.
template <class T>
inline void rank_sort(T* values, const int32_t* index, int64_t c, T* sorted, int32_t* sorted_index) {
  using V = Vec<T>;
  V::all(-infinity<T>()).store(values + c);
  for (int64_t i = 0; i < c; i++) {
    const V v = V::all(values[i]);
    int64_t rank = 0, j = 0, own = i / V::W * V::W;
    for (; j < own; j += V::W) {  // before i: equal ones precede
      V u = V::load(values + j);
      rank += count(mask_or(greater(u, v), equal(u, v)));
    }
    const V mine = V::load(values + own);
    rank += __builtin_popcount(lane_bits(greater(mine, v)) | (lane_bits(equal(mine, v)) & ((1u << (i - own)) - 1)));
    for (j = own + V::W; j < c; j += V::W) rank += count(greater(V::load(values + j), v));
    sorted[rank] = values[i];
    sorted_index[rank] = index[i];
  }
}

struct Keyed {
  uint32_t key, at;
};

// Sorts c keys ascending; the result lies in `a` or in `b`, whichever is returned.
inline Keyed* radix_sort(Keyed* a, Keyed* b, int64_t c, uint32_t* counts /* 3 * 2048 */) {
  std::memset(counts, 0, 3 * 2048 * sizeof(uint32_t));
  for (int64_t i = 0; i < c; i++) {
    uint32_t k = a[i].key;
    counts[k & 2047]++;
    counts[2048 + (k >> 11 & 2047)]++;
    counts[4096 + (k >> 22)]++;
  }
  for (int digit = 0; digit < 3; digit++) {
    uint32_t* slot = counts + 2048 * digit;
    const int shift = 11 * digit;
    if (slot[a[0].key >> shift & 2047] == static_cast<uint32_t>(c)) continue;  // all share this digit
    uint32_t next = 0;
    for (int v = 0; v < 2048; v++) {
      uint32_t size = slot[v];
      slot[v] = next;
      next += size;
    }
    for (int64_t i = 0; i < c; i++) b[slot[a[i].key >> shift & 2047]++] = a[i];
    Keyed* t = a;
    a = b;
    b = t;
  }
  return a;
}

// Keys in ascending order are values in descending order.
inline uint32_t descending_key(float v) {
  uint32_t u;
  v += 0.f;  // -0 and 0 are equal
  std::memcpy(&u, &v, 4);
  return u & 0x80000000u ? u : ~u & 0x7fffffffu;
}

}  // namespace sa
