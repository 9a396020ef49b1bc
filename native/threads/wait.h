// Waits for a word of memory: spins briefly, long enough for a running thread to answer, then sleeps.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace npu {

// Tells the processor that a thread is spinning.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr std::chrono::microseconds kSpin{100};
constexpr int kPausesPerLook = 32;  // at the clock

using Word = std::atomic<std::uint32_t>;

inline void futex_wait(Word& word, std::uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

inline void futex_wake(Word* word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

inline bool passive() {
  static const bool chosen = [] {
    const char* policy = std::getenv("OMP_WAIT_POLICY");
    return policy && (std::strcmp(policy, "passive") == 0 || std::strcmp(policy, "PASSIVE") == 0);
  }();
  return chosen;
}

// True if the condition became true while spinning.
template <typename Condition>
bool spin_until(Condition condition) {
  if (condition()) return true;
  if (passive()) return false;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      relax();
      if (condition()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace npu
