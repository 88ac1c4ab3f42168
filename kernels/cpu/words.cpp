// XOR and hash of the content of a tensor as little-endian 64-bit words, zero padded at the end.
#include "block_words.h"

#include "parallel.h"
#include "stats.h"

namespace msprobe {

namespace {

// Words of one task: as many as the buffer of a gathered piece holds.
constexpr int kPieceWords = 4096;
constexpr int64_t kPieceBytes = 8 * kPieceWords;
constexpr int kRanges = 64;

struct alignas(16) Buffer {
  char bytes[kPieceBytes];
};

// Calls use(pointer, words, first) for the whole words of [begin, end) bytes, and with one padded word for the rest.
template <class Use>
void each_piece(const Layout& layout, int64_t begin, int64_t end, const Use& use) {
  if (begin >= end) return;
  Buffer buffer;
  Cursor cursor(layout, begin / layout.itemsize);
  for (int64_t at = begin; at < end; at += kPieceBytes) {
    const int64_t bytes = end - at < kPieceBytes ? end - at : kPieceBytes;
    const char* p = static_cast<const char*>(cursor.next(bytes / layout.itemsize, buffer.bytes, 1));
    const int64_t words = bytes / 8;
    if (words > 0) use(p, words, at / 8);
    if (bytes % 8 != 0) {
      char last[8] = {};
      std::memcpy(last, p + 8 * words, static_cast<size_t>(bytes % 8));
      use(last, 1, at / 8 + words);
    }
  }
}

// Results of the ranges combine with an operation that neither order nor grouping changes.
template <class Use, class Combine>
uint64_t over_ranges(const Layout& layout, int64_t threads, const Use& use, const Combine& combine) {
  const int64_t nbytes = layout.numel * layout.itemsize;
  const int count = nbytes / 8 < kThreadedWordsFrom || threads <= 1 ? 1 : kRanges;
  const int64_t length = ((nbytes + count - 1) / count + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
  uint64_t found[kRanges] = {};
  const auto run = [&](int i) {
    const int64_t begin = i * length, end = begin + length;
    each_piece(layout, begin, end < nbytes ? end : nbytes, [&](const char* p, int64_t words, int64_t first) {
      found[i] = combine(found[i], use(p, words, first));
    });
  };
  if (count == 1) {
    run(0);
  } else {
    parallel_for(count, threads, nbytes / 8, run);
  }
  for (int i = 1; i < count; ++i) found[0] = combine(found[0], found[i]);
  return found[0];
}

}  // namespace

uint64_t xor64(const Layout& layout, int64_t threads) {
  const KernelTable& table = kernels();
  return over_ranges(
      layout, threads, [&](const char* p, int64_t words, int64_t) { return table.xor_words(p, words); },
      [](uint64_t a, uint64_t b) { return a ^ b; });
}

uint64_t hash64(const Layout& layout, const int64_t* shape, int ndim, int64_t threads) {
  const KernelTable& table = kernels();
  const uint64_t body = over_ranges(
      layout, threads,
      [&](const char* p, int64_t words, int64_t first) {
        return table.hash_words(p, words, static_cast<uint64_t>(first) + 1);
      },
      [](uint64_t a, uint64_t b) { return a + b; });
  uint64_t salt = fmix64(static_cast<uint64_t>(layout.numel * layout.itemsize) + 1);
  for (int d = 0; d < ndim; ++d) salt = fmix64(salt ^ (static_cast<uint64_t>(shape[d]) + kGolden));
  return fmix64(body ^ salt);
}

}  // namespace msprobe
