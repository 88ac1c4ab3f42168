// Sixteen lanes as plain arrays: the meaning that the vector versions must reproduce bit for bit.
#pragma once
#include "decode.h"
#include "partial.h"

namespace msprobe {
namespace {

struct Floats {
  float v[kLanes];
};
struct Doubles {
  double v[kLanes];
};

inline Floats splat(float x) {
  Floats r;
  for (int j = 0; j < kLanes; ++j) r.v[j] = x;
  return r;
}
inline Doubles splat_wide(double x) {
  Doubles r;
  for (int j = 0; j < kLanes; ++j) r.v[j] = x;
  return r;
}
inline Floats load_f32(const float* p) {
  Floats r;
  for (int j = 0; j < kLanes; ++j) r.v[j] = p[j];
  return r;
}
inline Floats load_bf16(const uint16_t* p) {
  Floats r;
  for (int j = 0; j < kLanes; ++j) r.v[j] = decode_bfloat16(p[j]);
  return r;
}
inline Floats load_f16(const uint16_t* p) {
  Floats r;
  for (int j = 0; j < kLanes; ++j) r.v[j] = decode_float16(p[j]);
  return r;
}
inline Doubles load_f64(const double* p) {
  Doubles r;
  for (int j = 0; j < kLanes; ++j) r.v[j] = p[j];
  return r;
}
inline Doubles widen(const Floats& x) {
  Doubles r;
  for (int j = 0; j < kLanes; ++j) r.v[j] = x.v[j];
  return r;
}
// A NaN in x leaves the lane as it is; NaNs are found by the sum of squares.
inline void keep_max(Floats& m, const Floats& x) {
  for (int j = 0; j < kLanes; ++j) m.v[j] = x.v[j] > m.v[j] ? x.v[j] : m.v[j];
}
inline void keep_min(Floats& m, const Floats& x) {
  for (int j = 0; j < kLanes; ++j) m.v[j] = x.v[j] < m.v[j] ? x.v[j] : m.v[j];
}
inline void keep_max(Doubles& m, const Doubles& x) {
  for (int j = 0; j < kLanes; ++j) m.v[j] = x.v[j] > m.v[j] ? x.v[j] : m.v[j];
}
inline void keep_min(Doubles& m, const Doubles& x) {
  for (int j = 0; j < kLanes; ++j) m.v[j] = x.v[j] < m.v[j] ? x.v[j] : m.v[j];
}
inline void add(Doubles& s, const Doubles& x) {
  for (int j = 0; j < kLanes; ++j) s.v[j] += x.v[j];
}
inline void add_square(Doubles& q, const Doubles& x) {
  for (int j = 0; j < kLanes; ++j) q.v[j] += x.v[j] * x.v[j];
}
inline int zeros(const Floats& x) {
  int n = 0;
  for (int j = 0; j < kLanes; ++j) n += x.v[j] == 0;
  return n;
}
inline int zeros(const Doubles& x) {
  int n = 0;
  for (int j = 0; j < kLanes; ++j) n += x.v[j] == 0;
  return n;
}
inline void store(float* p, const Floats& x) { std::memcpy(p, x.v, sizeof x.v); }
inline void store(double* p, const Doubles& x) { std::memcpy(p, x.v, sizeof x.v); }

}  // namespace
}  // namespace msprobe
