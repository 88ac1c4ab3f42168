// Statistics of one block of bytes with AVX-512 VNNI dot products. Include only where the compiler targets it.
//
// Zen 4 starts two 512-bit operations a cycle, of which one may be a dot product or a test into a mask, and its
// third-level cache delivers a vector every 2.5 cycles: each operation per vector counts. So one range check does for
// both extremes once some are known, none is needed when the type has no others, and zeros are counted in three ways that
// use different units.
#pragma once
#include <immintrin.h>

#include "block_int.h"

namespace msprobe {
namespace {

// How extremes are found: from scratch, by proof that no element is beyond those known so far, or not at all.
enum class Look { kBoth, kInside, kNot };

// How the zeros of a vector are counted: by a test into a mask, by comparison into the sign bits of bytes, or as nonzero
// bytes that are added up.
enum class ZeroCount { kMask, kSigns, kAdd };

constexpr ZeroCount zero_count_of(int vector, Look look) {
  constexpr ZeroCount ways[] = {ZeroCount::kMask, ZeroCount::kSigns, ZeroCount::kMask, ZeroCount::kAdd};
  return vector == 2 && look == Look::kNot ? ZeroCount::kAdd : ways[vector];
}

constexpr int kByteVectors = 4;
constexpr int64_t kByteGroup = 64 * kByteVectors;
static_assert(kByteBlock / kByteGroup <= 255, "counts of nonzero elements must fit a byte");
static_assert(kByteBlock * 255 * 128 <= std::numeric_limits<int32_t>::max(), "sums of products must fit 32 bits");

// Keeps a vector in a register: the compiler would load it again for each use, and loads are scarce.
inline __m512i load_once(const uint8_t* p) {
  __m512i x = _mm512_loadu_si512(p);
  __asm__("" : "+v"(x));
  return x;
}

// The bits of the zeros of `x`, which is at `p`. The upper half is loaded again, which is cheaper than moving it down.
inline uint64_t zero_signs(__m512i x, const uint8_t* p) {
  const __m256i none = _mm256_setzero_si256(), low = _mm512_castsi512_si256(x);
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  const auto low_signs = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, none)));
  const auto high_signs = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, none)));
  return low_signs | static_cast<uint64_t>(high_signs) << 32;
}

inline __m512i splat_byte(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }

inline int64_t lane_total(const __m512i* lanes) {
  const __m512i low = _mm512_add_epi32(lanes[0], lanes[1]), high = _mm512_add_epi32(lanes[2], lanes[3]);
  return _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
}

