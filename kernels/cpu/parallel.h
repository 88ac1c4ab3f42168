// Runs independent tasks on a few threads. Results must not depend on which thread runs which task.
#pragma once
#include <atomic>
#include <system_error>
#include <thread>

#include "fp_environment.h"

namespace msprobe {

constexpr int kMaxThreads = 64;
// Below this many elements (or 8-byte words) starting a thread costs more than it saves.
constexpr int64_t kThreadedFrom = int64_t(1) << 19;

// Calls run(0) .. run(tasks - 1), at most `threads` at a time, and returns when all are done. Threads are started for
// this call only: nothing survives that a fork could break.
template <class Run>
void parallel_for(int tasks, int64_t threads, const Run& run) {
  std::atomic<int> next{0};
  const auto work = [&] {
    const FpEnvironment environment;
    for (int task = next++; task < tasks; task = next++) run(task);
  };
  std::thread others[kMaxThreads];
  int64_t wanted = threads < tasks ? threads : tasks;
  wanted = wanted < kMaxThreads ? wanted : kMaxThreads;
  int started = 0;
  try {
    for (; started + 1 < wanted; ++started) others[started] = std::thread(work);
  } catch (const std::system_error&) {
    // No more threads to be had: those that run, and this one, take the remaining tasks.
  }
  work();
  for (int i = 0; i < started; ++i) others[i].join();
}

}  // namespace msprobe
