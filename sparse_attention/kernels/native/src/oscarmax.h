// oscarmax, exact: argmin over the simplex of |p - x/gamma|^2/2 + lam sum_{i<j} max(p_i, p_j).
//
// On the simplex p >= 0, so the penalty is lam sum_i (d - i) p_(i) with p_(1) >= p_(2) >= ...: sort z = x/gamma in
// decreasing order, subtract lam (d - i), make decreasing (PAV), project. Adding a constant to all of it changes nothing
// (sum p = 1), so v_i = z_(i) + lam i will do.
//
// Three shortcuts, all exact:
//  - An entry of rank r stays below z_(1) + lam - 1 <= tau if z_(r) + lam (c - 1) < z_(1) - 1, c the number of entries in
//    play. Such entries, and all behind them, go; with fewer in play the test gets sharper and is repeated.
//  - If no entry is further than lam c / 4 from the mean, all c form one block and nothing needs sorting: one block means
//    sum_{i<=k} (z_(i) - mean) <= lam k (c - k) / 2 for all k, and the left side is at most k (max - mean) and at most
//    (c - k) (mean - min).
//  - Neighbours in order that lie closer than lam always end in one block, since then v rises. So values are counted into
//    buckets narrower than lam instead of sorted: a bucket is never divided, and only buckets are pooled.
#pragma once
#include "fusedmax.h"
#include "sorting.h"

namespace sa {

template <class T>
struct OscarmaxMemory {
  T *b, *sorted;
  int32_t *index, *sorted_index, *block_size;
  double* block_sum;
  Keyed *keyed, *other;
  uint32_t* counts;
  struct Bucket {
    double sum, count;
  }* bucket;
  double *sum_to, *count_to;
  int32_t *open, *bucket_block;
  T* bucket_value;
  static int64_t most_buckets(int64_t n) { return 2 * n + 64; }
  static size_t bytes(int64_t n) {
    return 2 * room<T>(n) + 3 * room<int32_t>(n) + room<double>(n) + 2 * room<Keyed>(n) + room<uint32_t>(3 * 2048) +
           room<Bucket>(most_buckets(n)) + 2 * room<double>(most_buckets(n)) + 2 * room<int32_t>(most_buckets(n)) +
           room<T>(most_buckets(n));
  }
  OscarmaxMemory(Scratch s, int64_t n)
      : b(s.take<T>(n + 32)), sorted(s.take<T>(n + 32)), index(s.take<int32_t>(n + 32)),
        sorted_index(s.take<int32_t>(n + 32)), block_size(s.take<int32_t>(n + 1)), block_sum(s.take<double>(n + 1)),
        keyed(s.take<Keyed>(n)), other(s.take<Keyed>(n)), counts(s.take<uint32_t>(3 * 2048)),
        bucket(s.take<Bucket>(most_buckets(n))), sum_to(s.take<double>(most_buckets(n) + 32)),
        count_to(s.take<double>(most_buckets(n) + 32)), open(s.take<int32_t>(most_buckets(n))),
        bucket_block(s.take<int32_t>(most_buckets(n))), bucket_value(s.take<T>(most_buckets(n))) {}
};

// Keeps the packed values at or above `limit`, in place.
template <class T>
inline int64_t keep_at_least(T* b, int32_t* index, int64_t c, T limit) {
  int64_t kept = 0;
  for (int64_t i = 0; i < c; i++) {
    b[kept] = b[i];
    index[kept] = index[i];
    kept += b[i] >= limit;
  }
  return kept;
}

// Decreasing isotonic regression of v_i = sorted_i + lam (i + 1) by pooling adjacent violators; returns the number of
// blocks, with their sums and sizes.
template <class T>
inline int64_t pool_adjacent_violators(const T* sorted, int64_t c, double lam, double* block_sum, int32_t* block_size) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < c; i++) {
    double s = static_cast<double>(sorted[i]) + lam * static_cast<double>(i + 1);
    int32_t size = 1;
    while (blocks > 0 && block_sum[blocks - 1] * size <= s * block_size[blocks - 1]) {
      blocks--;
      s += block_sum[blocks];
      size += block_size[blocks];
    }
    block_sum[blocks] = s;
    block_size[blocks++] = size;
  }
  return blocks;
}

template <class T>
inline bool is_one_block(const T* b, int64_t c, double lam) {
  using V = Vec<T>;
  V low = V::all(0);
  double total = 0;
  int64_t i = 0;
  while (i + V::W <= c) {
    V s = V::all(0);
    for (int64_t end = i + block < c ? i + block : c; i + V::W <= end; i += V::W) {
      V v = V::load(b + i);
      low = min(v, low);
      s = s + v;
    }
    total += sum(s);
  }
  double least = -largest(V::all(0) - low);
  for (; i < c; i++) {
    total += b[i];
    least = b[i] < least ? b[i] : least;
  }
  double mean = total / static_cast<double>(c), reach = lam * static_cast<double>(c) * 0.25 * (1 - 1e-6);
  return -mean <= reach && mean - least <= reach;  // the maximum is 0
}

