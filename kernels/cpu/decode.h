// Exact scalar decoding of narrow floating formats. Included once per instruction set, hence everything is static.
#pragma once
#include <cstdint>
#include <cstring>

namespace msprobe {
namespace {

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline double double_of_bits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}

inline float decode_bfloat16(uint16_t code) { return float_of_bits(static_cast<uint32_t>(code) << 16); }

#if defined(__aarch64__)
inline float decode_float16(uint16_t code) {
  __fp16 value;
  std::memcpy(&value, &code, 2);
  return value;
}
#else
// Moving the 15 low bits up by 13 gives the value times 2^-112, subnormals included; the product with 2^112 is exact.
inline float decode_float16(uint16_t code) {
  const uint32_t magnitude = code & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t finite = bits_of_float(float_of_bits(magnitude << 13) * float_of_bits(0x77800000u));
  return float_of_bits((magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : finite) | sign);
}
#endif

constexpr uint32_t kNanBits = 0x7fc00000u;

// Formats of one sign bit, `mantissa` low bits, exponents biased by `bias`, and no infinity. In the fnuz variants the
// code of negative zero is the only NaN (Micikevicius et al., FP8 Formats for Deep Learning, 2022; ONNX float8 types).
// Without branches, so that a loop over it vectorises.
inline float decode_finite8(uint32_t code, int mantissa, int bias, bool fnuz) {
  const uint32_t magnitude = code & 0x7fu;
  const float unit = float_of_bits(static_cast<uint32_t>(127 + 1 - bias - mantissa) << 23);
  const uint32_t subnormal = bits_of_float(static_cast<float>(static_cast<int32_t>(magnitude)) * unit);
  const uint32_t normal = (magnitude << (23 - mantissa)) + (static_cast<uint32_t>(127 - bias) << 23);
  const uint32_t value = (magnitude < (1u << mantissa) ? subnormal : normal) | ((code & 0x80u) << 24);
  const bool nan = fnuz ? code == 0x80u : magnitude == 0x7fu;
  return float_of_bits(nan ? kNanBits : value);
}

// Power of two 2^(code - 127); 255 is NaN, there is no zero and no sign (OCP Microscaling Formats 1.0, E8M0).
inline float decode_e8m0(uint32_t code) {
  const uint32_t value = code == 0 ? 0x00400000u : code << 23;
  return float_of_bits(code == 255 ? kNanBits : value);
}

enum class Float8 { kE5m2, kE4m3fn, kE5m2fnuz, kE4m3fnuz, kE8m0fnu };

template <Float8 kFormat>
inline float decode_float8(uint8_t code) {
  switch (kFormat) {
    case Float8::kE5m2: return decode_float16(static_cast<uint16_t>(code << 8));
    case Float8::kE4m3fn: return decode_finite8(code, 3, 7, false);
    case Float8::kE5m2fnuz: return decode_finite8(code, 2, 16, true);
    case Float8::kE4m3fnuz: return decode_finite8(code, 3, 8, true);
    default: return decode_e8m0(code);
  }
}

}  // namespace
}  // namespace msprobe
