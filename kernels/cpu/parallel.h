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
// Below this many elements one thread is done in some ten microseconds, about what it costs to hand work to another.
constexpr int64_t kThreadedFrom = int64_t(1) << 17;
// The same for 8-byte words, which are read three times as fast.
constexpr int64_t kThreadedWordsFrom = int64_t(1) << 19;
// A team waits for its last member: each must have at least this many elements to do.
constexpr int64_t kElementsPerThread = int64_t(1) << 16;
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
  Number thread_number = reinterpret_cast<Number>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));

  bool complete() const { return parallel && max_threads && in_parallel && thread_number; }
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

// Tasks dealt out in one contiguous part per member, as the framework deals out the elements of a tensor: what a core has
// just written is in its cache. Who is done with the own part helps with the others.
class Parts {
 public:
  Parts(int tasks, int members) : tasks_(tasks), members_(members < kMaxThreads ? members : kMaxThreads) {}

  template <class Run>
  void work(int member, const Run& run) {
    const FpEnvironment environment;
    for (int i = 0; i < members_; ++i) {
      const int part = (member + i) % members_;
      const int begin = part * tasks_ / members_, end = (part + 1) * tasks_ / members_;
      for (int task = begin + taken_[part]++; task < end; task = begin + taken_[part]++) run(task);
    }
  }

 private:
  int tasks_, members_;
  std::atomic<int> taken_[kMaxThreads] = {};
};

// Calls run(0) .. run(tasks - 1), at most `threads` at a time, and returns when all are done. `size` is the number of
// elements in all, from which the cheapest way is chosen. Threads of our own are started for this call only: nothing
// survives that a fork could break.
template <class Run>
void parallel_for(int tasks, int64_t threads, int64_t size, const Run& run) {
  const int64_t wanted = threads < tasks ? threads : tasks;
  const OpenMp* pool = wanted > 1 && size >= kThreadedFrom ? openmp() : nullptr;
  // As many as the framework uses: another number would make the pool stop and start threads.
  const int team = pool != nullptr ? pool->max_threads() : static_cast<int>(wanted);
  Parts parts(tasks, team);
  if (pool != nullptr && size >= team * kElementsPerThread) {
    auto job = [&] { parts.work(pool->thread_number(), run); };
    pool->parallel([](void* work) { (*static_cast<decltype(job)*>(work))(); }, &job, static_cast<unsigned>(team), 0);
    return;
  }
  std::atomic<int> member{0};
  const auto work = [&] { parts.work(member++, run); };
  if (pool == nullptr && wanted > 1 && size >= kThreadStartedFrom) {
    on_new_threads(wanted < kMaxThreads ? wanted : kMaxThreads, work);
  } else {
    work();
  }
}

}  // namespace msprobe
