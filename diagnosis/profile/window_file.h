// A file that says, while a run goes on, which of its steps are to be profiled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tapestry::profile {

/// The steps, and what the configuration says otherwise.
struct WindowRequest {
  int64_t first = 0;                  ///< `start_step`
  int64_t last = 0;                   ///< `stop_step`
  std::optional<std::string> level;   ///< `profiler_level`: 0, 1, 2 or "level0", ...; -1: level0
  std::optional<bool> memory;         ///< `profile_memory`
  std::optional<bool> with_stack;     ///< `with_stack`
  std::optional<bool> communication;  ///< `profile_communication`
  std::optional<bool> parallel_strategy;    ///< `parallel_strategy`
  std::optional<bool> data_process;         ///< `data_process`
  std::optional<bool> data_simplification;  ///< `data_simplification`

  bool operator==(const WindowRequest&) const = default;
};

/// Reads the JSON object that a monitor of MindSpore's dynamic profiler reads, with the keys above.
/// ValueError, with the key, for text that is none, an unknown key, a value of another kind, a step
/// below 1, or a stop_step before start_step; `name` is what messages call the file.
WindowRequest read_window_request(const std::string& text, const std::string& name);

/// The file: `path` itself, or profiler_config.json in a folder.
std::string window_file(const std::string& path);

/// Its text when it differs from what it was at the last call; empty if it does not, is not there
/// or is empty. What is there but cannot be read (a pipe, a file of more than 1 MiB) is an
/// IoError, once.
class WatchedText {
 public:
  explicit WatchedText(std::string path) : path_(std::move(path)) {}
  std::string read_if_changed();

 private:
  std::string path_;
  std::string last_;
  std::string last_problem_;
};

}  // namespace tapestry::profile
