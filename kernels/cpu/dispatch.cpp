#include "partial.h"

namespace msprobe {

namespace {

const KernelTable& best() {
#if defined(MSPROBE_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return __builtin_cpu_supports("avx512vnni") ? kAvx512 : kAvx512NoVnni;
  if (avx2) return kAvx2;
#endif
  return kPortable;
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = best();
  return chosen;
}

}  // namespace msprobe
