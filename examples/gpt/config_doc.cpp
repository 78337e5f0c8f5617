// Prints the documentation of all configuration keys:
//   config_doc > docs/configuration.md
#include <iostream>
#include <string_view>

#include "parallel_core/config/show/render.h"

int main(int argc, char** argv) {
  if (argc > 1) {
    const std::string_view word = argv[1];
    const bool help = argc == 2 && (word == "-h" || word == "--help");
    (help ? std::cout : std::cerr)
        << (help ? "" : "config_doc: takes no options\n")
        << "Usage: config_doc > docs/configuration.md\nPrints the documentation of all keys.\n";
    return help ? 0 : 2;
  }
  std::cout << tapestry::render_configuration_markdown() << std::flush;
  return std::cout ? 0 : 1;
}
