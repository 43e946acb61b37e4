// Screening: the scores of most keys are settled by integers, with a bound on what those can be off.
//
// Keys are centred and scaled a channel, k' = (k - c) / a, which costs nothing: q.k = q'.k' + q.c with q' = q a. Then q' and
// k' are rounded to whole multiples q^, k^ of a step each (one a query, one a panel). With h = q^.k^ + q.c
//     |q.k - h| <= |q' - q^| |k'| + |q^| |k' - k^| + rounding of float32  =: E,
// all norms measured, so that h - E is a lower bound of the score: the running bound of attention_row.h, taken from lower
// bounds, stays below tau, and a key with h + E below it is out for certain. Who passes is scored once in float32.
//
// The integers are bytes where a processor adds four products at a time (VNNI) and where memory decides (decoding). AVX2
// multiplies words of 16 bits as fast as bytes, twice as fast as float32, and with words E is next to nothing.
#pragma once
#include "attention_gather.h"
#include "attention_tile.h"

#if defined(SPARSE_ATTENTION_AVX512) && !defined(__AVX512BW__)
#define SA_SCREEN 0
#elif defined(__AVX2__) && !defined(SPARSE_ATTENTION_PORTABLE)
#define SA_SCREEN 1
#else
#define SA_SCREEN 0
#endif

namespace sa {

// dot4: four products of bytes, of a key (unsigned) and a query (signed), added to each lane. Written as assembler because
// compilers copy the sums of the intrinsic back and forth, and run out of registers.
#if SA_SCREEN && defined(SPARSE_ATTENTION_AVX512)
struct IntV {
  __m512i r;
  static IntV all(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static IntV load(const void* p) { return {_mm512_loadu_si512(p)}; }
  V floats() const { return {_mm512_cvtepi32_ps(r)}; }
};
#ifdef __AVX512VNNI__
constexpr float query_levels = 127;
inline void dot4(IntV& sum, IntV k, IntV q) { asm("vpdpbusd %2, %1, %0" : "+v"(sum.r) : "v"(k.r), "v"(q.r)); }
#else
constexpr float query_levels = 63;  // two products fit 16 bits
inline void dot4(IntV& sum, IntV k, IntV q) {
  sum.r = _mm512_add_epi32(sum.r, _mm512_madd_epi16(_mm512_maddubs_epi16(k.r, q.r), _mm512_set1_epi16(1)));
}
#endif
#elif SA_SCREEN
struct IntV {
  __m256i r;
  static IntV all(int32_t x) { return {_mm256_set1_epi32(x)}; }
  static IntV load(const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
  V floats() const { return {_mm256_cvtepi32_ps(r)}; }
};
#ifdef __AVXVNNI__
constexpr float query_levels = 127;
inline void dot4(IntV& sum, IntV k, IntV q) { asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.r) : "x"(k.r), "x"(q.r)); }
#else
constexpr float query_levels = 63;  // two products fit 16 bits
inline void dot4(IntV& sum, IntV k, IntV q) {
  sum.r = _mm256_add_epi32(sum.r, _mm256_madd_epi16(_mm256_maddubs_epi16(k.r, q.r), _mm256_set1_epi16(1)));
}
#endif
// Two products of words.
inline void dot2(IntV& sum, IntV k, IntV q) { asm("vpaddd %1, %0, %0" : "+x"(sum.r) : "x"(_mm256_madd_epi16(k.r, q.r))); }
#endif

// The integers: so many of a key fill a lane of 32 bits, and go from -levels to levels, keys plus `offset`.
struct Bytes {
  using Key = uint8_t;
  using Query = int8_t;
  static constexpr int together = 4, offset = 128;
  static float key_levels(int64_t) { return 127; }
#if SA_SCREEN
  static float levels(int64_t) { return query_levels; }
  static void add(IntV& sum, IntV k, IntV q) { dot4(sum, k, q); }
#endif
};
#if SA_SCREEN && !defined(SPARSE_ATTENTION_AVX512)
struct Words {
  using Key = int16_t;
  using Query = int16_t;
  static constexpr int together = 2, offset = 0;
  static float levels(int64_t d) {  // d products fit 32 bits; as float32 a sum is off by one unit in its last place
    const double most = std::floor(std::sqrt(2147483647.0 / static_cast<double>(d)));
    return static_cast<float>(most < 32767 ? most : 32767);
  }
  static float key_levels(int64_t d) { return levels(d); }
  static void add(IntV& sum, IntV k, IntV q) { dot2(sum, k, q); }
};
using Screening = Words;  // of the forward
#else
using Screening = Bytes;
#endif

struct Panel {  // of panel_keys keys
  float step;    // of k^
  float norm;    // largest |k'|
  float error;   // largest |k' - k^|
  float length;  // largest |k|
  static float larger(float a, float b) { return a > b ? a : b; }
  static Panel worst(const Panel* p, int64_t count) {
    Panel w = p[0];
    for (int64_t i = 1; i < count; i++)
      w = {0, larger(w.norm, p[i].norm), larger(w.error, p[i].error), larger(w.length, p[i].length)};
    return w;
  }
};

template <class Integer>
inline int64_t lanes(int64_t d) {  // that d channels fill
  return (d + Integer::together - 1) / Integer::together;
}
inline int64_t quads(int64_t d) { return lanes<Bytes>(d); }
inline int64_t whole_vectors(int64_t d) { return (d + V::W - 1) / V::W * V::W; }

struct ScreenedKeys {
  float* center;   // [d, in whole vectors]; zero beyond d
  float* spread;   // [d]; one beyond d
  float center_length;
  uint8_t* value;  // [panels][lanes][P][integers of a lane]: k^ / step + offset
  Panel* panel;    // [panels]

