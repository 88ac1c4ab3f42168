// Sixteen lanes as 128-bit vectors of the compiler's vector extension (GCC, Clang): NEON on aarch64, SSE2 on x86-64.
// The other lanes_*.h must reproduce these results bit for bit.
#pragma once
#include "decode.h"
#include "partial.h"

namespace msprobe {
namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef double Double2 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef int64_t Long2 __attribute__((vector_size(16)));
typedef uint32_t UInt4 __attribute__((vector_size(16)));

constexpr int kQuads = kLanes / 4;
constexpr int kPairs = kLanes / 2;

struct Floats {
  Float4 v[kQuads];
};
struct Doubles {
  Double2 v[kPairs];
};
// Counts of zeros per lane, negated.
struct Zeros {
  Int4 quads = {};
  Long2 pairs = {};
};

inline Floats splat(float x) {
  Floats r;
  for (auto& v : r.v) v = Float4{x, x, x, x};
  return r;
}
inline Doubles splat_wide(double x) {
  Doubles r;
  for (auto& v : r.v) v = Double2{x, x};
  return r;
}
inline Floats load_f32(const float* p) {
  Floats r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline Floats load_bf16(const uint16_t* p) {
  float values[kLanes];
  for (int j = 0; j < kLanes; ++j) values[j] = decode_bfloat16(p[j]);
  return load_f32(values);
}
inline Floats load_f16(const uint16_t* p) {
  float values[kLanes];
  for (int j = 0; j < kLanes; ++j) values[j] = decode_float16(p[j]);
  return load_f32(values);
}
// 32 elements: those at even and those at odd positions, which is the cheap way to split them on vector units.
inline void load_bf16_pairs(const uint16_t* p, Floats* even, Floats* odd) {
  UInt4 codes[kQuads];
  std::memcpy(codes, p, sizeof codes);
  for (int j = 0; j < kQuads; ++j) {
    even->v[j] = reinterpret_cast<Float4>(codes[j] << 16);
    odd->v[j] = reinterpret_cast<Float4>(codes[j] & 0xffff0000u);
  }
}
inline Doubles load_f64(const double* p) {
  Doubles r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline Doubles widen(const Floats& x) {
  Doubles r;
  for (int j = 0; j < kQuads; ++j) {
    r.v[2 * j] = Double2{x.v[j][0], x.v[j][1]};
    r.v[2 * j + 1] = Double2{x.v[j][2], x.v[j][3]};
  }
  return r;
}
inline Floats plus(const Floats& x, const Floats& y) {
  Floats r;
  for (int j = 0; j < kQuads; ++j) r.v[j] = x.v[j] + y.v[j];
  return r;
}
inline Floats plus_by_fma(const Floats& x, const Floats& y) { return plus(x, y); }
inline Floats times(const Floats& x, const Floats& y) {
  Floats r;
  for (int j = 0; j < kQuads; ++j) r.v[j] = x.v[j] * y.v[j];
  return r;
}

// A NaN in x leaves the lane as it is.
inline void keep_max(Floats& m, const Floats& x) {
  for (int j = 0; j < kQuads; ++j) m.v[j] = x.v[j] > m.v[j] ? x.v[j] : m.v[j];
}
inline void keep_min(Floats& m, const Floats& x) {
  for (int j = 0; j < kQuads; ++j) m.v[j] = x.v[j] < m.v[j] ? x.v[j] : m.v[j];
}
inline void keep_max(Doubles& m, const Doubles& x) {
  for (int j = 0; j < kPairs; ++j) m.v[j] = x.v[j] > m.v[j] ? x.v[j] : m.v[j];
}
inline void keep_min(Doubles& m, const Doubles& x) {
  for (int j = 0; j < kPairs; ++j) m.v[j] = x.v[j] < m.v[j] ? x.v[j] : m.v[j];
}
inline void add(Doubles& s, const Doubles& x) {
  for (int j = 0; j < kPairs; ++j) s.v[j] += x.v[j];
}
inline void add_square(Doubles& q, const Doubles& x) {
  for (int j = 0; j < kPairs; ++j) q.v[j] += x.v[j] * x.v[j];
}
inline void count_zeros(Zeros& n, const Floats& x) {
  for (int j = 0; j < kQuads; ++j) n.quads += x.v[j] == 0;
}
inline void count_zeros(Zeros& n, const Doubles& x) {
  for (int j = 0; j < kPairs; ++j) n.pairs += x.v[j] == 0;
}
inline int64_t total(const Zeros& n) {
  int64_t sum = n.pairs[0] + n.pairs[1];
  for (int j = 0; j < 4; ++j) sum += n.quads[j];
  return -sum;
}
inline void store(float* p, const Floats& x) { std::memcpy(p, x.v, sizeof x.v); }
inline void store(double* p, const Doubles& x) { std::memcpy(p, x.v, sizeof x.v); }

}  // namespace
}  // namespace msprobe
