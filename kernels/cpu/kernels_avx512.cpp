// The kernels for x86-64 processors with AVX-512 (Skylake server, Zen 4 and later).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernel_table.h"

#if defined(MSPROBE_X86)

#include <immintrin.h>

// See kernels_avx2.cpp. Only the VNNI blocks may use avx512vnni; the table without them is for Skylake.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,popcnt,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,popcnt,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "lanes_avx512.h"

#include "table.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx512vnni")
#endif

#include "block_int8_vnni.h"

namespace msprobe {

namespace {

constexpr KernelTable with_vnni(KernelTable table) {
  table.i8 = vnni_block<int8_t>;
  table.u8 = vnni_block<uint8_t>;
  return table;
}

}  // namespace

const KernelTable kAvx512NoVnni = make_table("avx512");
const KernelTable kAvx512 = with_vnni(make_table("avx512"));

}  // namespace msprobe

#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
