// Backward at the support: nothing off it has a gradient.
//
//     dP_ij = g_i . v_j                     on the support
//     dS_ij = w_ij (dP_ij - mean_i) scale   w = P^(2 - alpha): 1 (sparsemax), sqrt P (entmax15); mean_i = sum_j w dP / sum_j w
//     dQ = dS K,  dK = dS' Q,  dV = P' g
//
// With dropout, dP and the P of dV are multiplied by 0 or 1 / (1 - dropout), as P was in the forward.
//
// Of the forward only the support's keys are kept, 2 bytes an entry or less. P is computed again, a tile at a time: one more
// dot an entry, for 4 bytes an entry less.
//
// Queries go in tiles. A tile's entries are turned into columns by a counting sort, so that a key's rows of dK and dV are
// read and written once a tile; entries of a key keep the order of their queries, so sums have one order.
#pragma once
#include "attention_dense.h"
#include "attention_gradient.h"

namespace sa {

// `rows` rows from `first` on, of one head; `pointer` and `held` are theirs.
template <int power>
inline void backward_tile(const Shape& s, double alpha, Transposed& t, const Gradients& x, int64_t first, int64_t rows, const int64_t* pointer,
                          const char* held) {
  const int64_t start = pointer[0], entries = pointer[rows] - start;
  float *ds = t.ds - start, *p = t.p - start;
  std::optional<AnyAlpha> powers;
  if (power == any_power) powers.emplace(alpha, t.numbers);
  const AnyAlpha* any = powers ? &*powers : nullptr;
  const int32_t* column = t.column - start;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t count = pointer[i + 1] - pointer[i];
    read_row(held, count, s.m, t.column + pointer[i] - start);
    held += row_bytes(count, s.m);
  }
  fill_row(x.dq, rows * s.d, 0.f);
  if (x.dalpha) std::fill(x.dalpha, x.dalpha + rows, 0.0);
  if (entries == 0) return;
  const int64_t each = entries / rows, page = each < 32 ? s.m : 24 * s.m / each;
  int64_t at[tile_queries];

  std::memcpy(at, pointer, static_cast<size_t>(rows) * sizeof *at);
  for (int64_t key = page;; key += page) {
    for (int64_t i = 0; i < rows; i++) {
      int64_t to = at[i];
      const int64_t end = pointer[i + 1];
      while (to < end && column[to] < key) to = to + 16 < end ? to + 16 : end;
      if (to > at[i]) {
        gathered_dots(x.g + i * s.e, column + at[i], to - at[i], x.v, s.e, s.e, ds + at[i]);
        if (!x.weights) gathered_dots(scaled_query(s, alpha, t, x, i), column + at[i], to - at[i], x.k, s.d, s.d, p + at[i]);
      }
      at[i] = to;
    }
    if (key >= s.m) break;
  }
  for (int64_t i = 0; i < rows; i++) {
    const int64_t from = pointer[i], count = pointer[i + 1] - from;
    if (count > 0) row_gradient<power>(s, alpha, t, x, first, i, column + from, count, p + from, ds + from, from, any);
  }

