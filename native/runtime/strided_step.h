// The step that copies and casts strided blocks.
#pragma once

#include <memory>

#include "core/view.h"
#include "runtime/step.h"

namespace npu {

std::unique_ptr<Step> make_strided_copy(const View& from, const View& to, const Location& source,
                                        const Location& target);

}  // namespace npu
