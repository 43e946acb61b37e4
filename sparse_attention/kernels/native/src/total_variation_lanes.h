// The direct scan of total_variation.h for up to eight rows at once, one row per lane.
//
// On rough rows every decision of the scan is a coin toss to the branch predictor. Here a step of the scan is the same
// straight code for every outcome (go on, jump down, jump up, end of the row), on vectors of eight lanes. Lanes do not
// wait for each other: each has its own position. Only AVX-512 reads and writes eight places at once; without it
// (AVX2 measured) this takes three to five times as long as one scan after the other.
#pragma once
#include "total_variation.h"

namespace sa {

constexpr int lane_count = 8, most_rows = 2 * lane_count;

#ifndef SPARSE_ATTENTION_AVX512
constexpr bool rows_in_lanes = false;
#else
constexpr bool rows_in_lanes = true;

// The compilers' own vectors (g++ and clang++).
typedef double LaneReal __attribute__((vector_size(8 * lane_count)));
typedef int64_t LaneInt __attribute__((vector_size(8 * lane_count)));

// The values at eight addresses.
template <class T>
inline LaneReal gather(LaneInt address) {
  if constexpr (sizeof(T) == 4)
    return (LaneReal)_mm512_cvtps_pd(_mm512_i64gather_ps((__m512i)address, nullptr, 1));
  else
    return (LaneReal)_mm512_i64gather_pd((__m512i)address, nullptr, 1);
}

// A bit for each lane chosen.
inline uint8_t set_lanes(LaneInt chosen) {
  return static_cast<uint8_t>(_mm512_cmplt_epi64_mask((__m512i)chosen, _mm512_setzero_si512()));
}

// Stores values at the addresses of the lanes chosen.
template <class T>
inline void put(LaneInt chosen, LaneInt address, LaneReal value) {
  if constexpr (sizeof(T) == 4)
    _mm512_mask_i64scatter_ps(nullptr, set_lanes(chosen), (__m512i)address, _mm512_cvtpd_ps((__m512d)value), 1);
  else
    _mm512_mask_i64scatter_pd(nullptr, set_lanes(chosen), (__m512i)address, (__m512d)value, 1);
}

// Eight scans, named as in direct_scan. While a segment is open its values stay as they are: the scan may come back to
// them. A closed segment writes its value to its last position, with the sign turned to tell it from an open one.
template <class T>
struct Scans {
  LaneReal low = {}, high = {}, low_dual = {}, high_dual = {}, shift = {};
  LaneInt start = {}, at = {}, low_end = {}, high_end = {}, done = {};  // done: -1 or 0
  LaneInt row = {}, last_place = {};  // address of the values, index of the last

  Scans(T* const* rows, const int64_t* lengths, int count) {  // lanes from `count` on do nothing
    for (int r = 0; r < lane_count; r++) {
      const int from = r < count ? r : 0;
      done[r] = r < count ? 0 : -1;
      row[r] = reinterpret_cast<int64_t>(rows[from]);
      last_place[r] = lengths[from] - 1;
    }
  }

  // One step of every lane.
  inline void step(double lam, const double* inverse) {
    const LaneReal zero = {}, above = zero + lam, below = zero - lam;
    const LaneInt end = at > last_place, fresh = at == start, here = end ? last_place : at;
    const LaneReal x = gather<T>(row + here * static_cast<int64_t>(sizeof(T)));
    const LaneReal part = gather<double>(reinterpret_cast<int64_t>(inverse) + (here + 1 - start) * 8);
    const LaneReal first = x + shift;
    low = fresh ? first - lam : low;
    high = fresh ? first + lam : high;
    low_dual = end ? low_dual : fresh ? above : low_dual + (x - low);
    high_dual = end ? high_dual : fresh ? below : high_dual + (x - high);
    const LaneReal limit = end ? zero : above;  // the dual must end at 0
    const LaneInt down = (low_dual < -limit) & ~done, up = (high_dual > limit) & ~down & ~done;
    const LaneInt last = end & ~down & ~up & ~done, shut = down | up | last;
    const LaneReal value = last ? low + low_dual * part : down ? low : high;
    const LaneInt target = last ? last_place : down ? low_end : high_end;

    const LaneReal rise = low_dual - lam, fall = high_dual + lam;
    low += (rise > zero ? rise : zero) * part;
    high += (fall < zero ? fall : zero) * part;
    low_end = rise >= zero ? at : low_end;
    high_end = fall <= zero ? at : high_end;
    low_dual = rise > zero ? above : low_dual;
    high_dual = fall < zero ? below : high_dual;
    shift = down ? above : up ? below : shift;
    start = shut ? target + 1 : start;
    at = shut ? start : end ? at : at + 1;
    done |= shut & (target == last_place);
    put<T>(shut, row + target * static_cast<int64_t>(sizeof(T)), value < zero ? -value : zero);
  }

  inline bool all_done() const {
    int64_t all = -1;
    for (int r = 0; r < lane_count; r++) all &= done[r];
    return all;
  }

  // By how many values the lanes still at work have closed more than a quarter of `steps`, taken together, times four.
  inline int64_t excess(int64_t steps) const {
    int64_t excess = 0;
    for (int r = 0; r < lane_count; r++) excess += done[r] ? 0 : start[r] * 4 - steps;
    return excess;
  }

  // Fills the closed segments of lane r, from the right; what the scan left open is the taut string's.
  inline void finish(int r, double lam, const double* inverse, TautString& memory) const {
    T *z = reinterpret_cast<T*>(row[r]), v = 0;
    const int64_t closed = start[r], n = last_place[r] + 1;
    for (int64_t i = closed - 1; i >= 0; i--) {
      v = std::signbit(z[i]) ? v : -z[i];
      z[i] = v;
    }
    if (closed < n) taut_string(z + closed, n - closed, lam, shift[r], inverse, memory);
  }
};

// rows[r] [lengths[r]] in place, count <= most_rows of them. All values must have their sign bit set (-0.0 for zero), as they
// have where the row's maximum has been subtracted. Every length >= 2, lam > 0.
//
// A step waits for its own loads most of the time, so two groups of lanes take turns.
template <class T>
inline void total_variation_rows(T* const* rows, const int64_t* lengths, int count, double lam, const double* inverse,
                                 TautString& memory) {
  const int first = count < lane_count ? count : lane_count, second = count - first, at = second ? first : 0;
  Scans<T> one(rows, lengths, first), other(rows + at, lengths + at, second);
  int64_t longest = 0;
  for (int r = 0; r < count; r++) longest = lengths[r] > longest ? lengths[r] : longest;
  // Rough rows close a value every second step or so. Where it takes more than four, the rows are smooth.
  for (int64_t step = 1; step < 4 * longest; step++) {
    one.step(lam, inverse);
    other.step(lam, inverse);
    if (step % 4 == 0 && one.all_done() && other.all_done()) break;
    if (step % 32 == 0 && one.excess(step) + other.excess(step) < 0) break;
  }
  for (int r = 0; r < first; r++) one.finish(r, lam, inverse, memory);
  for (int r = 0; r < second; r++) other.finish(r, lam, inverse, memory);
}
#endif

}  // namespace sa
