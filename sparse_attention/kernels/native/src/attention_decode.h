// Decoding: one query a head on a long cache, whose keys are also held as 8 bit panels (attention_screen.h).
//
// The newest keys are scored in float32, which gives the first bound; the panels are screened from there, and what
// passes is scored once. So a step reads a byte a channel of most keys, and the values of the support.
#pragma once
#include "attention_forward.h"

namespace sa {

// A cache, as its owner lays it out: group g's keys at k + g stride_k, its panels at panel + g room and so on.
struct Cache {
  const float *k, *v;
  int64_t stride_k, stride_v;  // floats from a group to the next
  uint8_t* value;
  Panel* panel;
  float *center, *spread, *center_length;
  int64_t room, panels;  // panels that fit; that are complete and rounded

  ScreenedKeys keys(int64_t group, int64_t d) const {
    const int64_t width = whole_vectors(d);
    return {center + group * width,
            spread + group * width,
            center_length[group],
            value + group * room * panel_keys * quads(d) * 4,
            panel + group * room};
  }
};

// Rounds the panels [first, last) of every group; with first = 0, centre and spread are chosen from `m` keys before.
inline int screen_cache(const Cache& cache, int64_t groups, int64_t m, int64_t d, int64_t first, int64_t last, int threads) {
  const double ns = 2.0 * static_cast<double>(groups * (last - first) * panel_keys * d);
  const int workers = workers_for(ns, threads < most_workers ? threads : most_workers, groups);
  bool failed[most_workers] = {};
  in_parallel(workers, [&](int w) {
    float* room = static_cast<float*>(std::malloc(static_cast<size_t>(panel_keys * whole_vectors(d)) * sizeof(float)));
    failed[w] = !room;
    for (int64_t g = groups * w / workers; room && g < groups * (w + 1) / workers; g++) {
      ScreenedKeys keys = cache.keys(g, d);
      const float* k = cache.k + g * cache.stride_k;
      if (first == 0) {
        choose_center(keys, k, m, d);
        cache.center_length[g] = keys.center_length;
      }
      for (int64_t p = first; p < last; p++) screen_panel(keys, k + p * panel_keys * d, panel_keys, d, p, room);
    }
    std::free(room);
  });
  for (int w = 0; w < workers; w++)
    if (failed[w]) return out_of_memory;
  return ok;
}

// Scores of the keys [first, row.limit), all of them candidates.
inline void score_all(Row& row, const float* q, const float* k, int64_t d, int64_t first) {
  for (int64_t j = first; j < row.limit; j++) row.column[row.count + j - first] = static_cast<int32_t>(j);
  gathered_dots(q, row.column + row.count, row.limit - first, k, d, d, row.score + row.count);
  row.count += row.limit - first;
}

// The candidates of one query, q scaled [d]; false if its scores need care.
template <int power>
inline bool find_in_cache(const Shape& s, const Cache& cache, Row& row, const float* q,
                          [[maybe_unused]] int32_t* q8, const float* k, int64_t group) {
  const ScreenedKeys keys = cache.keys(group, s.d);
  const int64_t whole = SA_SCREEN ? (row.limit / panel_keys < cache.panels ? row.limit / panel_keys : cache.panels) : 0;
  const int64_t last = whole > 1 ? whole - 1 : 0;  // the newest complete panel is scored, too
  const float tail = longest(k + last * panel_keys * s.d, row.limit - last * panel_keys, s.d);
  Panel worst{0, 0, 0, 0};
  if (last > 0) worst = Panel::worst(keys.panel, last);
  double norm = 0;
  for (int64_t c = 0; c < s.d; c++) norm += static_cast<double>(q[c]) * q[c];
  if (!(norm * tail < 1e70) || !(norm * worst.length * worst.length < 1e70)) return false;
  score_all(row, q, k, s.d, last * panel_keys);
  settle<power>(row);
#if SA_SCREEN
  if (last == 0) return true;
  const Screener x = screen_query(keys, q, s.d, q8, 1);
  constexpr int64_t page = page_keys / panel_keys;
  const float slack = 2 * x.error(worst);
  for (int64_t p = 0; p < last; p += page) {
    const int64_t end = p + page < last ? p + page : last;
    float least, base;
    screening_bounds(x, Panel::worst(keys.panel + p, end - p), row.bound, least, base);
    for (int64_t i = p; i < end; i++) screen_tile<1, false>(q8, keys, quads(s.d), i, &x, &least, &base, &row);
    if (row.count > row.settled + row.settled / 4 + 16) settle<power>(row, slack);
  }
  settle<power>(row, slack);
  rescore(row, q, k, s.d);
#endif
  return true;
}

template <int power>
inline int attention_decode(const Shape& s, const Cache& cache, const float* q, float* out, int threads) {
  const double ns = 0.3 * static_cast<double>(s.heads * s.m) * static_cast<double>(s.d) / 4;
  const int workers = workers_for(ns, threads < most_workers ? threads : most_workers, s.heads);
  const float scale = static_cast<float>(power == 1 ? s.scale : 0.5 * s.scale);
  bool failed[most_workers] = {};
  in_parallel(workers, [&](int w) {
    const size_t bytes = static_cast<size_t>(s.m + overhang) * 8 + static_cast<size_t>(s.d + 4) * 8 + 1024;
    char* memory = static_cast<char*>(std::malloc(bytes));
    failed[w] = !memory;
    if (!memory) return;
    Scratch scratch{memory};
    Row row{};
    float* scaled = scratch.take<float>(s.d);
    int32_t* q8 = scratch.take<int32_t>(quads(s.d));
    row.score = scratch.take<float>(s.m + overhang);
    row.column = scratch.take<int32_t>(s.m + overhang);
    for (int64_t h = s.heads * w / workers; h < s.heads * (w + 1) / workers; h++) {
      const int64_t group = s.group(h);
      const float *k = cache.k + group * cache.stride_k, *v = cache.v + group * cache.stride_v;
      for (int64_t c = 0; c < s.d; c++) scaled[c] = q[h * s.d + c] * scale;
      row.count = row.settled = 0;
      row.bound = -infinity<float>();
      row.limit = static_cast<int32_t>(s.limit(h, 0));
      if (find_in_cache<power>(s, cache, row, scaled, q8, k, group))
        finish<power>(row);
      else
        finish_carefully<power>(row, scaled, k, s.d);
      fill_row(out + h * s.e, s.e, 0.f);
      add_rows(row.score, row.column, row.count, v, s.e, s.e, out + h * s.e);
    }
    std::free(memory);
  });
  for (int w = 0; w < workers; w++)
    if (failed[w]) return out_of_memory;
  return ok;
}

}  // namespace sa
