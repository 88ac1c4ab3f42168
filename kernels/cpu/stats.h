// Statistics and content checksums of tensors in memory. No Python and no framework here.
#pragma once
#include "dtypes.h"
#include "partial.h"
#include "strided.h"

namespace msprobe {

// Statistics of the elements of `layout` in logical order. The result is the same for every number of threads and, for
// the same logical content, every layout and instruction set.
Partial stats(const Layout& layout, const Dtype& dtype, int64_t threads);

// Statistics of `n` contiguous elements.
Partial stats(const void* p, int64_t n, const Dtype& dtype, int64_t threads);

// Whether one of `n` contiguous elements is NaN or infinite.
bool find_nonfinite(const void* p, int64_t n, int64_t code, const Dtype& dtype);

// CRC-32 with zlib's polynomial of the bytes, continuing from `crc` (0 at the start).
uint32_t crc32(uint32_t crc, const void* p, int64_t nbytes);

// CRC-32, XOR and hash of the bytes of the elements in logical order; `layout` may also describe plain bytes.
uint32_t crc32(uint32_t crc, const Layout& layout);
uint64_t xor64(const Layout& layout, int64_t threads);
// `shape` has `ndim` sizes; it is part of the hash.
uint64_t hash64(const Layout& layout, const int64_t* shape, int ndim, int64_t threads);

}  // namespace msprobe
