// Forward: out = P v, row by row of P = mapping(scale q k'), of which only the support is ever held.
//
// A block of 48 queries goes through the keys in pages. What exceeds a query's running bound becomes a candidate
// (attention_tile.h), the bound is raised when candidates have piled up (attention_row.h), the exact threshold is taken
// on what is left, and the values are summed at the support alone (attention_gather.h). Where the first page leaves few
// candidates, the other pages are screened by integers first (attention_screen.h). Everything a block does depends
// on its own queries and keys only, so results do not depend on how blocks are shared out.
#pragma once
#include "attention_block.h"

namespace sa {

// What the queries of a group see: all of them the keys from `from` to below `all`, none those before `begin` or from
// `end` on.
struct Sight {
  int64_t begin, from, all, end;
  bool whole(int64_t key) const { return key >= from && key + panel_keys <= all; }
};
inline Sight sight(const Row* row, int64_t rows, int64_t m) {
  Sight s{m, 0, m, 0};
  for (int64_t i = 0; i < rows; i++) {
    if (row[i].bound == infinity<float>()) continue;
    s.begin = row[i].begin < s.begin ? row[i].begin : s.begin;
    s.from = row[i].begin > s.from ? row[i].begin : s.from;
    s.all = row[i].limit < s.all ? row[i].limit : s.all;
    s.end = row[i].limit > s.end ? row[i].limit : s.end;
  }
  s.begin = s.begin / panel_keys * panel_keys;
  return s;
}

template <int power>
inline void score_page(const Shape& s, const Workspace& w, int64_t g, int64_t page, int64_t end, const Sight& sees, Row* row,
                       const AnyAlpha* any) {
  const float* q = w.queries + g * s.d;
  const bool added = s.bias || s.kept;
  for (int64_t key = page; key < end; key += panel_keys) {
    const float* k = w.keys + key * s.d;
    const int32_t base = static_cast<int32_t>(key);
    if (s.kept && hidden(row, key, s.m)) continue;
    if (sees.whole(key))
      added ? tile<false, true>(q, k, s.d, row, base, s.m) : tile<false, false>(q, k, s.d, row, base, s.m);
    else
      added ? tile<true, true>(q, k, s.d, row, base, s.m) : tile<true, false>(q, k, s.d, row, base, s.m);
    if (key == sees.begin)
      for (int64_t i = 0; i < tile_rows; i++) settle<power>(row[i], 0, any);
  }
}

constexpr bool words = Screening::together == 2;

#if SA_SCREEN
inline void screen_page(const Shape& s, const Workspace& w, int64_t g, int64_t page, int64_t end, const Sight& sees, Row* row) {
  float least[tile_rows], base[tile_rows];
  const int64_t first = page / panel_keys, last = panels(end);
  const Panel worst = Panel::worst(w.rounded.panel + first, last - first);
  for (int64_t i = 0; i < tile_rows; i++) screening_bounds(w.screener[g + i], worst, row[i].bound, least[i], base[i]);
  int64_t candidates = 0;
  for (int64_t i = 0; i < tile_rows; i++) candidates += row[i].count;
  const bool often = words && candidates * 64 > tile_rows * (page - sees.begin);
  const int32_t* q = w.rounded_queries + g * lanes<Screening>(s.d);
  for (int64_t p = first; p < last; p++)
    if (sees.whole(p * panel_keys))
      screen_tile<Screening, tile_rows, false>(q, w.rounded, lanes<Screening>(s.d), p, w.screener + g, least, base, row, often);
    else
      screen_tile<Screening, tile_rows, true>(q, w.rounded, lanes<Screening>(s.d), p, w.screener + g, least, base, row, often);
}

// Rounds the keys, once a group, and the block's queries.
inline void prepare_screening(const Shape& s, Workspace& w, const float* k) {
  if (!w.screened) {
    choose_center(w.rounded, k, s.m, s.d);
    for (int64_t p = 0; p < panels(s.m); p++) {
      const int64_t left = s.m - p * panel_keys;
      screen_panel<Screening>(w.rounded, k + p * panel_keys * s.d, left < panel_keys ? left : panel_keys, s.d, p, w.room);
    }
    w.worst = Panel::worst(w.rounded.panel, panels(s.m));
    w.screened = true;
  }
  for (int64_t i = 0; i < block_rows; i++)
    w.screener[i] = screen_query<Screening>(
        w.rounded, w.plain + i * s.d, s.d,
        w.rounded_queries + i / tile_rows * tile_rows * lanes<Screening>(s.d) + i % tile_rows, tile_rows);
}
#endif

// Screening pays where few candidates are left and enough keys are to come.
constexpr int64_t least_screened = 1024;
constexpr double most_passing = words ? 0.25 : 0.12;

inline bool worth_screening(const Shape& s, const Workspace& w, int64_t page) {
  if (s.bias || s.kept) return false;  // the bounds are those of the products alone
  int64_t candidates = 0, passed = 0, to_come = 0;
  for (int64_t i = 0; i < block_rows; i++) {
    const Row& row = w.row[i];
    if (row.bound == infinity<float>()) continue;
    candidates += row.count;
    if (row.begin < page) passed += (row.limit < page ? row.limit : page) - row.begin;
    if (row.limit > page) to_come += row.limit - (row.begin > page ? row.begin : page);
  }
  return SA_SCREEN && s.d <= most_screened && to_come >= least_screened * block_rows &&
         static_cast<double>(candidates) < most_passing * static_cast<double>(passed);
}

template <int power>
inline void find_candidates(const Shape& s, Workspace& w, const float* k, const AnyAlpha* any) {
  int64_t screened = 0, passed = 0;
  bool screening = false;
  const Sight block = sight(w.row, block_rows, s.m);
  const int64_t begin = block.begin / page_keys * page_keys, end = block.end;
  for (int64_t page = begin; page < end; page += page_keys) {
#if SA_SCREEN
    if (page == begin + page_keys && worth_screening(s, w, page)) {
      prepare_screening(s, w, k);
      screening = true;
    }
#endif
    if (!screening) w.pack_up_to(s, k, page + page_keys);
    for (int64_t g = 0; g < block_rows; g += tile_rows) {
      Row* row = w.row + g;
      const Sight sees = sight(row, tile_rows, s.m);
      const int64_t from = sees.begin > page ? sees.begin : page, to = sees.end < page + page_keys ? sees.end : page + page_keys;
      if (to <= from) continue;
#if SA_SCREEN
      if (screening) {
        for (int64_t i = 0; i < tile_rows; i++) passed -= row[i].count;
        screen_page(s, w, g, from, to, sees, row);
        for (int64_t i = 0; i < tile_rows; i++) passed += row[i].count;
        screened += tile_rows * (to - from);
        for (int64_t i = 0; i < tile_rows; i++)
          if (row[i].count > row[i].settled + row[i].settled / (words ? 2 : 4) + 16)
            settle<power>(row[i], 2 * w.screener[g + i].error(w.worst), any);
        continue;
      }
#endif
      score_page<power>(s, w, g, from, to, sees, row, any);
      for (int64_t i = 0; i < tile_rows; i++)
        if (row[i].count > 2 * row[i].settled + 16) settle<power>(row[i], 0, any);
    }
    if (screening && (page + page_keys >= end || static_cast<double>(passed) > most_passing * static_cast<double>(screened))) {
      for (int64_t i = 0; i < block_rows; i++) {
        settle<power>(w.row[i], 2 * w.screener[i].error(w.worst), any);
        rescore(w.row[i], w.plain + i * s.d, k, s.d);
      }
      screening = false;
    }
  }
}

// out = sum of the values at the support. Dense blocks take the keys in pages, all queries a page each, so that its
// values are read from memory once.
inline void sum_values(const Shape& s, Workspace& w, int64_t rows, const float* v, float* out) {
  int64_t entries = 0, done[block_rows] = {};
  for (int64_t i = 0; i < rows; i++) entries += w.row[i].count;
  fill_row(out, rows * s.e, 0.f);
  const int64_t each = entries / (rows > 0 ? rows : 1);
  const int64_t page = each < 32 ? s.m : 24 * s.m / each;  // about 24 entries of a row at a time
  for (int64_t key = page; entries > 0; key += page) {
    for (int64_t i = 0; i < rows; i++) {
      const Row& row = w.row[i];
      int64_t to = done[i];
      while (to < row.count && row.column[to] < key) to = to + 16 < row.count ? to + 16 : row.count;
      if (to == done[i]) continue;
      add_rows(row.score + done[i], row.column + done[i], to - done[i], v, s.e, s.e, out + i * s.e);
      entries -= to - done[i];
      done[i] = to;
    }
  }
}

// The same where most of the keys have weight.
inline void sum_dense(const Shape& s, Workspace& w, int64_t rows, const float* v, float* out) {
  int64_t begin = s.m, end = 0, done[block_rows] = {};
  for (int64_t i = 0; i < rows; i++) {
    const Row& row = w.row[i];
    if (row.count == 0) continue;
    begin = row.column[0] < begin ? row.column[0] : begin;
    end = row.column[row.count - 1] >= end ? row.column[row.count - 1] + 1 : end;
  }
  fill_row(out, rows * s.e, 0.f);
  for (int64_t key = begin; key < end; key += dense_keys) {
    const int64_t high = key + dense_keys < end ? key + dense_keys : end;
    for (int64_t i = 0; i < rows; i++) {
      const Row& row = w.row[i];
      done[i] += lay_out(row.score + done[i], row.column + done[i], row.count - done[i], key, high, w.weights + i * dense_keys);
    }
    add_product(w.weights, dense_keys, 1, rows, v + key * s.e, high - key, s.e, out);
  }
}

inline bool dense(const Shape& s, Workspace& w, int64_t rows, const float* v) {
  int64_t entries = 0, seen = 0;
  for (int64_t i = 0; i < rows; i++) {
    const Row& row = w.row[i];
    entries += row.count;
    seen += row.limit - row.begin;
    if (row.count > 0 && !(row.score[0] == row.score[0])) return false;
  }
  if ((s.pinned && s.spans) || !(static_cast<double>(entries) > dense_share * static_cast<double>(seen))) return false;
  if (w.finite < 0) w.finite = longest(v, s.m, s.e) < infinity<float>();
  return w.finite;
}

// `pointers` (null: nothing is saved) gets each row's number of entries so far, counted within this worker.
template <int power>
inline bool forward_block(const Shape& s, Workspace& w, const float* q, const float* k, const float* v, float* out,
                          int64_t head, int64_t first, Support& support, int64_t* pointers) {
  const double alpha = s.alpha_of(head);
  std::optional<AnyAlpha> powers;
  if (power == any_power) powers.emplace(alpha, w.numbers);
  const AnyAlpha* any = powers ? &*powers : nullptr;
  const int64_t group = s.group(head);
  k += group * s.m * s.d;
  v += group * s.m * s.e;
  w.turn_to(s, k, group);
  const int64_t rows = s.n - first < block_rows ? s.n - first : block_rows;
  uint64_t careful = pack_queries(s, w, q, k, head, first, alpha);
  find_candidates<power>(s, w, k, any);
  int64_t entries = 0;
  const int64_t at = head * s.n + first;
  for (int64_t i = 0; i < rows; i++) {
    if (careful >> i & 1 || w.row[i].broken)
      finish_carefully<power>(w.row[i], w.plain + i * s.d, k, s.d, s.pinned, any, w.levels);
    else
      finish<power>(w.row[i], any, w.levels);
    entries += w.row[i].count;
  }
  if (pointers && !support.reserve(entries)) return false;
  for (int64_t i = 0; pointers && i < rows; i++) {
    support.append(w.row[i].column, w.row[i].score, w.row[i].count);
    pointers[at + i + 1] = support.count;
  }
  for (int64_t i = 0; w.levels && i < rows; i++)
    for (int64_t e = 0; e < w.row[i].count; e++) w.row[i].score[e] = std::fabs(w.row[i].score[e]);
  for (int64_t i = 0; s.dropout > 0 && i < rows; i++) {
    Row& row = w.row[i];
    if (row.count == 0 || row.score[0] != row.score[0]) continue;
    Dropout(s.dropout, s.seed, at + i).apply(row.score, row.column, row.count);
    drop(row, 0);
  }
  if (power == any_power && dense(s, w, rows, v))
    sum_dense(s, w, rows, v, out + at * s.e);
  else
    sum_values(s, w, rows, v, out + at * s.e);
  return true;
}

inline int attention_forward(const Shape& s, const float* q, const float* k, const float* v, float* out,
                             int64_t* pointers, bool weights, Support& support, int threads) {
  const int64_t blocks = (s.n + block_rows - 1) / block_rows, pieces = s.heads * blocks;
  auto cost = [&](int64_t i) {
    int64_t last = (i % blocks + 1) * block_rows;
    last = (last < s.n ? last : s.n) - 1;
    return static_cast<double>(64 + s.limit(i / blocks, last) - s.begin(i / blocks, last));
  };
  const double ns = 0.02 * static_cast<double>(s.heads * s.n * s.m) * static_cast<double>(s.d + 32) / 2;
  const int workers = workers_for(ns, threads < most_workers ? threads : most_workers, pieces);
  int64_t cut[most_workers + 1];
  share_out(pieces, workers, cut, cost);
  Support part[most_workers];
  bool failed[most_workers] = {};
  if (pointers) pointers[0] = 0;
  in_parallel(workers, [&](int w) {
    char* memory = static_cast<char*>(std::malloc(Workspace::bytes(s)));
    Workspace work;
    failed[w] = !memory;
    if (memory) work.take(s, memory);
    part[w].keys = s.m;
    part[w].weights = weights;
    for (int64_t i = cut[w]; i < cut[w + 1] && !failed[w]; i++)
      failed[w] = !with_power(s.alpha_of(i / blocks), [&](auto power) {
        return forward_block<decltype(power)::value>(s, work, q, k, v, out, i / blocks, i % blocks * block_rows, part[w], pointers);
      });
    std::free(memory);
  });
  bool fine = true;
  int64_t total = 0;
  for (int w = 0; w < workers; w++) {
    fine = fine && !failed[w];
    total += part[w].count;
  }
  fine = fine && (!pointers || part[0].reserve(total - part[0].count));
  for (int w = 1; w < workers; w++) {
    const int64_t before = part[0].count;
    for (int64_t i = cut[w]; fine && pointers && i < cut[w + 1]; i++) {
      const int64_t row = i / blocks * s.n + i % blocks * block_rows;
      for (int64_t j = 0; j < block_rows && i % blocks * block_rows + j < s.n; j++) pointers[row + j + 1] += before;
    }
    if (fine) part[0].append(part[w]);
    part[w].release();
  }
  if (!fine) part[0].release();
  part[0].trim();
  if (pointers) pointers[s.heads * s.n + 1] = part[0].bytes;
  support = part[0];
  return fine ? ok : out_of_memory;
}

}  // namespace sa
