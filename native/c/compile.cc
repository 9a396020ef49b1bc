#include "c/compile.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "model/error.h"

extern char** environ;

namespace npu {
namespace {

namespace fs = std::filesystem;

constexpr int kNoCompiler = 10900;

// NPU_PYTHON, else the interpreter of the environment that this library is installed in, else python3 on the
// PATH.
std::string find_python() {
  if (const char* given = std::getenv("NPU_PYTHON"); given && *given) return given;
  Dl_info self;
  std::error_code error;
  if (dladdr(reinterpret_cast<void*>(&compile_model), &self) && self.dli_fname) {
    // <environment>/lib/pythonX.Y/site-packages/npu_runtime/libnpu.so
    fs::path folder = fs::canonical(self.dli_fname, error).parent_path();
    for (int i = 0; i < 4; ++i) folder = folder.parent_path();
    const fs::path python = folder / "bin" / "python3";
    if (!error && fs::exists(python, error)) return python.string();
  }
  return "python3";
}

// The standard error and exit status of a process.
struct Ended {
  std::string text;
  int status = 0;
};

Ended run(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw ModelError(kNoCompiler, std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t process = 0;
  const int failed = posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Ended ended;
  char piece[4096];
  for (ssize_t count = 1; !failed && count != 0;) {
    count = read(ends[0], piece, sizeof piece);
    if (count > 0) ended.text.append(piece, static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  if (failed) {
    throw ModelError(kNoCompiler, words[0] + " cannot be started: " + std::strerror(failed),
                     "set NPU_PYTHON to the interpreter in whose environment tf-adapter is installed");
  }
  while (waitpid(process, &ended.status, 0) < 0 && errno == EINTR) {
  }
  return ended;
}

// The number of the first error code (such as E10020) in a text; 0 if there is none.
int code_in(const std::string& text) {
  for (std::size_t at = text.find('E'); at != std::string::npos; at = text.find('E', at + 1)) {
    const std::string digits = text.substr(at + 1, 5);
    if (digits.size() == 5 && digits.find_first_not_of("0123456789") == std::string::npos) {
      return std::stoi(digits);
    }
  }
  return 0;
}

}  // namespace

void compile_model(const std::string& model, const std::string& om, const std::vector<std::string>& options) {
  std::string output = om;
  if (output.ends_with(".om")) output.resize(output.size() - 3);
  std::vector<std::string> words{find_python(), "-m", "ge.atc", "--model=" + model, "--output=" + output};
  words.insert(words.end(), options.begin(), options.end());
  Ended ended = run(words);
  if (WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0) return;
  while (!ended.text.empty() && std::isspace(static_cast<unsigned char>(ended.text.back()))) {
    ended.text.pop_back();
  }
  const int code = code_in(ended.text);
  throw ModelError(code ? code : kNoCompiler,
                   "the compiler " + words[0] + " -m ge.atc failed: " + ended.text);
}

}  // namespace npu
