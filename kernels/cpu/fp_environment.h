// Default floating-point environment for the lifetime of an object.
//
// The user may have switched subnormals off (torch.set_flush_denormal), changed the rounding mode or unmasked
// exceptions; results must not depend on that, and the user's sticky flags must not change.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace msprobe {

class FpEnvironment {
 public:
#if defined(__x86_64__)
  FpEnvironment() : saved_(_mm_getcsr()) {
    if ((saved_ & ~0x3fu) != 0x1f80u) _mm_setcsr(0x1f80u);
  }
  ~FpEnvironment() { _mm_setcsr(saved_); }
#elif defined(__aarch64__) && defined(__GNUC__)
  FpEnvironment() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("mrs %0, fpsr" : "=r"(flags_));
    if (saved_ != 0) __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t(0)));
  }
  ~FpEnvironment() {
    __asm__ volatile("msr fpcr, %0" : : "r"(saved_));
    __asm__ volatile("msr fpsr, %0" : : "r"(flags_));
  }
#else
  FpEnvironment() {}
  ~FpEnvironment() {}
#endif
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

#if defined(__x86_64__)
 private:
  unsigned saved_;
#elif defined(__aarch64__) && defined(__GNUC__)
 private:
  uint64_t saved_, flags_;
#endif
};

}  // namespace msprobe
