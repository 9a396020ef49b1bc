// The other usual form of AscendCL's samples: runs in a stream, a thread that is told of results, events.
// acl_async model.om input.raw output.raw
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "acl/acl.h"

#define CHECK(call)                                                           \
  do {                                                                        \
    const aclError ret = (call);                                              \
    if (ret != ACL_SUCCESS) {                                                 \
      std::fprintf(stderr, "%s: %d, %s\n", #call, ret, aclGetRecentErrMsg()); \
      std::exit(1);                                                           \
    }                                                                         \
  } while (0)

namespace {

std::atomic<bool> running(true);
std::atomic<int> called(0);

void Count(void*) { ++called; }

void ProcessReports(aclrtContext context, std::atomic<uint64_t>* self) {
  CHECK(aclrtSetCurrentContext(context));
  self->store(static_cast<uint64_t>(pthread_self()));
  while (running) (void)aclrtProcessReport(20);
}

aclmdlDataset* MakeDataset(const std::vector<void*>& memory, size_t bytes) {
  aclmdlDataset* dataset = aclmdlCreateDataset();
  for (void* data : memory) CHECK(aclmdlAddDatasetBuffer(dataset, aclCreateDataBuffer(data, bytes)));
  return dataset;
}

void DestroyDataset(aclmdlDataset* dataset) {
  for (size_t i = 0; i < aclmdlGetDatasetNumBuffers(dataset); ++i) {
    CHECK(aclDestroyDataBuffer(aclmdlGetDatasetBuffer(dataset, i)));
  }
  CHECK(aclmdlDestroyDataset(dataset));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  CHECK(aclInit(nullptr));
  CHECK(aclrtSetDevice(0));
  aclrtContext context = nullptr;
  CHECK(aclrtGetCurrentContext(&context));
  aclrtStream stream = nullptr;
  CHECK(aclrtCreateStream(&stream));
  std::atomic<uint64_t> reporter(0);
  std::thread reports(ProcessReports, context, &reporter);
  while (!reporter) std::this_thread::yield();
  CHECK(aclrtSubscribeReport(reporter, stream));

  uint32_t id = 0;
  aclmdlConfigHandle* config = aclmdlCreateConfigHandle();
  const char* path = argv[1];
  CHECK(aclmdlSetConfigOpt(config, ACL_MDL_PATH_PTR, &path, sizeof path));
  CHECK(aclmdlLoadWithConfig(config, &id));
  CHECK(aclmdlDestroyConfigHandle(config));
  aclmdlDesc* desc = aclmdlCreateDesc();
  CHECK(aclmdlGetDesc(desc, id));
  const size_t inBytes = aclmdlGetInputSizeByIndex(desc, 0), outBytes = aclmdlGetOutputSizeByIndex(desc, 0);

  void *host = nullptr, *device = nullptr, *result = nullptr, *answer = nullptr;
  CHECK(aclrtMallocHost(&host, inBytes));
  CHECK(aclrtMalloc(&device, inBytes, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(aclrtMalloc(&result, outBytes, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(aclrtMallocHost(&answer, outBytes));
  std::ifstream(argv[2], std::ios::binary)
      .read(static_cast<char*>(host), static_cast<std::streamsize>(inBytes));
  aclmdlDataset *input = MakeDataset({device}, inBytes), *output = MakeDataset({result}, outBytes);

  aclrtEvent start = nullptr, end = nullptr;
  CHECK(aclrtCreateEvent(&start));
  CHECK(aclrtCreateEvent(&end));
  CHECK(aclrtRecordEvent(start, stream));
  CHECK(aclrtMemcpyAsync(device, inBytes, host, inBytes, ACL_MEMCPY_HOST_TO_DEVICE, stream));
  for (int i = 0; i < 10; ++i) {
    CHECK(aclmdlExecuteAsync(id, input, output, stream));
    CHECK(aclrtLaunchCallback(Count, nullptr, i % 2 ? ACL_CALLBACK_BLOCK : ACL_CALLBACK_NO_BLOCK, stream));
  }
  CHECK(aclrtMemcpyAsync(answer, outBytes, result, outBytes, ACL_MEMCPY_DEVICE_TO_HOST, stream));
  CHECK(aclrtRecordEvent(end, stream));
  CHECK(aclrtStreamWaitEvent(nullptr, end));
  CHECK(aclrtSynchronizeDevice());
  CHECK(aclrtSynchronizeStream(stream));
  float milliseconds = -1;
  CHECK(aclrtEventElapsedTime(&milliseconds, start, end));
  if (milliseconds < 0 || called != 10) return 3;
  std::ofstream(argv[3], std::ios::binary)
      .write(static_cast<char*>(answer), static_cast<std::streamsize>(outBytes));

  CHECK(aclrtUnSubscribeReport(reporter, stream));
  running = false;
  reports.join();
  DestroyDataset(input);
  DestroyDataset(output);
  CHECK(aclrtFreeHost(host));
  CHECK(aclrtFreeHost(answer));
  CHECK(aclrtFree(device));
  CHECK(aclrtFree(result));
  CHECK(aclrtDestroyEvent(start));
  CHECK(aclrtDestroyEvent(end));
  CHECK(aclrtDestroyStream(stream));
  CHECK(aclmdlDestroyDesc(desc));
  CHECK(aclmdlUnload(id));
  CHECK(aclrtResetDevice(0));
  CHECK(aclFinalize());
  return 0;
}
