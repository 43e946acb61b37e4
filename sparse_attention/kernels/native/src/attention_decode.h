// Decoding: one query a head on a long cache, whose keys are also held as 8 bit panels (attention_screen.h).
//
// Keys not yet in a panel are scored in float32, the newest panel is screened next: they give the first bound. What passes
// all panels is scored once. So a step reads a byte a channel of most keys, and the values of the support.
//
// A step finds its memory cold, since the rest of a model ran before. Panels are asked for a page ahead, and a head's
// candidates and values while the next heads are screened.
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

// Rounds the panels from `first` on of every group; with first = 0, centre and spread are chosen from `m` keys before.
inline int screen_cache(const Cache& cache, int64_t groups, int64_t m, int64_t d, int64_t first, int threads) {
  const int64_t last = cache.panels;
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

inline void prefetch(const void* from, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(from) + b);
}
inline void prefetch_rows(const float* table, const Row& row, int64_t width) {
  for (int64_t e = 0; e < row.count; e++) prefetch(table + row.column[e] * width, width * 4);
}

// One head's query on the cache, in three parts; between them other heads' parts leave the memory time to answer.
template <int power>
struct Decoding {
  Row row;
  const float *k, *v;
  float* q;       // scaled, [d]
  bool careful;   // float32 may not hold its scores
  bool screened;  // the candidates' scores are lower bounds

  void begin(const Shape& s, const Cache& cache, const float* query, int64_t head) {
    const float scale = static_cast<float>(power == 1 ? s.scale : 0.5 * s.scale);
    k = cache.k + s.group(head) * cache.stride_k;
    v = cache.v + s.group(head) * cache.stride_v;
    for (int64_t c = 0; c < s.d; c++) q[c] = query[c] * scale;
    row.count = row.settled = 0;
    row.bound = -infinity<float>();
    row.begin = 0;
    row.limit = static_cast<int32_t>(s.limit(head, 0));
  }

  void find_candidates(const Shape& s, const Cache& cache, const ScreenedKeys& keys, [[maybe_unused]] int32_t* q8) {
    const int64_t whole = SA_SCREEN ? row.limit / panel_keys : 0, last = whole < cache.panels ? whole : cache.panels;
    const float tail = longest(k + last * panel_keys * s.d, row.limit - last * panel_keys, s.d);
    Panel worst{0, 0, 0, 0};
    if (last > 0) worst = Panel::worst(keys.panel, last);
    double norm = 0;
    for (int64_t c = 0; c < s.d; c++) norm += static_cast<double>(q[c]) * q[c];
    careful = !(norm * tail < 1e70) || !(norm * worst.length * worst.length < 1e70);
    screened = !careful && last > 0;
    if (careful) return;
    score_all(row, q, k, s.d, last * panel_keys);
    settle<power>(row);
#if SA_SCREEN
    if (!screened) return;
    const Screener x = screen_query(keys, q, s.d, q8, 1);
    const float slack = 2 * x.error(worst);
    constexpr int64_t page = page_keys / panel_keys;
    const int64_t bytes = panel_keys * quads(s.d) * 4;
    auto screen = [&](int64_t from, int64_t to) {
      float least, base;
      screening_bounds(x, Panel::worst(keys.panel + from, to - from), row.bound, least, base);
      for (int64_t p = from; p < to; p++) {
        prefetch(keys.value + (p + page) * bytes, bytes);
        screen_tile<1, false>(q8, keys, quads(s.d), p, &x, &least, &base, &row);
      }
      if (row.count > row.settled + row.settled / 4 + 16 || to == last) settle<power>(row, slack);
    };
    screen(last - 1, last);
    for (int64_t p = 0; p < last - 1; p += page) screen(p, p + page < last - 1 ? p + page : last - 1);
    settle<power>(row, slack);
    prefetch_rows(k, row, s.d);
#endif
  }

  void find_support(const Shape& s) {
    if (screened) rescore(row, q, k, s.d);
    if (careful)
      finish_carefully<power>(row, q, k, s.d);
    else
      finish<power>(row);
    prefetch_rows(v, row, s.e);
  }

  void read(const Shape& s, float* out) const {
    fill_row(out, s.e, 0.f);
    add_rows(row.score, row.column, row.count, v, s.e, s.e, out);
  }
};

template <int power>
inline int attention_decode(const Shape& s, const Cache& cache, const float* q, float* out, int threads) {
  const double ns = 0.3 * static_cast<double>(s.heads * s.m) * static_cast<double>(s.d) / 4;
  const int workers = workers_for(ns, threads < most_workers ? threads : most_workers, s.heads);
  bool failed[most_workers] = {};
  in_parallel(workers, [&](int w) {
    const size_t bytes = static_cast<size_t>(s.m + overhang) * 8 + static_cast<size_t>(s.d + 4) * 8 + 1024;
    char* memory = static_cast<char*>(std::malloc(3 * bytes));
    failed[w] = !memory;
    if (!memory) return;
    Scratch scratch{memory};
    int32_t* q8 = scratch.take<int32_t>(quads(s.d));
    Decoding<power> part[3];
    for (auto& x : part) {
      x.q = scratch.take<float>(s.d);
      x.row.score = scratch.take<float>(s.m + overhang);
      x.row.column = scratch.take<int32_t>(s.m + overhang);
    }
    const int64_t first = s.heads * w / workers, last = s.heads * (w + 1) / workers;
    for (int64_t h = first; h < last + 2; h++) {
      if (h < last) {
        part[h % 3].begin(s, cache, q + h * s.d, h);
        part[h % 3].find_candidates(s, cache, cache.keys(s.group(h), s.d), q8);
      }
      if (h - 1 >= first && h - 1 < last) part[(h - 1) % 3].find_support(s);
      if (h - 2 >= first) part[(h - 2) % 3].read(s, out + (h - 2) * s.e);
    }
    std::free(memory);
  });
  for (int w = 0; w < workers; w++)
    if (failed[w]) return out_of_memory;
  return ok;
}

}  // namespace sa
