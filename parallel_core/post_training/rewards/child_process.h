// A program that runs beside this one, with pipes to and from it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace tapestry::post_training {

/// A command of /bin/sh with its own process group, which is killed when the object goes, and when
/// the thread that made it ends. Not thread-safe. All calls throw IoError where the system refuses.
class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ChildProcess(const std::string& command);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  /// Closes its standard input, waits a second for it to end, and kills it with all it has started.
  ~ChildProcess();

  /// Moves as much as can be moved until `deadline`, or until `enough` says so, which is asked
  /// after each piece: `pending` to its standard input, from which what was taken is removed; from
  /// its standard output to `output`; of its standard error each line to `on_error_line`. Returns
  /// at once where its output has ended. False: the deadline has passed.
  bool exchange(std::string_view& pending,
                std::string& output,
                const std::function<bool()>& enough,
                Clock::time_point deadline,
                const std::function<void(const std::string&)>& on_error_line);

  /// It has closed its standard output, or ended: nothing more comes.
  bool has_ended() const { return output_ < 0; }
  /// Ends it, if it has not ended in a second, and says how it ended: "exit code 3", "signal 11
  /// (Segmentation fault)", "exit code 0".
  std::string end();

 private:
  void close_all();
  void read_output(std::string& output);
  void read_errors(const std::function<void(const std::string&)>& on_error_line);

  pid_t pid_ = -1;
  int input_ = -1;  // its standard input
  int output_ = -1;
  int errors_ = -1;
  std::string error_line_;  // the beginning of one
  std::string how_;         // it ended
};

}  // namespace tapestry::post_training
