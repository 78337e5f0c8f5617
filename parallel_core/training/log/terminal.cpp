#include "parallel_core/training/log/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "parallel_core/comm/distributed.h"
#include "text/util/utf8.h"

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

// Columns of a letter, by the first byte of its UTF-8: none for the bytes behind it, two for what
// is East Asian or a picture.
int columns_of_byte(char letter) {
  const auto byte = static_cast<unsigned char>(letter);
  if (byte >= 0x80 && byte < 0xC0) {
    return 0;
  }
  return (byte >= 0xE3 && byte <= 0xED) || byte >= 0xF0 ? 2 : 1;
}

// Where lines that continue this one begin.
size_t hanging_of(std::string_view line, int columns) {
  constexpr size_t kLongestLabel = 24;
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const size_t gap = line.find("  ", indent);
  const size_t text = gap == std::string_view::npos ? gap : line.find_first_not_of(' ', gap);
  const size_t hanging =
      text != std::string_view::npos && text <= kLongestLabel ? text : indent + 2;
  return std::min(hanging, static_cast<size_t>(columns) / 2);
}

// Where to break a line: at the last gap between words that leaves no more than `room` columns
// before it, or the first one behind the indentation if there is none; its end if it is no longer.
size_t break_of(std::string_view line, int room) {
  size_t gap = std::string_view::npos;
  const size_t start = std::min(line.find_first_not_of(' '), line.size());
  int used = 0;
  for (size_t at = 0; at < line.size(); ++at) {
    if (line[at] == ' ' && at > start && line[at - 1] != ' ' &&
        (used <= room || gap == std::string_view::npos)) {
      gap = at;
    }
    used += columns_of_byte(line[at]);
  }
  return used <= room || gap == std::string_view::npos ? line.size() : gap;
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

bool in_foreground(OutputStream stream) {
  // A rank is in no session of the terminal; the launcher has seen to it.
  const int descriptor = static_cast<int>(stream);
  if (started_as_rank() || isatty(descriptor) == 0) {
    return true;
  }
  const pid_t foreground = tcgetpgrp(descriptor);
  return foreground < 0 || foreground == getpgrp();
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

std::string wrap_text(std::string_view text, int columns, const Margins& margins) {
  constexpr int kNarrowest = 20;
  const int rest_room = columns - margins.rest;
  if (rest_room < kNarrowest) {
    return std::string(text);
  }
  std::string wrapped;
  const std::string margin(static_cast<size_t>(margins.rest), ' ');
  int room = columns - margins.first;
  while (true) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string line(text.substr(0, end));
    const std::string hanging(hanging_of(line, rest_room), ' ');
    while (true) {
      const size_t cut = break_of(line, room);
      wrapped.append(line, 0, cut);
      const size_t next = line.find_first_not_of(' ', cut);
      if (next == std::string::npos) {
        break;
      }
      wrapped += "\n" + margin;
      line = hanging + line.substr(next);
      room = rest_room;
    }
    if (end == text.size()) {
      return wrapped;
    }
    text.remove_prefix(end + 1);
    wrapped += "\n" + (text.empty() ? std::string() : margin);
    room = rest_room;
  }
}

std::string fit_to_terminal(OutputStream stream, const std::string& text) {
  return is_terminal(stream) ? wrap_text(text, terminal_columns()) : text;
}

std::string harmless_text(std::string_view text) {
  std::string shown;
  for (const uint32_t letter : data::code_points(text)) {
    const bool controls =
        (letter < 0x20 && letter != '\n' && letter != '\t') || (letter >= 0x7F && letter < 0xA0);
    shown += data::utf8(controls ? 0xFFFD : letter);
  }
  return shown;
}

}  // namespace tapestry
