// Runs independent tasks on a few threads. Results must not depend on which thread runs which task.
#pragma once
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <system_error>
#include <thread>

#include "fp_environment.h"

namespace msprobe {

constexpr int kMaxThreads = 64;
// Below this many elements (or 8-byte words) one thread is done in a tenth of a millisecond, and waiting for another one
// that the system has not scheduled would cost more than it can save.
constexpr int64_t kThreadedFrom = int64_t(1) << 20;
// Below this many, starting a thread does: one that was just created competes with OpenMP workers that spin.
constexpr int64_t kThreadStartedFrom = int64_t(1) << 24;

// The OpenMP pool of the framework that is loaded, if there is one. Its workers spin for a while after each parallel
// region, so they take up work at once, and the cores are not shared with threads of our own.
struct OpenMp {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  using Number = int (*)();
  Parallel parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  Number max_threads = reinterpret_cast<Number>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  Number in_parallel = reinterpret_cast<Number>(dlsym(RTLD_DEFAULT, "omp_in_parallel"));

  bool complete() const { return parallel && max_threads && in_parallel; }
};

// The process that loaded this module, from which later ones may be forked.
inline const pid_t kLoadedIn = getpid();

// The pool, or null if it cannot be used here: a forked process inherits its state without its threads and would wait
// for them for ever.
inline const OpenMp* openmp() {
  static std::atomic<const OpenMp*> found{nullptr};
  if (getpid() != kLoadedIn) return nullptr;
  const OpenMp* pool = found.load();
  if (pool == nullptr) {
    // Looked up again until found: the framework may be imported later than this module.
    const OpenMp candidate;
    if (!candidate.complete()) return nullptr;
    // Kept for the life of the process. Threads that race each keep one.
    pool = new OpenMp(candidate);
    found.store(pool);
  }
  return pool->in_parallel() ? nullptr : pool;
}

template <class Work>
void on_new_threads(int64_t wanted, const Work& work) {
  std::thread others[kMaxThreads];
  int started = 0;
  try {
    for (; started + 1 < wanted; ++started) others[started] = std::thread(work);
  } catch (const std::system_error&) {
    // No more threads to be had: those that run, and this one, take the remaining tasks.
  }
  work();
  for (int i = 0; i < started; ++i) others[i].join();
}

// Calls run(0) .. run(tasks - 1), at most `threads` at a time, and returns when all are done. `size` is the number of
// elements in all, from which the cheapest way is chosen. Threads of our own are started for this call only: nothing
// survives that a fork could break.
template <class Run>
void parallel_for(int tasks, int64_t threads, int64_t size, const Run& run) {
  std::atomic<int> next{0};
  auto work = [&] {
    const FpEnvironment environment;
    for (int task = next++; task < tasks; task = next++) run(task);
  };
  const int64_t wanted = threads < tasks ? threads : tasks;
  const OpenMp* pool = wanted > 1 && size >= kThreadedFrom ? openmp() : nullptr;
  if (pool != nullptr) {
    // As many as the framework uses: another number would make the pool stop and start threads.
    const int team = pool->max_threads();
    pool->parallel([](void* job) { (*static_cast<decltype(work)*>(job))(); }, &work, static_cast<unsigned>(team), 0);
  } else if (wanted > 1 && size >= kThreadStartedFrom) {
    on_new_threads(wanted < kMaxThreads ? wanted : kMaxThreads, work);
  } else {
    work();
  }
}

}  // namespace msprobe
