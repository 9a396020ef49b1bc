// The processor's sticky flag for invalid operations, which comparisons, maxima and minima raise on NaN.
//
// The flag belongs to a thread. Regions pass it on: when one has ended, the flag of the thread that opened it
// is up if it came up on any member (team.cc).
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
// Writing the register costs more than reading it, and the flag is rarely up.
inline void clear_invalid() {
  if (invalid_raised()) lower_invalid();
}

}  // namespace npu
