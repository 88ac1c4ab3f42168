/* The float status register: one word that arithmetic sets and only a clear takes back. */
#include <stdatomic.h>
#include <string.h>

#include "fake.h"

#define STATUS_BYTES 64

static atomic_ullong status;

/* Called by the emulation of the operators when a result is not finite. */
void fake_cann_raise_overflow(uint64_t bits) { atomic_fetch_or(&status, bits); }

static aclError write_status(void *target, uint64_t size) {
  if (size < STATUS_BYTES) return ACL_ERROR_INVALID_PARAM;
  fake_count(FAKE_STATUS_READ);
  memset(target, 0, STATUS_BYTES);
  *(uint64_t *)target = atomic_load(&status);
  return ACL_SUCCESS;
}

static aclError clear_status(void) {
  fake_count(FAKE_STATUS_CLEAR);
  atomic_store(&status, 0);
  return ACL_SUCCESS;
}

/* As on the device, the argument is the address of a device word that holds the address of the output. */
aclError aclrtNpuGetFloatOverFlowStatus(void *pointer, uint64_t size, uint32_t mode, aclrtStream stream) {
  (void)stream;
  return mode == 0 ? write_status(*(void **)pointer, size) : ACL_ERROR_INVALID_PARAM;
}

aclError aclrtNpuClearFloatOverFlowStatus(uint32_t mode, aclrtStream stream) {
  (void)stream;
  return mode == 0 ? clear_status() : ACL_ERROR_INVALID_PARAM;
}

aclError aclrtGetOverflowStatus(void *target, size_t size, aclrtStream stream) {
  (void)stream;
  return write_status(target, size);
}

aclError aclrtResetOverflowStatus(aclrtStream stream) {
  (void)stream;
  return clear_status();
}
