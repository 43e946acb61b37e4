// Threads of the standard library in place of an OpenMP runtime, whose own synchronisation the thread sanitizer does not see.
#pragma once
#include <thread>
#include <vector>

static thread_local int number = 0, team = 1;

static void in_threads(void (*body)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> workers;
  for (unsigned w = 0; w < threads; w++)
    workers.emplace_back([=] {
      number = static_cast<int>(w);
      team = static_cast<int>(threads);
      body(data);
    });
  for (std::thread& worker : workers) worker.join();
}

static const bool threaded = (sparse_attention_threads(in_threads, [] { return number; }, [] { return team; }), true);
