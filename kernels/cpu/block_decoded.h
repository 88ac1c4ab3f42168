// Blocks that are decoded into a buffer of the first-level cache: float8 formats and complex numbers; and the search
// for NaN or infinity on bit patterns. Included once per instruction set, after block_float.h.
#pragma once
#include "block_float.h"

namespace msprobe {
namespace {

template <Float8 kFormat>
void float8_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const uint8_t*>(data);
  float values[kBlock];
  for (int64_t i = 0; i < n; ++i) values[i] = decode_float8<kFormat>(p[i]);
  f32_block(values, n, acc);
}

// Modulus in double: parts of float32 and narrower cannot overflow there. An infinite part wins over a NaN (C99 hypot).
template <class Read>
void narrow_complex_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const typename Read::Code*>(data);
  const float infinity = std::numeric_limits<float>::infinity();
  double values[kBlock];
  for (int64_t i = 0; i < n; ++i) {
    const float re = Read::one(p[2 * i]), im = Read::one(p[2 * i + 1]);
    const double root = __builtin_sqrt(static_cast<double>(re) * re + static_cast<double>(im) * im);
    const bool infinite = (__builtin_fabsf(re) == infinity) | (__builtin_fabsf(im) == infinity);
    values[i] = infinite ? std::numeric_limits<double>::infinity() : root;
  }
  f64_block(values, n, acc);
}

inline void c128_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const double*>(data);
  double values[kBlock];
  for (int64_t i = 0; i < n; ++i) values[i] = __builtin_hypot(p[2 * i], p[2 * i + 1]);
  f64_block(values, n, acc);
}

// Early exit after each piece; inside a piece the loop has no branch, so that it vectorises.
template <class Word, Word kExponent>
bool nonfinite(const void* data, int64_t n) {
  const auto* p = static_cast<const Word*>(data);
  for (int64_t i = 0; i < n;) {
    const int64_t end = n - i < kBlock ? n : i + kBlock;
    Word any = 0;
    for (; i < end; ++i) any |= (p[i] & kExponent) == kExponent ? Word(1) : Word(0);
    if (any) return true;
  }
  return false;
}

}  // namespace
}  // namespace msprobe
