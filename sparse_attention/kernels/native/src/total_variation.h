// argmin_y |y - z|^2 / 2 + lam sum_i |y_{i+1} - y_i|, in place, for one run of n values.
//
// Two exact methods. The direct scan (Condat 2013, from the paper's description) keeps the interval of values the
// current segment can still have; it is fast on noise and quadratic on smooth inputs. The taut string is linear on
// every input with a larger constant. total_variation() scans within a budget of steps and hands the rest to the
// string.
//
// Both rest on one fact: where the solution jumps, the problem falls into two of the same kind. At a jump upwards the
// penalty is lam (y_right - y_left), a linear term, so the left part's last value becomes z + lam and the right
// part's first value z - lam; at a jump downwards the signs turn round.
//
// Values are T, all arithmetic between them float64.
#pragma once
#include "rows.h"

namespace sa {

struct TautString {  // working memory for runs of up to n values: 32 (n + 1) bytes
  double* sum;       // sum[k] = z_0 + ... + z_{k-1}
  double *ceiling_slope, *floor_slope;
  int32_t *ceiling_at, *floor_at;

  static size_t bytes(int64_t n) { return 3 * room<double>(n + 1) + 2 * room<int32_t>(n + 1); }
  TautString(Scratch& s, int64_t n)
      : sum(s.take<double>(n + 2)), ceiling_slope(s.take<double>(n + 2)), floor_slope(s.take<double>(n + 2)),
        ceiling_at(s.take<int32_t>(n + 2)), floor_at(s.take<int32_t>(n + 2)) {}
};

// The solution's running sum is the shortest path from (0, 0) to (n, sum[n]) between sum - lam (floor) and sum + lam
// (ceiling); y are its slopes. From the last point fixed (the apex), the string under the ceiling is a convex chain,
// the one over the floor a concave chain; a new post that crosses the other chain fixes that chain's first piece.
template <class T>
inline void taut_string(T* z, int64_t n, double lam, double first_shift, const double* inverse, TautString& w) {
  double* sum = w.sum;
  sum[0] = 0;
  for (int64_t k = 0; k < n; k++) sum[k + 1] = sum[k] + static_cast<double>(z[k]);
  for (int64_t k = 1; k <= n; k++) sum[k] += first_shift;

  int64_t apex = 0;
  double height = 0;
  // Chains as queues [head, tail); piece j ends at post at[j] and has slope[j].
  int64_t ceiling_head = 0, ceiling_tail = 0, floor_head = 0, floor_tail = 0;
  auto fix = [&](int64_t end, double slope, double end_height) {
    T v = static_cast<T>(slope);
    for (int64_t i = apex; i < end; i++) z[i] = v;
    apex = end;
    height = end_height;
  };
  for (int64_t k = 1; k <= n; k++) {
    double gap = k == n ? 0 : lam;  // the string ends on the sum itself
    double top = sum[k] + gap, bottom = sum[k] - gap, slope;

    for (;; ceiling_tail--) {  // keep the ceiling chain convex
      bool alone = ceiling_tail == ceiling_head;
      int64_t from = alone ? apex : w.ceiling_at[ceiling_tail - 1];
      slope = (top - (alone ? height : sum[from] + lam)) * inverse[k - from];
      if (alone || w.ceiling_slope[ceiling_tail - 1] < slope) break;
    }
    if (ceiling_tail == ceiling_head) {
      while (floor_head < floor_tail && slope < w.floor_slope[floor_head]) {
        int64_t post = w.floor_at[floor_head];
        fix(post, w.floor_slope[floor_head++], sum[post] - lam);
        slope = (top - height) * inverse[k - apex];
      }
      ceiling_head = ceiling_tail = 0;
      if (floor_head == floor_tail) floor_head = floor_tail = 0;
    }
    w.ceiling_at[ceiling_tail] = static_cast<int32_t>(k);
    w.ceiling_slope[ceiling_tail++] = slope;
    if (k == n) break;

    for (;; floor_tail--) {  // keep the floor chain concave
      bool alone = floor_tail == floor_head;
      int64_t from = alone ? apex : w.floor_at[floor_tail - 1];
      slope = (bottom - (alone ? height : sum[from] - lam)) * inverse[k - from];
      if (alone || w.floor_slope[floor_tail - 1] > slope) break;
    }
    if (floor_tail == floor_head) {
      while (ceiling_head < ceiling_tail && slope > w.ceiling_slope[ceiling_head]) {
        int64_t post = w.ceiling_at[ceiling_head];
        fix(post, w.ceiling_slope[ceiling_head++], sum[post] + lam);
        slope = (bottom - height) * inverse[k - apex];
      }
      floor_head = floor_tail = 0;
    }
    w.floor_at[floor_tail] = static_cast<int32_t>(k);
    w.floor_slope[floor_tail++] = slope;
  }
  // With the end post in place, the ceiling chain is the rest of the string.
  for (int64_t j = ceiling_head; j < ceiling_tail; j++) fix(w.ceiling_at[j], w.ceiling_slope[j], 0);
}

// Direct scan. Segment values can be anything in [low, high]; low_dual and high_dual are the duals at the scan
// position if the value were low or high (a dual beyond +-lam proves that value impossible); low_end and high_end are
// the last positions where the segment could still be closed with that value.
// `inverse` holds 1/1, 1/2, ... up to n. Returns how many leading values are final; if fewer than n, the step budget
// ran out and the rest is a run of its own whose first value is to be shifted by `first_shift`.
template <class T>
inline int64_t direct_scan(T* z, int64_t n, double lam, const double* inverse, int64_t budget, double& first_shift) {
  int64_t start = 0;
  first_shift = 0;
  auto close = [&](double value, int64_t end, double shift) {
    T v = static_cast<T>(value);
    while (start <= end) z[start++] = v;
    first_shift = shift;
  };
  while (start < n) {  // one segment after the other
    int64_t k = start, low_end = start, high_end = start;
    double first = static_cast<double>(z[start]) + first_shift;
    double low = first - lam, high = first + lam, low_dual = lam, high_dual = -lam;
    bool open = true;
    for (; k + 1 < n; k++) {
      if (budget-- <= 0) return start;
      double next = static_cast<double>(z[k + 1]);
      low_dual += next - low;
      high_dual += next - high;
      if (low_dual < -lam) {  // even the lowest value is too high from here: close with it and jump down
        close(low, low_end, lam);
        open = false;
        break;
      }
      if (high_dual > lam) {
        close(high, high_end, -lam);
        open = false;
        break;
      }
      if (low_dual >= lam) {  // low can rise by what the dual has in excess
        low_end = k + 1;
        low += (low_dual - lam) * inverse[k - start + 2];
        low_dual = lam;
      }
      if (high_dual <= -lam) {
        high_end = k + 1;
        high += (high_dual + lam) * inverse[k - start + 2];
        high_dual = -lam;
      }
    }
    if (!open) continue;
    // The dual must end at 0.
    if (low_dual < 0)
      close(low, low_end, lam);
    else if (high_dual > 0)
      close(high, high_end, -lam);
    else
      close(low + low_dual * inverse[k - start + 1], n - 1, 0);
  }
  return n;
}

template <class T>
inline void total_variation(T* z, int64_t n, double lam, const double* inverse, TautString& memory) {
  if (n < 2 || lam == 0) return;
  double shift;
  int64_t done = direct_scan(z, n, lam, inverse, n + n / 4 + 32, shift);
  if (done < n) taut_string(z + done, n - done, lam, shift, inverse, memory);
}

}  // namespace sa
