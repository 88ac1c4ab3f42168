// Numbers as JSON text, and rounding to narrower float formats.
#pragma once
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace msprobe {

// A binary float format: significand bits with the hidden one, exponent of the smallest normal, largest finite value.
struct FloatFormat {
  int precision = 53;
  int min_exponent = -1022;
  double largest = 0;
  bool saturates = false;
};

// `x` rounded to the format, ties to even, as a tensor cast rounds. NaN and infinities are kept.
inline double round_to(const FloatFormat& format, double x) {
  if (format.precision >= 53 || !std::isfinite(x) || x == 0) return x;
  if (format.precision == 24) return static_cast<double>(static_cast<float>(x));
  int exponent = 0;
  std::frexp(x, &exponent);
  const int least = exponent - 1 > format.min_exponent ? exponent - 1 : format.min_exponent;
  const int unit = least - format.precision + 1;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  if (std::fabs(rounded) <= format.largest) return rounded;
  return std::copysign(format.saturates ? format.largest : INFINITY, x);
}

inline void append_integer(std::string& text, int64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  text.append(digits, static_cast<size_t>(end.ptr - digits));
}

inline void append_unsigned(std::string& text, uint64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  text.append(digits, static_cast<size_t>(end.ptr - digits));
}

// The shortest text that reads back as `value`; a whole number keeps ".0", so that readers see a float.
inline void append_double(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "NaN";
    return;
  }
  if (std::isinf(value)) {
    text += value > 0 ? "Infinity" : "-Infinity";
    return;
  }
  char digits[40];
#if defined(__cpp_lib_to_chars)
  const char* end = std::to_chars(digits, digits + sizeof digits, value).ptr;
#else
  const char* end = digits + std::snprintf(digits, sizeof digits, "%.17g", value);
#endif
  text.append(digits, static_cast<size_t>(end - digits));
  for (const char* at = digits; at != end; ++at)
    if (*at == '.' || *at == 'e') return;
  text += ".0";
}

}  // namespace msprobe
