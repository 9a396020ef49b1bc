// Errors of model files and runs, with the stable codes of Python's GeError and its words.
#pragma once

#include <stdexcept>
#include <string>

namespace npu {

class ModelError : public std::runtime_error {
 public:
  // `code`: the number of the code, 11003 for E11003.
  ModelError(int code, std::string cause, std::string remedy = "")
      : std::runtime_error(render(code, std::move(cause), std::move(remedy))), code_(code) {}

  int code() const { return code_; }

 private:
  static std::string render(int code, std::string cause, std::string remedy) {
    const auto without_stop = [](std::string& text) {
      while (text.ends_with('.')) text.pop_back();
    };
    without_stop(cause);
    without_stop(remedy);
    const std::string ending = remedy.empty() ? "" : ". Remedy: " + remedy + ".";
    return "[E" + std::to_string(code) + "] " + cause + ending;
  }

  int code_;
};

}  // namespace npu
