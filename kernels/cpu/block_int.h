// Statistics of one block of integers, exact. Plain reductions: integer addition may be reordered, so the compiler
// vectorises these loops for whatever instruction set they are included under.
#pragma once
#include "block_float.h"
#include "partial.h"

namespace msprobe {
namespace {

// 8- and 16-bit elements: a block's sum fits 32 bits, its sum of squares 64.
template <class Int, class Square>
void short_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const Int*>(data);
  Int max = p[0], min = p[0];
  int32_t sum = 0;
  Square sumsq = 0;
  int32_t zero = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Int x = p[i];
    max = x > max ? x : max;
    min = x < min ? x : min;
    sum += x;
    sumsq += static_cast<Square>(x) * static_cast<Square>(x);
    zero += x == 0;
  }
  acc.imax = max > acc.imax ? max : acc.imax;
  acc.imin = min < acc.imin ? min : acc.imin;
  acc.isum += sum;
  acc.isumsq += static_cast<uint64_t>(sumsq);
  acc.zero += zero;
}

// 32-bit elements: squares need 64 bits, so their halves are summed apart.
template <class Int, class Wide>
void int32_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const Int*>(data);
  Int max = p[0], min = p[0];
  int64_t sum = 0;
  uint64_t low = 0, high = 0;
  int32_t zero = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Int x = p[i];
    max = x > max ? x : max;
    min = x < min ? x : min;
    sum += x;
    const auto square = static_cast<uint64_t>(static_cast<Wide>(x) * static_cast<Wide>(x));
    low += square & 0xffffffffu;
    high += square >> 32;
    zero += x == 0;
  }
  acc.imax = max > acc.imax ? max : acc.imax;
  acc.imin = min < acc.imin ? min : acc.imin;
  acc.isum += sum;
  acc.isumsq += (static_cast<UInt128>(high) << 32) + low;
  acc.zero += zero;
}

// Correctly rounded conversions that vectorise without AVX-512: both halves become exact doubles by writing their bits
// into the mantissa of 2^52 and 2^84, and one addition rounds.
inline double to_double(uint64_t x) {
  const double low = double_of_bits(0x4330000000000000u | (x & 0xffffffffu)) - 0x1p52;
  return (double_of_bits(0x4530000000000000u | (x >> 32)) - 0x1p84) + low;
}
inline double to_double(int64_t x) {
  const auto bits = static_cast<uint64_t>(x);
  const double low = double_of_bits(0x4330000000000000u | (bits & 0xffffffffu)) - 0x1p52;
  return (double_of_bits(0x4530000080000000u ^ (bits >> 32)) - (0x1p84 + 0x1p63)) + low;
}

// 64-bit elements: the sum is exact, split into 32-bit halves; squares are doubles in the lanes of block_float.h.
// Unsigned extremes are stored with the top bit flipped, which makes their order the signed one.
template <class Int>
void int64_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const Int*>(data);
  Int max = p[0], min = p[0];
  Int high = 0;
  uint64_t low = 0;
  int64_t zero = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Int x = p[i];
    max = x > max ? x : max;
    min = x < min ? x : min;
    high += x >> 32;
    low += static_cast<uint64_t>(x) & 0xffffffffu;
    zero += x == 0;
  }
  double sumsq[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) sumsq[j] += to_double(p[i + j]) * to_double(p[i + j]);
  for (int j = 0; i + j < n; ++j) sumsq[j] += to_double(p[i + j]) * to_double(p[i + j]);
  constexpr uint64_t flip = std::numeric_limits<Int>::min() == 0 ? uint64_t(1) << 63 : 0;
  const auto top = static_cast<int64_t>(static_cast<uint64_t>(max) ^ flip);
  const auto bottom = static_cast<int64_t>(static_cast<uint64_t>(min) ^ flip);
  acc.imax = top > acc.imax ? top : acc.imax;
  acc.imin = bottom < acc.imin ? bottom : acc.imin;
  acc.isum += (static_cast<Int128>(high) * (Int128(1) << 32)) + low;
  acc.sumsq += fold_lanes(sumsq);
  acc.zero += zero;
}

// Bytes other than 0 are true, as in torch.
inline void bool_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const uint8_t*>(data);
  constexpr int kColumns = kBlock / 64;
  uint8_t column[kColumns] = {};
  int64_t zero = 0, i = 0;
  for (; i + kColumns <= n; i += kColumns)
    for (int j = 0; j < kColumns; ++j) column[j] = static_cast<uint8_t>(column[j] + (p[i + j] == 0));
  for (; i < n; ++i) zero += p[i] == 0;
  for (int j = 0; j < kColumns; ++j) zero += column[j];
  const int64_t ones = n - zero;
  acc.imax = ones > 0 ? 1 : (acc.imax > 0 ? acc.imax : 0);
  acc.imin = zero > 0 ? 0 : (acc.imin < 1 ? acc.imin : 1);
  acc.isum += ones;
  acc.isumsq += static_cast<uint64_t>(ones);
  acc.zero += zero;
}

}  // namespace
}  // namespace msprobe
