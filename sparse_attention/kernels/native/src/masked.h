// What a call may have besides scores: a mask, and hyperparameters as one number or one for each row.
#pragma once
#include "rows.h"

namespace sa {

struct Values {
  const double* row;  // [rows], or null: `one` holds for all
  double one;
  double operator[](int64_t r) const { return row ? row[r] : one; }
};

// Row r of the scores is kept where row r / outer * inner + r % inner of `kept` [.., n] is not 0: a mask of leading
// dimensions that count, then some it is broadcast over, then some that count again.
struct Mask {
  const uint8_t* kept;  // or null: all are
  int64_t outer, inner;
  const uint8_t* of(int64_t r, int64_t n) const { return kept + (r / outer * inner + r % inner) * n; }
};
constexpr Mask no_mask{nullptr, 1, 1};

// The lanes of row positions i..i+W-1, -infinity where the mask says so and beyond the end of the row.
template <class T>
inline Vec<T> load_kept(const T* x, const uint8_t* kept, int64_t i, int64_t n) {
  constexpr int W = Vec<T>::W;
  uint8_t k[W] = {};
  if (i + W <= n)
    std::memcpy(k, kept + i, W);
  else
    for (int64_t j = i; j < n; j++) k[j - i] = kept[j];
  T weight[W];
  for (int j = 0; j < W; j++) weight[j] = k[j] ? T(1) : T(0);
  const Vec<T> gone = Vec<T>::all(-infinity<T>());
  return select(greater(Vec<T>::load(weight), Vec<T>::all(0)), load_row(x, i, n, -infinity<T>()), gone);
}
#if defined(SPARSE_ATTENTION_AVX512) && defined(__AVX512BW__) && defined(__AVX512VL__)
inline Vec<float> load_kept(const float* x, const uint8_t* kept, int64_t i, int64_t n) {
  const bool whole = i + 16 <= n;
  Vec<float> v = load_row(x, i, n, -infinity<float>());
  asm("" : "+v"(v.r));  // not to become a load under the mask: some processors take several times as long for one
  const __m128i k = whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(kept + i))
                          : _mm_maskz_loadu_epi8(Vec<float>::first(n - i), kept + i);
  return select(_mm_test_epi8_mask(k, k), v, Vec<float>::all(-infinity<float>()));
}
#endif

template <class T>
struct KeptRow {  // see ScoreRow
  const T* x;
  const uint8_t* kept;
  int64_t n;
  Vec<T> at(int64_t i) const { return load_kept(x, kept, i, n); }
};

template <class T, class Scores>
inline void copy_row(const Scores& row, int64_t n, T* to) {
  for (int64_t i = 0; i < n; i += Vec<T>::W) store_row(to, i, n, row.at(i));
}
// The row in memory: as it stands, or computed once into `buffer`.
template <class T>
inline ScoreRow<T> in_memory(const ScoreRow<T>& row, int64_t, T*) {
  return row;
}
template <class T, class Scores>
inline ScoreRow<T> in_memory(const Scores& row, int64_t n, T* buffer) {
  copy_row(row, n, buffer);
  return {buffer, n};
}

// Where the scores of row r come from; `copies`: not from memory.
template <class T>
struct Input {
  const T* x;
  int64_t n;
  static constexpr bool copies = false;
  ScoreRow<T> operator()(int64_t r) const { return {x + r * n, n}; }
};
template <class T>
struct MaskedInput {
  const T* x;
  int64_t n;
  Mask mask;
  static constexpr bool copies = true;
  KeptRow<T> operator()(int64_t r) const { return {x + r * n, mask.of(r, n), n}; }
};

}  // namespace sa