// Extremes in the order of the type.
template <bool kSigned>
__m512i max_of(__m512i a, __m512i b) {
  return kSigned ? _mm512_max_epi8(a, b) : _mm512_max_epu8(a, b);
}
template <bool kSigned>
__m512i min_of(__m512i a, __m512i b) {
  return kSigned ? _mm512_min_epi8(a, b) : _mm512_min_epu8(a, b);
}
template <bool kSigned>
int largest(__m512i v) {
  v = max_of<kSigned>(v, _mm512_shuffle_i64x2(v, v, 0x4e));
  v = max_of<kSigned>(v, _mm512_shuffle_i64x2(v, v, 0xb1));
  const __m128i bytes = _mm512_castsi512_si128(v);
  return _mm512_reduce_max_epi32(kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
}
// The complement turns the order round: ~x is -1 - x, or 255 - x without sign.
template <bool kSigned>
int smallest(__m512i v) {
  return (kSigned ? -1 : 255) - largest<kSigned>(_mm512_xor_si512(v, splat_byte(-1)));
}

struct ByteTotals {
  int64_t sum, sumsq, zero;
  int max, min;  // of kBoth
  bool inside;   // of kInside: no element is beyond the range
};

// Totals of `n` bytes, a multiple of kByteGroup. All are expected to be from `least` to `most`, which are the extremes of
// the type for kBoth and kNot.
//
// dpbusd adds products of unsigned and signed bytes to 32-bit lanes. One operand is x itself; the other one is x - shift,
// where the shift takes the expected range into that of the operand's type. With the unsigned operand u and the signed
// one s, sum(u * s) = sumsq - shift * sum. An element beyond the range is shifted beyond the place of `most`.
template <bool kSigned, Look kLook>
ByteTotals byte_totals(const uint8_t* p, int64_t n, int least, int most) {
  const int shift = kSigned ? least : least + 128;
  const __m512i shifts = splat_byte(shift), one = splat_byte(1), none = _mm512_setzero_si512();
  __m512i sum[kByteVectors] = {}, product[kByteVectors] = {}, nonzero[kByteVectors] = {}, max[2], min[2];
  max[0] = max[1] = splat_byte(kSigned == (kLook == Look::kBoth) ? -128 : 0);
  min[0] = min[1] = splat_byte(kSigned ? 127 : -1);
  int64_t zero = 0;
  for (int64_t i = 0; i < n; i += kByteGroup) {
#pragma GCC unroll 4
    for (int j = 0; j < kByteVectors; ++j) {
      const __m512i x = load_once(p + i + 64 * j), shifted = _mm512_sub_epi8(x, shifts);
      const __m512i u = kSigned ? shifted : x, s = kSigned ? x : shifted;
      if (kLook == Look::kInside) max[j % 2] = max_of<!kSigned>(max[j % 2], shifted);
      if (kLook == Look::kBoth) {
        max[j % 2] = max_of<kSigned>(max[j % 2], x);
        min[j % 2] = min_of<kSigned>(min[j % 2], x);
      }
      sum[j] = _mm512_dpbusd_epi32(sum[j], one, s);
      product[j] = _mm512_dpbusd_epi32(product[j], u, s);
      switch (zero_count_of(j, kLook)) {
        case ZeroCount::kMask: zero += __builtin_popcountll(_mm512_testn_epi8_mask(x, x)); break;
        case ZeroCount::kSigns: zero += __builtin_popcountll(zero_signs(x, p + i + 64 * j)); break;
        default: nonzero[j] = _mm512_add_epi8(nonzero[j], _mm512_min_epu8(x, one));
      }
    }
  }
  __m512i added = none;
  for (int j = 0; j < kByteVectors; ++j) {
    if (zero_count_of(j, kLook) == ZeroCount::kAdd) zero += n / kByteVectors;
    added = _mm512_add_epi64(added, _mm512_sad_epu8(nonzero[j], none));
  }
  ByteTotals r{lane_total(sum) + (kSigned ? 0 : n * shift), 0, zero - _mm512_reduce_add_epi64(added), 0, 0, true};
  r.sumsq = lane_total(product) + shift * r.sum;
  if (kLook == Look::kInside)
    r.inside = largest<!kSigned>(max_of<!kSigned>(max[0], max[1])) <= most - least - (kSigned ? 0 : 128);
  if (kLook == Look::kBoth) {
    r.max = largest<kSigned>(max_of<kSigned>(max[0], max[1]));
    r.min = smallest<kSigned>(min_of<kSigned>(min[0], min[1]));
  }
  return r;
}

// The totals, with the range of `acc` widened if it has to be.
template <bool kSigned>
ByteTotals totals_and_range(const uint8_t* p, int64_t n, Partial& acc) {
  constexpr int kLeast = kSigned ? -128 : 0, kMost = kSigned ? 127 : 255;
  if (acc.imin == kLeast && acc.imax == kMost) return byte_totals<kSigned, Look::kNot>(p, n, kLeast, kMost);
  if (acc.imin <= acc.imax) {
    const int least = static_cast<int>(acc.imin), most = static_cast<int>(acc.imax);
    const ByteTotals r = byte_totals<kSigned, Look::kInside>(p, n, least, most);
    if (r.inside) return r;
    // Read once more, which can happen 255 times at most.
  }
  const ByteTotals r = byte_totals<kSigned, Look::kBoth>(p, n, kLeast, kMost);
  acc.imax = r.max > acc.imax ? r.max : acc.imax;
  acc.imin = r.min < acc.imin ? r.min : acc.imin;
  return r;
}

template <class Byte>
void vnni_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const uint8_t*>(data);
  const int64_t whole = n - n % kByteGroup;
  if (whole > 0) {
    const ByteTotals r = totals_and_range<(std::numeric_limits<Byte>::min() < 0)>(p, whole, acc);
    acc.isum += r.sum;
    acc.isumsq += static_cast<uint64_t>(r.sumsq);
    acc.zero += r.zero;
  }
  if (whole < n) short_block<Byte, uint32_t>(p + whole, n - whole, acc);
}

}  // namespace
}  // namespace msprobe
