// What every kernel does with the rows of a call: share them out, look at each once, set the hopeless ones aside.
#pragma once
#include <cstdlib>

#include "simd.h"
#include "threads.h"

namespace sa {

enum Status : int { ok = 0, has_excluded = 1, out_of_memory = 2, no_structure = 3, not_converged = 4, doubtful_bounds = 5,
                    unknown_operation = 6 };

// Keeps one copy of each kernel in the library, instead of one per branch below.
template <class Body>
__attribute__((noinline)) void run_once(Body& body, int64_t first, int64_t last, char* scratch) {
  body(first, last, scratch);
}

// Runs body(first_row, last_row, scratch) over all rows in at most one parallel region.
//
// A region that meets a busy core waits a scheduler slice of 4-8 ms for it, so below a millisecond of estimated work
// the call stays on one thread; beyond, every thread gets at least half a millisecond. Each thread has its own
// `scratch_bytes` of memory.
template <class Body>
int for_rows(int64_t rows, double ns_per_row, int threads, size_t scratch_bytes, Body body) {
  if (rows == 0) return ok;
  double total_ns = ns_per_row * static_cast<double>(rows);
  int workers = 1;
  if (total_ns > 1e6 && threads > 1) {
    workers = static_cast<int>(total_ns / 5e5 < threads ? total_ns / 5e5 : threads);
    if (workers > rows) workers = static_cast<int>(rows);
  }
  scratch_bytes = (scratch_bytes + 127) & ~static_cast<size_t>(63);
  void* memory = std::malloc(scratch_bytes * workers + 64);
  if (!memory) return out_of_memory;
  char* scratch = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + 63) & ~static_cast<uintptr_t>(63));
  in_parallel(workers, [&](int w) {
    run_once(body, rows * w / workers, rows * (w + 1) / workers, scratch + scratch_bytes * w);
  });
  std::free(memory);
  return ok;
}

// Hands out pieces of a thread's scratch memory, each on a cache line of its own.
struct Scratch {
  char* next;
  template <class U>
  U* take(int64_t count) {
    U* piece = reinterpret_cast<U*>(next);
    next += (sizeof(U) * static_cast<size_t>(count) + 63) & ~static_cast<size_t>(63);
    return piece;
  }
};
// Room for `count` values and for the full vectors written past their end.
template <class U>
constexpr size_t room(int64_t count) {
  return (sizeof(U) * static_cast<size_t>(count + 32) + 127) & ~static_cast<size_t>(63);
}

template <class T>
struct RowMaximum {
  T value;   // -infinity if the row is all excluded
  bool nan;  // a NaN somewhere
  bool usable() const { return !nan && value > -infinity<T>() && value < infinity<T>(); }
};

// A row of scores where it stands. Whatever has at(i), the lanes of positions i..i+W-1 with -infinity beyond the end, can
// stand in its place.
template <class T>
struct ScoreRow {
  const T* x;
  int64_t n;
  Vec<T> at(int64_t i) const { return load_row(x, i, n, -infinity<T>()); }
};

template <class T, class Scores>
inline RowMaximum<T> row_maximum(const Scores& row, int64_t n) {
  using V = Vec<T>;
  const V lowest = V::all(-infinity<T>());
  V a = lowest, b = lowest;
  auto bad = either_nan(lowest, lowest);
  int64_t i = 0;
  for (; i + 2 * V::W <= n; i += 2 * V::W) {
    V u = row.at(i), v = row.at(i + V::W);
    bad = mask_or(bad, either_nan(u, v));
    a = max(u, a);
    b = max(v, b);
  }
  for (; i < n; i += V::W) {
    V u = row.at(i);
    bad = mask_or(bad, either_nan(u, u));
    a = max(u, a);
  }
  return {largest(max(a, b)), any(bad)};
}
template <class T>
inline RowMaximum<T> row_maximum(const T* x, int64_t n) {
  return row_maximum<T>(ScoreRow<T>{x, n}, n);
}

template <class T>
inline void fill_row(T* p, int64_t n, T value) {
  for (int64_t i = 0; i < n; i++) p[i] = value;
}

// A row that has no mapping: nothing kept gives zeros; NaN or +infinity among the scores give NaN.
template <class T>
inline void write_unusable_row(T* p, int64_t n, RowMaximum<T> m) {
  bool empty = !m.nan && m.value == -infinity<T>();
  fill_row(p, n, empty ? T(0) : std::numeric_limits<T>::quiet_NaN());
}

// 1/gamma, kept finite so that 0 * (1/gamma) stays 0 for the tiniest gamma.
template <class T>
inline T reciprocal(double gamma) {
  double limit = static_cast<double>(std::numeric_limits<T>::max()) * 1e-8;
  return static_cast<T>(1.0 / gamma < limit ? 1.0 / gamma : limit);
}

// Sums over long rows run in lanes of T; every `block` elements they are emptied into a float64, so that the error
// stays that of a short sum.
constexpr int64_t block = 4096;

}  // namespace sa
