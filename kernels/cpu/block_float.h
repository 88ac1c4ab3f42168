// Statistics of one block of float16, bfloat16, float32 or float64 elements. Included once per instruction set, after
// its lanes_*.h.
//
// Sums of the narrow formats are formed in float32 over groups of 16 vectors, as a tree of depth 4, and widened to
// double from there on. So |error of sum| <= 4 * 2^-24 * sum|x|, and the relative error of the sum of squares is below
// 5 * 2^-24. Fewer elements than a group, and any block whose squares leave the range of float32, are added in double
// throughout. No product is fused with a sum: every instruction set gives the same bits.
#pragma once
#include <cmath>

#include "decode.h"
#include "partial.h"

namespace msprobe {
namespace {

constexpr int kVectors = 8;
constexpr int64_t kHalfGroup = kVectors * kLanes;
constexpr int64_t kGroup = 2 * kHalfGroup;

// Squares of float32 are trusted in a block whose sum of squares is in this range: above, one may have overflowed;
// below, the error of subnormal squares (2^-150 each) could show.
constexpr double kSquaresMax = std::numeric_limits<float>::max();
constexpr double kSquaresMin = 0x1p-113;

struct Moments {
  double sum, sumsq;
};

// Sum of the lanes by halving, the same tree everywhere.
inline double fold_lanes(double* v) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) v[j] += v[j + half];
  return v[0];
}

// How to read the codes of a format: 16 of them in order, 128 of them in any fixed order, or one.
struct ReadF32 {
  using Code = float;
  static Floats lanes(const float* p) { return load_f32(p); }
  static void eight(const float* p, Floats* x) {
    for (int j = 0; j < kVectors; ++j) x[j] = load_f32(p + j * kLanes);
  }
  static float one(float x) { return x; }
};
struct ReadF16 {
  using Code = uint16_t;
  static Floats lanes(const uint16_t* p) { return load_f16(p); }
  static void eight(const uint16_t* p, Floats* x) {
    for (int j = 0; j < kVectors; ++j) x[j] = load_f16(p + j * kLanes);
  }
  static float one(uint16_t x) { return decode_float16(x); }
};
struct ReadBf16 {
  using Code = uint16_t;
  static Floats lanes(const uint16_t* p) { return load_bf16(p); }
  static void eight(const uint16_t* p, Floats* x) {
    for (int j = 0; j < kVectors; j += 2) load_bf16_pairs(p + j * kLanes, &x[j], &x[j + 1]);
  }
  static float one(uint16_t x) { return decode_bfloat16(x); }
};

inline Floats tree(const Floats* x) {
  return plus(plus(plus(x[0], x[1]), plus(x[2], x[3])), plus(plus(x[4], x[5]), plus(x[6], x[7])));
}
// The same values as `tree`, by other execution units where the processor has them.
inline Floats tree_by_fma(const Floats* x) {
  const Floats low = plus_by_fma(plus_by_fma(x[0], x[1]), plus_by_fma(x[2], x[3]));
  return plus_by_fma(low, plus_by_fma(plus_by_fma(x[4], x[5]), plus_by_fma(x[6], x[7])));
}

// Extremes and zeros, seen in the same pass as the sums. A NaN leaves the extremes as they are.
struct Extremes {
  Floats max = splat(-std::numeric_limits<float>::infinity());
  Floats min = splat(std::numeric_limits<float>::infinity());
  float max_of_rest = -std::numeric_limits<float>::infinity();
  float min_of_rest = std::numeric_limits<float>::infinity();
  Zeros zeros;
  int64_t zeros_of_rest = 0;

  int64_t zero() const { return total(zeros) + zeros_of_rest; }
  void see(const Floats& x) {
    keep_max(max, x);
    keep_min(min, x);
    count_zeros(zeros, x);
  }
  void see(float x) {
    max_of_rest = x > max_of_rest ? x : max_of_rest;
    min_of_rest = x < min_of_rest ? x : min_of_rest;
    zeros_of_rest += x == 0;
  }
  void append_to(Partial& acc) const {
    float tops[kLanes], bottoms[kLanes], top = max_of_rest, bottom = min_of_rest;
    store(tops, max);
    store(bottoms, min);
    for (int j = 0; j < kLanes; ++j) {
      top = tops[j] > top ? tops[j] : top;
      bottom = bottoms[j] < bottom ? bottoms[j] : bottom;
    }
    acc.max = top > acc.max ? static_cast<double>(top) : acc.max;
    acc.min = bottom < acc.min ? static_cast<double>(bottom) : acc.min;
    acc.zero += zero();
  }
};
struct Unseen {
  void see(const Floats&) {}
  void see(float) {}
};

// Sums over `n` elements; kWide forbids float32 sums.
template <class Read, bool kWide, class See>
Moments moments(const typename Read::Code* p, int64_t n, See& seen) {
  Doubles sum = splat_wide(0), sumsq = splat_wide(0);
  int64_t i = 0;
  for (; !kWide && i + kGroup <= n; i += kGroup) {
    Floats s[2], q[2];
    for (int half = 0; half < 2; ++half) {
      Floats x[kVectors];
      Read::eight(p + i + half * kHalfGroup, x);
      for (int j = 0; j < kVectors; ++j) seen.see(x[j]);
      s[half] = tree_by_fma(x);
      for (int j = 0; j < kVectors; ++j) x[j] = times(x[j], x[j]);
      q[half] = tree(x);
    }
    add(sum, widen(plus(s[0], s[1])));
    add(sumsq, widen(plus(q[0], q[1])));
  }
  for (; i + kLanes <= n; i += kLanes) {
    const Floats x = Read::lanes(p + i);
    seen.see(x);
    const Doubles wide = widen(x);
    add(sum, wide);
    add_square(sumsq, wide);
  }
  double sums[kLanes], squares[kLanes];
  store(sums, sum);
  store(squares, sumsq);
  for (int lane = 0; i + lane < n; ++lane) {
    const float x = Read::one(p[i + lane]);
    seen.see(x);
    sums[lane] += static_cast<double>(x);
    squares[lane] += static_cast<double>(x) * static_cast<double>(x);
  }
  return {fold_lanes(sums), fold_lanes(squares)};
}

