// oneDNN, where it is built in. Without it (NPU_ONEDNN=0) the tasks of cube operators and our own kernels
// beside them are left out: the compiler generates kernels in their place.
#pragma once

#if NPU_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif
