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

// Steps of a long segment, eight at a time, as long as none of them ends it. After m values with the sum S, the segment's value
// is at least (S - lam) / m and at most (S + lam) / m.
struct Leap {
  double low, high, sum;  // so far
  int64_t low_end, high_end;

  // From k, the last position seen of the segment that begins at `start`. Returns the new k.
  template <class T>
  int64_t go(const T* z, int64_t n, int64_t start, int64_t k, double lam, const double* inverse) {
    using V = Vec<double>;
    const V slack = V::all(lam);
    alignas(64) double s[8], least[8], most[8];
    for (; k + 9 < n; k += 8) {
      auto x = [&](int i) { return static_cast<double>(z[k + 1 + i]); };
      const double two = x(0) + x(1), four = two + (x(2) + x(3)), pair = x(4) + x(5), six = four + pair;
      s[0] = x(0), s[1] = two, s[2] = two + x(2), s[3] = four;
      s[4] = four + x(4), s[5] = six, s[6] = six + x(6), s[7] = four + (pair + (x(6) + x(7)));
      V top = V::all(-infinity<double>()), bottom = top;  // of the lower bounds, and of the upper ones' negatives
      for (int i = 0; i < 8; i += V::W) {
        const V all = V::all(sum) + V::load(s + i), share = V::load(inverse + (k + 2 - start) + i);
        const V one = (all - slack) * share, other = (all + slack) * share;
        one.store(least + i);
        other.store(most + i);
        top = max(top, one);
        bottom = max(bottom, V::all(0) - other);
      }
      const double highest = largest(top), lowest = -largest(bottom);
      if (highest > lowest || low > lowest || highest > high) break;
      if (highest >= low)
        for (int i = 0; i < 8; i++) low_end = least[i] == highest ? k + 1 + i : low_end;
      if (lowest <= high)
        for (int i = 0; i < 8; i++) high_end = most[i] == lowest ? k + 1 + i : high_end;
      low = highest > low ? highest : low;
      high = lowest < high ? lowest : high;
      sum += s[7];
    }
    return k;
  }
};

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
    int64_t leap_from = start + 8;
    for (; k + 1 < n; k++) {
      if (budget-- <= 0) return start;
      if (k >= leap_from) {
        Leap leap{low, high, low_dual + static_cast<double>(k - start + 1) * low, low_end, high_end};
        const int64_t to = leap.go(z, n, start, k, lam, inverse);
        leap_from = to + 8;
        if (to > k) {
          budget -= (to - k) / 8;
          k = to, low = leap.low, high = leap.high, low_end = leap.low_end, high_end = leap.high_end;
          low_dual = leap.sum - static_cast<double>(k - start + 1) * low;
          high_dual = leap.sum - static_cast<double>(k - start + 1) * high;
        }
      }
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

// Whether the values differ so little that segments are long: then the scan of one row is faster than that of eight at once.
template <class T>
inline bool is_flat(const T* z, int64_t n, double lam) {
  using V = Vec<T>;
  V most = V::all(z[0]), least = V::all(-z[0]);
  for (int64_t i = 0; i < n; i += V::W) {
    const V x = load_row(z, i, n, z[0]);
    most = max(most, x);
    least = max(least, V::all(0) - x);
  }
  return static_cast<double>(largest(most)) + static_cast<double>(largest(least)) <= 2 * lam;
}

// Replaces all values by their mean if that is the solution: if no running sum of them, less the mean, leaves [-lam, lam].
template <class T>
inline bool fuses_whole(T* z, int64_t n, double lam, const double* inverse) {
  constexpr int parts = 8;
  const int64_t part = n / parts;
  double sums[parts] = {}, total = 0;
  for (int64_t i = 0; i < part; i++)
    for (int r = 0; r < parts; r++) sums[r] += static_cast<double>(z[r * part + i]);
  for (double sum : sums) total += sum;
  for (int64_t k = parts * part; k < n; k++) total += static_cast<double>(z[k]);
  const double mean = total * inverse[n];
  double start[parts], most[parts], least[parts], at = 0;
  for (int r = 0; r < parts; r++) {
    start[r] = most[r] = least[r] = at;
    at += sums[r] - mean * static_cast<double>(part);
    if (std::fabs(at) > lam) return false;
  }
  for (int64_t i = 0; i < part; i++)
    for (int r = 0; r < parts; r++) {
      start[r] += static_cast<double>(z[r * part + i]) - mean;
      most[r] = start[r] > most[r] ? start[r] : most[r];
      least[r] = start[r] < least[r] ? start[r] : least[r];
    }
  for (int r = 0; r < parts; r++)
    if (most[r] > lam || least[r] < -lam) return false;
  for (int64_t k = parts * part; k < n; k++)
    if (std::fabs(at += static_cast<double>(z[k]) - mean) > lam) return false;
  for (int64_t k = 0; k < n; k++) z[k] = static_cast<T>(mean);
  return true;
}

// Returns whether it is known that all values are now equal.
template <class T>
inline bool total_variation(T* z, int64_t n, double lam, const double* inverse, TautString& memory) {
  if (n < 2 || lam == 0) return n < 2;
  if (n >= 8 && fuses_whole(z, n, lam, inverse)) return true;
  double shift;
  int64_t done = direct_scan(z, n, lam, inverse, n + n / 4 + 32, shift);
  if (done < n) taut_string(z + done, n - done, lam, shift, inverse, memory);
  return false;
}

}  // namespace sa
