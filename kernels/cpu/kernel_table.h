// The kernels of one instruction set, and the choice among them.
#pragma once
#include "partial.h"

namespace msprobe {

// Adds `n` elements at `p` (aligned to the element), at most those of a block, to `acc`.
using BlockFn = void (*)(const void* p, int64_t n, Partial& acc);
// Says whether one of `n` elements is NaN or infinite.
using NonfiniteFn = bool (*)(const void* p, int64_t n);
// XOR of `n` little-endian 64-bit words at any alignment.
using XorFn = uint64_t (*)(const void* p, int64_t n);
// Sum of fmix64(word_i + (first + i) * golden) over `n` words; see block_words.h.
using HashFn = uint64_t (*)(const void* p, int64_t n, uint64_t first);

// The kernels of one instruction set.
struct KernelTable {
  const char* isa;
  BlockFn u8, i8, i16, i32, i64, u16, u32, u64, boolean;
  BlockFn f16, bf16, f32, f64;
  BlockFn e5m2, e4m3fn, e5m2fnuz, e4m3fnuz, e8m0fnu;
  BlockFn c32, c64, c128;
  NonfiniteFn nonfinite16_half, nonfinite16_bfloat, nonfinite32, nonfinite64;
  XorFn xor_words;
  HashFn hash_words;
};

extern const KernelTable kPortable;
#if defined(__x86_64__) && defined(__GNUC__)
#define MSPROBE_X86 1
extern const KernelTable kAvx2;
extern const KernelTable kAvx512;
extern const KernelTable kAvx512NoVnni;
#endif

// Highest instruction set to use: MSPROBE_ISA is "baseline", "avx2" or "avx512" (the default). For tests, and to rule
// the vector code out when results are in doubt. A processor's own limits come on top.
enum class IsaLimit { kBaseline, kAvx2, kAvx512 };
IsaLimit isa_limit();

// The best table for this processor within isa_limit(), chosen once.
const KernelTable& kernels();

}  // namespace msprobe