template <class Read>
void count_nonfinite(const typename Read::Code* p, int64_t n, Partial& acc) {
  int64_t nan = 0, inf = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float x = Read::one(p[i]);
    nan += x != x;
    inf += __builtin_fabsf(x) == std::numeric_limits<float>::infinity();
  }
  acc.nan += nan;
  acc.inf += inf;
}

// Adds the sums of a block of which `zero` elements are zero.
template <class Read>
void append_moments(const typename Read::Code* p, int64_t n, int64_t zero, Moments m, Partial& acc) {
  if (!(m.sumsq <= kSquaresMax) || (m.sumsq < kSquaresMin && zero < n)) {
    Unseen unseen;
    m = moments<Read, true>(p, n, unseen);
    if (!(m.sumsq <= std::numeric_limits<double>::max())) count_nonfinite<Read>(p, n, acc);
  }
  acc.sum += m.sum;
  acc.sumsq += m.sumsq;
}

inline void f32_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const float*>(data);
  Extremes seen;
  const Moments m = moments<ReadF32, false>(p, n, seen);
  seen.append_to(acc);
  append_moments<ReadF32>(p, n, seen.zero(), m, acc);
}

// Extremes of codes of sign and magnitude, and the number of zeros. Read as signed integers, the largest code is the
// largest element if one is positive; read as unsigned, it is the smallest if one is negative. NaN codes come out
// beyond the infinities, which does no harm: a tensor with a NaN has no extremes.
struct HalfExtremes {
  uint16_t max, min, zero;
};

inline HalfExtremes half_extremes(const uint16_t* p, int64_t n) {
  int16_t largest_signed = std::numeric_limits<int16_t>::min();
  uint16_t largest_unsigned = 0, nonzero = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t code = p[i];
    largest_signed = static_cast<int16_t>(code) > largest_signed ? static_cast<int16_t>(code) : largest_signed;
    largest_unsigned = code > largest_unsigned ? code : largest_unsigned;
    const auto magnitude = static_cast<uint16_t>(code << 1);
    nonzero = static_cast<uint16_t>(nonzero + (magnitude < 1 ? magnitude : 1));
  }
  const auto zero = static_cast<uint16_t>(n - nonzero);
  const bool negative = largest_unsigned >= 0x8000u, positive = largest_signed > 0;
  HalfExtremes r{static_cast<uint16_t>(largest_signed), largest_unsigned, zero};
  if (negative && positive) return r;
  // One sign only: the other extreme has the smallest magnitude of all.
  uint16_t smallest = 0xffffu;
  for (int64_t i = 0; i < n; ++i) smallest = p[i] < smallest ? p[i] : smallest;
  (negative ? r.max : r.min) = smallest;
  return r;
}

template <class Read>
void half_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const uint16_t*>(data);
  const HalfExtremes seen = half_extremes(p, n);
  const double top = Read::one(seen.max), bottom = Read::one(seen.min);
  acc.max = top > acc.max ? top : acc.max;
  acc.min = bottom < acc.min ? bottom : acc.min;
  acc.zero += seen.zero;
  Unseen unseen;
  append_moments<Read>(p, n, seen.zero, moments<Read, false>(p, n, unseen), acc);
}

inline void f64_block(const void* data, int64_t n, Partial& acc) {
  const auto* p = static_cast<const double*>(data);
  const double infinity = std::numeric_limits<double>::infinity();
  Doubles max = splat_wide(-infinity), min = splat_wide(infinity), sum = splat_wide(0), sumsq = splat_wide(0);
  Zeros zeros;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Doubles x = load_f64(p + i);
    keep_max(max, x);
    keep_min(min, x);
    count_zeros(zeros, x);
    add(sum, x);
    add_square(sumsq, x);
  }
  double tops[kLanes], bottoms[kLanes], sums[kLanes], squares[kLanes];
  store(tops, max);
  store(bottoms, min);
  store(sums, sum);
  store(squares, sumsq);
  for (int lane = 0; i + lane < n; ++lane) {
    const double x = p[i + lane];
    tops[lane] = x > tops[lane] ? x : tops[lane];
    bottoms[lane] = x < bottoms[lane] ? x : bottoms[lane];
    sums[lane] += x;
    squares[lane] += x * x;
    acc.zero += x == 0;
  }
  for (int j = 0; j < kLanes; ++j) {
    acc.max = tops[j] > acc.max ? tops[j] : acc.max;
    acc.min = bottoms[j] < acc.min ? bottoms[j] : acc.min;
  }
  const double squares_sum = fold_lanes(squares);
  acc.sum += fold_lanes(sums);
  acc.sumsq += squares_sum;
  acc.zero += total(zeros);
  if (squares_sum <= std::numeric_limits<double>::max()) return;
  for (i = 0; i < n; ++i) {
    acc.nan += p[i] != p[i];
    acc.inf += __builtin_fabs(p[i]) == infinity;
  }
}

}  // namespace
}  // namespace msprobe
