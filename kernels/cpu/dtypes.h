// Numbers of c10::ScalarType (torch 2.13) that the kernels read, and what each of them is.
#pragma once
#include "kernel_table.h"

namespace msprobe {

enum class Kind { kUnknown, kFloat, kInt, kUInt64, kBool };

struct Dtype {
  Kind kind = Kind::kUnknown;
  int itemsize = 0;
  int alignment = 0;
  BlockFn KernelTable::*block = nullptr;
  // Elements of a block.
  int64_t length = kBlock;

  // Whether sums do not depend on how they are grouped.
  bool exact() const { return kind != Kind::kFloat && itemsize < 8; }
};

// The dtype of a code; kind is kUnknown for a code that has no kernel.
Dtype dtype_of(int64_t code);

}  // namespace msprobe
