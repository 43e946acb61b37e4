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

// The keys of a support's entries, one after another; of 16 bits where that is enough.
constexpr int64_t narrow_keys = 65536;
inline bool narrow(int64_t keys) { return keys <= narrow_keys; }

// Entries of consecutive rows. The memory beyond `count` has not been touched, so it takes address space only; growing
// moves pages, not bytes, where the C library can: glibc does from 32 MiB on, so an array that is no longer small gets as much.
struct Support {
  char* column = nullptr;
  float* weight = nullptr;
  int64_t count = 0, capacity = 0, width = 4;  // bytes of a column
  bool weights = false;                        // whether P is kept beside them

  static constexpr int64_t small = 1 << 17, movable = (33 << 20) / 2;  // entries

  bool reserve(int64_t more) {
    if (count + more <= capacity) return true;
    const int64_t size = count + more + capacity;
    return resize(size > small && size < movable ? movable : size);
  }
  bool resize(int64_t size) {
    void* columns = std::realloc(column, static_cast<size_t>(size * width));
    if (columns) column = static_cast<char*>(columns);
    if (!columns) return false;
    if (weights) {
      void* grown = std::realloc(weight, static_cast<size_t>(size) * sizeof *weight);
      if (!grown) return false;
      weight = static_cast<float*>(grown);
    }
    capacity = size;
    return true;
  }
  void append(const int32_t* columns, const float* p, int64_t entries) {
    if (entries == 0) return;
    if (width == 2)
      for (int64_t e = 0; e < entries; e++) reinterpret_cast<uint16_t*>(column)[count + e] = static_cast<uint16_t>(columns[e]);
    else
      std::memcpy(column + count * width, columns, static_cast<size_t>(entries) * sizeof *columns);
    if (weights) std::memcpy(weight + count, p, static_cast<size_t>(entries) * sizeof *weight);
    count += entries;
  }
  void append(const Support& other) {
    if (other.count == 0) return;
    std::memcpy(column + count * width, other.column, static_cast<size_t>(other.count * width));
    if (weights) std::memcpy(weight + count, other.weight, static_cast<size_t>(other.count) * sizeof *weight);
    count += other.count;
  }
  void release() {
    std::free(column);
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

// Runs work(w) for every worker, each on a thread of its own.
template <class Work>
inline void in_parallel(int workers, Work work) {
  if (workers == 1) return work(0);
#pragma omp parallel for num_threads(workers) schedule(static, 1)
  for (int w = 0; w < workers; w++) work(w);
}

constexpr int most_workers = 256;

}  // namespace sa
