/* Devices, contexts and what the runtime says about itself. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "acl/acl_op_compiler.h"
#include "fake.h"

static _Thread_local int current;
static char contexts[FAKE_DEVICES];

aclError aclInit(const char *config) {
  (void)config;
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t *count) {
  *count = FAKE_DEVICES;
  return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t device) {
  if (device < 0 || device >= FAKE_DEVICES) return ACL_ERROR_RT_INVALID_DEVICEID;
  current = device;
  return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t *device) {
  *device = current;
  return ACL_SUCCESS;
}

aclError aclrtCreateContext(aclrtContext *context, int32_t device) {
  *context = &contexts[device];
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *context) { return aclrtCreateContext(context, current); }

aclError aclrtSetCurrentContext(aclrtContext context) { return aclrtSetDevice((int32_t)((char *)context - contexts)); }

/* FAKE_CANN_SOC=Ascend910A plays a chip without the INF_NAN mode. */
const char *aclrtGetSocName(void) {
  const char *name = getenv("FAKE_CANN_SOC");
  return name != NULL ? name : "Ascend910B1";
}

/* FAKE_CANN_VERSION plays another release. */
aclError aclsysGetVersionStr(char *package, char *version) {
  (void)package;
  const char *wanted = getenv("FAKE_CANN_VERSION");
  strcpy(version, wanted != NULL ? wanted : "8.5.0");
  return ACL_SUCCESS;
}

aclError aclsysGetCANNVersion(aclCANNPackageName package, aclCANNPackageVersion *version) {
  (void)package;
  memset(version, 0, sizeof *version);
  return aclsysGetVersionStr(NULL, version->version);
}

aclError aclGetDeviceCapability(uint32_t device, aclDeviceInfo info, int64_t *value) {
  (void)device;
  (void)info;
  *value = 24;
  return ACL_SUCCESS;
}

aclError aclrtDeviceGetBareTgid(int32_t *pid) {
  *pid = getpid();
  return ACL_SUCCESS;
}

aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) {
  (void)device;
  (void)peer;
  *can = 0;
  return ACL_SUCCESS;
}

const char *aclGetRecentErrMsg(void) { return ""; }

void aclAppLog(aclLogLevel level, const char *function, const char *file, uint32_t line, const char *format, ...) {
  (void)level;
  (void)function;
  (void)file;
  (void)line;
  (void)format;
}

size_t aclGetCompileoptSize(aclCompileOpt option) {
  (void)option;
  return 64;
}

aclError aclGetCompileopt(aclCompileOpt option, char *value, size_t length) {
  (void)option;
  snprintf(value, length, "enable");
  return ACL_SUCCESS;
}

aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t *value) {
  (void)option;
  *value = 0;
  return ACL_SUCCESS;
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt option, int64_t *value) { return aclrtGetSysParamOpt(option, value); }
