// The compiler in a process of its own.
#pragma once

#include <string>
#include <vector>

namespace npu {

// Compiles a model file to an `.om` file by `python -m ge.atc`; raises a ModelError with the compiler's own
// code.
void compile_model(const std::string& model, const std::string& om, const std::vector<std::string>& options);

}  // namespace npu
