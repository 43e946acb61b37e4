// Every kernel over random rows of many lengths, in memory that ends exactly where the arrays do. Built by
// test_sanitized.py with sanitizers, which end the program at the first error.
#include "api.cpp"

#include "sanitized_threads.h"

#include <cstdio>
#include <vector>

static uint64_t state = 88172645463325252ull;
static double uniform() {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<double>(state >> 11) / 9007199254740992.0;
}

// SparseMAP on small problems with ties, masks, NaN and what is not allowed.
static long structured() {
  const T inf = std::numeric_limits<T>::infinity();
  long calls = 0;
  for (int64_t length : {1, 2, 5, 9, 33})
    for (int64_t width : {1, 2, 4, 9})
      for (int kind = 0; kind < 6; kind++) {
        const int64_t rows = 3, capacity = length * width + 2;
        const size_t size = static_cast<size_t>(rows * length * width), steps = static_cast<size_t>(width * width);
        std::vector<T> x(size), g(size), mu(size), dx(size), t(steps), dt(3 * steps), weights(static_cast<size_t>(rows * capacity));
        std::vector<double> gap(3);
        std::vector<int16_t> structures(static_cast<size_t>(rows * capacity * length));
        std::vector<int64_t> counts(6);
        for (size_t i = 0; i < size; i++) {
          double v = uniform() * 2 - 1, scale[] = {1, 0.01, 30, 0, 1, 1};
          x[i] = static_cast<T>(kind == 3 ? static_cast<int>(v * 3) : v * scale[kind]);
          if (kind == 4 && uniform() < 0.4) x[i] = -inf;
          if (kind == 5 && uniform() < 0.02) x[i] = uniform() < 0.5 ? inf : std::numeric_limits<T>::quiet_NaN();
          g[i] = static_cast<T>(uniform() - 0.5);
        }
        for (T& v : t) v = kind == 4 && uniform() < 0.2 ? -inf : static_cast<T>(kind == 3 ? 0 : uniform());
        sparsemap_sequence_forward(x.data(), t.data(), mu.data(), weights.data(), gap.data(), structures.data(),
                                   counts.data(), rows, length, width, capacity, 0, 2);
        sparsemap_backward(g.data(), structures.data(), counts.data(), dx.data(), dt.data(), rows, length, width, capacity, 1);
        sparsemap_matching_forward(x.data(), mu.data(), weights.data(), gap.data(), structures.data(), counts.data(), rows,
                                   length, width, capacity, 2);
        sparsemap_backward(g.data(), structures.data(), counts.data(), dx.data(), nullptr, rows, length, width, capacity, 1);
        if (length == width)
          sparsemap_tree_forward(x.data(), mu.data(), weights.data(), gap.data(), structures.data(), counts.data(), rows,
                                 length, width, capacity, 2);
        calls += 4;
      }
  return calls;
}

// Masks of every spread, hyperparameters as a number or row by row, with and without their derivatives.
static long masked_rows() {
  const T inf = std::numeric_limits<T>::infinity();
  const double first[] = {0.3, 0.6, 1.06, 0, 0, 2, 0.1}, last[] = {3, 2.6, 2, 0.4, 0.1, 3, 2};  // op by op
  long calls = 0;
  for (int64_t n : {1, 2, 7, 16, 17, 33, 100, 257, 1100})
    for (int64_t rows : {0, 1, 6, 18})
      for (int kind = 0; kind < 4; kind++)
        for (int op = 0; op < 7; op++) {
          const size_t size = static_cast<size_t>(rows * n), count = static_cast<size_t>(rows);
          const bool masked = kind > 1 && op != 3 && op != 4, by_row = kind % 2;
          const int64_t outer = kind == 3 && rows ? rows / 2 + rows % 2 : 1, inner = kind == 3 ? (rows > 1 ? rows / 2 : 1) : 1;
          const size_t masks = rows ? static_cast<size_t>((rows - 1) / outer * inner + inner) : 0;
          std::vector<T> x(size), g(size), p(size), dx(size);
          std::vector<int32_t> id(size);
          std::vector<uint8_t> kept(masked ? masks * static_cast<size_t>(n) : 0);
          std::vector<double> a(count), b(count), da(count), db(count);
          for (size_t i = 0; i < size; i++) {
            x[i] = static_cast<T>(kind == 2 ? static_cast<int>(uniform() * 6 - 3) : uniform() * 2 - 1);
            if (kind == 3 && uniform() < 0.02) x[i] = uniform() < 0.5 ? -inf : std::numeric_limits<T>::quiet_NaN();
            g[i] = static_cast<T>(uniform() - 0.5);
          }
          for (uint8_t& k : kept) k = uniform() < 0.7;
          for (size_t r = 0; r < count; r++) {
            a[r] = first[op] + (last[op] - first[op]) * uniform();
            b[r] = 0.3 + 2.7 * uniform();
          }
          const uint8_t* mask = masked ? kept.data() : nullptr;
          const double *as = by_row ? a.data() : nullptr, *bs = by_row ? b.data() : nullptr;
          double *das = by_row ? da.data() : nullptr, *dbs = by_row ? db.data() : nullptr;
          masked_forward(op, x.data(), p.data(), id.data(), mask, outer, inner, as, last[op], bs, 0.5, rows, n, 1);
          masked_backward(op, g.data(), x.data(), p.data(), id.data(), dx.data(), das, dbs, mask, outer, inner, as, last[op], bs,
                         0.5, rows, n, 1);
          calls += 2;
        }
  return calls;
}

int main() {
  const T inf = std::numeric_limits<T>::infinity();
  long calls = structured() + masked_rows();
  for (int64_t n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 193, 257, 769, 1100, 5000})
    for (int64_t rows : {0, 1, 2, 9, 17})
      for (int kind = 0; kind < 6; kind++) {
        if (rows * n > 20000) continue;
        const size_t size = static_cast<size_t>(rows * n);
        std::vector<T> x(size), g(size), u(size), p(size), dx(size), du(size), tau(static_cast<size_t>(rows));
        std::vector<int32_t> id(size);
        for (size_t i = 0; i < size; i++) {
          double v = uniform() * 2 - 1, scale[] = {1, 0.01, 30, 0, 1, 1};
          x[i] = static_cast<T>(kind == 3 ? static_cast<int>(v * 3) : v * scale[kind]);  // 3: ties
          if (kind == 4 && uniform() < 0.6) x[i] = -inf;
          if (kind == 5 && uniform() < 0.01) x[i] = uniform() < 0.5 ? inf : std::numeric_limits<T>::quiet_NaN();
          g[i] = static_cast<T>(uniform() - 0.5);
          u[i] = static_cast<T>(uniform() * 4 / static_cast<double>(n));
        }
        for (double gamma : {1.0, 0.05, 20.0}) {
          sparsemax_forward(x.data(), p.data(), rows, n, gamma, 1);
          sparsemax_backward(g.data(), p.data(), dx.data(), rows, n, gamma, 1);
          for (double norm : {1.02, 1.2, 1.5, 2.0}) {
            pnormmax_forward(x.data(), p.data(), rows, n, norm, gamma, 1);
            pnormmax_backward(g.data(), p.data(), dx.data(), rows, n, norm, gamma, 1);
          }
          for (double lam : {0.001, 0.1, 2.0}) {
            int status = fusedmax_forward(x.data(), p.data(), rows, n, lam, gamma, 1);
            fusedmax_backward(g.data(), p.data(), status ? x.data() : nullptr, dx.data(), rows, n, gamma, 1);
            oscarmax_forward(x.data(), p.data(), id.data(), rows, n, lam, gamma, 1);
            oscarmax_backward(g.data(), id.data(), dx.data(), rows, n, gamma, 1);
          }
        }
        for (double alpha : {1.001, 1.3, 1.5, 1.9, 2.0, 2.5, 20.0, 100.0}) {
          entmax_forward(x.data(), p.data(), rows, n, alpha, 1);
          entmax_backward(g.data(), p.data(), dx.data(), rows, n, alpha, 1);
        }
        constrained_sparsemax_forward(x.data(), u.data(), p.data(), tau.data(), rows, n, 1);
        constrained_sparsemax_backward(g.data(), p.data(), u.data(), x.data(), tau.data(), dx.data(), du.data(), rows, n, 1);
        calls += 3 * (2 + 8 + 12) + 16 + 2;
      }
  std::printf("%ld calls\n", calls);
}
