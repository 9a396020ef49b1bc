// acl/acl.h: data buffers and descriptions of tensors.
#include "c/acl_tensor.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "c/acl_state.h"
#include "core/half.h"

namespace npu::acl {
namespace {

constexpr std::pair<aclDataType, DType> kTypes[] = {
    {ACL_FLOAT, DType::Float32}, {ACL_FLOAT16, DType::Float16}, {ACL_INT8, DType::Int8},
    {ACL_INT32, DType::Int32},   {ACL_UINT8, DType::UInt8},     {ACL_INT16, DType::Int16},
    {ACL_UINT16, DType::UInt16}, {ACL_UINT32, DType::UInt32},   {ACL_INT64, DType::Int64},
    {ACL_UINT64, DType::UInt64}, {ACL_DOUBLE, DType::Float64},  {ACL_BOOL, DType::Bool},
    {ACL_BF16, DType::BFloat16}};

constexpr std::pair<const char*, aclFormat> kFormats[] = {
    {"NCHW", ACL_FORMAT_NCHW}, {"NHWC", ACL_FORMAT_NHWC},   {"ND", ACL_FORMAT_ND},
    {"HWCN", ACL_FORMAT_HWCN}, {"NDHWC", ACL_FORMAT_NDHWC}, {"NCDHW", ACL_FORMAT_NCDHW},
    {"NCL", ACL_FORMAT_NCL}};

std::size_t type_bytes(aclDataType type) {
  for (const auto& [code, dtype] : kTypes) {
    if (code == type) return dtype_size(dtype);
  }
  return 0;
}

std::size_t elements(const aclTensorDesc& desc) {
  return std::accumulate(desc.dims.begin(), desc.dims.end(), std::size_t{1},
                         [](std::size_t product, std::int64_t dim) {
                           return product * static_cast<std::size_t>(std::max<std::int64_t>(dim, 0));
                         });
}

const aclTensorDesc& checked(const aclTensorDesc* desc) {
  require(desc, "the description is null");
  return *desc;
}

std::int64_t dim_of(const aclTensorDesc* desc, std::size_t index) {
  const aclTensorDesc& known = checked(desc);
  require(index < known.dims.size(), "the tensor has " + std::to_string(known.dims.size()) + " dimensions");
  return known.dims[index];
}

}  // namespace

aclDataType type_code(DType dtype) {
  for (const auto& [code, known] : kTypes) {
    if (known == dtype) return code;
  }
  return ACL_DT_UNDEFINED;
}

aclFormat format_code(const std::string& name) {
  for (const auto& [known, code] : kFormats) {
    if (name == known) return code;
  }
  return ACL_FORMAT_ND;
}

}  // namespace npu::acl

using namespace npu::acl;

aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) {
  return guard_value("aclCreateDataBuffer", static_cast<aclDataBuffer*>(nullptr),
                     [&] { return new aclDataBuffer{data, size}; });
}

aclError aclDestroyDataBuffer(const aclDataBuffer* dataBuffer) {
  return guard("aclDestroyDataBuffer", [&] {
    require(dataBuffer, "the data buffer is null");
    delete dataBuffer;
  });
}

aclError aclUpdateDataBuffer(aclDataBuffer* dataBuffer, void* data, size_t size) {
  return guard("aclUpdateDataBuffer", [&] {
    require(dataBuffer, "the data buffer is null");
    *dataBuffer = {data, size};
  });
}

void* aclGetDataBufferAddr(const aclDataBuffer* dataBuffer) {
  return dataBuffer ? dataBuffer->data : nullptr;
}

uint32_t aclGetDataBufferSize(const aclDataBuffer* dataBuffer) {
  return dataBuffer ? static_cast<uint32_t>(dataBuffer->bytes) : 0;
}

size_t aclGetDataBufferSizeV2(const aclDataBuffer* dataBuffer) { return dataBuffer ? dataBuffer->bytes : 0; }

size_t aclDataTypeSize(aclDataType dataType) { return type_bytes(dataType); }

float aclFloat16ToFloat(aclFloat16 value) {
  npu::Float16 half;
  half.bits = value;
  return static_cast<float>(half);
}

aclFloat16 aclFloatToFloat16(float value) { return npu::Float16(value).bits; }

aclTensorDesc* aclCreateTensorDesc(aclDataType dataType, int numDims, const int64_t* dims, aclFormat format) {
  return guard_value("aclCreateTensorDesc", static_cast<aclTensorDesc*>(nullptr), [&] {
    require(numDims >= 0 && numDims <= ACL_MAX_DIM_CNT && (dims || !numDims), "the dimensions are invalid");
    return new aclTensorDesc{dataType, std::vector<int64_t>(dims, dims + numDims), format};
  });
}

void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }

aclDataType aclGetTensorDescType(const aclTensorDesc* desc) {
  return guard_value("aclGetTensorDescType", ACL_DT_UNDEFINED, [&] { return checked(desc).dtype; });
}

aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) {
  return guard_value("aclGetTensorDescFormat", ACL_FORMAT_UNDEFINED, [&] { return checked(desc).format; });
}

size_t aclGetTensorDescSize(const aclTensorDesc* desc) {
  return guard_value("aclGetTensorDescSize", size_t{0},
                     [&] { return elements(checked(desc)) * type_bytes(desc->dtype); });
}

size_t aclGetTensorDescElementCount(const aclTensorDesc* desc) {
  return guard_value("aclGetTensorDescElementCount", size_t{0}, [&] { return elements(checked(desc)); });
}

size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) {
  return guard_value("aclGetTensorDescNumDims", size_t{0}, [&] { return checked(desc).dims.size(); });
}

int64_t aclGetTensorDescDim(const aclTensorDesc* desc, size_t index) {
  return guard_value("aclGetTensorDescDim", int64_t{-1}, [&] { return dim_of(desc, index); });
}

aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* dimSize) {
  return guard("aclGetTensorDescDimV2", [&] {
    require(dimSize, "the address is null");
    *dimSize = dim_of(desc, index);
  });
}
