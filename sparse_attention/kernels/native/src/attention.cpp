// The C interface of the fused attention, a library of its own. Arrays are contiguous float32: q [heads, n, d],
// k [groups, m, d], v [groups, m, e], out and its gradient [heads, n, e]; see ../attention.py for the other side.
//
// Read attention_row.h and attention_segments.h (the mathematics), attention_tile.h, attention_gather.h, attention_dense.h,
// attention_screen.h, then attention_block.h and attention_forward.h, attention_gradient.h and attention_backward.h, and
// attention_decode.h. Status: ok (0) or out_of_memory (2).
#include "attention_backward.h"
#include "attention_decode.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// pointers: [heads n + 2], the entries before each row, all entries, and the bytes of `held`; or null: nothing is saved.
// held: the support (attention_support.h), and weights, if not null: P, for attention_free. With lam the
// gradient needs both, and P has marks (finish_segments).
EXPORT int attention_forward(const sa::Shape* s, const float* q, const float* k, const float* v, float* out, int64_t* pointers,
                             void** held, float** weights, int threads) {
  sa::Support support;
  const int status = sa::attention_forward(*s, q, k, v, out, pointers, weights != nullptr, support, threads);
  *held = support.held;
  if (weights) *weights = support.weight;
  return status;
}

// weights: P, if there is lam. dalpha: [heads, n], summed over the keys, or null. dscores: of the support's entries, before the scale, or null.
EXPORT int attention_backward(const sa::Shape* s, const float* q, const float* k, const float* v, const float* g,
                              const int64_t* pointers, const void* held, const float* weights, float* dq, float* dk,
                              float* dv, double* dalpha, float* dscores, int threads) {
  return sa::attention_backward(*s, q, k, v, g, pointers, held, weights, dq, dk, dv, dalpha, dscores, threads);
}

// Adds the dscores to what begins at to + at[head], a query every `row` numbers and a key every `key`. room: [m + 16].
EXPORT void attention_scatter(const sa::Shape* s, const int64_t* pointers, const void* held, const float* dscores, double* to,
                              const int64_t* at, int64_t row, int64_t key, int32_t* room) {
  const char* from = static_cast<const char*>(held);
  for (int64_t r = 0; r < s->heads * s->n; r++) {
    double* here = to + at[r / s->n] + r % s->n * row;
    const int64_t count = pointers[r + 1] - pointers[r];
    sa::read_row(from, count, s->m, room);
    from += sa::row_bytes(count, s->m);
    for (int64_t e = 0; e < count; e++) here[room[e] * key] += static_cast<double>(dscores[pointers[r] + e]);
  }
}

// columns [entries + 16]: the keys of all entries of a support.
EXPORT void attention_columns(const int64_t* pointers, const void* held, int64_t rows, int64_t keys, int32_t* columns) {
  const char* at = static_cast<const char*>(held);
  for (int64_t r = 0; r < rows; r++) {
    const int64_t count = pointers[r + 1] - pointers[r];
    sa::read_row(at, count, keys, columns + pointers[r]);
    at += sa::row_bytes(count, keys);
  }
}

// What dropout multiplies the weights [rows, m] by: 0 or 1 / (1 - dropout).
EXPORT void attention_dropout(double dropout, int64_t seed, int64_t rows, int64_t m, float* factors) {
  for (int64_t r = 0; r < rows; r++) {
    const sa::Dropout row(dropout, seed, r);
    for (int64_t j = 0; j < m; j++) factors[r * m + j] = row.keeps(static_cast<int32_t>(j)) ? row.factor : 0;
  }
}

// The span [rows, 2] of each row of a mask [rows, m] of bytes 0 and 1; returns 0 if some row's ones are not together.
EXPORT int attention_spans(const uint8_t* mask, int64_t rows, int64_t m, int64_t* spans) {
  for (int64_t r = 0; r < rows; r++) {
    const uint8_t *row = mask + r * m, *end = row + m;
    const void* one = std::memchr(row, 1, static_cast<size_t>(m));
    const uint8_t* first = one ? static_cast<const uint8_t*>(one) : end;
    const void* zero = std::memchr(first, 0, static_cast<size_t>(end - first));
    const uint8_t* last = zero ? static_cast<const uint8_t*>(zero) : end;
    if (std::memchr(last, 1, static_cast<size_t>(end - last))) return 0;
    spans[2 * r] = first - row;
    spans[2 * r + 1] = last - row;
  }
  return 1;
}

// Bytes of one panel, and floats of a centre and of a spread, for d channels; nothing (0) without screening.
EXPORT void attention_panel_sizes(int64_t d, int64_t* sizes) {
  sizes[0] = SA_SCREEN && d <= sa::most_screened ? sa::panel_keys * sa::quads(d) * 4 : 0;
  sizes[1] = sa::whole_vectors(d);
  sizes[2] = sa::panel_keys;
}

// A step of decoding: the cache, and the call that reads it; the same fields as Step in ../attention.py.
struct Step {
  sa::Cache cache;
  int64_t heads, groups, m, d, e;
  double scale;
  const int64_t* lengths;  // [heads] or null
  int64_t power;
  int64_t element;  // of the cache, q and out: 0 float32, 1 bfloat16, 2 float16
  const float *scales, *slopes, *sinks;  // the fields of Forms (attention_decode.h)
  int64_t form_heads, window;
  double factor;
};

template <class E>
static int decode(const Step& x, const void* q, void* out, const float* bias, int64_t stride_bias, int threads) {
  const sa::Shape s{x.heads, x.groups, 1, x.m, x.d, x.e, x.scale, false, x.lengths};
  const sa::Forms f{x.scales, x.slopes, x.sinks, x.form_heads, x.window, x.factor, bias, stride_bias};
  const E* from = static_cast<const E*>(q);
  E* to = static_cast<E*>(out);
  return x.power == 1 ? sa::attention_decode<1>(s, f, x.cache, from, to, threads)
                      : sa::attention_decode<2>(s, f, x.cache, from, to, threads);
}

// Rounds the panels from `first` to step->cache.panels.
EXPORT int attention_screen(const Step* x, int64_t first, int threads) {
  if (x->element == 0) return sa::screen_cache<float>(x->cache, x->groups, x->m, x->d, first, threads);
  if (x->element == 1) return sa::screen_cache<sa::Bfloat16>(x->cache, x->groups, x->m, x->d, first, threads);
  return sa::screen_cache<sa::Float16>(x->cache, x->groups, x->m, x->d, first, threads);
}

// q [heads, d] to out [heads, e]; bias, or null: float32, head h's row [m] at bias + h stride_bias.
EXPORT int attention_decode(const Step* x, const void* q, void* out, const float* bias, int64_t stride_bias, int threads) {
  if (x->element == 0) return decode<float>(*x, q, out, bias, stride_bias, threads);
  if (x->element == 1) return decode<sa::Bfloat16>(*x, q, out, bias, stride_bias, threads);
  return decode<sa::Float16>(*x, q, out, bias, stride_bias, threads);
}

EXPORT void attention_free(void* memory) { std::free(memory); }
SPARSE_ATTENTION_ABOUT
