// AI CPU kernels of operator packages: shared libraries that users compile, behind a plain C interface.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "aicpu/kernel.h"

namespace npu::aicpu {

// Loads a library and names its kernels "opp:<package>/<kernel>"; a library loaded before is not loaded
// again, a new one for the same package replaces the former's kernels in programs made from then on. Raises
// InvalidArgument when the file is not such a library.
std::vector<std::string> load_foreign(const std::string& path, const std::string& package);

const ForeignKernel* find_foreign(std::string_view name);  // nullptr: there is none

// Runs call.foreign.
Status run_foreign(Call& call);

}  // namespace npu::aicpu
