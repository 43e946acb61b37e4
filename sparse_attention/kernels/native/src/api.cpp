// The C interface, for one type: compiled with -DSPARSE_ATTENTION_TYPE=float and =double into two libraries, since most
// programs need only the first. Arrays are contiguous, [rows, n]; the returned Status is
// ok (0), has_excluded (1, fusedmax only), out_of_memory (2), no_structure or not_converged (3, 4, sparsemap only),
// doubtful_bounds (5, constrained_sparsemax only), unknown_operation (6, with a mask only). The Python side is ../__init__.py.
#include "cone.h"
#include "constrained.h"
#include "fusedmax.h"
#include "oscarmax.h"
#include "sparsemap.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using T = SPARSE_ATTENTION_TYPE;

static sa::Values one(double value) { return {nullptr, value}; }

EXPORT int sparsemax_forward(const T* x, T* p, int64_t rows, int64_t n, double gamma, int threads) {
  return sa::sparsemax_forward(x, p, sa::no_mask, one(gamma), rows, n, threads);
}
EXPORT int sparsemax_backward(const T* g, const T* p, T* dx, int64_t rows, int64_t n, double gamma, int threads) {
  return sa::sparsemax_backward(g, p, dx, one(gamma), nullptr, rows, n, threads);
}
EXPORT int entmax_forward(const T* x, T* p, int64_t rows, int64_t n, double alpha, int threads) {
  return sa::entmax_forward(x, p, sa::no_mask, one(alpha), rows, n, threads);
}
EXPORT int entmax_backward(const T* g, const T* p, T* dx, int64_t rows, int64_t n, double alpha, int threads) {
  return sa::entmax_backward(g, p, dx, one(alpha), nullptr, rows, n, threads);
}
EXPORT int pnormmax_forward(const T* x, T* out, int64_t rows, int64_t n, double p, double gamma, int threads) {
  return sa::pnormmax_forward(x, out, sa::no_mask, one(p), one(gamma), rows, n, threads);
}
EXPORT int pnormmax_backward(const T* g, const T* out, T* dx, int64_t rows, int64_t n, double p, double gamma,
                             int threads) {
  return sa::pnormmax_backward<T>(g, out, dx, one(p), one(gamma), nullptr, nullptr, rows, n, threads);
}
EXPORT int fusedmax_forward(const T* x, T* p, int64_t rows, int64_t n, double lam, double gamma, int threads) {
  return sa::fusedmax_forward(x, p, one(lam), one(gamma), rows, n, threads);
}
EXPORT int fusedmax_backward(const T* g, const T* p, const T* x, T* dx, int64_t rows, int64_t n, double gamma,
                             int threads) {
  return sa::fusedmax_backward<T>(g, p, x, dx, one(gamma), nullptr, nullptr, rows, n, threads);
}
EXPORT int oscarmax_forward(const T* x, T* p, int32_t* id, int64_t rows, int64_t n, double lam, double gamma,
                            int threads) {
  return sa::oscarmax_forward(x, p, id, one(lam), one(gamma), rows, n, threads);
}
EXPORT int oscarmax_backward(const T* g, const int32_t* id, T* dx, int64_t rows, int64_t n, double gamma, int threads) {
  return sa::oscarmax_backward<T>(g, nullptr, id, dx, one(gamma), nullptr, nullptr, rows, n, threads);
}

