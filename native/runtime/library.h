// oneDNN, if it is built in. Without it (NPU_ONEDNN=0) the tasks of cube operators and our own kernels beside
// them are omitted: the compiler generates kernels instead.
#pragma once

#if NPU_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif
