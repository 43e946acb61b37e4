// sparsemax, entmax and pnormmax: one pass for the maximum, one to pack candidates, Newton on those, one to write.
//
// A rule says how a mapping scales the scores of one row, finds the threshold (of that row, or of a slab of short rows)
// and turns d = (b - tau)_+ into a probability; every row may have its own.
// Sources: Martins & Astudillo 2016 (sparsemax); Peters, Niculae & Martins 2019 (entmax); Niculae & Blondel 2017,
// section 3.1 (pnormmax, their sq-pnorm-max), solved here through its dual. The way back: simplex_gradients.h.
#pragma once
#include "masked.h"
#include "slab.h"
#include "steep_entmax.h"

namespace sa {

template <class T>
struct SparsemaxRule {  // argmin |p - x/gamma|^2
  static constexpr bool bounded = false;
  T scale = 1;
  SparsemaxRule() = default;
  explicit SparsemaxRule(double gamma) : scale(reciprocal<T>(gamma)) {}
  Threshold<T> solve(Candidates<T>& k) { return solve_linear(k, 1.0); }
  static Thresholds<T> solve(const Slab<T>& s, SparsemaxRule*) { return solve_linear(s); }
  Vec<T> probability(Vec<T> d) const { return d; }
};

template <class T>
struct Entmax15Rule {  // p = (x/2 - tau)_+^2
  static constexpr bool bounded = false;
  T scale = T(0.5);
  Threshold<T> solve(Candidates<T>& k) { return solve_quadratic(k); }
  static Thresholds<T> solve(const Slab<T>& s, Entmax15Rule*) { return solve_quadratic(s); }
  Vec<T> probability(Vec<T> d) const { return d * d; }
};

template <class T>
struct EntmaxRule {  // p = ((alpha-1) x - tau)_+^(1/(alpha-1)), 1 < alpha <= 2
  static constexpr bool bounded = true;  // by levels
  using V = Vec<T>;
  using One = Powers<T, OnePower<T>>;
  using Any = Powers<T, AnyPower<T>>;
  T scale = 1, r = 1;
  const One* shared = nullptr;  // of all rows of the call
  bool sparse = false;          // most vectors of the row have no candidate
  EntmaxRule() = default;
  explicit EntmaxRule(double alpha, const One* one = nullptr)
      : scale(static_cast<T>(alpha - 1)), r(static_cast<T>(1 / (alpha - 1))), shared(one) {}
  static V powers_of(const EntmaxRule* lane) {
    T r[V::W];
    for (int i = 0; i < V::W; i++) r[i] = lane[i].r;
    return V::load(r);
  }
  Threshold<T> solve(Candidates<T>& k) { return shared ? solve_power(k, *shared) : solve_power(k, Any(V::all(r))); }
  static Thresholds<T> solve(const Slab<T>& s, EntmaxRule* lane) {
    const V rs = powers_of(lane);
    return lane->shared ? solve_power(s, *lane->shared) : solve_power(s, Any(rs));
  }
  // Lower bounds of the thresholds, with a hair of slack for the rounding.
  static void least(const Levels<T>& found, V r, T* to) {
    V most = V::all(-1);
    for (int level = 0; level < 2; level++) {
      const V one_over = V::all(1) / V::load(found.count[level]);
      most = max(V::load(found.sum[level]) * one_over - power(one_over, V::all(1) / r) - V::all(T(1e-5)), most);
    }
    most.store(to);
  }
  V probability(V d) const {
    if (sparse && !any(greater(d, V::all(0)))) return d;
    return shared ? shared->but_one(d) * d : power(d, r);
  }
};

template <class T>
struct PnormRule {  // p = d^(q-1) / sum d^(q-1), 1 < p <= 2
  static constexpr bool bounded = false;
  T scale = 1, q = 2, normaliser = 1;
  PnormRule() = default;
  PnormRule(double p, double gamma) : scale(reciprocal<T>(gamma)), q(static_cast<T>(p / (p - 1))) {}
  Vec<T> weight(Vec<T> d) const {
    if (q == T(3)) return d * d;
    return any(greater(d, Vec<T>::all(0))) ? power(d, q - 1) : d;
  }
  Threshold<T> solve(Candidates<T>& k) {
    Threshold<T> tau = solve_dual_norm(k, q);
    double total = 0;
    for (int64_t i = 0; i < k.count;) {
      Vec<T> s = Vec<T>::all(0);
      for (int64_t end = i + block < k.count ? i + block : k.count; i < end; i += Vec<T>::W)
        s = s + weight(above(Vec<T>::load(k.b + i), tau));
      total += sum(s);
    }
    normaliser = static_cast<T>(1 / total);
    return tau;
  }
  static Thresholds<T> solve(const Slab<T>& s, PnormRule* lane) {
    using V = Vec<T>;
    T q[V::W], inverse[V::W];
    bool cubic = true;
    for (int i = 0; i < V::W; i++) {
      q[i] = lane[i].q;
      cubic = cubic && q[i] == T(3);
    }
    const V exponent = V::load(q) - V::all(1);
    Thresholds<T> tau = solve_dual_norm(s, V::load(q));
    V total = V::all(0);
    for (int64_t j = 0; j < s.depth; j++) {
      V d = positive_part((s.at(j) - tau.hi) - tau.lo);
      total = total + (cubic ? d * d : power(d, exponent));
    }
    (V::all(1) / total).store(inverse);
    for (int i = 0; i < V::W; i++) lane[i].normaliser = inverse[i];
    return tau;
  }
  Vec<T> probability(Vec<T> d) const { return weight(d) * Vec<T>::all(normaliser); }
};

template <class T, class Scores, class Rule>
inline void write_row(const Scores& row, T* p, int64_t n, const Rule& rule, T maximum, Threshold<T> tau) {
  using V = Vec<T>;
  const V top = V::all(maximum), scale = V::all(rule.scale);
  for (int64_t i = 0; i < n; i += V::W) {
    V b = (row.at(i) - top) * scale;
    store_row(p, i, n, rule.probability(above(b, tau)));
  }
}

template <class T, class Scores, class Rule>
inline void map_row(const Scores& row, T* p, int64_t n, Rule& rule, T* packed) {
  RowMaximum<T> m = row_maximum<T>(row, n);
  if (!m.usable()) return write_unusable_row(p, n, m);
  T least[Vec<T>::W] = {-1};
  if constexpr (Rule::bounded) {
    Levels<T> found;
    found.add(0, row, n, m.value, rule.scale);
    rule.least(found, Vec<T>::all(rule.r), least);
  }
  Candidates<T> k = pack_candidates<T>(row, n, m.value, rule.scale, packed, least[0]);
  if constexpr (Rule::bounded) rule.sparse = 32 * k.count < n;
  Threshold<T> tau = rule.solve(k);
  write_row(row, p, n, rule, m.value, tau);
}

// At most W rows as one slab, rows[r] to p[r]. A row with too many candidates, or none, is dealt with on the spot and leaves
// its lane empty.
template <class T, class Rule>
inline void map_slab(const ScoreRow<T>* rows, T* const* p, int64_t count, Rule* rule, T* packed, T* column) {
  constexpr int W = Vec<T>::W;
  Slab<T> slab{column};
  RowMaximum<T> top[W];
  T hi[W], lo[W];
  [[maybe_unused]] const bool by_row = rows[0].n > 32;  // the levels of shorter rows cost less in the slab, and save little before it
  [[maybe_unused]] Levels<T> found;
  for (int64_t r = 0; r < count; r++) {
    top[r] = row_maximum<T>(rows[r], rows[r].n);
    if constexpr (Rule::bounded)
      if (by_row && top[r].usable()) found.add(r, rows[r], rows[r].n, top[r].value, rule[r].scale);
  }
  for (T& v : slab.least) v = -1;
  if constexpr (Rule::bounded)
    if (by_row) Rule::least(found, Rule::powers_of(rule), slab.least);
  for (int64_t r = 0; r < count; r++) {
    const int64_t n = rows[r].n;
    if (!top[r].usable()) {
      write_unusable_row(p[r], n, top[r]);
      continue;
    }
    Candidates<T> k = pack_candidates<T>(rows[r], n, top[r].value, rule[r].scale, packed, slab.least[r]);
    if constexpr (Rule::bounded) rule[r].sparse = 32 * k.count < n;
    if (k.count > slab_depth) {
      Threshold<T> tau = rule[r].solve(k);
      write_row(rows[r], p[r], n, rule[r], top[r].value, tau);
      continue;
    }
    slab.size[r] = k.count;
    slab.sum[r] = k.sum;
    slab.put(r, k.b, k.count);
  }
  if (slab.depth == 0) return;
  if constexpr (Rule::bounded)
    if (!by_row) Rule::least(levels_of(slab), Rule::powers_of(rule), slab.least);
  Thresholds<T> tau = Rule::solve(slab, rule);
  tau.hi.store(hi);
  tau.lo.store(lo);
  for (int64_t r = 0; r < count; r++)
    if (slab.size[r] > 0) write_row(rows[r], p[r], rows[r].n, rule[r], top[r].value, Threshold<T>{hi[r], lo[r]});
}

// All rows: `input(r)` are the scores of row r, `rule(r)` its rule. `alone(r, row, p, memory)` computes a row that the rule
// does not fit, in `alone_bytes` of memory, or returns false.
template <class T, class Input, class MakeRule, class Alone>
int map_rows(const Input& input, T* p, int64_t rows, int64_t n, const MakeRule& rule, double ns_per_entry, int threads,
             const Alone& alone, size_t alone_bytes = 0) {
  constexpr int W = Vec<T>::W;
  const int64_t most = n <= slab_longest ? W : 1, buffers = Input::copies ? most : 0;
  const size_t bytes = room<T>(n) + Slab<T>::bytes() + static_cast<size_t>(buffers) * room<T>(n) + alone_bytes;
  return for_rows(rows, 40 + ns_per_entry * n, threads, bytes, [&](int64_t first, int64_t last, char* memory) {
    Scratch scratch{memory};
    T* packed = scratch.take<T>(n + 32);
    T* column = scratch.take<T>(slab_depth * W);
    T* buffer = scratch.take<T>(buffers * (n + 32));
    decltype(rule(0)) rules[W];
    for (int64_t r = first; r < last;) {
      int64_t held = 0, done = 0;  // rows side by side that have a rule; one behind them that was computed alone
      for (; held < most && r + held < last && !done; held += !done) {
        done = alone(r + held, input(r + held), p + (r + held) * n, scratch.next);
        if (!done) rules[held] = rule(r + held);
      }
      if (held == W) {
        ScoreRow<T> scores[W];
        T* out[W];
        for (int i = 0; i < W; i++) {
          scores[i] = in_memory(input(r + i), n, buffer + i * (n + 32));
          out[i] = p + (r + i) * n;
        }
        map_slab(scores, out, W, rules, packed, column);
      } else {
        for (int64_t i = 0; i < held; i++)
          map_row(in_memory(input(r + i), n, buffer), p + (r + i) * n, n, rules[i], packed);
      }
      r += held + done;
    }
  });
}

struct Nobody {  // every row has a rule
  template <class Scores, class T>
  bool operator()(int64_t, const Scores&, T*, char*) const { return false; }
};

// For parameters where float32 inside is not good enough (powers above 10): float64, row by row.
template <class T, class Scores, class Rule>
inline void map_row_in_double(const Scores& row, T* p, int64_t n, Rule rule, char* memory) {
  Scratch scratch{memory};
  double* in = scratch.take<double>(n + 32);
  double* out = scratch.take<double>(n + 32);
  double* packed = scratch.take<double>(n + 32);
  copy_row(row, n, p);
  for (int64_t i = 0; i < n; i++) in[i] = static_cast<double>(p[i]);
  map_row(ScoreRow<double>{in, n}, out, n, rule, packed);
  for (int64_t i = 0; i < n; i++) p[i] = static_cast<T>(out[i]);
}

template <class T>
inline bool without_value(double parameter, T* p, int64_t n) {
  if (parameter == parameter) return false;
  fill_row(p, n, std::numeric_limits<T>::quiet_NaN());
  return true;
}

// `map(input)` with the scores as they are or masked.
template <class T, class Map>
inline int with_mask(const T* x, int64_t n, Mask mask, const Map& map) {
  return mask.kept ? map(MaskedInput<T>{x, n, mask}) : map(Input<T>{x, n});
}

template <class T>
int sparsemax_forward(const T* x, T* p, Mask mask, Values gamma, int64_t rows, int64_t n, int threads) {
  return with_mask(x, n, mask, [&](const auto& input) {
    if (gamma.row)
      return map_rows(input, p, rows, n, [=](int64_t r) { return SparsemaxRule<T>(gamma[r]); }, 1.0, threads,
                      [=](int64_t r, const auto&, T* out, char*) { return without_value(gamma[r], out, n); });
    const SparsemaxRule<T> one(gamma.one);
    return map_rows(input, p, rows, n, [=](int64_t) { return one; }, 1.0, threads, Nobody());
  });
}

template <class T>
int entmax_forward(const T* x, T* p, Mask mask, Values alpha, int64_t rows, int64_t n, int threads) {
  if (!alpha.row && alpha.one == 2) return sparsemax_forward(x, p, mask, Values{nullptr, 1.0}, rows, n, threads);
  return with_mask(x, n, mask, [&](const auto& input) {
    if (!alpha.row && alpha.one == 1.5)
      return map_rows(input, p, rows, n, [](int64_t) { return Entmax15Rule<T>(); }, 1.5, threads, Nobody());
    const bool slow = !alpha.row && (alpha.one < 1.1 || alpha.one > 2);
    const typename EntmaxRule<T>::One powers(Vec<T>::all(static_cast<T>(1 / (alpha.one - 1))));
    const auto* shared = alpha.row || alpha.one < 1.2 ? nullptr : &powers;
    return map_rows(
        input, p, rows, n, [=](int64_t r) { return EntmaxRule<T>(alpha[r], shared); }, slow ? 60.0 : 8.0, threads,
        [=](int64_t r, const auto& row, T* out, char* memory) {
          const double a = alpha[r];
          if (a > 2) {
            Scratch scratch{memory};
            T* copy = scratch.take<T>(n + 32);
            copy_row(row, n, copy);
            steep_entmax_row(copy, out, n, a - 1, scratch.take<double>(n));
          } else if (a < 1.1) {
            map_row_in_double(row, out, n, EntmaxRule<double>(a), memory);
          } else {
            return without_value(a, out, n);
          }
          return true;
        },
        slow || alpha.row ? 3 * room<double>(n) : 0);
  });
}

template <class T>
int pnormmax_forward(const T* x, T* p, Mask mask, Values norm, Values gamma, int64_t rows, int64_t n, int threads) {
  if (!norm.row && norm.one == 2) return sparsemax_forward(x, p, mask, gamma, rows, n, threads);
  const double ns = norm.row ? 8.0 : norm.one < 1.05 ? 60.0 : norm.one == 1.5 ? 1.5 : 8.0;
  return with_mask(x, n, mask, [&](const auto& input) {
    return map_rows(
        input, p, rows, n, [=](int64_t r) { return PnormRule<T>(norm[r], gamma[r]); }, ns, threads,
        [=](int64_t r, const auto& row, T* out, char* memory) {
          if (norm[r] < 1.05) {
            map_row_in_double(row, out, n, PnormRule<double>(norm[r], gamma[r]), memory);
          } else if (norm[r] == 2) {
            SparsemaxRule<T> rule(gamma[r]);
            map_row(row, out, n, rule, reinterpret_cast<T*>(memory));
          } else {
            return without_value(norm[r] + gamma[r], out, n);
          }
          return true;
        },
        3 * room<double>(n));
  });
}

}  // namespace sa
