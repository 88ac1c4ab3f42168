// XOR of all 64-bit words of a tensor by halving, in one call from Python.
//
// There is no XOR reduction on the device: the words are folded onto a buffer whose width is a power of two, and the
// buffer onto its own half until one word is left. About log2(words) element-wise XORs are launched; the buffer holds
// at most half the words and at most 32 MiB. `xor64.py` has the same steps in Python.

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/bitwise_xor.h>
#include <torch/library.h>

namespace {

constexpr int64_t kWidest = int64_t{1} << 22;  // words of the buffer: 32 MiB

int64_t buffer_width(int64_t count) {
  int64_t width = 1;
  while (width * 4 <= count && width < kWidest) width *= 2;
  return width;
}

at::Tensor xor_words(const at::Tensor& words) {
  TORCH_CHECK(words.scalar_type() == at::kLong && words.dim() == 1 && words.numel() > 0,
              "xor_words: expected int64[n] with n > 0, got ", words.toString(), words.sizes());
  const int64_t count = words.numel();
  if (count == 1) return words.select(0, 0).clone();
  int64_t width = buffer_width(count);
  at::Tensor folded = at::bitwise_xor(words.narrow(0, 0, width), words.narrow(0, width, width));
  for (int64_t start = 2 * width; start < count; start += width) {
    const int64_t size = std::min(width, count - start);
    at::Tensor target = folded.narrow(0, 0, size);
    target.bitwise_xor_(words.narrow(0, start, size));
  }
  for (; width > 1; width /= 2) {
    at::Tensor target = folded.narrow(0, 0, width / 2);
    target.bitwise_xor_(folded.narrow(0, width / 2, width / 2));
  }
  return folded.select(0, 0).clone();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(msprobe_npu, library) { library.def("xor_words(Tensor words) -> Tensor"); }

TORCH_LIBRARY_IMPL(msprobe_npu, PrivateUse1, library) { library.impl("xor_words", &xor_words); }
