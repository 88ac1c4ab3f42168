/* Memory and copies. Counted by direction, because a copy to the host inside a training step is a wait. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define ALIGNMENT 512
#define FREE_BYTES ((size_t)8 << 30)

aclError aclrtMalloc(void **pointer, size_t size, aclrtMemMallocPolicy policy) {
  (void)policy;
  *pointer = aligned_alloc(ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  return *pointer != NULL ? ACL_SUCCESS : ACL_ERROR_RT_MEMORY_ALLOCATION;
}

aclError aclrtMallocAlign32(void **pointer, size_t size, aclrtMemMallocPolicy policy) {
  return aclrtMalloc(pointer, size, policy);
}

aclError aclrtMallocWithCfg(void **pointer, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig *config) {
  (void)config;
  return aclrtMalloc(pointer, size, policy);
}

aclError aclrtMallocHost(void **pointer, size_t size) { return aclrtMalloc(pointer, size, ACL_MEM_MALLOC_NORMAL_ONLY); }

aclError aclrtFree(void *pointer) {
  free(pointer);
  return ACL_SUCCESS;
}

aclError aclrtFreeHost(void *pointer) { return aclrtFree(pointer); }

aclError aclrtMemcpy(void *target, size_t room, const void *source, size_t size, aclrtMemcpyKind kind) {
  if (size > room) return ACL_ERROR_INVALID_PARAM;
  if (kind == ACL_MEMCPY_DEVICE_TO_HOST) fake_count(FAKE_COPY_TO_HOST);
  if (kind == ACL_MEMCPY_HOST_TO_DEVICE) fake_count(FAKE_COPY_TO_DEVICE);
  memcpy(target, source, size);
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void *target, size_t room, const void *source, size_t size, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  (void)stream;
  return aclrtMemcpy(target, room, source, size, kind);
}

aclError aclrtMemcpyAsyncWithCondition(void *target, size_t room, const void *source, size_t size,
                                       aclrtMemcpyKind kind, aclrtStream stream) {
  return aclrtMemcpyAsync(target, room, source, size, kind, stream);
}

aclError aclrtMemset(void *target, size_t room, int32_t value, size_t size) {
  if (size > room) return ACL_ERROR_INVALID_PARAM;
  memset(target, value, size);
  return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void *target, size_t room, int32_t value, size_t size, aclrtStream stream) {
  (void)stream;
  return aclrtMemset(target, room, value, size);
}

aclError aclrtGetMemInfo(aclrtMemAttr attribute, size_t *free_bytes, size_t *total) {
  (void)attribute;
  *free_bytes = *total = FREE_BYTES;
  return ACL_SUCCESS;
}
