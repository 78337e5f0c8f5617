// One rank's side of all its collectives: matches what comes with what is expected, moves every
// collective on while the rank waits for any of them, and in the background while it computes, and
// stops all ranks when they disagree.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "parallel_core/comm/background_progress.h"
#include "parallel_core/comm/label.h"
#include "parallel_core/comm/options.h"
#include "parallel_core/comm/process_group.h"
#include "parallel_core/comm/transport.h"
#include "parallel_core/comm/waits.h"
#include "parallel_core/comm/watch.h"

namespace tapestry {

class Communicator;

/// A collective that is under way on this rank: sends and receives, and what happens between them.
/// Ranks are those of the world. Its functions are called by the rank's thread or by the one behind
/// it, one at a time, so they allocate nothing from the rank's context; the constructor may.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  /// What has few bytes to move is through as soon as it is waited for: there is no use in moving
  /// it on in the background.
  enum class Background : uint8_t { kYes, kNo };

  explicit Operation(const Label& label, Background background = Background::kYes)
      : label_(label), background_(background) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  const Label& label() const { return label_; }
  /// True once the results are there, for the thread that asks.
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  /// When they were, in seconds of observer_clock(), if somebody observed its start; else 0.
  double finished_at() const { return finished_at_; }
  void note_end() { notes_end_ = true; }

 protected:
  /// Starts the first messages.
  virtual void start(Communicator& communicator) = 0;
  /// A message is through; may start others.
  virtual void sent(Communicator& /*communicator*/, int /*part*/, int /*destination*/) {}
  virtual void received(Communicator& /*communicator*/, int /*part*/, int /*source*/) {}
  /// Called when none is under way: starts the next stage, or starts nothing and has finished.
  virtual void advance(Communicator& /*communicator*/) {}

 private:
  friend class Communicator;
  Label label_;
  Background background_;
  bool in_background_ = false;
  int under_way_ = 0;
  bool notes_end_ = false;
  double finished_at_ = 0;
  // The last message that came: from whom, when it was announced, and when it was through.
  int last_source_ = -1;
  double last_announced_ = 0;
  double last_through_ = 0;
  std::atomic<bool> finished_{false};
};

/// Used by its rank's thread alone, and by the thread behind it that BackgroundProgress is. Where a
/// call can fail, it throws what that thread has found, too.
class Communicator {
 public:
  Communicator(std::unique_ptr<Transport> transport, const CommunicationOptions& options);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }

  /// A number for a new group, the same on all its members. Those must make groups of one name and
  /// one list of ranks in the same order.
  uint64_t register_group(const std::string& name, const std::vector<int>& world_ranks);

  const CommunicationOptions& options() const { return options_; }

  /// Starts an operation and moves the others on. CommError if the ranks have stopped.
  void start(const std::shared_ptr<Operation>& operation);
  /// Returns when it has finished; moves all operations on meanwhile. CommError if it cannot.
  void wait(Operation& operation);
  /// Whether it has finished. Leaves it to the background to see to that.
  bool done(Operation& operation);
  /// For operations, called from within them. The memory must stay until the operation is told.
  void send(Operation& operation, int destination, int part, const void* data, int64_t bytes);
  void receive(Operation& operation, int source, int part, void* data, int64_t bytes);

  /// The orderly end: tells the others, and returns when all have ended. CommError if one fails, or
  /// has sent what this rank never received.
  void finish();
  /// Tells the others that this rank fails, for the reason given.
  void announce_failure(const std::string& reason);
  /// The rank's thread ends, in whatever way: see Transport::leave.
  void leave();
  /// After finish(): lets go of the transport.
  void close();

  /// Called after each step: every now and then tells rank 0 what this rank has waited for. Rank 0
  /// returns the sentence about a rank or a link that holds up the others, once; else "".
  std::string tell_waits();

  // For a rank that has failed and is about to end the job.
  /// It has found that no rank of some other host answers.
  bool lost_a_host() const;
  /// It stops because another rank does.
  bool failed_elsewhere() const;
  /// Tells the others that this rank fails, and why. True if it is the one to say so to the user:
  /// not if it fails only because another does, or for the same reason as one that is before it or
  /// has said so already.
  bool announce(const std::string& reason);
  /// Tells the others that this rank has ended, and whether announce() had it tell the user.
  void say_last_words();
  bool all_others_are_done() const;
  /// Hears what the others say until there is enough of it, at most for that long.
  void linger(double seconds, const std::function<bool()>& enough);

  /// The ranks have stopped.
  bool failed() const;

 private:
  friend class Watch;

  // A collective: (group, -1, sequence). A message: (group, its source, sequence).
  using OperationKey = std::tuple<uint64_t, int, uint64_t>;
  using MessageKey = std::pair<int, int>;  // source, part
  struct Expected {
    void* data;
    int64_t bytes;
  };
  class Inside;  // the rank's thread is in a call
  struct Entry {
    std::shared_ptr<Operation> operation;  // null until this rank makes the call
    std::map<MessageKey, Expected> expected;
    std::map<MessageKey, Arrival> arrived;
  };
  struct Moving {  // a transfer of this rank's operations
    std::shared_ptr<Transfer> transfer;
    std::shared_ptr<Operation> operation;
    int peer;
    int part;
    bool is_send;
    double announced = 0;  // of what is received
    int64_t bytes = 0;     // that are on their way by themselves
  };

  static OperationKey key_of(const Label& label, int source);
  static OperationKey key_of(const Operation& operation);

  void progress();
  bool background_step();
  void move_in_background(Operation& operation);
  void fail(const std::string& reason);
  const std::string& group_name(uint64_t group) const;
  // Until is_done() says so; on_idle(seconds) is called while nothing has happened for that long.
  template <class IsDone, class OnIdle>
  void progress_until(const IsDone& is_done, const OnIdle& on_idle);
  void take(Arrival arrival);
  void hear(const Arrival& arrival);
  void check_agreement(const Operation& operation, const Arrival& arrival);
  void check_not_over(const Envelope& envelope);
  void match(const std::shared_ptr<Operation>& operation,
             const Arrival& arrival,
             const Expected& expected);
  void through(const Moving& transfer);
  void settle(const std::shared_ptr<Operation>& operation);
  void check_ended();
  void throw_if_failed() const;
  std::string describe(const Label& label) const;
  // "computes while all_reduce #3 of dp (...) is under way", empty if none is.
  std::string describe_background() const;
  void send_control(int destination, Control control, const std::string& text);
  void broadcast_control(Control control, const std::string& text);

  mutable std::mutex mutex_;  // guards everything below
  std::unique_ptr<Transport> transport_;
  CommunicationOptions options_;
  std::map<OperationKey, Entry> entries_;
  std::vector<Moving> moving_;
  std::vector<std::shared_ptr<Transfer>> control_transfers_;
  std::unordered_map<uint64_t, std::string> group_names_;
  std::unordered_map<uint64_t, uint64_t> groups_made_;
  std::unordered_map<uint64_t, std::deque<Label>> calls_;  // the group's latest collectives
  std::optional<std::string> failure_;
  uint64_t envelopes_sent_ = 0;
  uint64_t envelopes_arrived_ = 0;
  uint64_t activity_ = 0;         // anything that an operation noticed
  Operation* in_call_ = nullptr;  // what the rank starts or waits for
  bool ended_ = false;
  bool tells_user_ = false;
  int64_t in_background_ = 0;  // operations under way that it moves on
  WaitTally tally_;
  StragglerWatch stragglers_;
  double waits_told_;  // when
  Watch watch_;
  std::unique_ptr<BackgroundProgress> background_;  // made when first needed
};

}  // namespace tapestry
