// Writes man pages and completions for bash and zsh:
//   manual_pages TABLES LOGIC OUT VERSION DATE
// TABLES is a folder with what programs print for `--help as_json` (tables.h), LOGIC the folder
// with complete.bash and complete.zsh, OUT gets man/, bash/ and zsh/.
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>

#include "packaging/manual/pages.h"

namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(path.string() + ": cannot be read");
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) {
    throw std::runtime_error(path.string() + ": cannot be written");
  }
}

void write_all(const fs::path& tables,
               const fs::path& logic,
               const fs::path& out,
               const tapestry::manual::Edition& edition) {
  const auto programs = tapestry::manual::read_programs(tables);
  const std::string bash = content_of(logic / "complete.bash");
  const std::string zsh = content_of(logic / "complete.zsh");
  for (const auto& [name, program] : programs) {
    write(out / "man" / (name + ".1"), tapestry::manual::man_page(program, edition));
    write(out / "bash" / name, tapestry::manual::bash_completion(program, bash));
    write(out / "zsh" / ("_" + name), tapestry::manual::zsh_completion(program, zsh));
  }
  write(out / "man" / "pretrain_gpt.yaml.5",
        tapestry::manual::configuration_page(programs.at("pretrain_gpt"), edition));
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kWords = 6;
  if (argc != kWords) {
    std::cerr << "Usage: manual_pages TABLES LOGIC OUT VERSION DATE\n";
    return 2;
  }
  try {
    write_all(argv[1], argv[2], argv[3], {.version = argv[4], .date = argv[5]});
  } catch (const std::exception& error) {
    std::cerr << "manual_pages: " << error.what() << "\n";
    return 2;
  }
  return 0;
}
