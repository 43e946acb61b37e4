// What a call is about, how it is shared out, and the support it leaves: its keys, row by row, the only thing kept
// for the backward.
#pragma once
#include "rows.h"

namespace sa {

// The same fields as Shape in ../attention_shape.py.
struct Shape {
  int64_t heads, groups;  // of q [heads, n, d]; of k [groups, m, d] and v [groups, m, e]: head h reads h / (heads / groups)
  int64_t n, m, d, e;
  double scale;
  bool causal;             // query i sees the keys 0 .. i + m - n
  const int64_t* lengths;  // [heads] or null: keys from lengths[h] on are padding
  const int64_t* spans = nullptr;  // [heads or 1, n, 2] or null: each query sees the keys from the first number to below the second
  bool spans_of_heads = false;
  bool pinned = false;             // every query also sees key 0
  double alpha = 2;                // of the mapping
  const double* alphas = nullptr;  // [heads] or null: an alpha for each head instead
  const float* bias = nullptr;     // or null; head h's for query i begins at bias_at[h] + i bias_row
  const int64_t* bias_at = nullptr;
  int64_t bias_row = 0;
  const uint8_t* kept = nullptr;  // or null; the keys that a query sees, laid out in the same way
  const int64_t* kept_at = nullptr;
  int64_t kept_row = 0;
  double dropout = 0;  // the share of the weights set to zero
  int64_t seed = 0;
  double lam = 0;  // above 0: of the total variation (attention_segments.h); alpha is 2

  int64_t group(int64_t head) const { return head / (heads / groups); }
  double alpha_of(int64_t head) const { return alphas ? alphas[head] : alpha; }
  const float* bias_of(int64_t head, int64_t query) const { return bias ? bias + bias_at[head] + query * bias_row : nullptr; }
  const uint8_t* kept_of(int64_t head, int64_t query) const { return kept ? kept + kept_at[head] + query * kept_row : nullptr; }
  const int64_t* span(int64_t head, int64_t query) const { return spans + 2 * ((spans_of_heads ? head * n : 0) + query); }
  int64_t begin(int64_t head, int64_t query) const {  // the keys from here on are seen
    const int64_t first = spans ? span(head, query)[0] : 0;
    return pinned && first == 0 ? 1 : first;
  }
  int64_t limit(int64_t head, int64_t query) const {  // the keys below are seen
    int64_t keys = lengths && lengths[head] < m ? lengths[head] : m;
    if (causal && query + 1 + m - n < keys) keys = query + 1 + m - n;
    if (spans && span(head, query)[1] < keys) keys = span(head, query)[1];
    return keys > 0 ? keys : 0;
  }
};

// Which weights of a row survive dropout: a hash of the seed, the row and the key decides, so the backward needs no mask. Hash:
// splitmix64 for the row, two rounds of lowbias32 (Wellons, hash-prospector) for the key.
struct Dropout {
  uint32_t first, second, limit;
  float factor;  // 1 / (1 - dropout)

  Dropout(double share, int64_t seed, int64_t row) {
    uint64_t z = static_cast<uint64_t>(seed) + (static_cast<uint64_t>(row) + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    first = static_cast<uint32_t>(z);
    second = static_cast<uint32_t>(z >> 32);
    const double kept = (1 - share) * 4294967296.0;
    limit = kept < 4294967295.0 ? static_cast<uint32_t>(kept) : 4294967295u;
    factor = static_cast<float>(1 / (1 - share));
  }
  static uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
  }
  bool keeps(int32_t key) const { return mixed(mixed(static_cast<uint32_t>(key) + first) ^ second) < limit; }
  void apply(float* x, const int32_t* key, int64_t count) const {
    const Dropout d = *this;  // which x is not known to leave alone, so the loop would not be vectorised
    for (int64_t e = 0; e < count; e++) x[e] = d.keeps(key[e]) ? x[e] * d.factor : 0.f;
  }
};

// How a row of the support holds its keys: one after another, of 16 bits where that is enough, or a bit for each of all keys
// where that takes less (from 1/16 of the keys on).
constexpr int64_t narrow_keys = 65536;
inline int64_t key_bytes(int64_t keys) { return keys <= narrow_keys ? 2 : 4; }
inline int64_t bitmap_bytes(int64_t keys) { return (keys + 31) / 32 * 4; }
inline bool as_bits(int64_t count, int64_t keys) { return bitmap_bytes(keys) < count * key_bytes(keys); }
inline int64_t row_bytes(int64_t count, int64_t keys) {
  return as_bits(count, keys) ? bitmap_bytes(keys) : count * key_bytes(keys);
}

// The keys of a row of `count` entries; full vectors may be written past them.
inline void read_row(const char* held, int64_t count, int64_t keys, int32_t* to) {
  if (as_bits(count, keys)) {
    for (int64_t w = 0; w < bitmap_bytes(keys) / 4; w++) {
      uint32_t bits;
      std::memcpy(&bits, held + 4 * w, 4);
      if (bits == 0) continue;
#if defined(SPARSE_ATTENTION_AVX512)
      to += compress_index<float>(to, static_cast<__mmask16>(bits), static_cast<int32_t>(32 * w));
      to += compress_index<float>(to, static_cast<__mmask16>(bits >> 16), static_cast<int32_t>(32 * w + 16));
#else
      for (; bits; bits &= bits - 1) *to++ = static_cast<int32_t>(32 * w) + __builtin_ctz(bits);
#endif
    }
  } else if (key_bytes(keys) == 2) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(held);
    for (int64_t e = 0; e < count; e++) to[e] = from[e];
  } else {
    std::memcpy(to, held, static_cast<size_t>(count) * sizeof *to);
  }
}
inline void write_row(const int32_t* columns, int64_t count, int64_t keys, char* to) {
  if (as_bits(count, keys)) {
    for (int64_t e = 0, w = 0; w < bitmap_bytes(keys) / 4; w++) {
      uint32_t bits = 0;
      if (e + 32 <= count && columns[e] == 32 * w && columns[e + 31] == 32 * w + 31) {
        bits = ~0u;
        e += 32;
      }
      for (; e < count && columns[e] < 32 * (w + 1); e++) bits |= 1u << (columns[e] & 31);
      std::memcpy(to + 4 * w, &bits, 4);
    }
  } else if (key_bytes(keys) == 2) {
    for (int64_t e = 0; e < count; e++) reinterpret_cast<uint16_t*>(to)[e] = static_cast<uint16_t>(columns[e]);
  } else {
    std::memcpy(to, columns, static_cast<size_t>(count) * sizeof *columns);
  }
}

