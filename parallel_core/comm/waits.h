// What ranks wait for, and which rank or link therefore holds up a job.
//
// A rank that waits in a collective waits for the message that comes last. With one slow rank all
// others wait for it, and it waits little. With one slow link the ranks on both sides of it wait
// for each other while data are on their way. So a slow processor and a slow link are told apart
// without comparing clocks of hosts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel_core/comm/rank_hosts.h"

namespace tapestry {

/// The share of one rank's time, since it last told, in which it waited. A peer is -1 if there was
/// none.
struct RankWaits {
  double seconds = 0;  ///< that it tells of
  double waited = 0;   ///< in all
  int late = -1;       ///< the rank whose messages it waited for longest
  double late_waited = 0;
  int remote = -1;  ///< the same among ranks of other hosts, until their data were there
  double remote_waited = 0;
  double remote_bytes = 0;    ///< that came from other hosts, in messages of their own
  double remote_seconds = 0;  ///< in which such bytes were on their way

  std::string serialize() const;
  static RankWaits parse(const std::string& text);
};

/// What holds up a job.
struct Straggler {
  std::string what;  ///< the rank, or the link; empty if there is nothing to say
  std::string text;  ///< the sentence for the user
};

/// The one rank or link that holds up the others. `waits` has a place for each rank; of ranks that
/// have told nothing `seconds` is 0, and nothing is said unless most have told.
///
/// - "rank 2 on beta holds up the job: the others wait 46 % of the time, it waits 3 %", if the
/// waits of
///   more than half of the others, each a quarter of the time or more, lead to one rank (directly,
///   or by the rank for which that one waits in turn), and that one waits less than a third as
///   much.
/// - "the network between alpha and beta holds up the job: 4 ranks wait 61 % of the time for what
/// comes
///   over it, at 1.2 MB/s, after 110 at best (rank 0 on alpha for rank 2 on beta)", if ranks wait a
///   quarter of the time or more for one on another host, data are on their way half as long, and
///   come at less than a third of the best rate of an earlier call; or if ranks wait most of the
///   time (60 %).
///
/// `best_rates` is kept between calls, by the name of the link.
Straggler find_straggler(const std::vector<RankWaits>& waits,
                         const RankHosts& hosts,
                         std::map<std::string, double>& best_rates);

/// Looks for stragglers in what ranks tell rank 0 now and then. Used by rank 0.
class StragglerWatch {
 public:
  explicit StragglerWatch(int ranks) : ranks_(static_cast<size_t>(ranks)) {}
  void hear(int rank, const RankWaits& waits);
  /// At the end of a period: the sentence about what has held up the job in this period and in the
  /// one before, unless that was said already; else "".
  std::string look(const RankHosts& hosts);

 private:
  size_t ranks_;
  std::vector<RankWaits> waits_;  // empty on ranks that are told nothing
  std::map<std::string, double> best_rates_;
  std::string last_;  // what was found in the period before
  std::string said_;
};

/// One rank's own waits, added up.
class WaitTally {
 public:
  WaitTally(int rank, const RankHosts& hosts);

  /// A wait that began at one time and ended at another; the last message that came meanwhile was
  /// announced at `announced` and through at `through`; source -1 if none did.
  void add(double begun, double ended, int source, double announced, double through);
  /// Data from another rank begin and end to be on their way.
  void fetch_begins(int source, double now);
  void fetch_ended(int source, int64_t bytes, double now);

  /// What there is since the last call.
  RankWaits take(double now);

 private:
  bool is_remote(int source) const;

  int rank_;
  const RankHosts& hosts_;
  double since_;
  RankWaits sum_;
  std::map<int, double> late_;
  std::map<int, double> remote_;
  int fetches_ = 0;  // from other hosts
  double busy_since_ = 0;
};

}  // namespace tapestry
