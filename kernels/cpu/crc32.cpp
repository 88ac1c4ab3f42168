// CRC-32 with zlib's polynomial: carry-less multiplication where the processor has it, tables elsewhere.
#include "kernel_table.h"
#include "stats.h"

#if defined(MSPROBE_X86)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#define MSPROBE_ARM_CRC 1
#include <sys/auxv.h>

#include <cstring>
#endif

namespace msprobe {

namespace {

// Bit-reflected 0x04C11DB7; bit 31 is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0xEDB88320u;

struct Tables {
  uint32_t t[8][256];
};

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1) ? kPolynomial : 0);
    tables.t[0][i] = c;
  }
  for (uint32_t i = 0; i < 256; ++i)
    for (int k = 1; k < 8; ++k) tables.t[k][i] = (tables.t[k - 1][i] >> 8) ^ tables.t[0][tables.t[k - 1][i] & 255];
  return tables;
}

constexpr Tables kTables = make_tables();

// Eight bytes per step through eight tables ("slicing-by-8", Kounavis and Berry, 2005). `c` is the inverted CRC.
uint32_t crc_by_tables(uint32_t c, const uint8_t* p, int64_t n) {
  const auto& t = kTables.t;
  for (; n >= 8; n -= 8, p += 8) {
    const uint32_t low = c ^ (p[0] | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24);
    c = t[7][low & 255] ^ t[6][(low >> 8) & 255] ^ t[5][(low >> 16) & 255] ^ t[4][low >> 24] ^ t[3][p[4]] ^ t[2][p[5]] ^
        t[1][p[6]] ^ t[0][p[7]];
  }
  for (; n > 0; --n, ++p) c = (c >> 8) ^ t[0][(c ^ *p) & 255];
  return c;
}

#if defined(MSPROBE_X86)

// x^n modulo the polynomial, bit-reflected and shifted left by one as a carry-less product of reflected numbers needs.
constexpr uint64_t power(int n) {
  uint32_t c = 0x80000000u;
  for (int i = 0; i < n; ++i) c = (c >> 1) ^ ((c & 1) ? kPolynomial : 0);
  return static_cast<uint64_t>(c) << 1;
}

// Multipliers that move 128 bits of remainder `bits` further on: for its low (earlier) and its high half.
constexpr uint64_t fold_low(int bits) { return power(bits + 32); }
constexpr uint64_t fold_high(int bits) { return power(bits - 32); }

#define MSPROBE_CLMUL __attribute__((target("pclmul,sse4.1")))

MSPROBE_CLMUL inline __m128i folded(__m128i x, __m128i k, __m128i next) {
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next);
}

MSPROBE_CLMUL inline __m128i load128(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// The 128 bits of `x` followed by whole 16-byte pieces, then the rest by tables.
MSPROBE_CLMUL uint32_t finish_fold(__m128i x, const uint8_t* p, int64_t n) {
  const __m128i k = _mm_set_epi64x(static_cast<int64_t>(fold_high(128)), static_cast<int64_t>(fold_low(128)));
  for (; n >= 16; n -= 16, p += 16) x = folded(x, k, load128(p));
  // The remainder of `x` is the CRC register after its 16 bytes, started from zero.
  alignas(16) uint8_t last[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(last), x);
  return crc_by_tables(crc_by_tables(0, last, 16), p, n);
}

// Folding by four (Gopal et al., Fast CRC Computation Using PCLMULQDQ, Intel, 2009). Needs n >= 64.
MSPROBE_CLMUL uint32_t crc_by_clmul(uint32_t c, const uint8_t* p, int64_t n) {
  __m128i x[4];
  for (int j = 0; j < 4; ++j) x[j] = load128(p + 16 * j);
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(static_cast<int>(c)));
  p += 64;
  n -= 64;
  const __m128i far = _mm_set_epi64x(static_cast<int64_t>(fold_high(512)), static_cast<int64_t>(fold_low(512)));
  for (; n >= 64; n -= 64, p += 64)
    for (int j = 0; j < 4; ++j) x[j] = folded(x[j], far, load128(p + 16 * j));
  const __m128i near = _mm_set_epi64x(static_cast<int64_t>(fold_high(128)), static_cast<int64_t>(fold_low(128)));
  for (int j = 1; j < 4; ++j) x[j] = folded(x[j - 1], near, x[j]);
  return finish_fold(x[3], p, n);
}

