// Sixteen lanes in AVX-512 registers. Include only where the compiler targets avx512f, bw, dq and vl.
#pragma once
#include <immintrin.h>

#include "decode.h"
#include "partial.h"

namespace msprobe {
namespace {

struct Floats {
  __m512 v;
};
// Lanes 0..7 and 8..15.
struct Doubles {
  __m512d low, high;
};
struct Zeros {
  int64_t count = 0;
};

inline Floats splat(float x) { return {_mm512_set1_ps(x)}; }
inline Doubles splat_wide(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }

inline Floats load_f32(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Floats load_bf16(const uint16_t* p) {
  const __m512i codes = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(codes, 16))};
}
inline Floats load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// 32 elements: those at even and those at odd positions.
inline void load_bf16_pairs(const uint16_t* p, Floats* even, Floats* odd) {
  const __m512i codes = _mm512_loadu_si512(p);
  even->v = _mm512_castsi512_ps(_mm512_slli_epi32(codes, 16));
  odd->v = _mm512_castsi512_ps(_mm512_and_si512(codes, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline Doubles load_f64(const double* p) { return {_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}; }
inline Doubles widen(const Floats& x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x.v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1))};
}

inline Floats plus(const Floats& x, const Floats& y) { return {_mm512_add_ps(x.v, y.v)}; }
// x * 1 + y rounds as x + y. Zen has multipliers idle while its adders also do the comparisons.
inline Floats plus_by_fma(const Floats& x, const Floats& y) {
  return {_mm512_fmadd_ps(x.v, _mm512_set1_ps(1.0f), y.v)};
}
inline Floats times(const Floats& x, const Floats& y) { return {_mm512_mul_ps(x.v, y.v)}; }

// max(x, m) gives m when x is NaN.
inline void keep_max(Floats& m, const Floats& x) { m.v = _mm512_max_ps(x.v, m.v); }
inline void keep_min(Floats& m, const Floats& x) { m.v = _mm512_min_ps(x.v, m.v); }
inline void keep_max(Doubles& m, const Doubles& x) {
  m.low = _mm512_max_pd(x.low, m.low);
  m.high = _mm512_max_pd(x.high, m.high);
}
inline void keep_min(Doubles& m, const Doubles& x) {
  m.low = _mm512_min_pd(x.low, m.low);
  m.high = _mm512_min_pd(x.high, m.high);
}
inline void add(Doubles& s, const Doubles& x) {
  s.low = _mm512_add_pd(s.low, x.low);
  s.high = _mm512_add_pd(s.high, x.high);
}
inline void add_square(Doubles& q, const Doubles& x) {
  q.low = _mm512_add_pd(q.low, _mm512_mul_pd(x.low, x.low));
  q.high = _mm512_add_pd(q.high, _mm512_mul_pd(x.high, x.high));
}
inline void count_zeros(Zeros& n, const Floats& x) {
  n.count += __builtin_popcount(_mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_EQ_OQ));
}
inline void count_zeros(Zeros& n, const Doubles& x) {
  const unsigned low = _mm512_cmp_pd_mask(x.low, _mm512_setzero_pd(), _CMP_EQ_OQ);
  const unsigned high = _mm512_cmp_pd_mask(x.high, _mm512_setzero_pd(), _CMP_EQ_OQ);
  n.count += __builtin_popcount(low | (high << 8));
}
inline int64_t total(const Zeros& n) { return n.count; }
inline void store(float* p, const Floats& x) { _mm512_storeu_ps(p, x.v); }
inline void store(double* p, const Doubles& x) {
  _mm512_storeu_pd(p, x.low);
  _mm512_storeu_pd(p + 8, x.high);
}

}  // namespace
}  // namespace msprobe