  std::memcpy(at, pointer, static_cast<size_t>(rows) * sizeof *at);
  int64_t to[tile_queries];
  for (int64_t low = 0; low < s.m; low += page) {
    const int64_t high = low + page < s.m ? low + page : s.m;
    int32_t* end = t.end + 1;  // end[key] counts, then is where the key's entries begin, then where they end
    std::memset(t.end, 0, static_cast<size_t>(high - low + 1) * sizeof *t.end);
    for (int64_t i = 0; i < rows; i++) {
      int64_t e = at[i];
      for (; e < pointer[i + 1] && column[e] < high; e++) end[column[e] - low]++;
      to[i] = e;
      add_rows(ds + at[i], column + at[i], e - at[i], x.k, s.d, s.d, x.dq + i * s.d);
    }
    for (int64_t j = 0; j < high - low; j++) end[j] += end[j - 1];
    end--;  // end[key] is now where the entries of the key begin
    for (int64_t i = 0; i < rows; i++) {
      for (int64_t e = at[i]; e < to[i]; e++) {
        const int32_t place = end[column[e] - low]++;
        t.dsk[place] = ds[e];
        t.pk[place] = p[e];
        t.row[place] = static_cast<int32_t>(i);
      }
      at[i] = to[i];
    }
    int32_t from = 0;
    for (int64_t j = low; j < high; j++) {
      const int32_t count = end[j - low] - from;
      if (count > 0) {
        add_rows(t.dsk + from, t.row + from, count, x.q, s.d, s.d, x.dk + j * s.d);
        add_rows(t.pk + from, t.row + from, count, x.g, s.e, s.e, x.dv + j * s.e);
      }
      from += count;
    }
  }
}

// One worker's memory for tiles of a head whose rows have most of the keys.
struct Dense {
  float *keys, *values;  // [panels][d or e][P] of `group`
  float *queries, *gradients;  // packed rows of a tile
  float *scores, *products;    // [rows of a tile][stride]: scores, then P; dP, then dS
  int64_t stride, group = -1;  // an odd number of cache lines, so that the rows of a key do not share a place in the cache
  char* memory = nullptr;

  bool take(const Shape& s) {
    const int64_t width = panels(s.m) * panel_keys;
    stride = (width + 31) / 32 * 32 + 16;
    memory = static_cast<char*>(std::malloc(static_cast<size_t>((s.d + s.e) * (width + block_rows) + 2 * block_rows * stride) * 4 + 1024));
    if (!memory) return false;
    Scratch scratch{reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + 63) & ~static_cast<uintptr_t>(63))};
    keys = scratch.take<float>(width * s.d);
    values = scratch.take<float>(width * s.e);
    queries = scratch.take<float>(block_rows * s.d);
    gradients = scratch.take<float>(block_rows * s.e);
    scores = scratch.take<float>(block_rows * stride);
    products = scratch.take<float>(block_rows * stride);
    return true;
  }
  void turn_to(const Shape& s, const Gradients& x, int64_t to) {
    if (group == to) return;
    group = to;
    pack_keys(x.k, s.m, s.d, 0, panels(s.m), keys);
    pack_keys(x.v, s.m, s.e, 0, panels(s.m), values);
  }
};

// A tile of at most block_rows rows: everything is computed for all keys that some row sees.
inline void backward_dense(const Shape& s, double alpha, Transposed& t, Dense& w, const Gradients& x, int64_t first, int64_t rows,
                           const int64_t* pointer, const char* held) {
  const AnyAlpha any(alpha, t.numbers);
  int64_t low = s.m, high = 0;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t head = (first + i) / s.n, query = (first + i) % s.n, begin = s.pinned ? 0 : s.begin(head, query);
    low = begin < low ? begin : low;
    high = s.limit(head, query) > high ? s.limit(head, query) : high;
  }
  if (s.pinned && high == 0) high = 1;
  fill_row(x.dq, rows * s.d, 0.f);
  if (x.dalpha) std::fill(x.dalpha, x.dalpha + rows, 0.0);
  if (high <= low) return;
  low = low / panel_keys * panel_keys;
  pack_rows(x.q, rows, s.d, static_cast<float>((alpha - 1) * s.scale), w.queries);
  pack_rows(x.g, rows, s.e, 1, w.gradients);
  products(w.queries, rows, s.d, w.keys, low / panel_keys, panels(high), w.scores, w.stride);
  products(w.gradients, rows, s.e, w.values, low / panel_keys, panels(high), w.products, w.stride);
  for (int64_t i = 0; i < rows; i++) {
    float *p = w.scores + i * w.stride, *ds = w.products + i * w.stride;
    const int64_t count = pointer[i + 1] - pointer[i], width = high - low;
    read_row(held, count, s.m, t.column);
    held += row_bytes(count, s.m);
    int64_t before = 0, after = 0;  // zeros
    if (count > 0 && t.column[count - 1] - t.column[0] == count - 1) {  // they stand together: in place
      before = t.column[0] - low;
      row_gradient<any_power>(s, alpha, t, x, first, i, t.column, count, p + before, ds + before, pointer[i], &any);
      after = before + count;
    } else if (count > 0) {
      for (int64_t e = 0; e < count; e++) {
        t.p[e] = p[t.column[e] - low];
        t.ds[e] = ds[t.column[e] - low];
      }
      row_gradient<any_power>(s, alpha, t, x, first, i, t.column, count, t.p, t.ds, pointer[i], &any);
      lay_out(t.p, t.column, count, low, high, p);
      lay_out(t.ds, t.column, count, low, high, ds);
      continue;
    }
    fill_row(p, before, 0.f);
    fill_row(ds, before, 0.f);
    fill_row(p + after, width - after, 0.f);
    fill_row(ds + after, width - after, 0.f);
  }
  for (int64_t key = low; key < high; key += dense_keys)
    add_product(w.products + key - low, w.stride, 1, rows, x.k + key * s.d, high - key < dense_keys ? high - key : dense_keys, s.d, x.dq);
  add_product(w.products, 1, w.stride, high - low, x.q, rows, s.d, x.dk + low * s.d);
  add_product(w.scores, 1, w.stride, high - low, x.g, rows, s.e, x.dv + low * s.e);
}

