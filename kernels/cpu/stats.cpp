#include "stats.h"

#include <algorithm>

#include "parallel.h"

namespace msprobe {

namespace {

// A large tensor is cut into ranges. If its sums round, how many depends on its size only, so that their order is fixed.
constexpr int kRanges = 64;
constexpr int64_t kRangeFrom = int64_t(1) << 15;

struct Ranges {
  int count;
  int64_t length;

  Ranges(int64_t n, int64_t threads, const Dtype& dtype) {
    const bool whole = n < kThreadedFrom || (threads <= 1 && dtype.exact());
    count = whole ? 1 : static_cast<int>(std::min<int64_t>(n / kRangeFrom, kRanges));
    length = ((n + count - 1) / count + kBlock - 1) / kBlock * kBlock;
  }
};

struct alignas(16) Buffer {
  char bytes[kBlock * 16];
};
static_assert(kByteBlock <= kBlock * 16, "a block must fit the buffer");

Partial range_of_contiguous(const char* p, int64_t begin, int64_t end, BlockFn block, const Dtype& dtype) {
  Partial acc;
  const int64_t length = dtype.length;
  for (int64_t i = begin; i < end; i += length) block(p + i * dtype.itemsize, end - i < length ? end - i : length, acc);
  return acc;
}

Partial range_of_strided(const Layout& layout, int64_t begin, int64_t end, BlockFn block, const Dtype& dtype) {
  Partial acc;
  if (begin >= end) return acc;
  Buffer buffer;
  Cursor cursor(layout, begin);
  for (int64_t i = begin; i < end; i += dtype.length) {
    const int64_t n = end - i < dtype.length ? end - i : dtype.length;
    block(cursor.next(n, buffer.bytes, dtype.alignment), n, acc);
  }
  return acc;
}

template <class RangeFn>
Partial fold_ranges(int64_t n, int64_t threads, const Dtype& dtype, const RangeFn& range) {
  const Ranges ranges(n, threads, dtype);
  if (ranges.count == 1) {
    const FpEnvironment environment;
    return range(0, n);
  }
  Partial found[kRanges];
  parallel_for(ranges.count, threads, n, [&](int i) {
    const int64_t begin = i * ranges.length, end = begin + ranges.length;
    found[i] = range(begin, end < n ? end : n);
  });
  for (int i = 1; i < ranges.count; ++i) append(found[0], found[i]);
  return found[0];
}

Partial finish(Partial result) {
  if (result.nan > 0) result.max = result.min = std::numeric_limits<double>::quiet_NaN();
  return result;
}

bool aligned(const void* p, int alignment) {
  return (reinterpret_cast<uintptr_t>(p) & static_cast<uintptr_t>(alignment - 1)) == 0;
}

}  // namespace

Partial stats(const void* p, int64_t n, const Dtype& dtype, int64_t threads) {
  if (!aligned(p, dtype.alignment)) {
    Layout layout;
    layout.base = static_cast<const char*>(p);
    layout.itemsize = dtype.itemsize;
    layout.push(n, 1);
    return stats(layout, dtype, threads);
  }
  const BlockFn block = kernels().*dtype.block;
  return finish(fold_ranges(n, threads, dtype, [&](int64_t begin, int64_t end) {
    return range_of_contiguous(static_cast<const char*>(p), begin, end, block, dtype);
  }));
}

Partial stats(const Layout& layout, const Dtype& dtype, int64_t threads) {
  const BlockFn block = kernels().*dtype.block;
  return finish(fold_ranges(layout.numel, threads, dtype, [&](int64_t begin, int64_t end) {
    return range_of_strided(layout, begin, end, block, dtype);
  }));
}

bool find_nonfinite(const void* p, int64_t n, int64_t code, const Dtype& dtype) {
  const KernelTable& table = kernels();
  if (dtype.kind != Kind::kFloat) return false;
  if (!aligned(p, dtype.alignment)) {
    const Partial found = stats(p, n, dtype, 1);
    return found.nan + found.inf > 0;
  }
  switch (code) {
    case 5: return table.nonfinite16_half(p, n);
    case 6: return table.nonfinite32(p, n);
    case 7: return table.nonfinite64(p, n);
    case 8: return table.nonfinite16_half(p, 2 * n);
    case 9: return table.nonfinite32(p, 2 * n);
    case 10: return table.nonfinite64(p, 2 * n);
    case 15: return table.nonfinite16_bfloat(p, n);
    default: break;
  }
  const FpEnvironment environment;
  for (int64_t i = 0; i < n; i += kBlock) {
    Partial acc;
    (table.*dtype.block)(static_cast<const char*>(p) + i * dtype.itemsize, n - i < kBlock ? n - i : kBlock, acc);
    if (acc.nan + acc.inf > 0) return true;
  }
  return false;
}

}  // namespace msprobe
