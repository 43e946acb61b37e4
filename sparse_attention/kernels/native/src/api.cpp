// The C interface: every function for float32 and float64. Arrays are contiguous, [rows, n]; the returned Status is
// ok (0), has_excluded (1, fusedmax only) or out_of_memory (2). See ../__init__.py for the other side.
#include "constrained.h"
#include "fusedmax.h"
#include "oscarmax.h"
#include "simplex_mappings.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#define FOR_TYPE(T, suffix)                                                                                        \
  EXPORT int sparsemax_forward_##suffix(const T* x, T* p, int64_t rows, int64_t n, double gamma, int threads) {    \
    return sa::sparsemax_forward(x, p, rows, n, gamma, threads);                                                   \
  }                                                                                                                \
  EXPORT int sparsemax_backward_##suffix(const T* g, const T* p, T* dx, int64_t rows, int64_t n, double gamma,     \
                                         int threads) {                                                            \
    return sa::sparsemax_backward(g, p, dx, rows, n, gamma, threads);                                              \
  }                                                                                                                \
  EXPORT int entmax_forward_##suffix(const T* x, T* p, int64_t rows, int64_t n, double alpha, int threads) {       \
    return sa::entmax_forward(x, p, rows, n, alpha, threads);                                                      \
  }                                                                                                                \
  EXPORT int entmax_backward_##suffix(const T* g, const T* p, T* dx, int64_t rows, int64_t n, double alpha,        \
                                      int threads) {                                                               \
    return sa::entmax_backward(g, p, dx, rows, n, alpha, threads);                                                 \
  }                                                                                                                \
  EXPORT int pnormmax_forward_##suffix(const T* x, T* out, int64_t rows, int64_t n, double p, double gamma,        \
                                       int threads) {                                                              \
    return sa::pnormmax_forward(x, out, rows, n, p, gamma, threads);                                               \
  }                                                                                                                \
  EXPORT int pnormmax_backward_##suffix(const T* g, const T* out, T* dx, int64_t rows, int64_t n, double p,        \
                                        double gamma, int threads) {                                               \
    return sa::pnormmax_backward(g, out, dx, rows, n, p, gamma, threads);                                          \
  }                                                                                                                \
  EXPORT int fusedmax_forward_##suffix(const T* x, T* p, int64_t rows, int64_t n, double lam, double gamma,        \
                                       int threads) {                                                              \
    return sa::fusedmax_forward(x, p, rows, n, lam, gamma, threads);                                               \
  }                                                                                                                \
  EXPORT int fusedmax_backward_##suffix(const T* g, const T* p, const T* x, T* dx, int64_t rows, int64_t n,        \
                                        double gamma, int threads) {                                               \
    return sa::fusedmax_backward(g, p, x, dx, rows, n, gamma, threads);                                            \
  }                                                                                                                \
  EXPORT int oscarmax_forward_##suffix(const T* x, T* p, int32_t* id, int64_t rows, int64_t n, double lam,         \
                                       double gamma, int threads) {                                                \
    return sa::oscarmax_forward(x, p, id, rows, n, lam, gamma, threads);                                           \
  }                                                                                                                \
  EXPORT int oscarmax_backward_##suffix(const T* g, const int32_t* id, T* dx, int64_t rows, int64_t n,             \
                                        double gamma, int threads) {                                               \
    return sa::oscarmax_backward(g, id, dx, rows, n, gamma, threads);                                              \
  }                                                                                                                \
  EXPORT int constrained_sparsemax_forward_##suffix(const T* x, const T* u, T* p, int64_t rows, int64_t n,         \
                                                    int threads) {                                                 \
    return sa::constrained_sparsemax_forward(x, u, p, rows, n, threads);                                           \
  }                                                                                                                \
  EXPORT int constrained_sparsemax_backward_##suffix(const T* g, const T* p, const T* u, T* dx, T* du,             \
                                                     int64_t rows, int64_t n, int threads) {                       \
    return sa::constrained_sparsemax_backward(g, p, u, dx, du, rows, n, threads);                                  \
  }

FOR_TYPE(float, f32)
FOR_TYPE(double, f64)

EXPORT const char* sparse_attention_isa() { return SPARSE_ATTENTION_ISA; }