// Whether a head goes through backward_dense. Not asked of tiles, which differ between numbers of threads.
inline bool dense_head(const Shape& s, const float* q, const float* k, const float* v, const float* g, const int64_t* pointers, int64_t head) {
  const double alpha = s.alpha_of(head);
  if (alpha == 1.5 || alpha == 2 || (s.pinned && s.spans)) return false;
  int64_t seen = 0;
  for (int64_t i = 0; i < s.n; i++) seen += s.limit(head, i) > s.begin(head, i) ? s.limit(head, i) - s.begin(head, i) : 0;
  const int64_t entries = pointers[(head + 1) * s.n] - pointers[head * s.n];
  if (!(static_cast<double>(entries) > dense_share * static_cast<double>(seen))) return false;
  const int64_t group = s.group(head);
  return longest(q + head * s.n * s.d, s.n, s.d) < infinity<float>() && longest(g + head * s.n * s.e, s.n, s.e) < infinity<float>() &&
         longest(k + group * s.m * s.d, s.m, s.d) < infinity<float>() && longest(v + group * s.m * s.e, s.m, s.e) < infinity<float>();
}

// A group's heads add to the same dk and dv, so a group is one worker's. With more threads than groups a group is cut
// into parts, each with sums of its own, which are added up in order.
inline int attention_backward(const Shape& s, const float* q, const float* k, const float* v, const float* g,
                              const int64_t* pointers, const void* held, const float* weights, float* dq, float* dk,
                              float* dv, double* dalpha, float* dscores, int threads) {
  const int64_t heads = s.heads / s.groups, rows = heads * s.n;  // rows of a group, consecutive
  const int64_t entries = pointers[s.heads * s.n], keys = s.m * s.d, values = s.m * s.e;
  const double ns = 0.1 * static_cast<double>(entries) * static_cast<double>(s.d + s.e);
  const int most = workers_for(ns, threads < most_workers ? threads : most_workers, s.heads * ((s.n + 63) / 64));
  const int64_t parts = most <= s.groups ? 1 : most / s.groups;
  const int workers = most <= s.groups ? most : static_cast<int>(s.groups * parts);
  const int64_t tile = queries_per_tile(entries, s.heads * s.n, s.m);
  float* sums = nullptr;  // [groups][parts - 1][m * (d + e)]
  if (parts > 1) {
    sums = static_cast<float*>(std::calloc(static_cast<size_t>(s.groups * (parts - 1) * (keys + values)), sizeof *sums));
    if (!sums) return out_of_memory;
  }
  int64_t* place = static_cast<int64_t*>(std::malloc(static_cast<size_t>(s.heads * s.n + 1) * sizeof *place));  // of rows
  if (!place) {
    std::free(sums);
    return out_of_memory;
  }
  place[0] = 0;
  for (int64_t r = 0; r < s.heads * s.n; r++) place[r + 1] = place[r] + row_bytes(pointers[r + 1] - pointers[r], s.m);
  fill_row(dk, s.groups * keys, 0.f);
  fill_row(dv, s.groups * values, 0.f);
  int64_t cut[most_workers + 1];
  share_out(s.groups * parts, workers, cut, [](int64_t) { return 1.0; });
  bool failed[most_workers] = {};
  in_parallel(workers, [&](int w) {
    Transposed work;
    Dense full;
    int64_t largest = 0, asked = -1;
    bool dense = false;
    auto is_dense = [&](int64_t head) {
      if (head != asked) dense = dense_head(s, q, k, v, g, pointers, asked = head);
      return dense;
    };
    auto tiles = [&](auto each) {
      for (int64_t piece = cut[w]; piece < cut[w + 1]; piece++) {
        const int64_t group = piece / parts, part = piece % parts;
        for (int64_t row = group * rows + rows * part / parts, last = group * rows + rows * (part + 1) / parts; row < last;) {
          const int64_t left = s.n - row % s.n, most = is_dense(row / s.n) ? block_rows : tile;
          const int64_t size = left < most ? left : most;  // a tile stays in one head
          const int64_t count = size < last - row ? size : last - row;
          each(group, part, row, count);
          row += count;
        }
      }
    };
    tiles([&](int64_t, int64_t, int64_t row, int64_t count) {
      const int64_t here = dense ? s.m : pointers[row + count] - pointers[row];
      largest = here > largest ? here : largest;
    });
    char* memory = static_cast<char*>(std::malloc(Transposed::bytes(largest, s.m, s.d)));
    failed[w] = !memory;
    if (!memory) return;
    work.take(largest, s.m, s.d, memory);
    asked = -1;
    tiles([&](int64_t group, int64_t part, int64_t row, int64_t count) {
      float* own = part ? sums + (group * (parts - 1) + part - 1) * (keys + values) : nullptr;
      Gradients x{q + row * s.d, k + group * keys, v + group * values, g + row * s.e, dq + row * s.d,
                  own ? own : dk + group * keys, own ? own + keys : dv + group * values, dalpha ? dalpha + row : nullptr,
                  dscores, s.lam > 0 ? weights : nullptr};
      const double alpha = s.alpha_of(row / s.n);
      if (dense) {
        failed[w] = failed[w] || !(full.memory || full.take(s));
        if (failed[w]) return;
        full.turn_to(s, x, group);
        return backward_dense(s, alpha, work, full, x, row, count, pointers + row, static_cast<const char*>(held) + place[row]);
      }
      with_power(alpha, [&](auto power) {
        backward_tile<decltype(power)::value>(s, alpha, work, x, row, count, pointers + row, static_cast<const char*>(held) + place[row]);
      });
    });
    std::free(full.memory);
    std::free(memory);
  });
  bool fine = true;
  for (int w = 0; w < workers; w++) fine = fine && !failed[w];
  for (int64_t i = 0; fine && i < s.groups * (parts - 1); i++) {
    const float* own = sums + i * (keys + values);
    float *to_k = dk + i / (parts - 1) * keys, *to_v = dv + i / (parts - 1) * values;
    for (int64_t c = 0; c < keys; c++) to_k[c] += own[c];
    for (int64_t c = 0; c < values; c++) to_v[c] += own[keys + c];
  }
  std::free(sums);
  std::free(place);
  return fine ? ok : out_of_memory;
}

}  // namespace sa
