#include "parallel_core/training/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "parallel_core/comm/distributed.h"

namespace tapestry {

namespace {

constexpr int kUsualColumns = 80;

std::string environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

// What the launcher says of its terminal.
struct LauncherTerminal {
  std::string device;
  std::string streams;  // digits of descriptors
};

LauncherTerminal launcher_terminal() {
  const std::string text = environment("TAPESTRY_TERMINAL");
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    return {};
  }
  return {text.substr(0, colon), text.substr(colon + 1)};
}

int columns_of(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int columns_of_device(const std::string& device) {
  const int descriptor = open(device.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) {
    return 0;
  }
  const int columns = isatty(descriptor) != 0 ? columns_of(descriptor) : 0;
  close(descriptor);
  return columns;
}

}  // namespace

bool is_terminal(OutputStream stream) {
  const std::string term = environment("TERM");
  if (term.empty() || term == "dumb") {
    return false;
  }
  const int descriptor = static_cast<int>(stream);
  if (started_as_rank()) {
    return launcher_terminal().streams.find(static_cast<char>('0' + descriptor)) !=
           std::string::npos;
  }
  return isatty(descriptor) != 0;
}

bool shows_color(OutputStream stream) {
  return environment("NO_COLOR").empty() && is_terminal(stream);
}

int terminal_columns() {
  int columns = 0;
  if (started_as_rank()) {
    columns = columns_of_device(launcher_terminal().device);
  } else {
    for (const OutputStream stream : {OutputStream::kOut, OutputStream::kError}) {
      if (columns == 0 && isatty(static_cast<int>(stream)) != 0) {
        columns = columns_of(static_cast<int>(stream));
      }
    }
  }
  const std::string text = environment("COLUMNS");
  if (columns == 0) {
    std::from_chars(text.data(), text.data() + text.size(), columns);
  }
  return columns > 0 ? columns : kUsualColumns;
}

}  // namespace tapestry
