// accuracy compare --bits RUN RUN
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/program_options.hpp>
#include <filesystem>
#include <vector>

#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/compare_bits.h"
#include "diagnosis/accuracy/temporary_folder.h"
#include "examples/gpt/accuracy_commands.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

// Runs a program without its standard output; its exit code.
int run_quietly(std::vector<std::string> words) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  check<IoError>(failed == 0, words[0], ": cannot be started");
  int status = 0;
  check<RuntimeError>(::waitpid(child, &status, 0) == child, words[0], ": is lost");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// pretrain_gpt_diagnosis of the folder that this program lies in.
std::string own_program() {
  std::error_code error;
  return (fs::read_symlink("/proc/self/exe", error).parent_path() / "pretrain_gpt_diagnosis")
      .string();
}

}  // namespace

int accuracy_compare_bits(std::vector<std::string> words) {
  accuracy::ReportFiles files;
  int64_t rows = 20;
  std::string program_a;
  std::string program_b;
  po::options_description options(
      "accuracy compare --bits RUN RUN [options]\n"
      "The output folders of two runs in exact mode (training_config.exact), of any layout: the "
      "first step whose hash differs, the parameters that differ there, and, with that step run "
      "again on both sides in one process, each from its own last checkpoint before it, the first "
      "op whose bits differ. If both sides come to the same now, the side whose recorded hash does "
      "not return. Exit code 0 if all hashes are equal, 1 if not, 2 if there is nothing to "
      "compare.",
      help_columns());
  options.add_options()("rows", po::value(&rows)->default_value(rows)->value_name("N"),
                        "parameters in the table")("no_rerun", po::bool_switch(),
                                                   "compare the recorded hashes alone")(
      "program-a", po::value(&program_a)->value_name("PROGRAM"),
      "pretrain_gpt that runs the first side again, where another build of it is to")(
      "program-b", po::value(&program_b)->value_name("PROGRAM"), "that of the second side");
  add_report_options(options, files);
  if (const auto topic = take_help(words)) {
    print_help(options, *topic);
    return kFinished;
  }
  const std::vector<std::string> runs =
      take_operands(words, 2, 2, "accuracy compare --bits RUN RUN: two folders are needed");
  po::variables_map values = parse_command_line(words, options);
  po::notify(values);
  check<ValueError>(rows > 0, "--rows is ", rows, "; expected a number of parameters above 0");
  check_report_files(files);
  const accuracy::TemporaryFolder folder;  // lives as long as the runs that write to it
  accuracy::CompareBitsOptions compare;
  compare.rows = static_cast<size_t>(rows);
  const auto rerun = [&](size_t side, int64_t step, int64_t batch_size) {
    const std::string& given = side == 0 ? program_a : program_b;
    const std::string program = given.empty() ? own_program() : given;
    const std::string out = folder.file(side == 0 ? "a.json" : "b.json");
    const int code = run_quietly({program, "--config_path", runs[side] + "/config.yaml",
                                  "--trace_step", std::to_string(step), "--trace_batch",
                                  std::to_string(batch_size), "--json", out});
    check<RuntimeError>(code == kFinished, runs[side], ": step ", step,
                        " could not be run again by ", program, ", which ended with code ", code);
    constexpr uint64_t kMostBytes = uint64_t{1} << 32U;
    return accuracy::parse_rerun(read_file(out, kMostBytes), out);
  };
  if (!values["no_rerun"].as<bool>()) {
    compare.rerun = rerun;
  }
  return finish_report(compare_bits(runs[0], runs[1], compare), files);
}

}  // namespace tapestry::examples
