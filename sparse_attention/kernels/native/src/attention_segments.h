// fusedmax of one query: p = (y - tau)_+ with y the total variation prox of its scores (fusedmax.h), but y only where it
// exceeds tau, since nothing else is needed.
//
// By the coarea formula (Darbon & Sigelle 2006) the level set {y > t} is the set of keys with the largest
//     G(A, t) = sum_{i in A} (z_i - t) - lam (number of places where A meets another key),
// and that largest value is F(t) = sum_i (y_i - t)_+, which is 1 at tau. So
//   - any set gives a lower bound of tau, the root of G(A, t) = 1. Single keys give the threshold of sparsemax of the
//     scores less 2 lam. Since |y - z| <= 2 lam, a key is out for certain at 4 lam below the threshold of sparsemax over
//     the keys seen so far: Row::lift.
//   - the level set of a bound gives the next bound by Newton's step, exact once the set stays the same.
// A level set comes from the Viterbi algorithm of two states, in or out: D_k is how much better it is, up to key k, that k
// is in, and D_{k+1} = z_{k+1} - t + clamp(D_k, -lam, lam) (Johnson 2013). On the last level set, the support, the prox falls
// into runs that each end in a jump down (total_variation.h).
#pragma once
#include <optional>

#include "attention_tile.h"
#include "total_variation_lanes.h"

namespace sa {

// The candidates of a query, with one gap wherever a key that it sees is missing between, before or after them.
struct LevelSet {
  float* z;       // less the largest; of a gap so low that it is out
  int32_t* key;   // or `gap`
  uint8_t *flag, *up, *down, *in, *stay;  // of Viterbi
  int32_t gaps[V::W];
  uint8_t* kept;  // of finish_carefully: a mask
  double lam;
  bool pinned;  // every query sees key 0
  double* inverse;
  TautString string;
  int64_t places = 0, count = 0, edges = 0;  // edges: between a key and a gap
  double sum = 0;

  static constexpr int32_t gap = -1;
  static size_t bytes(int64_t m) {
    return room<float>(m) + room<int32_t>(m) + 6 * room<uint8_t>(m) + room<double>(m) + TautString::bytes(m);
  }
  LevelSet(Scratch& s, int64_t m, double lam, bool pinned)
      : z(s.take<float>(m + 32)), key(s.take<int32_t>(m + 32)), flag(s.take<uint8_t>(m + 2)), up(s.take<uint8_t>(m)),
        down(s.take<uint8_t>(m)), in(s.take<uint8_t>(m)), stay(s.take<uint8_t>(m + 2)), kept(s.take<uint8_t>(m + 2)),
        lam(lam), pinned(pinned), inverse(s.take<double>(m + 2)), string(s, m) {
    for (int32_t& g : gaps) g = gap;
    for (int64_t i = 1; i <= m; i++) inverse[i] = 1.0 / static_cast<double>(i);
  }

  void clear() { places = count = edges = 0, sum = 0; }
  // Scores of neighbouring keys, less `top`.
  void add(const float* score, const int32_t* at, int64_t n, float top) {
    edges += places > 0 && key[places - 1] == gap;
    std::memcpy(key + places, at, static_cast<size_t>(n) * sizeof *key);
    V total = V::all(0);
    for (int64_t i = 0; i < n; i += V::W) {
      const V value = load_row(score, i, n, top) - V::all(top);
      value.store(z + places + i);
      total = total + value;
    }
    sum += static_cast<double>(sa::sum(total));
    places += n, count += n;
  }
  void add_gap() {
    edges += places > 0;
    z[places] = padding;
    key[places++] = gap;
  }

  // A lower bound of tau; tau itself if this is the support.
  double bound() const { return (sum - lam * static_cast<double>(edges) - 1) / static_cast<double>(count); }

