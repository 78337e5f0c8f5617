// Trains a GPT from a YAML configuration. What looks for faults or shows runs is many times the
// code of a training and seldom asked for: pretrain_gpt_diagnosis has it, and is started with the
// same words where it is.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/autopsy/autopsy_part.h"
#include "examples/gpt/command_line.h"
#include "examples/gpt/pretrain_command.h"
#include "parallel_core/training/program.h"

namespace {

namespace fs = std::filesystem;

class Training final : public tapestry::examples::PretrainModes {
 public:
  std::vector<tapestry::RunPartFactory> parts() const override {
    return {tapestry::diagnosis::autopsy_part()};
  }
};

// Where the build folder is, from the folder of its programs; empty for an installed program.
std::string build_folder(const fs::path& programs) {
  for (fs::path at = programs; at.has_relative_path(); at = at.parent_path()) {
    std::error_code error;
    if (fs::exists(at / "CMakeCache.txt", error)) {
      return at.string();
    }
  }
  return {};
}

// One rank speaks; ranks are known by what started them, as MPI is not there yet.
bool is_first_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing else runs yet
    if (rank != nullptr && *rank != '\0' && std::string(rank) != "0") {
      return false;
    }
  }
  return true;
}

// Becomes the other program; returns only if there is none. Before MPI begins, which a process may
// do once.
int start_diagnosis(char** argv, const std::string& asked) {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path program = self.parent_path() / "pretrain_gpt_diagnosis";
  ::execv(program.c_str(), argv);
  if (is_first_rank()) {
    const std::string build = build_folder(self.parent_path());
    tapestry::examples::say(
        "pretrain_gpt",
        tapestry::concat(asked, " needs ", program.string(), ", which ",
                         build.empty() ? "is not installed; install all programs"
                                       : tapestry::concat("is not built; cmake --build ", build,
                                                          " --target programs")));
  }
  return tapestry::kBadInput;
}

}  // namespace

int main(int argc, char** argv) {
  Training modes;
  if (const std::optional<std::string> asked =
          tapestry::examples::beyond(tapestry::examples::words_of(argc, argv), modes.parts())) {
    return start_diagnosis(argv, *asked);
  }
  return tapestry::run_program(
      argc, argv, [&](const std::vector<std::string>& words, const tapestry::Distributed& job) {
        return tapestry::examples::run_pretrain(words, job, modes);
      });
}
