// Sixteen lanes in AVX2 registers. Include only where the compiler targets avx2, f16c and popcnt.
#pragma once
#include <immintrin.h>

#include "decode.h"
#include "partial.h"

namespace msprobe {
namespace {

// Lanes 0..7 and 8..15.
struct Floats {
  __m256 low, high;
};
// Lanes 0..3, 4..7, 8..11, 12..15.
struct Doubles {
  __m256d a, b, c, d;
};
struct Zeros {
  int64_t count = 0;
};

inline Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Doubles splat_wide(double x) {
  const __m256d v = _mm256_set1_pd(x);
  return {v, v, v, v};
}

inline const __m128i* codes(const uint16_t* p) { return reinterpret_cast<const __m128i*>(p); }
inline __m256 widen_bf16(__m128i eight) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}

inline Floats load_f32(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Floats load_bf16(const uint16_t* p) {
  return {widen_bf16(_mm_loadu_si128(codes(p))), widen_bf16(_mm_loadu_si128(codes(p + 8)))};
}
inline Floats load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(codes(p))), _mm256_cvtph_ps(_mm_loadu_si128(codes(p + 8)))};
}
// 32 elements: those at even and those at odd positions.
inline void load_bf16_pairs(const uint16_t* p, Floats* even, Floats* odd) {
  const __m256i odd_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  *even = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  *odd = {_mm256_castsi256_ps(_mm256_and_si256(low, odd_half)), _mm256_castsi256_ps(_mm256_and_si256(high, odd_half))};
}
inline Doubles load_f64(const double* p) {
  return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8), _mm256_loadu_pd(p + 12)};
}
inline Doubles widen(const Floats& x) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(x.low)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1)),
          _mm256_cvtps_pd(_mm256_castps256_ps128(x.high)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1))};
}

inline Floats plus(const Floats& x, const Floats& y) {
  return {_mm256_add_ps(x.low, y.low), _mm256_add_ps(x.high, y.high)};
}
// x * 1 + y rounds as x + y. Zen has multipliers idle while its adders also do the comparisons.
inline Floats plus_by_fma(const Floats& x, const Floats& y) {
  const __m256 one = _mm256_set1_ps(1.0f);
  return {_mm256_fmadd_ps(x.low, one, y.low), _mm256_fmadd_ps(x.high, one, y.high)};
}
inline Floats times(const Floats& x, const Floats& y) {
  return {_mm256_mul_ps(x.low, y.low), _mm256_mul_ps(x.high, y.high)};
}

// max(x, m) gives m when x is NaN.
inline void keep_max(Floats& m, const Floats& x) {
  m = {_mm256_max_ps(x.low, m.low), _mm256_max_ps(x.high, m.high)};
}
inline void keep_min(Floats& m, const Floats& x) {
  m = {_mm256_min_ps(x.low, m.low), _mm256_min_ps(x.high, m.high)};
}
inline void keep_max(Doubles& m, const Doubles& x) {
  m = {_mm256_max_pd(x.a, m.a), _mm256_max_pd(x.b, m.b), _mm256_max_pd(x.c, m.c), _mm256_max_pd(x.d, m.d)};
}
inline void keep_min(Doubles& m, const Doubles& x) {
  m = {_mm256_min_pd(x.a, m.a), _mm256_min_pd(x.b, m.b), _mm256_min_pd(x.c, m.c), _mm256_min_pd(x.d, m.d)};
}
inline void add(Doubles& s, const Doubles& x) {
  s = {_mm256_add_pd(s.a, x.a), _mm256_add_pd(s.b, x.b), _mm256_add_pd(s.c, x.c), _mm256_add_pd(s.d, x.d)};
}
inline void add_square(Doubles& q, const Doubles& x) {
  add(q, {_mm256_mul_pd(x.a, x.a), _mm256_mul_pd(x.b, x.b), _mm256_mul_pd(x.c, x.c), _mm256_mul_pd(x.d, x.d)});
}
inline void count_zeros(Zeros& n, const Floats& x) {
  const __m256 zero = _mm256_setzero_ps();
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.low, zero, _CMP_EQ_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(x.high, zero, _CMP_EQ_OQ));
  n.count += __builtin_popcount(static_cast<unsigned>(low | (high << 8)));
}
inline int zeros_of_four(__m256d x) { return _mm256_movemask_pd(_mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_EQ_OQ)); }
inline void count_zeros(Zeros& n, const Doubles& x) {
  const int mask = zeros_of_four(x.a) | (zeros_of_four(x.b) << 4) | (zeros_of_four(x.c) << 8) | (zeros_of_four(x.d) << 12);
  n.count += __builtin_popcount(static_cast<unsigned>(mask));
}
inline int64_t total(const Zeros& n) { return n.count; }
inline void store(float* p, const Floats& x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline void store(double* p, const Doubles& x) {
  _mm256_storeu_pd(p, x.a);
  _mm256_storeu_pd(p + 4, x.b);
  _mm256_storeu_pd(p + 8, x.c);
  _mm256_storeu_pd(p + 12, x.d);
}

}  // namespace
}  // namespace msprobe
