// The one oneDNN engine of the process.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace npu {

inline const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

}  // namespace npu