#define MSPROBE_VCLMUL __attribute__((target("avx512f,avx512dq,vpclmulqdq,pclmul,sse4.1")))

MSPROBE_VCLMUL inline __m512i folded512(__m512i x, __m512i k, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(x, k, 0x00), high = _mm512_clmulepi64_epi128(x, k, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

MSPROBE_VCLMUL inline __m512i multipliers512(int64_t low, int64_t high) {
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

// The same on four registers of four 128-bit lanes. Needs n >= 256.
MSPROBE_VCLMUL uint32_t crc_by_vclmul(uint32_t c, const uint8_t* p, int64_t n) {
  __m512i x[4];
  for (int j = 0; j < 4; ++j) x[j] = _mm512_loadu_si512(p + 64 * j);
  x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(c))));
  p += 256;
  n -= 256;
  const __m512i far = multipliers512(static_cast<int64_t>(fold_low(2048)), static_cast<int64_t>(fold_high(2048)));
  for (; n >= 256; n -= 256, p += 256)
    for (int j = 0; j < 4; ++j) x[j] = folded512(x[j], far, _mm512_loadu_si512(p + 64 * j));
  const __m512i near = multipliers512(static_cast<int64_t>(fold_low(512)), static_cast<int64_t>(fold_high(512)));
  for (int j = 1; j < 4; ++j) x[j] = folded512(x[j - 1], near, x[j]);
  for (; n >= 64; n -= 64, p += 64) x[3] = folded512(x[3], near, _mm512_loadu_si512(p));
  const __m128i k = _mm_set_epi64x(static_cast<int64_t>(fold_high(128)), static_cast<int64_t>(fold_low(128)));
  __m128i y = _mm512_castsi512_si128(x[3]);
  y = folded(y, k, _mm512_extracti64x2_epi64(x[3], 1));
  y = folded(y, k, _mm512_extracti64x2_epi64(x[3], 2));
  y = folded(y, k, _mm512_extracti64x2_epi64(x[3], 3));
  return finish_fold(y, p, n);
}

#endif

#if defined(MSPROBE_ARM_CRC)

constexpr unsigned long kHasCrc32 = 1ul << 7;  // HWCAP_CRC32 of the Linux kernel's arm64 ABI

// The instructions use zlib's polynomial.
__attribute__((target("+crc"))) uint32_t crc_by_arm(uint32_t c, const uint8_t* p, int64_t n) {
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    c = __builtin_aarch64_crc32x(c, word);
  }
  return crc_by_tables(c, p, n);
}

#endif

using CrcFn = uint32_t (*)(uint32_t, const uint8_t*, int64_t);

// The function for n bytes: `large` from `from` on, `medium` from 64 on, else tables.
struct Choice {
  CrcFn medium = crc_by_tables;
  CrcFn large = crc_by_tables;
  int64_t from = 64;
};

Choice choose() {
#if defined(MSPROBE_X86)
  __builtin_cpu_init();
  const IsaLimit limit = isa_limit();
  if (limit == IsaLimit::kBaseline || !__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1")) return {};
  const bool wide = limit == IsaLimit::kAvx512 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq");
  return {crc_by_clmul, wide ? crc_by_vclmul : crc_by_clmul, 256};
#elif defined(MSPROBE_ARM_CRC)
  if (getauxval(AT_HWCAP) & kHasCrc32) return {crc_by_arm, crc_by_arm, 64};
  return {};
#else
  return {};
#endif
}

}  // namespace

uint32_t crc32(uint32_t crc, const void* data, int64_t nbytes) {
  static const Choice choice = choose();
  const auto* p = static_cast<const uint8_t*>(data);
  if (nbytes < 64) return ~crc_by_tables(~crc, p, nbytes);
  return ~(nbytes < choice.from ? choice.medium : choice.large)(~crc, p, nbytes);
}

uint32_t crc32(uint32_t crc, const Layout& layout) {
  constexpr int64_t kPiece = 16384;
  alignas(16) char buffer[kPiece];
  if (layout.numel == 0) return crc;
  Cursor cursor(layout, 0);
  const int64_t items = kPiece / layout.itemsize;
  for (int64_t i = 0; i < layout.numel; i += items) {
    const int64_t n = layout.numel - i < items ? layout.numel - i : items;
    crc = crc32(crc, cursor.next(n, buffer, 1), n * layout.itemsize);
  }
  return crc;
}

}  // namespace msprobe
