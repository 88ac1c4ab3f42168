// XOR and hash of 64-bit words, read little-endian at any alignment. Included once per instruction set.
#pragma once
#include <cstdint>
#include <cstring>

namespace msprobe {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

// 64-bit finaliser of MurmurHash3 (A. Appleby, public domain).
inline uint64_t fmix64(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdu;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

inline uint64_t load_word(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word;
}

inline uint64_t xor_words(const void* data, int64_t n) {
  const auto* p = static_cast<const char*>(data);
  uint64_t value = 0;
  for (int64_t i = 0; i < n; ++i) value ^= load_word(p + 8 * i);
  return value;
}

inline uint64_t hash_words(const void* data, int64_t n, uint64_t first) {
  const auto* p = static_cast<const char*>(data);
  uint64_t value = 0;
  for (int64_t i = 0; i < n; ++i) value += fmix64(load_word(p + 8 * i) + (first + static_cast<uint64_t>(i)) * kGolden);
  return value;
}

}  // namespace
}  // namespace msprobe
