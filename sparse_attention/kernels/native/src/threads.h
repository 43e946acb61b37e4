// Threads: those of the OpenMP runtime that torch has loaded, which ../build.py passes in. A library that links to a runtime
// may bring a second one into the process, and does not load where there is none.
#pragma once
#include <cstdint>

namespace sa {

// GOMP_parallel, omp_get_thread_num and omp_get_num_threads: libgomp, libomp and libiomp5 have all three.
struct Runtime {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
  int (*thread)();
  int (*team)();
};
inline Runtime runtime = {};

// Runs work(w) for w = 0 .. workers - 1, each on a thread of its own, or one after the other without a runtime.
template <class Work>
inline void in_parallel(int workers, Work work) {
  if (workers == 1 || !runtime.parallel) {
    for (int w = 0; w < workers; w++) work(w);
    return;
  }
  struct Shared {
    Work& work;
    int workers;
  } shared{work, workers};
  runtime.parallel(
      [](void* data) {
        const Shared& s = *static_cast<Shared*>(data);
        const int team = runtime.team();  // may be smaller than asked
        for (int w = runtime.thread(); w < s.workers; w += team) s.work(w);
      },
      &shared, static_cast<unsigned>(workers), 0);
}

}  // namespace sa

#define SPARSE_ATTENTION_ABOUT                                                                        \
  EXPORT const char* sparse_attention_isa() { return SPARSE_ATTENTION_ISA; }                          \
  EXPORT void sparse_attention_threads(decltype(sa::Runtime::parallel) parallel, int (*thread)(), int (*team)()) { \
    sa::runtime = {parallel, thread, team};                                                           \
  }
