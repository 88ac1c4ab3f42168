#include <cstdlib>
#include <cstring>

#include "kernel_table.h"

namespace msprobe {

namespace {

const KernelTable& best() {
#if defined(MSPROBE_X86)
  __builtin_cpu_init();
  const IsaLimit limit = isa_limit();
  // Every processor with AVX2 has F16C, which not every compiler can ask for.
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (limit >= IsaLimit::kAvx512 && avx2 && avx512)
    return __builtin_cpu_supports("avx512vnni") ? kAvx512 : kAvx512NoVnni;
  if (limit >= IsaLimit::kAvx2 && avx2) return kAvx2;
#endif
  return kPortable;
}

}  // namespace

IsaLimit isa_limit() {
  const char* wanted = std::getenv("MSPROBE_ISA");
  if (wanted == nullptr || std::strcmp(wanted, "avx512") == 0) return IsaLimit::kAvx512;
  return std::strcmp(wanted, "avx2") == 0 ? IsaLimit::kAvx2 : IsaLimit::kBaseline;
}

const KernelTable& kernels() {
  static const KernelTable& chosen = best();
  return chosen;
}

}  // namespace msprobe
