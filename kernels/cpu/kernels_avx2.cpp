// The kernels for x86-64 processors with AVX2 (Haswell, Zen and later).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernel_table.h"

#if defined(MSPROBE_X86)

#include <immintrin.h>

// The whole rest of this file is compiled for these instructions; what is inlined here must live in unnamed
// namespaces, or the linker could choose this version for processors without them.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,popcnt")
#endif

#include "lanes_avx2.h"

#include "table.h"

namespace msprobe {
const KernelTable kAvx2 = make_table("avx2");
}  // namespace msprobe

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
