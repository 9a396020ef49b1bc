// Data buffers and descriptions of tensors, as acl/acl.h hands them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "core/dtype.h"

struct aclDataBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
};

struct aclTensorDesc {
  aclDataType dtype = ACL_DT_UNDEFINED;
  std::vector<std::int64_t> dims;
  aclFormat format = ACL_FORMAT_UNDEFINED;
};

namespace npu::acl {

aclDataType type_code(DType dtype);
aclFormat format_code(const std::string& name);

}  // namespace npu::acl
