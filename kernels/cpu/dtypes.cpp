#include "dtypes.h"

namespace msprobe {

Dtype dtype_of(int64_t code) {
  using T = KernelTable;
  switch (code) {
    case 0: return {Kind::kInt, 1, 1, &T::u8, kByteBlock};
    case 1: return {Kind::kInt, 1, 1, &T::i8, kByteBlock};
    case 2: return {Kind::kInt, 2, 2, &T::i16};
    case 3: return {Kind::kInt, 4, 4, &T::i32};
    case 4: return {Kind::kInt, 8, 8, &T::i64};
    case 5: return {Kind::kFloat, 2, 2, &T::f16};
    case 6: return {Kind::kFloat, 4, 4, &T::f32};
    case 7: return {Kind::kFloat, 8, 8, &T::f64};
    case 8: return {Kind::kFloat, 4, 2, &T::c32};
    case 9: return {Kind::kFloat, 8, 4, &T::c64};
    case 10: return {Kind::kFloat, 16, 8, &T::c128};
    case 11: return {Kind::kBool, 1, 1, &T::boolean};
    case 15: return {Kind::kFloat, 2, 2, &T::bf16};
    case 23: return {Kind::kFloat, 1, 1, &T::e5m2};
    case 24: return {Kind::kFloat, 1, 1, &T::e4m3fn};
    case 25: return {Kind::kFloat, 1, 1, &T::e5m2fnuz};
    case 26: return {Kind::kFloat, 1, 1, &T::e4m3fnuz};
    case 27: return {Kind::kInt, 2, 2, &T::u16};
    case 28: return {Kind::kInt, 4, 4, &T::u32};
    case 29: return {Kind::kUInt64, 8, 8, &T::u64};
    case 44: return {Kind::kFloat, 1, 1, &T::e8m0fnu};
    default: return {};
  }
}

}  // namespace msprobe
