// One worker's memory of the forward, and how a block of queries gets into it.
#pragma once
#include <optional>

#include "attention_dense.h"
#include "attention_screen.h"
#include "attention_segments.h"
#include "attention_support.h"

namespace sa {

// One worker's memory.
struct Workspace {
  float* keys;     // [panels][d][P]: packed keys of `group`, the first `packed` panels
  float* queries;  // [groups of rows][d][R]: packed queries of a block
  float* plain;    // [rows][d]: the same queries, scaled, row by row
  Row row[block_rows];
  int64_t group;    // whose keys are here
  int64_t packed;
  double key_norm;  // the largest |k_j|^2
  int finite;       // all values of `group`; -1 if not known yet
  float* weights;   // [rows][keys at a time] of a dense block
  bool screened;    // whether `rounded` holds them, too
  ScreenedKeys rounded;
  Panel worst;       // over all panels
  int32_t* rounded_queries;  // [groups of rows][lanes][R]
  Screener screener[block_rows];
  float* room;  // one panel
  double* numbers;  // for alpha > 2, three numbers a key
  std::optional<LevelSet> levels;  // for lam > 0

  static size_t bytes(const Shape& s) {
    return 3 * static_cast<size_t>(s.m + overhang) * 8 + static_cast<size_t>(panels(s.m)) * panel_keys * s.d * 4 + 2 * block_rows * s.d * 4 +
           block_rows * static_cast<size_t>(s.m + overhang) * 8 + ScreenedKeys::bytes(s.m, s.d) +
           block_rows * static_cast<size_t>(lanes<Screening>(s.d)) * 4 + block_rows * dense_keys * 4 + panel_keys * static_cast<size_t>(whole_vectors(s.d)) * 4 + 4096 +
           (s.lam > 0 ? LevelSet::bytes(s.m) : 0);
  }
  void take(const Shape& s, char* memory) {
    Scratch scratch{reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + 63) & ~static_cast<uintptr_t>(63))};
    queries = scratch.take<float>(block_rows * s.d);
    plain = scratch.take<float>(block_rows * s.d);
    rounded_queries = scratch.take<int32_t>(block_rows * lanes<Screening>(s.d));
    room = scratch.take<float>(panel_keys * whole_vectors(s.d));
    numbers = scratch.take<double>(3 * (s.m + overhang));
    weights = scratch.take<float>(block_rows * dense_keys);
    rounded.take(s.m, s.d, scratch);
    keys = scratch.take<float>(panels(s.m) * panel_keys * s.d);
    float* scores = scratch.take<float>(block_rows * (s.m + overhang));
    int32_t* columns = scratch.take<int32_t>(block_rows * (s.m + overhang));
    for (int64_t i = 0; i < block_rows; i++) {
      row[i].score = scores + i * (s.m + overhang);
      row[i].column = columns + i * (s.m + overhang);
    }
    if (s.lam > 0) levels.emplace(scratch, s.m, s.lam, s.pinned);
    group = -1;
  }
  void turn_to(const Shape& s, const float* k, int64_t to) {
    if (group == to) return;
    group = to;
    packed = 0;
    screened = false;
    key_norm = longest(k, s.m, s.d);
    finite = -1;
  }
  void pack_up_to(const Shape& s, const float* k, int64_t key) {
    const int64_t last = panels(key < s.m ? key : s.m);
    if (last > packed) pack_keys(k, s.m, s.d, packed, last, keys);
    packed = last > packed ? last : packed;
  }
};

// Scores that float32 may not hold, or that are not finite already: computed one by one, by the rules of the rows
// (-inf is excluded, NaN or +inf make the whole row NaN). Leaves a row that is finished.
template <int power>
inline void finish_carefully(Row& row, const float* q, const float* k, int64_t d, bool pinned, const AnyAlpha* any,
                             std::optional<LevelSet>& levels) {
  bool broken = false;
  row.count = 0;
  auto add = [&](int32_t j) {
    if (row.kept && !row.kept[j]) return;
    float s = 0;
    for (int64_t c = 0; c < d; c++) s += q[c] * k[j * d + c];
    if (row.bias) s += row.factor * row.bias[j];
    broken = broken || !(s < infinity<float>());
    row.score[row.count] = s;
    row.column[row.count] = j;
    row.count += s > -infinity<float>();
    if (levels) levels->kept[j] = s > -infinity<float>();
  };
  if (levels) std::memset(levels->kept, 0, static_cast<size_t>(row.limit) + 1);
  if (pinned) add(0);
  for (int32_t j = row.begin; j < row.limit; j++) add(j);
  if (!broken) {
    row.bound = -infinity<float>();
    if (levels) row.kept = levels->kept;
    return void(finish<power>(row, any, levels));
  }
  row.count = 0;
  auto spoil = [&](int32_t j) {
    if (row.kept && !row.kept[j]) return;
    row.score[row.count] = std::numeric_limits<float>::quiet_NaN();
    row.column[row.count++] = j;
  };
  if (pinned) spoil(0);
  for (int32_t j = row.begin; j < row.limit; j++) spoil(j);
}

// Key 0 becomes the first candidate.
inline void seed(Row& row, const float* q, const float* k, int64_t d) {
  const int32_t key = row.column[0] = 0;
  gathered_dots(q, &key, 1, k, d, d, row.score);
  if (row.bias) row.score[0] += row.factor * row.bias[0];
  row.broken = !(row.score[0] < infinity<float>());
  row.count = row.score[0] > -infinity<float>() && !(row.kept && !row.kept[0]);
}

// Scales and packs the queries from `first` on; rows beyond the last see nothing. Returns which need care, a bit each.
inline uint64_t pack_queries(const Shape& s, Workspace& w, const float* q, const float* k, int64_t head, int64_t first, double alpha) {
  const float scale = static_cast<float>((alpha - 1) * s.scale);
  uint64_t careful = 0;
  for (int64_t i = 0; i < block_rows; i++) {
    Row& row = w.row[i];
    float* packed = w.queries + i / tile_rows * tile_rows * s.d + i % tile_rows;
    float* plain = w.plain + i * s.d;
    const bool there = first + i < s.n;
    const float* x = q + (head * s.n + first + i) * s.d;
    double norm = 0;
    for (int64_t c = 0; c < s.d; c++) {
      const float v = there ? x[c] * scale : 0;
      plain[c] = packed[c * tile_rows] = v;
      norm += static_cast<double>(v) * v;
    }
    row.count = row.settled = 0;
    row.bias = there ? s.bias_of(head, first + i) : nullptr;
    row.kept = there ? s.kept_of(head, first + i) : nullptr;
    row.factor = static_cast<float>(alpha - 1);
    row.lift = static_cast<float>(4 * s.lam);
    row.broken = false;
    row.begin = there ? static_cast<int32_t>(s.begin(head, first + i)) : 0;
    row.limit = there ? static_cast<int32_t>(s.limit(head, first + i)) : 0;
    if (row.limit <= row.begin) row.begin = row.limit = 0;
    row.bound = row.limit > 0 ? -infinity<float>() : infinity<float>();
    const bool pinned = s.pinned && there;
    if ((row.limit > 0 || pinned) && !(norm * w.key_norm < 1e70)) {
      careful |= 1ull << i;
      row.bound = infinity<float>();  // no tile adds to it
    } else if (pinned) {
      seed(row, plain, k, s.d);
    }
  }
  return careful;
}

}  // namespace sa
