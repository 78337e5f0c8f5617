// Prints the documentation of all configuration keys:
//   config_doc > docs/configuration.md
#include <iostream>

#include "parallel_core/config/render.h"

int main() {
  std::cout << tapestry::render_configuration_markdown() << std::flush;
  return std::cout ? 0 : 1;
}