// With a mask (see masked.h), and a first and a second hyperparameter that is an array [rows], or null beside a number. op: the
// place of the name in this list. id: [rows, n] of oscarmax. The arrays behind dx: derivatives in the hyperparameters [rows],
// or null.
EXPORT const char* masked_operations() {
  return "sparsemax entmax pnormmax fusedmax oscarmax sparsecone sparsehourglass";
}
EXPORT int masked_forward(int op, const T* x, T* p, int32_t* id, const uint8_t* kept, int64_t outer, int64_t inner,
                         const double* first, double first_one, const double* second, double second_one, int64_t rows,
                         int64_t n, int threads) {
  const sa::Mask mask{kept, outer, inner};
  const sa::Values a{first, first_one}, b{second, second_one};
  switch (op) {
    case 0: return sa::sparsemax_forward(x, p, mask, a, rows, n, threads);
    case 1: return sa::entmax_forward(x, p, mask, a, rows, n, threads);
    case 2: return sa::pnormmax_forward(x, p, mask, a, b, rows, n, threads);
    case 3: return sa::fusedmax_forward(x, p, a, b, rows, n, threads);
    case 4: return sa::oscarmax_forward(x, p, id, a, b, rows, n, threads);
    case 5: return sa::cone_forward(x, p, mask, a, false, rows, n, threads);
    case 6: return sa::cone_forward(x, p, mask, a, true, rows, n, threads);
    default: return sa::unknown_operation;
  }
}
EXPORT int masked_backward(int op, const T* g, const T* x, const T* p, const int32_t* id, T* dx, double* dfirst,
                          double* dsecond, const uint8_t* kept, int64_t outer, int64_t inner, const double* first,
                          double first_one, const double* second, double second_one, int64_t rows, int64_t n, int threads) {
  const sa::Mask mask{kept, outer, inner};
  const sa::Values a{first, first_one}, b{second, second_one};
  switch (op) {
    case 0: return sa::sparsemax_backward(g, p, dx, a, dfirst, rows, n, threads);
    case 1: return sa::entmax_backward(g, p, dx, a, dfirst, rows, n, threads);
    case 2: return sa::pnormmax_backward(g, p, dx, a, b, dfirst, dsecond, rows, n, threads);
    case 3: return sa::fusedmax_backward(g, p, x, dx, b, dfirst, dsecond, rows, n, threads);
    case 4: return sa::oscarmax_backward(g, x, id, dx, b, dfirst, dsecond, rows, n, threads);
    case 5: return sa::cone_backward(g, x, p, dx, mask, a, dfirst, false, rows, n, threads);
    case 6: return sa::cone_backward(g, x, p, dx, mask, a, dfirst, true, rows, n, threads);
    default: return sa::unknown_operation;
  }
}
EXPORT int constrained_sparsemax_forward(const T* x, const T* u, T* p, T* threshold, int64_t rows, int64_t n,
                                         int threads) {
  return sa::constrained_sparsemax_forward(x, u, p, threshold, rows, n, threads);
}
EXPORT int constrained_sparsemax_backward(const T* g, const T* p, const T* u, const T* x, const T* threshold, T* dx,
                                          T* du, int64_t rows, int64_t n, int threads) {
  return sa::constrained_sparsemax_backward(g, p, u, x, threshold, dx, du, rows, n, threads);
}
EXPORT int sparsemap_sequence_forward(const T* x, const T* transitions, T* mu, T* weights, double* gap, int16_t* structures,
                                      int64_t* counts, int64_t rows, int64_t length, int64_t width, int64_t capacity,
                                      int64_t stride, int threads) {
  return sa::sparsemap_sequence_forward(x, transitions, mu, weights, gap, structures, counts, rows, length, width,
                                        capacity, stride, threads);
}
EXPORT int sparsemap_matching_forward(const T* x, T* mu, T* weights, double* gap, int16_t* structures, int64_t* counts,
                                      int64_t rows, int64_t length, int64_t width, int64_t capacity, int threads) {
  return sa::sparsemap_factor_forward<sa::Matching>(x, mu, weights, gap, structures, counts, rows, length, width, capacity,
                                                    threads);
}
EXPORT int sparsemap_tree_forward(const T* x, T* mu, T* weights, double* gap, int16_t* structures, int64_t* counts,
                                  int64_t rows, int64_t length, int64_t width, int64_t capacity, int threads) {
  return sa::sparsemap_factor_forward<sa::Tree>(x, mu, weights, gap, structures, counts, rows, length, width, capacity,
                                                threads);
}
EXPORT int sparsemap_backward(const T* g, const int16_t* structures, const int64_t* counts, T* dx, T* dtransitions,
                              int64_t rows, int64_t length, int64_t width, int64_t capacity, int threads) {
  return sa::sparsemap_backward(g, structures, counts, dx, dtransitions, rows, length, width, capacity, threads);
}

SPARSE_ATTENTION_ABOUT
