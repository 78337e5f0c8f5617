// The event files of one rank in a folder that TensorBoard reads.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/tensorboard/event.h"

namespace tapestry::report {

/// Tags of values that are logged over samples in place of steps end so.
inline constexpr std::string_view kOverSamples = " vs samples";

/// Brings the files of a folder to where a run goes on: what was logged for later steps than
/// `last_step`, which the run does again, is cut off, and so is the torn record of a killed run.
/// Files that hold no values any more go. Values over samples lie behind those of their step, which
/// decide. A folder that is not there is none. IoError.
void cut_events(const std::string& folder, int64_t last_step);

/// Moves the event files that another run has left in FOLDER/NAME to FOLDER/old/run_N/NAME, with
/// the first number that is free, and returns that path; an empty text if there are none. IoError.
std::string move_events_aside(const std::string& folder, const std::string& name);

/// Writes a new file, events.out.tfevents.SECONDS.HOST.PID.N, whose name comes after those that are
/// there. It is made with the first event. Whole records go to the file at once, so that a process
/// that is killed leaves at worst a torn last record.
class EventWriter {
 public:
  /// Events are kept until there are `queue_size` of them, the oldest is some seconds old, or
  /// flush().
  EventWriter(std::string folder, int64_t queue_size);
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;
  /// Flushes; what fails then is lost.
  ~EventWriter();

  /// The first event of each file: see start_event.
  void start(int64_t step);
  void scalars(int64_t step, const std::vector<Scalar>& values);
  void text(int64_t step, const std::string& tag, const std::string& markdown);
  void histogram(int64_t step, const std::string& tag, const Histogram& histogram);

  /// IoError if the file cannot be made or written, StorageError for a full disk; the file then
  /// ends with a whole record.
  void flush();

 private:
  void add(std::string_view event);
  void open();

  std::string folder_;
  std::string path_;
  int64_t queue_size_;
  int file_ = -1;
  std::string queue_;
  int64_t queued_ = 0;
  std::chrono::steady_clock::time_point oldest_;
};

}  // namespace tapestry::report