  static size_t bytes(int64_t m, int64_t d) {
    return static_cast<size_t>(panels(m)) * (panel_keys * lanes<Screening>(d) * 4 + sizeof(Panel)) +
           2 * static_cast<size_t>(whole_vectors(d)) * sizeof(float) + 512;
  }
  void take(int64_t m, int64_t d, Scratch& scratch) {
    center = scratch.take<float>(whole_vectors(d));
    spread = scratch.take<float>(whole_vectors(d));
    value = scratch.take<uint8_t>(panels(m) * panel_keys * lanes<Screening>(d) * 4);
    panel = scratch.take<Panel>(panels(m));
  }
};

constexpr int64_t most_screened = 1024;  // channels: integers stay exact in float32, and the bounds of rounding hold

// Centre and spread of every channel, from these keys; any finite ones are right, good ones make E small.
template <class E>
inline void choose_center(ScreenedKeys& s, const E* k, int64_t m, int64_t d) {
  for (int64_t c = 0; c < whole_vectors(d); c++) {
    s.center[c] = 0;
    s.spread[c] = 1;
  }
  double length = 0;
  for (int64_t from = 0; from < d; from += V::W) {
    const int64_t count = d - from < V::W ? d - from : V::W;
    V total = V::all(0), spread = V::all(1e-30f);
    for (int64_t j = 0; j < m; j++) total = total + row_floats(k + j * d, from, d);
    const V center = total / V::all(static_cast<float>(m > 0 ? m : 1));
    for (int64_t j = 0; j < m; j++) {
      const V off = row_floats(k + j * d, from, d) - center;
      spread = max(max(off, V::all(0) - off), spread);
    }
    center.store_part(s.center + from, count);
    spread.store_part(s.spread + from, count);
  }
  for (int64_t c = 0; c < d; c++) {
    if (!(std::fabs(s.center[c]) < 1e30f && s.spread[c] < 1e30f)) {
      s.center[c] = 0;
      s.spread[c] = 1;
    }
    length += static_cast<double>(s.center[c]) * s.center[c];
  }
  s.center_length = static_cast<float>(std::sqrt(length) * 1.001);
}

// Rounds k, `count` <= P keys, into panel p; keys beyond count are zero.
template <class Integer, class E>
inline void screen_panel(ScreenedKeys& s, const E* k, int64_t count, int64_t d, int64_t p, float* room) {
  using Key = typename Integer::Key;
  const int64_t width = whole_vectors(d), filled = lanes<Integer>(d);
  V top = V::all(1e-30f);
  float norm = 0, error = 0, length = 0;
  for (int64_t j = 0; j < count; j++) {
    V n = V::all(0), l = n;
    for (int64_t c = 0; c < width; c += V::W) {
      const V x = row_floats(k + j * d, c, d);
      const V y = (x - V::load(s.center + c)) / V::load(s.spread + c);
      y.store(room + j * width + c);
      top = max(max(y, V::all(0) - y), top);
      n = fma(y, y, n);
      l = fma(x, x, l);
    }
    const float here = sum(n), plain = sum(l), most = std::numeric_limits<float>::max();
    if (!(here <= most && plain <= most)) {  // nothing can be said; an infinite length makes queries careful
      s.panel[p] = {1, infinity<float>(), infinity<float>(), infinity<float>()};
      return;
    }
    norm = std::fmax(norm, here);
    length = std::fmax(length, plain);
  }
  const float step = largest(top) / Integer::key_levels(d);
  const V inverse = V::all(1 / step), back = V::all(step);
  uint8_t* to = s.value + p * panel_keys * filled * 4;
  Key rounded[most_screened + 64];
  float whole[V::W];
  for (int64_t j = 0; j < panel_keys; j++) {
    V e = V::all(0);
    for (int64_t c = 0; j < count && c < width; c += V::W) {
      const V y = V::load(room + j * width + c), r = nearest(y * inverse);
      const V off = y - r * back;
      e = fma(off, off, e);
      r.store(whole);
      for (int i = 0; i < V::W; i++) rounded[c + i] = static_cast<Key>(static_cast<int>(whole[i]) + Integer::offset);
    }
    if (j < count) {
      error = std::fmax(error, sum(e));
      for (int64_t c = 0; c < filled; c++) std::memcpy(to + (c * panel_keys + j) * 4, rounded + c * Integer::together, 4);
    } else {
      for (int64_t c = 0; c < filled; c++) std::memset(to + (c * panel_keys + j) * 4, Integer::offset, 4);
    }
  }
  s.panel[p] = {step, std::sqrt(norm) * 1.001f, std::sqrt(error) * 1.001f, std::sqrt(length) * 1.001f};
}

// One query, rounded.
struct Screener {
  float step;     // of q^
  float shift;    // q.c
  int32_t start;  // what undoes the offset of the keys, -offset sum q^ / step
  float on_norm, on_error, on_length, alone;  // E = on_norm norm + on_error error + on_length length + alone
  float error(const Panel& p) const { return on_norm * p.norm + on_error * p.error + on_length * p.length + alone; }
};

#if SA_SCREEN
// q, scaled, [d]; leaves q^ / step as integers, lane c at to[c * stride].
template <class Integer>
inline Screener screen_query(const ScreenedKeys& s, const float* q, int64_t d, int32_t* to, int64_t stride) {
  const int64_t width = whole_vectors(d);
  float scaled[most_screened], level[most_screened];  // q', q^ / step
  typename Integer::Query whole[most_screened];
  V lengths = V::all(0), norms = lengths, rounds = lengths, errors = lengths, shifts = lengths, totals = lengths;
  V tops = V::all(1e-30f);
  for (int64_t c = 0; c < width; c += V::W) {
    const V x = load_row(q, c, d, 0.f), y = x * V::load(s.spread + c);
    y.store(scaled + c);
    tops = max(max(y, V::all(0) - y), tops);
    lengths = fma(x, x, lengths);
    norms = fma(y, y, norms);
    shifts = fma(x, V::load(s.center + c), shifts);
  }
  const float step = largest(tops) / Integer::levels(d), inverse = 1 / step;
  for (int64_t c = 0; c < width; c += V::W) {
    const V y = V::load(scaled + c), r = nearest(y * V::all(inverse)), back = r * V::all(step), off = y - back;
    r.store(level + c);
    totals = totals + r;  // whole numbers; of bytes at most 127 * 1024 in all: exact
    rounds = fma(back, back, rounds);
    errors = fma(off, off, errors);
  }
  for (int64_t c = 0; c < width; c++) whole[c] = static_cast<typename Integer::Query>(static_cast<int>(level[c]));
  const double length = sum(lengths), norm = sum(norms), rounded = sum(rounds), error = sum(errors);
  for (int64_t c = 0; c < lanes<Integer>(d); c++) std::memcpy(to + c * stride, whole + c * Integer::together, 4);
  const double u = 6e-8;  // of float32
  const float on_length = static_cast<float>(static_cast<double>(d + 8) * u * std::sqrt(length) * 1.001);
  return {step,
          sum(shifts),
          Integer::offset ? -Integer::offset * static_cast<int32_t>(sum(totals)) : 0,
          static_cast<float>((std::sqrt(error) + 16 * u * std::sqrt(norm)) * 1.001),
          static_cast<float>(std::sqrt(rounded) * 1.001),
          on_length,
          on_length * s.center_length + 1e-36f};
}

// What screen_tile asks of a query with this bound on panels no worse than `worst`.
inline void screening_bounds(const Screener& x, const Panel& worst, float bound, float& least, float& base) {
  // differences of numbers that may be large are off by a few units in their last place
  const float error = x.error(worst) + 4e-7f * std::fabs(x.shift);
  base = x.shift - error;
  least = (bound - x.shift - error - 4e-7f * std::fabs(bound)) / x.step;
  least -= Screening::together == 4 ? 0 : 1e-6f * std::fabs(least);  // what it is compared with is rounded
}

// R queries with one panel. least[i] / step: only sums of products above it matter; their lower bound, q^.k^ + base[i], joins
// row i's candidates. `often`: most panels hold some, so asking whether this one does would be guessed wrong.
template <class Integer, int R, bool masked>
inline __attribute__((always_inline)) void screen_tile(const int32_t* q, const ScreenedKeys& s, int64_t filled, int64_t p,
                                                       const Screener* query, const float* least, const float* base, Row* row,
                                                       bool often = false) {
  IntV a[R], b[R];
#pragma GCC unroll 12
  for (int i = 0; i < R; i++) a[i] = b[i] = IntV::all(query[i].start);
  const uint8_t* k = s.value + p * panel_keys * filled * 4;
  for (int64_t c = 0; c < filled; c++, k += panel_keys * 4) {
    const IntV x = IntV::load(k), y = IntV::load(k + V::W * 4);
#pragma GCC unroll 12
    for (int i = 0; i < R; i++) {
      const IntV t = IntV::all(q[c * R + i]);
      Integer::add(a[i], x, t);
      Integer::add(b[i], y, t);
    }
  }
  const float step = s.panel[p].step, inverse = 1 / step;
  const int32_t first = static_cast<int32_t>(p * panel_keys);
  constexpr bool bytes = Integer::together == 4;  // compared as whole numbers; words times the panel's step
  float limit[R];
  for (int i = 0; bytes && i < R; i++) {  // one less, and a little: the quotient is rounded
    limit[i] = least[i] * inverse;
    limit[i] = limit[i] - std::fabs(limit[i]) * 1e-6f - 1;
  }
  const V unit = V::all(step);
#pragma GCC unroll 12
  for (int i = 0; i < R; i++) {
    const V bound = V::all(bytes ? limit[i] : least[i]);
    const V f = bytes ? a[i].floats() : a[i].floats() * unit, g = bytes ? b[i].floats() : b[i].floats() * unit;
    auto m = greater(f, bound), n = greater(g, bound);
    if (masked) {
      m = mask_and(m, seen(row[i], first));
      n = mask_and(n, seen(row[i], first + V::W));
    }
    if (often || any(mask_or(m, n))) {
      const V u = V::all(bytes ? query[i].step * step : query[i].step), l = V::all(base[i]);
      int64_t c = row[i].count;
      compress_index<float>(row[i].column + c, m, first);
      c += compress(row[i].score + c, m, fma(u, f, l));
      compress_index<float>(row[i].column + c, n, first + V::W);
      row[i].count = c + compress(row[i].score + c, n, fma(u, g, l));
    }
  }
}
#endif

// What screening left, scored in float32: exact again, but for those that the bound rules out.
inline void rescore(Row& row, const float* q, const float* k, int64_t d) {
  gathered_dots(q, row.column, row.count, k, d, d, row.score);
  drop(row, row.bound);
}

}  // namespace sa