inline void sort_descending(OscarmaxMemory<float>& w, int64_t c) {
  if (c <= rank_sort_limit) return rank_sort(w.b, w.index, c, w.sorted, w.sorted_index);
  for (int64_t i = 0; i < c; i++) w.keyed[i] = {descending_key(w.b[i]), static_cast<uint32_t>(i)};
  const Keyed* order = radix_sort(w.keyed, w.other, c, w.counts);
  for (int64_t i = 0; i < c; i++) {
    w.sorted[i] = w.b[order[i].at];
    w.sorted_index[i] = w.index[order[i].at];
  }
}

// float64: the leading 32 bits by radix, the rest by insertion among the few that share them.
inline void sort_descending(OscarmaxMemory<double>& w, int64_t c) {
  if (c <= rank_sort_limit / 4) return rank_sort(w.b, w.index, c, w.sorted, w.sorted_index);
  for (int64_t i = 0; i < c; i++) w.keyed[i] = {descending_key(static_cast<float>(w.b[i])), static_cast<uint32_t>(i)};
  const Keyed* order = radix_sort(w.keyed, w.other, c, w.counts);
  for (int64_t i = 0; i < c; i++) {
    double v = w.b[order[i].at];
    int32_t at = w.index[order[i].at];
    int64_t j = i;
    for (; j > 0 && w.sorted[j - 1] < v; j--) {
      w.sorted[j] = w.sorted[j - 1];
      w.sorted_index[j] = w.sorted_index[j - 1];
    }
    w.sorted[j] = v;
    w.sorted_index[j] = at;
  }
}

// Where in (from, to) sum_to - slope count_to is largest, or `from` if it is not larger there than at `from` by `rounding`.
inline int64_t farthest_above(const double* sum_to, const double* count_to, int64_t from, int64_t to, double slope,
                              double rounding) {
  using V = Vec<double>;
  constexpr int64_t stretch = 4 * V::W;
  double most = sum_to[from] - slope * count_to[from] + rounding;
  int64_t best = from;
  for (int64_t i = from + 1; i < to; i += stretch) {
    V high = V::all(most);
    const int64_t end = i + stretch < to ? i + stretch : to;
    for (int64_t j = i; j < end; j += V::W)
      high = max(load_row(sum_to, j, end, -1e300) - V::all(slope) * load_row(count_to, j, end, 0.0), high);
    const double value = largest(high);
    if (value > most) {
      most = value;
      best = i;
    }
  }
  if (best == from) return from;
  const int64_t end = best + stretch < to ? best + stretch : to;
  while (best + 1 < end && sum_to[best] - slope * count_to[best] + rounding < most) best++;
  return best;
}

