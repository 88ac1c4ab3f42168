// Statistics of one block of bytes with AVX-512 VNNI dot products. Include only where the compiler targets it.
#pragma once
#include <immintrin.h>

#include "partial.h"

namespace msprobe {
namespace {

// Results over whole vectors of 64 bytes; s is the byte as signed, for unsigned input shifted by -128.
struct Bytes {
  int64_t done = 0;
  int32_t max = std::numeric_limits<int8_t>::min();
  int32_t min = std::numeric_limits<int8_t>::max();
  int64_t sum = 0;
  int64_t sumsq = 0;
  int64_t zero = 0;
};

// dpbusd multiplies unsigned by signed bytes into 32-bit lanes: with u = s + 128 it gives sum(u * s) = sumsq + 128 sum.
template <int kBias>
Bytes whole_vectors(const uint8_t* p, int64_t n) {
  constexpr int kUnroll = 4;
  const __m512i top = _mm512_set1_epi8(static_cast<char>(0x80)), ones = _mm512_set1_epi8(1);
  __m512i max = _mm512_set1_epi8(-128), min = _mm512_set1_epi8(127);
  __m512i sum[kUnroll] = {}, product[kUnroll] = {};
  Bytes r;
  for (; r.done + 64 * kUnroll <= n; r.done += 64 * kUnroll) {
    for (int j = 0; j < kUnroll; ++j) {
      const __m512i x = _mm512_loadu_si512(p + r.done + 64 * j), flipped = _mm512_xor_si512(x, top);
      const __m512i s = kBias == 0 ? x : flipped, u = kBias == 0 ? flipped : x;
      max = _mm512_max_epi8(max, s);
      min = _mm512_min_epi8(min, s);
      sum[j] = _mm512_dpbusd_epi32(sum[j], ones, s);
      product[j] = _mm512_dpbusd_epi32(product[j], u, s);
      r.zero += __builtin_popcountll(_mm512_testn_epi8_mask(x, x));
    }
  }
  for (int j = 1; j < kUnroll; ++j) {
    sum[0] = _mm512_add_epi32(sum[0], sum[j]);
    product[0] = _mm512_add_epi32(product[0], product[j]);
  }
  alignas(64) int8_t bytes[2][64];
  _mm512_store_si512(bytes[0], max);
  _mm512_store_si512(bytes[1], min);
  for (int j = 0; j < 64; ++j) {
    r.max = bytes[0][j] > r.max ? bytes[0][j] : r.max;
    r.min = bytes[1][j] < r.min ? bytes[1][j] : r.min;
  }
  r.sum = _mm512_reduce_add_epi32(sum[0]);
  r.sumsq = _mm512_reduce_add_epi32(product[0]) - 128 * r.sum;
  return r;
}

// kBias is 0 for int8 and 128 for uint8: x = s + kBias.
template <int kBias>
void vnni_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const uint8_t*>(data);
  Bytes r = whole_vectors<kBias>(p, n);
  for (int64_t i = r.done; i < n; ++i) {
    const int32_t s = static_cast<int8_t>(p[i] ^ kBias);
    r.max = s > r.max ? s : r.max;
    r.min = s < r.min ? s : r.min;
    r.sum += s;
    r.sumsq += s * s;
    r.zero += p[i] == 0;
  }
  acc.imax = r.max + kBias > acc.imax ? r.max + kBias : acc.imax;
  acc.imin = r.min + kBias < acc.imin ? r.min + kBias : acc.imin;
  acc.isum += r.sum + kBias * n;
  acc.isumsq += static_cast<uint64_t>(r.sumsq + 2 * kBias * r.sum + kBias * kBias * n);
  acc.zero += r.zero;
}

}  // namespace
}  // namespace msprobe
