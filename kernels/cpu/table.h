// Fills a KernelTable from the blocks included before it, compiled for the instruction set in force.
#pragma once
#include "block_decoded.h"
#include "block_float.h"
#include "block_int.h"
#include "block_words.h"
#include "kernel_table.h"

namespace msprobe {
namespace {

constexpr KernelTable make_table(const char* isa) {
  KernelTable t{};
  t.isa = isa;
  t.u8 = short_block<uint8_t, uint32_t>;
  t.i8 = short_block<int8_t, int32_t>;
  t.i16 = short_block<int16_t, int64_t>;
  t.u16 = short_block<uint16_t, uint64_t>;
  t.i32 = int32_block<int32_t, int64_t>;
  t.u32 = int32_block<uint32_t, uint64_t>;
  t.i64 = int64_block<int64_t>;
  t.u64 = int64_block<uint64_t>;
  t.boolean = bool_block;
  t.f16 = half_block<ReadF16>;
  t.bf16 = half_block<ReadBf16>;
  t.f32 = f32_block;
  t.f64 = f64_block;
  t.e5m2 = float8_block<Float8::kE5m2>;
  t.e4m3fn = float8_block<Float8::kE4m3fn>;
  t.e5m2fnuz = float8_block<Float8::kE5m2fnuz>;
  t.e4m3fnuz = float8_block<Float8::kE4m3fnuz>;
  t.e8m0fnu = float8_block<Float8::kE8m0fnu>;
  t.c32 = narrow_complex_block<ReadF16>;
  t.c64 = narrow_complex_block<ReadF32>;
  t.c128 = c128_block;
  t.nonfinite16_half = nonfinite<uint16_t, 0x7c00>;
  t.nonfinite16_bfloat = nonfinite<uint16_t, 0x7f80>;
  t.nonfinite32 = nonfinite<uint32_t, 0x7f800000>;
  t.nonfinite64 = nonfinite<uint64_t, 0x7ff0000000000000>;
  t.xor_words = xor_words;
  t.hash_words = hash_words;
  return t;
}

}  // namespace
}  // namespace msprobe
