// Decoding: one query a head on a long cache, whose keys are also held as 8 bit panels (attention_screen.h).
//
// Keys not yet in a panel are scored in float32, the newest panel is screened next: they give the first bound. What passes
// all panels is scored once. So a step reads a byte a channel of most keys, and the values of the support.
//
// Keys and values are float32, bfloat16 or float16 (E) and are computed in float32; queries and outputs are of E, too.
//
// A step finds its memory cold, since the rest of a model ran before. Panels are asked for a page ahead, and a head's
// candidates and values while the next heads are screened.
#pragma once
#include <type_traits>

#include "attention_forward.h"

namespace sa {

// A cache, as its owner lays it out: group g's keys at k + g stride_k, its panels at panel + g room and so on.
struct Cache {
  const void *k, *v;           // of E
  int64_t stride_k, stride_v;  // elements from a group to the next
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

// What changes the scores of a query at the last of m positions. Head h reads number h % heads of the first three.
struct Forms {
  const float* scales;  // or null: the head's own scale
  const float* slopes;  // or null: slope (j - (m - 1)) is added to the score of key j
  const float* sinks;   // or null: the score of one more key, whose value is 0
  int64_t heads;
  int64_t window;  // the last keys, the only ones seen
  double factor;   // of what is added and of sinks; queries are scaled by s.scale
  const float* bias = nullptr;  // row h, bias + h stride_bias, is added to head h's scores; or null
  int64_t stride_bias = 0;
};

// Rounds the panels from `first` on of every group; with first = 0, centre and spread are chosen from `m` keys before.
template <class E>
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
      const E* k = static_cast<const E*>(cache.k) + g * cache.stride_k;
      if (first == 0) {
        choose_center(keys, k, m, d);
        cache.center_length[g] = keys.center_length;
      }
      for (int64_t p = first; p < last; p++) screen_panel<Bytes>(keys, k + p * panel_keys * d, panel_keys, d, p, room);
    }
    std::free(room);
  });
  for (int w = 0; w < workers; w++)
    if (failed[w]) return out_of_memory;
  return ok;
}

inline void prefetch(const void* from, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(from) + b);
}
template <class E>
inline void prefetch_rows(const E* table, const Row& row, int64_t width) {
  for (int64_t e = 0; e < row.count; e++) prefetch(table + row.column[e] * width, width * static_cast<int64_t>(sizeof(E)));
}

// One head's query on the cache, in three parts; between them other heads' parts leave the memory time to answer.
template <int power, class E>
struct Decoding {
  Row row;
  const E *k, *v;
  float* q;         // scaled, [d]
  float* total;     // [e], the output before it is rounded
  bool careful;     // float32 may not hold its scores
  bool screened;    // the candidates' scores are lower bounds
  bool broken;      // some score is NaN or +inf
  int64_t newest;   // the query's position
  float slope, unit, sink;  // slope and sink as parts of the scores, -inf: no sink; unit: of a bias
  const float* bias;        // [m] or null

  bool plain() const { return slope == 0 && !bias; }
  float added(int64_t j) const {
    const float far = slope * static_cast<float>(j - newest);
    return bias ? far + bias[j] * unit : far;
  }

  void begin(const Shape& s, const Forms& f, const Cache& cache, const E* query, int64_t head) {
    const double own = f.scales ? f.scales[head % f.heads] : 1;
    const float scale = static_cast<float>((power == 1 ? s.scale : 0.5 * s.scale) * own);
    k = static_cast<const E*>(cache.k) + s.group(head) * cache.stride_k;
    v = static_cast<const E*>(cache.v) + s.group(head) * cache.stride_v;
    for (int64_t c = 0; c < s.d; c++) q[c] = as_float(query[c]) * scale;
    row.count = row.settled = 0;
    row.bound = -infinity<float>();
    row.limit = static_cast<int32_t>(s.limit(head, 0));
    const int64_t hidden = f.window < s.m ? s.m - f.window : 0;
    row.begin = hidden < row.limit ? static_cast<int32_t>(hidden) : row.limit;
    newest = s.m - 1;
    unit = static_cast<float>(power == 1 ? f.factor : 0.5 * f.factor);
    slope = f.slopes ? f.slopes[head % f.heads] * unit : 0;
    sink = f.sinks ? f.sinks[head % f.heads] * unit : -infinity<float>();
    bias = f.bias ? f.bias + head * f.stride_bias : nullptr;
    broken = careful = screened = false;
  }