// The row by buckets, where there are not too many; false otherwise. The c values lie in w.b, their places in w.index.
template <class T>
inline bool oscarmax_by_buckets(T* p, int32_t* id, int64_t n, double lam, int64_t c, OscarmaxMemory<T>& w) {
  using V = Vec<T>;
  if (c <= 32) return false;
  V low = V::load(w.b);
  int64_t i = 0;
  for (; i + V::W <= c; i += V::W) low = min(V::load(w.b + i), low);
  T least = -largest(V::all(0) - low);
  for (; i < c; i++) least = w.b[i] < least ? w.b[i] : least;
  const double most = static_cast<double>(-least) / lam * 1.00001 + 2;
  const double many = static_cast<double>(c <= 128 ? c : OscarmaxMemory<T>::most_buckets(n));  // few are sorted as fast
  if (!(most < many)) return false;
  const int64_t buckets = static_cast<int64_t>(most);
  std::memset(w.bucket, 0, sizeof(*w.bucket) * static_cast<size_t>(buckets));
  const T narrow = static_cast<T>(-1.000005 / lam);
  for (i = 0; i < c; i++) w.sorted_index[i] = static_cast<int32_t>(w.b[i] * narrow);  // its bucket
  for (i = 0; i < c; i++) {
    w.bucket[w.sorted_index[i]].sum += static_cast<double>(w.b[i]);
    w.bucket[w.sorted_index[i]].count += 1;
  }
  double total = 0, count = 0;
  w.sum_to[0] = w.count_to[0] = 0;
  for (i = 0; i < buckets; i++) {
    const double here = w.bucket[i].count;
    total += w.bucket[i].sum + lam * here * (count + 0.5 * (here + 1));
    count += here;
    w.sum_to[i + 1] = total;
    w.count_to[i + 1] = count;
  }
  using D = Vec<double>;
  D highest = D::all(0);
  for (i = 0; i <= buckets; i += D::W) {
    const D v = load_row(w.sum_to, i, buckets + 1, 0.0);
    highest = max(max(v, D::all(0) - v), highest);
  }
  const double rounding = 4e-16 * largest(highest);
  // The blocks from the left, until one is not above the threshold of those before: the corners of the least concave
  // majorant of sum_to over count_to. A stretch whose chord nothing exceeds is a block, else it is cut at what exceeds most.
  double mass = 0, support = 0, tau = 0;
  int64_t blocks = 0, from = 0, waiting = 1;
  for (w.open[0] = static_cast<int32_t>(buckets); waiting > 0;) {
    const int64_t to = w.open[waiting - 1];
    const double s = w.sum_to[to] - w.sum_to[from], size = w.count_to[to] - w.count_to[from];
    const int64_t corner = farthest_above(w.sum_to, w.count_to, from, to, s / size, rounding);
    if (corner > from) {
      w.open[waiting++] = static_cast<int32_t>(corner);
      continue;
    }
    if (blocks > 0 && s <= tau * size) break;
    mass += s;
    support += size;
    tau = (mass - 1) / support;
    w.block_sum[blocks] = s / size;
    w.block_size[blocks++] = static_cast<int32_t>(to);
    from = to;
    waiting--;
  }
  int64_t e = 0;
  for (i = 0; i < blocks; i++)
    for (; e < w.block_size[i]; e++) {
      w.bucket_block[e] = static_cast<int32_t>(i);
      w.bucket_value[e] = static_cast<T>(w.block_sum[i] - tau);
    }
  for (; e < buckets; e++) {
    w.bucket_block[e] = -1;
    w.bucket_value[e] = 0;
  }
  if (c == n) {
    for (i = 0; i < c; i++) p[i] = w.bucket_value[w.sorted_index[i]];
    for (i = 0; i < c; i++) id[i] = w.bucket_block[w.sorted_index[i]];
    return true;
  }
  std::memset(p, 0, sizeof(T) * static_cast<size_t>(n));
  std::memset(id, 0xff, sizeof(int32_t) * static_cast<size_t>(n));
  for (i = 0; i < c; i++) {
    p[w.index[i]] = w.bucket_value[w.sorted_index[i]];
    id[w.index[i]] = w.bucket_block[w.sorted_index[i]];
  }
  return true;
}

template <class T>
inline void oscarmax_row(const T* x, T* p, int32_t* id, int64_t n, T maximum, T scale, double lam, int64_t kept,
                         OscarmaxMemory<T>& w) {
  // A hair of slack, because b is rounded.
  auto limit = [&](int64_t c) {
    double t = -1 - lam * static_cast<double>(c - 1);
    return static_cast<T>(t * (1 + 4 * static_cast<double>(std::numeric_limits<T>::epsilon())));
  };
  int64_t c = pack_with_index(x, n, maximum, scale, limit(kept), w.b, w.index);
  for (int64_t before = kept; c > 1 && c < before - before / 32;) {  // not for a few
    before = c;
    c = keep_at_least(w.b, w.index, c, limit(c));
  }
  if (is_one_block(w.b, c, lam)) {
    T share = static_cast<T>(1.0 / static_cast<double>(c));
    if (c == n) {
      fill_row(p, n, share);
      std::memset(id, 0, sizeof(int32_t) * static_cast<size_t>(n));
      return;
    }
    std::memset(p, 0, sizeof(T) * static_cast<size_t>(n));
    std::memset(id, 0xff, sizeof(int32_t) * static_cast<size_t>(n));
    for (int64_t i = 0; i < c; i++) {
      p[w.index[i]] = share;
      id[w.index[i]] = 0;
    }
    return;
  }
  if (oscarmax_by_buckets(p, id, n, lam, c, w)) return;
  sort_descending(w, c);
  int64_t blocks = pool_adjacent_violators(w.sorted, c, lam, w.block_sum, w.block_size);
  // Block values decrease, so the simplex threshold comes from one scan that stops at the first block below it.
  double mass = 0, tau = 0;
  int64_t support = 0, used = 0;
  for (; used < blocks; used++) {
    if (used > 0 && w.block_sum[used] <= tau * w.block_size[used]) break;
    mass += w.block_sum[used];
    support += w.block_size[used];
    tau = (mass - 1) / static_cast<double>(support);
  }
  std::memset(p, 0, sizeof(T) * static_cast<size_t>(n));
  std::memset(id, 0xff, sizeof(int32_t) * static_cast<size_t>(n));
  for (int64_t e = 0, i = 0; e < used; e++) {
    T value = static_cast<T>(w.block_sum[e] / w.block_size[e] - tau);
    for (int64_t stop = i + w.block_size[e]; i < stop; i++) {
      p[w.sorted_index[i]] = value;
      id[w.sorted_index[i]] = static_cast<int32_t>(e);
    }
  }
}