  // What is left above t, a lower bound of tau.
  //
  // Eight stretches of the places at once, a bit each of `up`, `down` and `in`: each begins as if D were 0 there. Where D leaves
  // [-lam, lam] it forgets its past, so only the first few places of a stretch have to be done again.
  void narrow(double t) {
    float* const z = this->z;  // no store to bytes below can change these
    int32_t* const key = this->key;
    uint8_t *const flag = this->flag, *const up = this->up, *const down = this->down, *const in = this->in,
            *const stay = this->stay;
    const int64_t end = places;
#ifdef SPARSE_ATTENTION_AVX512
    const int64_t part = end < 64 ? 0 : end / lane_count;
#else
    constexpr int64_t part = 0;
#endif
    const int64_t rest = part * lane_count;
    const double high = lam, low = -lam;
    auto clamped = [&](double d) { return d < low ? low : d > high ? high : d; };
    double before = 0;
#ifdef SPARSE_ATTENTION_AVX512
    LaneReal d = {};
    LaneInt at = {};
    for (int r = 0; r < lane_count; r++) at[r] = reinterpret_cast<int64_t>(z + r * part);
    for (int64_t i = 0; i < part; i++, at += 4) {
      d = gather<float>(at) - t + d;
      const LaneInt above = d > high, below = d < low;
      up[i] = set_lanes(above);
      down[i] = set_lanes(below);
      d = above ? LaneReal{} + high : below ? LaneReal{} + low : d;
    }
    before = d[0];
    for (int r = 1; r < lane_count && part; r++) {
      const uint8_t bit = static_cast<uint8_t>(1 << r);
      bool same = false;
      for (int64_t i = 0; i < part && !same; i++) {
        const double now = static_cast<double>(z[r * part + i]) - t + before;
        const bool above = now > high, below = now < low;
        same = (above && up[i] & bit) || (below && down[i] & bit);
        up[i] = static_cast<uint8_t>((up[i] & ~bit) | (above ? bit : 0));
        down[i] = static_cast<uint8_t>((down[i] & ~bit) | (below ? bit : 0));
        before = clamped(now);
      }
      if (same) before = d[r];
    }
#endif
    for (int64_t k = rest; k < end; k++) {
      const double now = static_cast<double>(z[k]) - t + before;
      flag[k] = static_cast<uint8_t>((now > high) * 2 + (now < low));
      before = clamped(now);
    }

    uint8_t next = before > 0, all = 0;
    for (int64_t k = end - 1; k >= rest; k--) flag[k] = next = flag[k] ? flag[k] >> 1 : next;
    for (int64_t i = part - 1; i >= 0; i--) in[i] = all = static_cast<uint8_t>(up[i] | (all & ~down[i]));
    for (int r = lane_count - 1; r >= 0 && part; r--) {
      for (int64_t i = part - 1; next && i >= 0 && !((up[i] | down[i]) >> r & 1); i--) in[i] |= static_cast<uint8_t>(1 << r);
      next = in[0] >> r & 1;
    }

    for (int r = 0; r < lane_count; r++)
      for (int64_t i = 0; i < part; i++) flag[r * part + i] = in[i] >> r & 1;
    int64_t c = 0, inside = 0, changes = 0;
    stay[0] = 1;
    for (int64_t k = 0; k < end; k++) inside += flag[k];
    for (int64_t k = 1; k < end; k++) changes += flag[k] ^ flag[k - 1];
    for (int64_t k = 1; k < end; k++) stay[k] = flag[k] | flag[k - 1];  // one gap for several
    double total = 0;
    const V low_score = V::all(padding), no_key = V::load(reinterpret_cast<const float*>(gaps));
    for (int64_t k = 0; k < end; k += V::W) {
      const auto is_in = kept_lanes(flag + k, end - k), stays = kept_lanes(stay + k, end - k);
      const V value = V::load(z + k), at = V::load(reinterpret_cast<const float*>(key + k));  // moved, never looked at
      total += static_cast<double>(sa::sum(select_or_zero(is_in, value)));
      compress(reinterpret_cast<float*>(key + c), stays, select(is_in, at, no_key));
      c += compress(z + c, stays, select(is_in, value, low_score));
    }
    places = c, count = inside, edges = changes, sum = total;
  }
};

// Whether the query sees a key from `from` to below `to`.
inline bool sees(const Row& row, bool pinned, int64_t from, int64_t to) {
  auto counts = [&](int64_t j) {
    return (!row.kept || row.kept[j]) && (!row.bias || row.factor * row.bias[j] > -infinity<float>());
  };
  if (pinned && from <= 0 && to > 0 && counts(0)) return true;
  from = from > row.begin ? from : row.begin;
  to = to < row.limit ? to : row.limit;
  while (from < to && !counts(from)) from++;
  return from < to;
}

// As `finish` of attention_row.h. The first weight of each run of equal neighbours gets a minus sign: all that the backward
// has to know.
inline int64_t finish_segments(Row& row, LevelSet& w) {
  for (int64_t before = -1; row.count > 0 && before != row.count;) {
    before = row.count;
    settle<1>(row);
  }
  if (row.count == 0) return 0;
  const float top = highest(row.score, row.count);
  w.clear();
  for (int64_t e = 0; e < row.count;) {
    const int32_t at = row.column[e], next = e ? row.column[e - 1] + 1 : 0;
    if (next != at && sees(row, w.pinned, next, at)) w.add_gap();
    int64_t end = row.column[row.count - 1] - at == row.count - 1 - e ? row.count : e + 1;
    while (end < row.count && row.column[end] == row.column[end - 1] + 1) end++;
    w.add(row.score + e, row.column + e, end - e, top);
    e = end;
  }
  if (sees(row, w.pinned, row.column[row.count - 1] + 1, row.limit)) w.add_gap();
  // Where segments are long, the prox of all candidates is the shorter way.
  const bool flat = is_flat(row.score, row.count, w.lam);
  // Single keys give a bound too: they lose at most 2 lam.
  const double single = static_cast<double>(rounded_down(static_cast<double>(row.bound) - static_cast<double>(top) + 2 * w.lam));
  for (int64_t before = -1; !flat && before != w.count;) {
    const double bound = w.bound();
    const bool first = before < 0;
    before = w.count;
    w.narrow(first && single > bound ? single : bound);
  }
  row.count = 0;
  for (int64_t a = 0; a < w.places; a++) {
    if (w.key[a] == LevelSet::gap) continue;
    int64_t e = a + 1;
    while (e < w.places && w.key[e] != LevelSet::gap) e++;
    if (a > 0) w.z[a] -= static_cast<float>(w.lam);
    if (e < w.places) w.z[e - 1] -= static_cast<float>(w.lam);
    if (total_variation(w.z + a, e - a, w.lam, w.inverse, w.string) && e - a == w.places) {
      fill_row(row.score, w.places, 1 / static_cast<float>(w.places));
      row.score[0] = -row.score[0];
      std::memcpy(row.column, w.key, static_cast<size_t>(w.places) * sizeof *w.key);
      return row.count = w.places;
    }
    std::memcpy(row.score + row.count, w.z + a, static_cast<size_t>(e - a) * sizeof *w.z);
    std::memcpy(row.column + row.count, w.key + a, static_cast<size_t>(e - a) * sizeof *w.key);
    row.count += e - a;
    a = e;
  }
  row.bound = -infinity<float>();
  finish<1>(row);
  float before = -1;
  for (int64_t e = 0; e < row.count; e++) {
    const int32_t at = row.column[e], next = e ? row.column[e - 1] + 1 : 0;
    const float p = row.score[e];
    if (p != before || (next != at && sees(row, w.pinned, next, at))) row.score[e] = -p;
    before = p;
  }
  return row.count;
}

template <int power>
inline int64_t finish(Row& row, const AnyAlpha* any, std::optional<LevelSet>& levels) {
  return levels ? finish_segments(row, *levels) : finish<power>(row, any);
}

// The Jacobian: the gradient's mean over each run, less its mean over the support. dP in `ds` becomes the gradient of the
// scores times `scale`, and the marked weights in `p` become P.
inline void through_segments(float* p, float* ds, int64_t count, float scale) {
  if (p[0] != p[0]) return fill_row(ds, count, p[0]);
  double total = 0;
  for (int64_t e = 0; e < count; e++) total += static_cast<double>(ds[e]);
  const double mean = total / static_cast<double>(count);
  for (int64_t a = 0, e = 0; a < count; a = e) {
    double run = 0;
    do {
      run += static_cast<double>(ds[e]);
      p[e] = std::fabs(p[e]);
      e++;
    } while (e < count && p[e] > 0);
    fill_row(ds + a, e - a, static_cast<float>((run / static_cast<double>(e - a) - mean) * static_cast<double>(scale)));
  }
}

}  // namespace sa
