#include "strided.h"

#include <cstring>

namespace msprobe {

void Layout::push(int64_t dim_size, int64_t dim_stride) {
  numel *= dim_size;
  if (dim_size == 1) return;
  const int64_t bytes = dim_stride * itemsize;
  if (ndim > 0 && stride[ndim - 1] == dim_size * bytes) {
    size[ndim - 1] *= dim_size;
    stride[ndim - 1] = bytes;
    return;
  }
  size[ndim] = dim_size;
  stride[ndim] = bytes;
  ++ndim;
}

Cursor::Cursor(const Layout& layout, int64_t first) : layout_(layout), at_(layout.base) {
  for (int d = layout.ndim - 1; d >= 0; --d) {
    index_[d] = first % layout.size[d];
    first /= layout.size[d];
    at_ += index_[d] * layout.stride[d];
  }
}

namespace {

template <int kItem>
void copy_run(char* to, const char* from, int64_t n, int64_t stride) {
  if (stride == kItem) {
    std::memcpy(to, from, static_cast<size_t>(n) * kItem);
    return;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * kItem, from + i * stride, kItem);
}

void copy_items(char* to, const char* from, int64_t n, int64_t stride, int itemsize) {
  switch (itemsize) {
    case 1: return copy_run<1>(to, from, n, stride);
    case 2: return copy_run<2>(to, from, n, stride);
    case 4: return copy_run<4>(to, from, n, stride);
    case 8: return copy_run<8>(to, from, n, stride);
    default: return copy_run<16>(to, from, n, stride);
  }
}

}  // namespace

// Moves `n` elements on, which must not lead beyond the end of the innermost dimension.
void Cursor::step(int64_t n) {
  int d = layout_.ndim - 1;
  index_[d] += n;
  at_ += n * layout_.stride[d];
  for (; d > 0 && index_[d] == layout_.size[d]; --d) {
    at_ += layout_.stride[d - 1] - layout_.size[d] * layout_.stride[d];
    index_[d] = 0;
    ++index_[d - 1];
  }
}

const void* Cursor::next(int64_t n, void* buffer, int alignment) {
  const bool aligned = (reinterpret_cast<uintptr_t>(at_) & static_cast<uintptr_t>(alignment - 1)) == 0;
  if (layout_.ndim == 0) {
    if (aligned) return at_;
    std::memcpy(buffer, at_, static_cast<size_t>(layout_.itemsize));
    return buffer;
  }
  const int inner = layout_.ndim - 1;
  const int64_t size = layout_.size[inner], stride = layout_.stride[inner];
  if (stride == layout_.itemsize && size - index_[inner] >= n && aligned) {
    const char* here = at_;
    step(n);
    return here;
  }
  char* to = static_cast<char*>(buffer);
  while (n > 0) {
    const int64_t run = size - index_[inner] < n ? size - index_[inner] : n;
    copy_items(to, at_, run, stride, layout_.itemsize);
    to += run * layout_.itemsize;
    n -= run;
    step(run);
  }
  return buffer;
}

}  // namespace msprobe
