/* A stand-in for the CANN runtime, enough to run the real torch_npu wheel without a device.
 *
 * Host memory plays device memory and every stream is synchronous. The signatures are checked against the acl headers
 * of the wheel; whatever the headers declare and nobody here defines is generated as a stub that returns success.
 */
#ifndef FAKE_CANN_FAKE_H
#define FAKE_CANN_FAKE_H

#include <stddef.h>
#include <stdint.h>

#include "acl/acl.h"

#define FAKE_DEVICES 2

/* Calls that tests count. */
enum fake_counter {
  FAKE_SYNCHRONISE,    /* the host waits for a stream, an event or a device */
  FAKE_COPY_TO_HOST,   /* copies device -> host */
  FAKE_COPY_TO_DEVICE, /* copies host -> device */
  FAKE_STATUS_CLEAR,   /* the float status register is cleared */
  FAKE_STATUS_READ,    /* ... and read */
  FAKE_COUNTERS
};

void fake_count(enum fake_counter counter);

/* For tests, through ctypes. */
int64_t fake_cann_calls(int counter, int64_t thread); /* of the thread with this system id; of all with 0 */
void fake_cann_raise_overflow(uint64_t bits);
const char *fake_cann_dump_events(void);
int fake_cann_dump_active(void);

#endif
