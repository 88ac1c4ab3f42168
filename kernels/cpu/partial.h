// What a statistics kernel accumulates, and the fixed partition of a tensor that makes results independent of threads.
#pragma once
#include <cstdint>
#include <limits>

namespace msprobe {

// Sums are formed inside blocks of this many consecutive elements; block sums are added in index order.
constexpr int64_t kBlock = 4096;
// Exact sums may be cut anywhere; blocks of bytes are longer, to fold their lanes less often.
constexpr int64_t kByteBlock = 65280;
// Element k of a block goes to lane k % 16, on every instruction set, so that they all round alike.
constexpr int kLanes = 16;

using Int128 = __int128;
using UInt128 = unsigned __int128;

// Running result over a range of elements. Floating kernels use the doubles, integer kernels the i-fields
// (and sumsq for 64-bit integers, whose squares fit no integer).
struct Partial {
  double max = -std::numeric_limits<double>::infinity();
  double min = std::numeric_limits<double>::infinity();
  double sum = 0;
  double sumsq = 0;
  int64_t imax = std::numeric_limits<int64_t>::min();
  int64_t imin = std::numeric_limits<int64_t>::max();
  Int128 isum = 0;
  UInt128 isumsq = 0;
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t zero = 0;
};

// Appends the result of the elements that follow those of `a`.
inline void append(Partial& a, const Partial& b) {
  a.max = b.max > a.max ? b.max : a.max;
  a.min = b.min < a.min ? b.min : a.min;
  a.sum += b.sum;
  a.sumsq += b.sumsq;
  a.imax = b.imax > a.imax ? b.imax : a.imax;
  a.imin = b.imin < a.imin ? b.imin : a.imin;
  a.isum += b.isum;
  a.isumsq += b.isumsq;
  a.nan += b.nan;
  a.inf += b.inf;
  a.zero += b.zero;
}

}  // namespace msprobe
