/* Streams and events: all work is done before a call returns, so waiting is only counted. */
#include <stdlib.h>

#include "fake.h"

#define HANDLE_BYTES 64

static aclError wait(void) {
  fake_count(FAKE_SYNCHRONISE);
  return ACL_SUCCESS;
}

static aclError handle(void **target) {
  *target = calloc(1, HANDLE_BYTES);
  return *target != NULL ? ACL_SUCCESS : ACL_ERROR_RT_MEMORY_ALLOCATION;
}

static aclError release(void *pointer) {
  free(pointer);
  return ACL_SUCCESS;
}

aclError aclrtCreateStream(aclrtStream *stream) { return handle(stream); }

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag) {
  (void)priority;
  (void)flag;
  return handle(stream);
}

aclError aclrtDestroyStream(aclrtStream stream) { return release(stream); }

aclError aclrtStreamGetId(aclrtStream stream, int32_t *number) {
  (void)stream;
  *number = 1;
  return ACL_SUCCESS;
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status) {
  (void)stream;
  *status = ACL_STREAM_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  (void)stream;
  return wait();
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  (void)stream;
  (void)timeout;
  return wait();
}

aclError aclrtSynchronizeDevice(void) { return wait(); }

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
  (void)timeout;
  return wait();
}

aclError aclrtCreateEvent(aclrtEvent *event) { return handle(event); }

aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag) {
  (void)flag;
  return handle(event);
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag) {
  (void)flag;
  return handle(event);
}

aclError aclrtDestroyEvent(aclrtEvent event) { return release(event); }

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  (void)event;
  return wait();
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status) {
  (void)event;
  *status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus *status) {
  (void)event;
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float *milliseconds, aclrtEvent begin, aclrtEvent end) {
  (void)begin;
  (void)end;
  *milliseconds = 0;
  return ACL_SUCCESS;
}
