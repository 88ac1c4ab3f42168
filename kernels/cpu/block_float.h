// Statistics of one block of floating or complex elements. Included once per instruction set, after its lanes_*.h.
//
// Every element is widened to double before it is added: squares of float32 and narrower are then exact, no sum of
// them can overflow or underflow, and the result is that of a float64 reference up to the rounding of float64 sums.
#pragma once
#include <cmath>

#include "decode.h"
#include "partial.h"

namespace msprobe {
namespace {

// Sum of the lanes by halving, the same tree everywhere.
inline double fold_lanes(double* v) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) v[j] += v[j + half];
  return v[0];
}

// Lane results in memory, finished element by element and folded.
template <class Real>
struct Spilled {
  Real max[kLanes], min[kLanes];
  double sum[kLanes], sumsq[kLanes];
  int64_t zero;

  void take(int lane, Real x) {
    max[lane] = x > max[lane] ? x : max[lane];
    min[lane] = x < min[lane] ? x : min[lane];
    const double wide = x;
    sum[lane] += wide;
    sumsq[lane] += wide * wide;
    zero += x == 0;
  }

  // Returns whether the block may hold a NaN or an infinity, which then must be counted.
  bool append_to(Partial& acc) {
    for (int j = 0; j < kLanes; ++j) {
      acc.max = max[j] > acc.max ? static_cast<double>(max[j]) : acc.max;
      acc.min = min[j] < acc.min ? static_cast<double>(min[j]) : acc.min;
    }
    const double squares = fold_lanes(sumsq);
    acc.sum += fold_lanes(sum);
    acc.sumsq += squares;
    acc.zero += zero;
    return !(squares <= std::numeric_limits<double>::max());
  }
};

struct ReadF32 {
  using Code = float;
  static Floats lanes(const float* p) { return load_f32(p); }
  static float one(float x) { return x; }
};
struct ReadF16 {
  using Code = uint16_t;
  static Floats lanes(const uint16_t* p) { return load_f16(p); }
  static float one(uint16_t x) { return decode_float16(x); }
};
struct ReadBf16 {
  using Code = uint16_t;
  static Floats lanes(const uint16_t* p) { return load_bf16(p); }
  static float one(uint16_t x) { return decode_bfloat16(x); }
};
struct ReadF64 {
  using Code = double;
  static Doubles lanes(const double* p) { return load_f64(p); }
  static double one(double x) { return x; }
};

template <class Read>
void count_nonfinite(const typename Read::Code* p, int64_t n, Partial& acc) {
  for (int64_t i = 0; i < n; ++i) {
    const double x = Read::one(p[i]);
    acc.nan += x != x;
    acc.inf += std::fabs(x) == std::numeric_limits<double>::infinity();
  }
}

// Float16, bfloat16 and float32.
template <class Read>
void narrow_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const typename Read::Code*>(data);
  Floats max = splat(-std::numeric_limits<float>::infinity());
  Floats min = splat(std::numeric_limits<float>::infinity());
  Doubles sum = splat_wide(0), sumsq = splat_wide(0);
  int64_t zero = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats x = Read::lanes(p + i);
    keep_max(max, x);
    keep_min(min, x);
    zero += zeros(x);
    const Doubles wide = widen(x);
    add(sum, wide);
    add_square(sumsq, wide);
  }
  Spilled<float> s;
  store(s.max, max);
  store(s.min, min);
  store(s.sum, sum);
  store(s.sumsq, sumsq);
  s.zero = zero;
  for (int lane = 0; i + lane < n; ++lane) s.take(lane, Read::one(p[i + lane]));
  if (s.append_to(acc)) count_nonfinite<Read>(p, n, acc);
}

inline void f64_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const double*>(data);
  Doubles max = splat_wide(-std::numeric_limits<double>::infinity());
  Doubles min = splat_wide(std::numeric_limits<double>::infinity());
  Doubles sum = splat_wide(0), sumsq = splat_wide(0);
  int64_t zero = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Doubles x = load_f64(p + i);
    keep_max(max, x);
    keep_min(min, x);
    zero += zeros(x);
    add(sum, x);
    add_square(sumsq, x);
  }
  Spilled<double> s;
  store(s.max, max);
  store(s.min, min);
  store(s.sum, sum);
  store(s.sumsq, sumsq);
  s.zero = zero;
  for (int lane = 0; i + lane < n; ++lane) s.take(lane, p[i + lane]);
  if (s.append_to(acc)) count_nonfinite<ReadF64>(p, n, acc);
}

// Float8 formats: decoded through a table of 256 entries into a buffer that stays in the first-level cache.
template <Float8 kFormat>
void float8_block(const void* data, int64_t n, Partial& acc) {
  struct Table {
    float value[256];
    Table() {
      for (int code = 0; code < 256; ++code) value[code] = decode_float8(kFormat, static_cast<uint8_t>(code));
    }
  };
  static const Table table;
  const auto* p = static_cast<const uint8_t*>(data);
  float values[kBlock];
  for (int64_t i = 0; i < n; ++i) values[i] = table.value[p[i]];
  narrow_block<ReadF32>(values, n, acc);
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
template <class Word, Word kMask>
bool nonfinite(const void* data, int64_t n) {
  const auto* p = static_cast<const Word*>(data);
  for (int64_t i = 0; i < n;) {
    const int64_t end = n - i < kBlock ? n : i + kBlock;
    Word any = 0;
    for (; i < end; ++i) any |= (p[i] & kMask) == kMask ? Word(1) : Word(0);
    if (any) return true;
  }
  return false;
}

}  // namespace
}  // namespace msprobe
