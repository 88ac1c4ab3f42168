/* The kernel dump switch: tests ask for the order of the calls and whether a kernel would be dumped now. */
#include <pthread.h>
#include <stdio.h>

#include "fake.h"

static char events[16384]; /* "init", "set PATH" and "finalize", one a line */
static size_t used;
static int initialised, active;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void note(const char *event, const char *detail) {
  int written = snprintf(events + used, sizeof events - used, "%s%s\n", event, detail);
  if (written > 0 && (size_t)written < sizeof events - used) used += (size_t)written;
}

aclError aclmdlInitDump(void) {
  pthread_mutex_lock(&lock);
  note("init", "");
  initialised = 1;
  pthread_mutex_unlock(&lock);
  return ACL_SUCCESS;
}

aclError aclmdlSetDump(const char *dumpCfgPath) {
  aclError status = ACL_SUCCESS;
  FILE *file = fopen(dumpCfgPath, "r");
  pthread_mutex_lock(&lock);
  note("set ", dumpCfgPath);
  if (!initialised || file == NULL) status = ACL_ERROR_INVALID_PARAM;
  active = status == ACL_SUCCESS;
  pthread_mutex_unlock(&lock);
  if (file != NULL) fclose(file);
  return status;
}

aclError aclmdlFinalizeDump(void) {
  pthread_mutex_lock(&lock);
  note("finalize", "");
  initialised = active = 0;
  pthread_mutex_unlock(&lock);
  return ACL_SUCCESS;
}

const char *fake_cann_dump_events(void) { return events; }

int fake_cann_dump_active(void) { return active; }
