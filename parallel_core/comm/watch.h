// Finds out why ranks do not get on, and tells all of them.
//
// Ranks that all wait for each other are found by one of them, rank 0: a rank that has waited for a
// while without hearing anything reports so, with how much it has sent and received. When all have,
// rank 0 asks each again. If none has done anything since its report and everything that was sent
// has arrived, nothing can happen any more (the four counters of Mattern 1987, "Algorithms for
// distributed termination detection"). A rank that never comes back to communicate is found by the
// timeout of those that wait for it.
//
// The end of the job is found along a binomial tree: a rank that has ended, and all of whose
// children's subtrees have, says so to its parent, with the numbers of envelopes that they have
// sent and received. Where these differ, rank 0 has them counted again: a message that nobody
// expects is still to come, and an error. So a rank hears from a few others at the end, not from
// all, which for thousands of ranks would be connections that nothing else needs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel_core/comm/schedule.h"

namespace tapestry {

class Communicator;

/// What ranks tell each other beside their collectives.
enum class Control : uint8_t {
  kEnded,       ///< the sender calls no collective any more
  kAskEnd,      ///< the receiver is waited for: has it ended? It answers kEnded when it has
  kTreeEnded,   ///< the sender and all below it in the tree have ended; what they have counted
  kCountAgain,  ///< what has been sent is still on its way: count again
  kAllEnded,    ///< the end of the job
  kFailed,      ///< the sender has thrown; the reason
  kTold,        ///< the sender has told the user of its failure
  kStop,        ///< everybody stops; the report
  kStuck,       ///< the sender waits and hears nothing; its state
  kConfirm,     ///< are you still? the number of the round
  kConfirmed,   ///< the number and the state
  kQuery,       ///< what are you doing?
  kState,       ///< the state
  kWaits,       ///< what the sender has waited for, see waits.h
};

/// What a rank is doing, for reports.
struct RankState {
  std::string doing;         ///< "waits in all_reduce #1 of ..."; empty if unknown
  std::vector<int> missing;  ///< the ranks it waits for
  bool stuck = false;        ///< waits, and nothing is on its way
  uint64_t activity = 0;
  uint64_t sent = 0;
  uint64_t arrived = 0;

  std::string serialize() const;
  static RankState parse(const std::string& text);
};

class Watch {
 public:
  explicit Watch(Communicator& communicator);

  /// The rank waits and has heard nothing for that long. CommError if it must stop.
  void idle(double seconds);
  /// The rank has ended and waits for the others to.
  void idle_at_end(double seconds);
  /// A control message has come.
  void hear(Control control, int source, const std::string& text);
  /// As far as this rank has been told.
  bool has_ended(int rank) const { return ended_[static_cast<size_t>(rank)]; }
  bool all_others_have_ended() const { return ended_count_ + 1 >= ended_.size(); }
  /// The rank calls no collective any more: those that wait for it are told, and the end of the job
  /// is looked for.
  void end();
  /// Every rank has, and nothing is on its way. Called again and again after end().
  bool job_has_ended();

  void note_own_failure(const std::string& reason) { own_reason_ = reason; }
  /// This rank has found that no rank of some other host answers.
  bool lost_a_host() const { return lost_a_host_; }
  bool failed_elsewhere() const { return failed_elsewhere_; }
  /// A rank before this one has failed for the same reason.
  bool lower_rank_failed_alike() const;
  /// A rank has failed for the same reason and told the user.
  bool told_elsewhere() const;
  /// The rank has said all that there is to say: to all, or only to those that have said that they
  /// fail, or will, and wait for it before they end the job.
  void say_last_words(bool to_all);

  /// What it means that a rank does not answer: that it computes, or after the timeout more.
  enum class Silence : uint8_t { kMeansNothing, kMeansFailure };
  /// Asks the others what they do, tells them why all stop, and throws that as CommError.
  [[noreturn]] void stop(const std::string& finding, Silence silence = Silence::kMeansNothing);

 private:
  RankState own_state() const;
  void fail_elsewhere(const std::string& reason);
  void report_stuck(double idle_seconds);
  void ask_for_ends();
  void count_end();
  void send_to_children(Control control);
  void hear_count(const std::string& text);
  void note_failing(int rank);
  void look_for_deadlock();
  void judge_round();
  [[noreturn]] void stop_with(const std::string& finding, const std::vector<RankState>& states);

  Communicator& communicator_;
  std::vector<bool> ended_;
  size_t ended_count_ = 0;
  std::vector<int> asked_by_;  // who waits for this rank and asked whether it has ended
  bool has_asked_ = false;     // in this wait
  // The end of the job, found along a tree so that no rank talks to all.
  Tree tree_;
  struct Count {
    uint64_t sent = 0;
    uint64_t arrived = 0;
  };
  size_t children_ended_ = 0;
  Count below_;           // of the children's subtrees
  bool counted_ = false;  // and told the parent
  bool job_has_ended_ = false;
  double next_report_ = 0;  // seconds of idleness
  std::string own_reason_;
  bool failed_elsewhere_ = false;
  bool lost_a_host_ = false;
  std::vector<bool> failed_alike_;
  std::vector<bool> told_;
  std::vector<int> failing_;  // who has said that it fails, and waits for the others' last words
  bool said_last_words_ = false;
  // Of rank 0 alone.
  std::map<int, RankState> stuck_;
  std::map<int, RankState> confirmed_;
  uint64_t round_ = 0;
  bool round_open_ = false;
  // While stop() asks around.
  bool asking_ = false;
  std::vector<RankState> answers_;
};

}  // namespace tapestry
