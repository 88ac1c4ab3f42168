// Reads a strided tensor in logical (row-major) order, a block at a time.
#pragma once
#include <cstdint>

namespace msprobe {

constexpr int kMaxDims = 64;

// A tensor with its size-1 dimensions dropped and mergeable dimensions merged. Strides are in bytes.
struct Layout {
  const char* base = nullptr;
  int itemsize = 0;
  int ndim = 0;
  int64_t numel = 1;
  int64_t size[kMaxDims];
  int64_t stride[kMaxDims];

  // Adds the next inner dimension; `stride` is in elements and may be zero or negative. The order of calls is that of
  // the tensor's dimensions. At most kMaxDims of them.
  void push(int64_t dim_size, int64_t dim_stride);
  bool contiguous() const { return ndim == 0 || (ndim == 1 && stride[0] == itemsize); }
};

// Position in a Layout.
class Cursor {
 public:
  Cursor(const Layout& layout, int64_t first);

  // Returns the address of the next `n` elements in logical order, and moves behind them. They are copied to `buffer`
  // unless they lie together in memory and `alignment` (a power of two) suits their address.
  const void* next(int64_t n, void* buffer, int alignment);

 private:
  void step(int64_t n);

  const Layout& layout_;
  int64_t index_[kMaxDims];
  const char* at_;
};

}  // namespace msprobe
