// An application as AscendCL's samples are written: loads a model, feeds a file, writes the result, one step
// after another; then a model with batch gears, and mistakes. acl_sync model.om input.raw output.raw
// geared.om
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
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

#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "not so: %s (%s)\n", #condition, aclGetRecentErrMsg()); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (0)

namespace {

class Model {
 public:
  explicit Model(const char* path) {
    size_t workSize = 0, weightSize = 0;
    CHECK(aclmdlQuerySize(path, &workSize, &weightSize));
    EXPECT(weightSize > 0);
    CHECK(aclrtMalloc(&weights_, weightSize, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclmdlLoadFromFileWithMem(path, &id_, nullptr, workSize, weights_, weightSize));
    desc_ = aclmdlCreateDesc();
    CHECK(aclmdlGetDesc(desc_, id_));
    input_ = MakeDataset(aclmdlGetNumInputs(desc_), aclmdlGetInputSizeByIndex);
    output_ = MakeDataset(aclmdlGetNumOutputs(desc_), aclmdlGetOutputSizeByIndex);
  }

  ~Model() {
    DestroyDataset(input_);
    DestroyDataset(output_);
    CHECK(aclmdlUnload(id_));
    CHECK(aclmdlDestroyDesc(desc_));
    CHECK(aclrtFree(weights_));
  }

  void Feed(const std::vector<char>& data) {
    aclDataBuffer* buffer = aclmdlGetDatasetBuffer(input_, 0);
    CHECK(aclrtMemcpy(aclGetDataBufferAddr(buffer), aclGetDataBufferSizeV2(buffer), data.data(), data.size(),
                      ACL_MEMCPY_HOST_TO_DEVICE));
  }

  std::vector<char> Result() const {
    aclDataBuffer* buffer = aclmdlGetDatasetBuffer(output_, 0);
    std::vector<char> result(aclGetTensorDescSize(aclmdlGetDatasetTensorDesc(output_, 0)));
    CHECK(aclrtMemcpy(result.data(), result.size(), aclGetDataBufferAddr(buffer), result.size(),
                      ACL_MEMCPY_DEVICE_TO_HOST));
    return result;
  }

  uint32_t id() const { return id_; }
  aclmdlDesc* desc() const { return desc_; }
  aclmdlDataset* input() const { return input_; }
  aclmdlDataset* output() const { return output_; }

 private:
  aclmdlDataset* MakeDataset(size_t count, size_t (*sizeOf)(aclmdlDesc*, size_t)) {
    aclmdlDataset* dataset = aclmdlCreateDataset();
    for (size_t i = 0; i < count; ++i) {
      void* data = nullptr;
      CHECK(aclrtMalloc(&data, sizeOf(desc_, i), ACL_MEM_MALLOC_NORMAL_ONLY));
      CHECK(aclmdlAddDatasetBuffer(dataset, aclCreateDataBuffer(data, sizeOf(desc_, i))));
    }
    return dataset;
  }

  static void DestroyDataset(aclmdlDataset* dataset) {
    for (size_t i = 0; i < aclmdlGetDatasetNumBuffers(dataset); ++i) {
      aclDataBuffer* buffer = aclmdlGetDatasetBuffer(dataset, i);
      CHECK(aclrtFree(aclGetDataBufferAddr(buffer)));
      CHECK(aclDestroyDataBuffer(buffer));
    }
    CHECK(aclmdlDestroyDataset(dataset));
  }

  uint32_t id_ = 0;
  void* weights_ = nullptr;
  aclmdlDesc* desc_ = nullptr;
  aclmdlDataset *input_ = nullptr, *output_ = nullptr;
};

std::vector<char> ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return std::vector<char>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

void RunModel(const char* path, const std::vector<char>& data, const char* result) {
  Model model(path);
  aclmdlIODims dims;
  CHECK(aclmdlGetInputDims(model.desc(), 0, &dims));
  EXPECT(dims.dimCount == 2 && dims.dims[0] == 4 && dims.dims[1] == 16 && std::string(dims.name) == "x");
  EXPECT(aclmdlGetInputDataType(model.desc(), 0) == ACL_FLOAT &&
         aclmdlGetInputFormat(model.desc(), 0) == ACL_FORMAT_ND);
  EXPECT(std::string(aclmdlGetOutputNameByIndex(model.desc(), 0)) == "y");
  size_t index = 9;
  CHECK(aclmdlGetOutputIndexByName(model.desc(), "y", &index));
  EXPECT(index == 0 && aclmdlGetInputIndexByName(model.desc(), "z", &index) == ACL_ERROR_INVALID_PARAM);
  model.Feed(data);
  CHECK(aclmdlExecute(model.id(), model.input(), model.output()));
  const std::vector<char> found = model.Result();
  std::ofstream(result, std::ios::binary).write(found.data(), static_cast<std::streamsize>(found.size()));
}

void RunGears(const char* path) {
  Model model(path);
  aclmdlBatch batches;
  CHECK(aclmdlGetDynamicBatch(model.desc(), &batches));
  EXPECT(batches.batchCount == 3 && batches.batch[2] == 8);
  aclmdlIODims dims;
  CHECK(aclmdlGetInputDims(model.desc(), 0, &dims));
  EXPECT(dims.dims[0] == -1 && dims.dims[1] == 4);
  size_t index = 0;
  CHECK(aclmdlGetInputIndexByName(model.desc(), ACL_DYNAMIC_TENSOR_NAME, &index));
  EXPECT(aclmdlExecute(model.id(), model.input(), model.output()) == ACL_ERROR_GE_DYNAMIC_BATCH_SIZE_INVALID);
  EXPECT(aclmdlSetDynamicBatchSize(model.id(), model.input(), index, 3) ==
         ACL_ERROR_GE_DYNAMIC_BATCH_SIZE_INVALID);
  EXPECT(aclmdlSetDynamicHWSize(model.id(), model.input(), index, 2, 2) == ACL_ERROR_MODEL_NOT_DYNAMIC);
  CHECK(aclmdlSetDynamicBatchSize(model.id(), model.input(), index, 2));
  CHECK(aclmdlGetCurOutputDims(model.desc(), 0, &dims));
  EXPECT(dims.dims[0] == 2);
  const std::vector<float> ones(8, 1.0f);
  model.Feed(std::vector<char>(reinterpret_cast<const char*>(ones.data()),
                               reinterpret_cast<const char*>(&ones[0] + 8)));
  CHECK(aclmdlExecute(model.id(), model.input(), model.output()));
  const std::vector<char> result = model.Result();
  EXPECT(result.size() == 2 * 3 * sizeof(float));
  float first = 0;
  std::memcpy(&first, result.data(), sizeof first);
  EXPECT(first > 0.79f && first < 0.81f);  // relu(0 + 0.3 + 0.6 + 0.9 - 1)
}

void MakeMistakes(const char* path) {
  uint32_t id = 0;
  EXPECT(aclmdlLoadFromFile("missing.om", &id) == ACL_ERROR_INVALID_FILE);
  EXPECT(std::string(aclGetRecentErrMsg()).find("[E11001] missing.om cannot be read") != std::string::npos);
  EXPECT(aclmdlLoadFromFile(nullptr, &id) == ACL_ERROR_INVALID_PARAM);
  EXPECT(aclmdlLoadFromMem("IMOD", 4, &id) == ACL_ERROR_PARSE_MODEL);
  EXPECT(aclmdlUnload(77) == ACL_ERROR_INVALID_MODEL_ID);
  EXPECT(aclrtSetDevice(77) == ACL_ERROR_RT_INVALID_DEVICEID);
  EXPECT(aclrtFree(&id) == ACL_ERROR_INVALID_PARAM);
  EXPECT(aclrtDestroyStream(&id) == ACL_ERROR_RT_PARAM_INVALID);
  EXPECT(aclInit(nullptr) == ACL_ERROR_REPEAT_INITIALIZE);
  Model model(path);
  aclmdlDataset* empty = aclmdlCreateDataset();
  EXPECT(aclmdlExecute(model.id(), empty, model.output()) == ACL_ERROR_MODEL_INPUT_NOT_MATCH);
  EXPECT(aclmdlExecute(model.id(), model.input(), empty) == ACL_ERROR_MODEL_OUTPUT_NOT_MATCH);
  CHECK(aclmdlDestroyDataset(empty));
  char small[4];
  EXPECT(aclrtMemcpy(small, 4, path, 5, ACL_MEMCPY_HOST_TO_HOST) == ACL_ERROR_INVALID_PARAM);
  EXPECT(aclmdlGetInputSizeByIndex(model.desc(), 9) == 0 &&
         aclGetTensorDescType(nullptr) == ACL_DT_UNDEFINED);
  EXPECT(aclFloat16ToFloat(aclFloatToFloat16(1.5f)) == 1.5f && aclDataTypeSize(ACL_BF16) == 2);
}

}  // namespace

int main(int argc, char** argv) {
  EXPECT(argc == 5);
  EXPECT(aclFinalize() == ACL_ERROR_UNINITIALIZE);
  CHECK(aclInit(nullptr));
  CHECK(aclrtSetDevice(0));
  aclrtContext context = nullptr;
  CHECK(aclrtCreateContext(&context, 0));
  aclrtRunMode mode;
  CHECK(aclrtGetRunMode(&mode));
  EXPECT(mode == ACL_HOST);
  RunModel(argv[1], ReadFile(argv[2]), argv[3]);
  RunGears(argv[4]);
  MakeMistakes(argv[1]);
  CHECK(aclrtDestroyContext(context));
  EXPECT(aclrtGetCurrentContext(&context) == ACL_ERROR_RT_CONTEXT_NULL);
  CHECK(aclrtResetDevice(0));
  CHECK(aclFinalize());
  return 0;
}
