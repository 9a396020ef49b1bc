// One thread for each NPU, which runs that NPU's part of a function beside the others.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace npu::tf {

class DeviceThreads {
 public:
  // Pieces of work, each of one device, that run at the same time.
  class Group {
   public:
    void add(int device, std::function<void()> work) { work_.emplace_back(device, std::move(work)); }
    // Runs the pieces of `own` here and those of other devices in their threads; returns when all have ended.
    // In the thread of a device everything runs here: two devices never wait for each other's threads. The
    // pieces must not throw.
    void run(int own);

   private:
    std::vector<std::pair<int, std::function<void()>>> work_;
  };
};

}  // namespace npu::tf