// Also writes each entry's block (-1 off the support), which is all the backward pass needs.
template <class T>
int oscarmax_forward(const T* x, T* p, int32_t* id, Values lam, Values gamma, int64_t rows, int64_t n, int threads) {
  return for_rows(rows, 60 + 15.0 * n, threads, OscarmaxMemory<T>::bytes(n),
                  [&](int64_t first, int64_t last, char* memory) {
    OscarmaxMemory<T> w(Scratch{memory}, n);
    for (int64_t r = first; r < last; r++) {
      RowMaximum<T> m = row_maximum(x + r * n, n);
      m.nan = m.nan || lam[r] != lam[r] || gamma[r] != gamma[r];
      if (!m.usable()) {
        write_unusable_row(p + r * n, n, m);
        // A NaN row marks itself by -2, so that its gradient is NaN as well.
        bool empty = !m.nan && m.value == -infinity<T>();
        for (int64_t i = 0; i < n; i++) id[r * n + i] = empty ? -1 : -2;
        continue;
      }
      oscarmax_row(x + r * n, p + r * n, id + r * n, n, m.value, reciprocal<T>(gamma[r]), lam[r], n, w);
    }
  });
}

// Jacobian: block averages (PAV), then the support's mean is taken off (simplex). dlam, dgamma [rows] or null; they need
// `x`. With h = gamma dx, equal within a block: dlam = sum_i h_(i) i, i the place in decreasing order; dgamma = -x.dx/gamma.
template <class T>
int oscarmax_backward(const T* g, const T* x, const int32_t* id, T* dx, Values gamma, double* dlam, double* dgamma,
                      int64_t rows, int64_t n, int threads) {
  return for_rows(rows, 30 + 4.0 * n, threads, room<double>(2 * n) + room<int32_t>(2 * n) + room<int32_t>(n + 1),
                  [&](int64_t first, int64_t last, char* memory) {
    Scratch s{memory};
    double* value = s.take<double>(2 * n);
    int32_t *size = s.take<int32_t>(2 * n), *at = s.take<int32_t>(n + 1);
    for (int64_t r = first; r < last; r++) {
      const T* gr = g + r * n;
      const int32_t* ids = id + r * n;
      T* out = dx + r * n;
      const double scale = 1 / gamma[r];
      int32_t blocks = 0;
      if (dlam) dlam[r] = dgamma[r] = 0;
      for (int64_t i = 0; i < n; i++) blocks = ids[i] + 1 > blocks ? ids[i] + 1 : blocks;
      if (ids[0] == -2) {
        fill_row(out, n, std::numeric_limits<T>::quiet_NaN());
        if (dlam) dlam[r] = dgamma[r] = std::numeric_limits<double>::quiet_NaN();
        continue;
      }
      if (blocks <= 1) {  // one block: its average is the support's mean
        fill_row(out, n, T(0));
        continue;
      }
      int64_t support = 0;
      for (int64_t i = 0; i < n; i++) {
        at[support] = static_cast<int32_t>(i);
        support += ids[i] >= 0;
      }
      // Neighbours are often of one block, and an addition waits for the one before: two sums a block, in turns.
      for (int32_t e = 0; e < 2 * blocks; e++) value[e] = size[e] = 0;
      for (int64_t k = 0; k < support; k++) {
        const int64_t slot = 2 * static_cast<int64_t>(ids[at[k]]) + (k & 1);
        value[slot] += static_cast<double>(gr[at[k]]);
        size[slot]++;
      }
      double total = 0;
      for (int32_t e = 0; e < blocks; e++) {
        value[e] = value[2 * e] + value[2 * e + 1];
        size[e] = size[2 * e] + size[2 * e + 1];
        total += value[e];
      }
      const double mean = total / static_cast<double>(support);
      for (int32_t e = 0; e < blocks; e++) value[e] = (value[e] / size[e] - mean) * scale;
      fill_row(out, n, T(0));
      for (int64_t k = 0; k < support; k++) out[at[k]] = static_cast<T>(value[ids[at[k]]]);
      if (!dlam) continue;
      double places = 0;
      for (int32_t e = 0; e < blocks; e++) {  // sum of the places i from `places` + 1 on
        dlam[r] += value[e] * size[e] * (places + 0.5 * (size[e] + 1));
        places += size[e];
      }
      dlam[r] *= gamma[r];
      dgamma[r] = -score_slope(x + r * n, out, n) * scale;
    }
  });
}

}  // namespace sa