// The support of consecutive rows. The memory beyond what is held has not been touched, so it takes address space only;
// growing moves pages, not bytes, where the C library can: glibc does from 32 MiB on, so an array that is no longer small gets
// as much.
struct Support {
  char* held = nullptr;      // rows, as above
  float* weight = nullptr;   // P beside them, by entries, if `weights`
  int64_t keys = 0, count = 0, bytes = 0, capacity = 0;  // count: entries; capacity: entries that fit, of key_bytes each
  bool weights = false;

  static constexpr int64_t small = 1 << 17, movable = (33 << 20) / 2;  // entries

  // Room for this many entries. Rows held as bits take less than key_bytes an entry.
  bool reserve(int64_t more) {
    const int64_t used = weights ? count : (bytes + key_bytes(keys) - 1) / key_bytes(keys);
    if (used + more <= capacity) return true;
    const int64_t size = used + more + capacity;
    return resize(size > small && size < movable ? movable : size);
  }
  bool resize(int64_t size) {
    void* rows = std::realloc(held, static_cast<size_t>(size * key_bytes(keys)));
    if (rows) held = static_cast<char*>(rows);
    if (!rows) return false;
    if (weights) {
      void* grown = std::realloc(weight, static_cast<size_t>(size) * sizeof *weight);
      if (!grown) return false;
      weight = static_cast<float*>(grown);
    }
    capacity = size;
    return true;
  }
  void trim() {  // gives address space back
    if (capacity > small) resize(weights ? count : (bytes + key_bytes(keys) - 1) / key_bytes(keys));
  }
  void append(const int32_t* columns, const float* p, int64_t entries) {
    if (entries == 0) return;
    write_row(columns, entries, keys, held + bytes);
    if (weights) std::memcpy(weight + count, p, static_cast<size_t>(entries) * sizeof *weight);
    count += entries;
    bytes += row_bytes(entries, keys);
  }
  void append(const Support& other) {
    if (other.count == 0) return;
    std::memcpy(held + bytes, other.held, static_cast<size_t>(other.bytes));
    if (weights) std::memcpy(weight + count, other.weight, static_cast<size_t>(other.count) * sizeof *weight);
    count += other.count;
    bytes += other.bytes;
  }
  void release() {
    std::free(held);
    std::free(weight);
    *this = Support{};
  }
};

// Threads for this much work, at least a millisecond for the first two: a region that meets a busy core waits for it.
inline int workers_for(double ns, int threads, int64_t pieces) {
  double most = ns > 1e6 ? ns / 5e5 : 1;
  if (most > threads) most = threads;
  if (most > static_cast<double>(pieces)) most = static_cast<double>(pieces);
  return most < 1 ? 1 : static_cast<int>(most);
}

// Cuts [0, pieces) into `workers` ranges of about equal cost: cut[0] = 0 .. cut[workers] = pieces.
template <class Cost>
inline void share_out(int64_t pieces, int workers, int64_t* cut, Cost cost) {
  double total = 0, sofar = 0;
  for (int64_t i = 0; i < pieces; i++) total += cost(i);
  int w = 1;
  cut[0] = 0;
  for (int64_t i = 0; i < pieces; i++) {
    while (w < workers && sofar >= total * w / workers) cut[w++] = i;
    sofar += cost(i);
  }
  while (w <= workers) cut[w++] = pieces;
}

constexpr int most_workers = 256;

}  // namespace sa