  // Scores of the keys from `from` to below `to`, all of them candidates.
  void score_all(int64_t d, int64_t from, int64_t to) {
    const int64_t c = row.count;
    for (int64_t j = from; j < to; j++) row.column[c + j - from] = static_cast<int32_t>(j);
    row.count += to - from;
    score(d, c);
  }
  void score(int64_t d, int64_t from) {
    gathered_dots(q, row.column + from, row.count - from, k, d, d, row.score + from);
    if (plain()) return;
    for (int64_t e = from; e < row.count; e++) row.score[e] += added(row.column[e]);
    drop(row, row.bound);  // -inf hides a key
  }

  bool addable() const {
    bool fine = slope - slope == 0 && sink < infinity<float>();
    for (int64_t j = row.begin; bias && j < row.limit; j += V::W) {
      const V x = load_row(bias, j, row.limit, 0.f) * V::all(unit);
      fine = fine && count(greater(V::all(infinity<float>()), x)) == V::W;  // not for NaN
    }
    return fine;
  }

  void find_candidates(const Shape& s, const Cache& cache, const ScreenedKeys& keys, [[maybe_unused]] int32_t* q8) {
    const int64_t whole = SA_SCREEN ? row.limit / panel_keys : 0, last = whole < cache.panels ? whole : cache.panels;
    const int64_t first = (row.begin + panel_keys - 1) / panel_keys;  // panels from first to below last are screened
    const bool some = first < last;
    const int64_t from = some ? last * panel_keys : row.begin, before = some ? first * panel_keys - row.begin : 0;
    const float tail = longest(k + from * s.d, row.limit - from, s.d), start = longest(k + row.begin * s.d, before, s.d);
    Panel worst{0, 0, 0, 0};
    if (some) worst = Panel::worst(keys.panel + first, last - first);
    double norm = 0;
    for (int64_t c = 0; c < s.d; c++) norm += static_cast<double>(q[c]) * q[c];
    careful = !(norm * tail < 1e70) || !(norm * start < 1e70) || !(norm * worst.length * worst.length < 1e70) || !addable();
    screened = !careful && some;
    if (careful) return;
    score_all(s.d, from, row.limit);
    score_all(s.d, row.begin, row.begin + before);
    settle<power>(row);
#if SA_SCREEN
    if (!screened) return;
    const Screener x = screen_query<Bytes>(keys, q, s.d, q8, 1);
    if (plain())
      screen(s, keys, q8, x, worst, first, last);
    else
      screen_added(s, keys, q8, x, worst, first, last, static_cast<float>(std::sqrt(norm) * 1.001));
    prefetch_rows(k, row, s.d);
#endif
  }

#if SA_SCREEN
  static constexpr int64_t page = page_keys / panel_keys;

  void screen(const Shape& s, const ScreenedKeys& keys, const int32_t* q8, const Screener& x, const Panel& worst, int64_t first,
              int64_t last) {
    const float slack = 2 * x.error(worst);
    const int64_t bytes = panel_keys * quads(s.d) * 4;
    auto pages = [&](int64_t from, int64_t to) {
      float least, base;
      screening_bounds(x, Panel::worst(keys.panel + from, to - from), row.bound, least, base);
      for (int64_t p = from; p < to; p++) {
        prefetch(keys.value + (p + page) * bytes, bytes);
        screen_tile<Bytes, 1, false>(q8, keys, quads(s.d), p, &x, &least, &base, &row);
      }
      if (row.count > row.settled + row.settled / 4 + 16 || to == last) settle<power>(row, slack);
    };
    pages(last - 1, last);
    for (int64_t p = first; p < last - 1; p += page) pages(p, p + page < last - 1 ? p + page : last - 1);
    settle<power>(row, slack);
  }

  // The same with something added to the scores, from the newest panel on, since slopes favour new keys: a page is skipped
  // if not even the longest of its keys, in the query's direction, could reach the bound.
  void screen_added(const Shape& s, const ScreenedKeys& keys, const int32_t* q8, const Screener& x, const Panel& worst,
                    int64_t first, int64_t last, float length) {
    const float near = 1e-6f * std::fabs(x.shift);  // sums of large numbers are off by a few units in their last place
    float margin = 0;                               // of what was added to any candidate
    for (int64_t to = last; to > first;) {
      const int64_t from = to - page > first ? to - page : first;
      const Panel here = Panel::worst(keys.panel + from, to - from);
      const float one = slope * static_cast<float>(from * panel_keys - newest);
      const float other = slope * static_cast<float>(to * panel_keys - 1 - newest), most = one > other ? one : other;
      const float reach = length * here.length;
      const bool out = !bias && reach + most + 1e-6f * (reach + std::fabs(most) + std::fabs(row.bound)) <= row.bound;
      for (int64_t p = to - 1; p >= from && !out; p--) screen_panel_added(s, keys, q8, x, p, x.error(here) + near, margin);
      if (row.count > row.settled + row.settled / 4 + 16) settle<power>(row, 2 * (x.error(worst) + near + margin));
      to = from;
    }
    settle<power>(row, 2 * (x.error(worst) + near + margin));
  }

