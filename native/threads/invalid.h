// The processor's sticky invalid-operation flag, which comparisons, maxima and minima raise on NaN.
//
// The flag is per thread. Regions propagate it: after a region, the flag of the thread that opened it is set
// if it was set on any member (team.cc).
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace npu {

#if defined(__x86_64__)
inline bool invalid_raised() { return (_mm_getcsr() & _MM_EXCEPT_INVALID) != 0; }
inline void raise_invalid() { _mm_setcsr(_mm_getcsr() | _MM_EXCEPT_INVALID); }
inline void lower_invalid() { _mm_setcsr(_mm_getcsr() & ~static_cast<unsigned>(_MM_EXCEPT_INVALID)); }
#else
inline bool invalid_raised() { return std::fetestexcept(FE_INVALID) != 0; }
inline void raise_invalid() { std::feraiseexcept(FE_INVALID); }
inline void lower_invalid() { std::feclearexcept(FE_INVALID); }
#endif
// Writing the register costs more than reading it, and the flag is rarely set.
inline void clear_invalid() {
  if (invalid_raised()) lower_invalid();
}

}  // namespace npu
