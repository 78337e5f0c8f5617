// Writes the configuration that replays a stored reference run:
//   golden_to_yaml --case DIR --output_dir RUN > replay.yaml
//   pretrain_gpt --config_path replay.yaml
#include <boost/program_options.hpp>
#include <fstream>
#include <iostream>

#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/config/read/golden.h"

namespace {

namespace po = boost::program_options;

std::string read_file(const std::string& path) {
  return tapestry::read_file(path, tapestry::kMaxReadBytes,
                             "--case names a folder with config.json, init.safetensors and data/");
}

void write(const std::string& text, const std::string& path) {
  if (path.empty()) {
    std::cout << text << std::flush;
    tapestry::check<tapestry::IoError>(std::cout.good(), "standard output: cannot be written");
    return;
  }
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  tapestry::check<tapestry::IoError>(file.good(), path, ": cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  std::string case_dir;
  std::string output_dir;
  std::string output;
  int64_t ranks = 1;
  po::options_description options("golden_to_yaml --case DIR [options]");
  options.add_options()("help,h", "print this text")(
      "case", po::value(&case_dir),
      "folder with config.json, init.safetensors and data/step_N/rank_R/*.npy")(
      "output_dir", po::value(&output_dir)->default_value("./output"),
      "output folder of the replay")(
      "data_parallel_size", po::value(&ranks)->default_value(1),
      "data-parallel ranks of the replay; they share all ranks' batches of the reference")(
      "output", po::value(&output), "file to write; standard output if absent");
  try {
    std::vector<std::string> words = tapestry::examples::words_of(argc, argv);
    if (const auto topic = tapestry::examples::take_help(words)) {
      std::ostringstream text;
      text << options;
      std::cout << tapestry::examples::help_page(text.str(), options, *topic);
      return 0;
    }
    po::variables_map values = tapestry::examples::parse_command_line(words, options);
    po::notify(values);
    tapestry::check<tapestry::ValueError>(!case_dir.empty(),
                                          "--case DIR is needed; --help lists the options");
    write(tapestry::golden_config_to_yaml(read_file(case_dir + "/config.json"), case_dir,
                                          output_dir, ranks),
          output);
    return 0;
  } catch (const tapestry::Error& error) {
    std::cerr << "golden_to_yaml: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "golden_to_yaml: " << error.what() << "\n";
    return 1;
  }
}
