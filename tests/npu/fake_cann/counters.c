/* How often the runtime was called, by thread: a background thread may wait where the training thread must not. */
#include <pthread.h>
#include <unistd.h>

#include "fake.h"

#define FAKE_THREADS 256

static struct {
  int64_t thread;
  int64_t calls[FAKE_COUNTERS];
} table[FAKE_THREADS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void fake_count(enum fake_counter counter) {
  int64_t thread = gettid();
  int row = 0;
  pthread_mutex_lock(&lock);
  while (row < FAKE_THREADS - 1 && table[row].thread != 0 && table[row].thread != thread) row++;
  table[row].thread = thread; /* the last row takes what has no room */
  table[row].calls[counter]++;
  pthread_mutex_unlock(&lock);
}

int64_t fake_cann_calls(int counter, int64_t thread) {
  int64_t total = 0;
  pthread_mutex_lock(&lock);
  for (int row = 0; row < FAKE_THREADS; row++)
    if (thread == 0 || table[row].thread == thread) total += table[row].calls[counter];
  pthread_mutex_unlock(&lock);
  return total;
}
