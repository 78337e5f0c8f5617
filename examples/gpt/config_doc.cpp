// Prints what the documentation has from the program itself:
//   config_doc > docs/configuration.md
//   config_doc --models    the table of models between the marks in docs/models.md
//   config_doc --families > docs/families.md
//   config_doc --mindformers2 > docs/mindformers2.md
#include <iostream>
#include <string_view>

#include "interop/architectures/registry.h"
#include "parallel_core/config/show/mindformers2_page.h"
#include "parallel_core/config/show/render.h"

int main(int argc, char** argv) {
  if (argc > 1) {
    const std::string_view word = argv[1];
    if (argc == 2 && word == "--models") {
      std::cout << tapestry::architectures::families_markdown() << std::flush;
      return std::cout ? 0 : 1;
    }
    if (argc == 2 && word == "--families") {
      std::cout << tapestry::architectures::families_page() << std::flush;
      return std::cout ? 0 : 1;
    }
    if (argc == 2 && word == "--mindformers2") {
      std::cout << tapestry::mindformers2_page() << std::flush;
      return std::cout ? 0 : 1;
    }
    const bool help = argc == 2 && (word == "-h" || word == "--help");
    (help ? std::cout : std::cerr)
        << (help ? ""
                 : "config_doc: takes no options but --models, --families and --mindformers2\n")
        << "Usage: config_doc [--models | --families | --mindformers2] > docs/configuration.md\n"
           "Prints the documentation of all keys; with --models the table of models that are read\n"
           "and written, with --families what is read of each,\n"
           "with --mindformers2 what becomes of the keys of MindFormers 2.0.\n";
    return help ? 0 : 2;
  }
  std::cout << tapestry::render_configuration_markdown() << std::flush;
  return std::cout ? 0 : 1;
}