  void screen_panel_added(const Shape& s, const ScreenedKeys& keys, const int32_t* q8, const Screener& x, int64_t p,
                          float error, float& margin) {
    IntV sums[2] = {IntV::all(x.start), IntV::all(x.start)};
    const uint8_t* at = keys.value + p * panel_keys * quads(s.d) * 4;
    for (int64_t c = 0; c < quads(s.d); c++, at += panel_keys * 4) {
      const IntV t = IntV::all(q8[c]);
      dot4(sums[0], IntV::load(at), t);
      dot4(sums[1], IntV::load(at + V::W * 4), t);
    }
    float lane[V::W];
    for (int i = 0; i < V::W; i++) lane[i] = static_cast<float>(i);
    const float most = 2 * error + 1e-6f * std::fabs(row.bound);
    V margins = V::all(0);
    for (int half = 0; half < 2; half++) {
      const int64_t base = p * panel_keys + half * V::W;
      V add = (V::load(lane) + V::all(static_cast<float>(base - newest))) * V::all(slope);
      if (bias) add = fma(V::load(bias + base), V::all(unit), add);
      const V off = max(add, V::all(0) - add) * V::all(1e-6f);
      const V low = fma(V::all(x.step * keys.panel[p].step), sums[half].floats(), V::all(x.shift - error)) + add - off;
      const auto keep = greater(low + off + off + V::all(most), V::all(row.bound));
      margins = max(select_or_zero(keep, off), margins);
      compress_index<float>(row.column + row.count, keep, static_cast<int32_t>(base));
      row.count += compress(row.score + row.count, keep, low);
    }
    margin = std::fmax(margin, largest(margins));
  }
#endif

  // As finish_carefully (attention_forward.h).
  void find_carefully(int64_t d) {
    broken = !(sink < infinity<float>());
    row.count = 0;
    for (int32_t j = row.begin; j < row.limit; j++) {
      float s = 0;
      for (int64_t c = 0; c < d; c++) s += q[c] * as_float(k[j * d + c]);
      if (!plain()) s += added(j);
      broken = broken || !(s < infinity<float>());
      row.score[row.count] = s;
      row.column[row.count] = j;
      row.count += s > -infinity<float>();
    }
    if (broken) row.count = 0;
  }

  void find_support(const Shape& s) {
    if (careful) {
      find_carefully(s.d);
    } else if (screened) {
      score(s.d, 0);
      drop(row, row.bound);
    }
    const bool sinks = !broken && sink > -infinity<float>();
    if (sinks) {
      row.score[row.count] = sink;
      row.column[row.count++] = -1;
    }
    finish<power>(row);
    if (sinks && row.count > 0 && row.column[row.count - 1] == -1) row.count--;
    prefetch_rows(v, row, s.e);
  }

  void read(const Shape& s, E* out) {
    float* to = total;
    if constexpr (std::is_same<E, float>::value) to = out;
    fill_row(to, s.e, broken ? std::numeric_limits<float>::quiet_NaN() : 0.f);
    add_rows(row.score, row.column, row.count, v, s.e, s.e, to);
    if constexpr (!std::is_same<E, float>::value)
      for (int64_t c = 0; c < s.e; c++) store_rounded(out + c, to[c]);
  }
};

template <int power, class E>
inline int attention_decode(const Shape& s, const Forms& f, const Cache& cache, const E* q, E* out, int threads) {
  const double ns = 0.3 * static_cast<double>(s.heads * s.m) * static_cast<double>(s.d) / 4;
  const int workers = workers_for(ns, threads < most_workers ? threads : most_workers, s.heads);
  bool failed[most_workers] = {};
  in_parallel(workers, [&](int w) {
    const size_t bytes = static_cast<size_t>(s.m + overhang) * 8 + static_cast<size_t>(s.d + 4) * 8 + static_cast<size_t>(s.e) * 4 + 1024;
    char* memory = static_cast<char*>(std::malloc(3 * bytes));
    failed[w] = !memory;
    if (!memory) return;
    Scratch scratch{memory};
    int32_t* q8 = scratch.take<int32_t>(quads(s.d));
    Decoding<power, E> part[3];
    for (auto& x : part) {
      x.q = scratch.take<float>(s.d);
      x.total = scratch.take<float>(s.e);
      x.row.score = scratch.take<float>(s.m + overhang);
      x.row.column = scratch.take<int32_t>(s.m + overhang);
    }
    const int64_t first = s.heads * w / workers, last = s.heads * (w + 1) / workers;
    for (int64_t h = first; h < last + 2; h++) {
      if (h < last) {
        part[h % 3].begin(s, f, cache, q + h * s.d, h);
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
