#include "parallel_core/comm/waits.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <sstream>
#include <tuple>
#include <utility>

#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr double kMuch = 0.25;  // of the time: a job that waits less is in order
constexpr double kFarLess = 1.0 / 3;
constexpr double kOnTheirWay = 0.5;  // of the time for which ranks wait for another host
constexpr double kMostOfTheTime = 0.6;

// The key with the largest value, and that; -1 of an empty map.
std::pair<int, double> largest(const std::map<int, double>& seconds) {
  const auto most =
      std::max_element(seconds.begin(), seconds.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == seconds.end() ? std::pair(-1, 0.0) : std::pair(most->first, most->second);
}

std::string percent(double share) { return concat(std::lround(100 * share), " %"); }

double share_waited(const RankWaits& waits) {
  return waits.seconds > 0 ? waits.waited / waits.seconds : 0;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The rank at the end of the waits that begin with this one's: it waits for one that waits for one
// that ... computes. -1 if ranks wait in a circle, as the stages of a pipeline do, or not for long.
int culprit_of(int rank, const std::vector<RankWaits>& waits) {
  const double own = share_waited(waits[static_cast<size_t>(rank)]);
  int at = rank;
  for (size_t steps = 0; steps < waits.size(); ++steps) {
    const RankWaits& here = waits[static_cast<size_t>(at)];
    if (steps > 0 && share_waited(here) < kFarLess * own) {
      return at;
    }
    if (here.late < 0 || here.late_waited < kMuch * here.seconds) {
      return -1;
    }
    at = here.late;
  }
  return -1;
}

Straggler slow_rank(const std::vector<RankWaits>& waits, const RankHosts& hosts) {
  std::map<int, double> accused;
  for (size_t rank = 0; rank < waits.size(); ++rank) {
    const int culprit = culprit_of(static_cast<int>(rank), waits);
    if (culprit >= 0) {
      accused[culprit] += 1;
    }
  }
  const auto [rank, votes] = largest(accused);
  if (rank < 0 || 2 * votes <= static_cast<double>(waits.size() - 1)) {
    return {};
  }
  std::vector<double> others;
  for (size_t other = 0; other < waits.size(); ++other) {
    if (static_cast<int>(other) != rank) {
      others.push_back(share_waited(waits[other]));
    }
  }
  const std::string name = hosts.name_of(rank);
  return {name, concat(name, " holds up the job: the others wait ",
                       percent(median(std::move(others))), " of the time, it waits ",
                       percent(share_waited(waits[static_cast<size_t>(rank)])))};
}

struct Link {
  int ranks = 0;
  double share = 0;
  double bytes = 0;
  double seconds = 0;
  std::string example;
};

Straggler slow_link(const std::vector<RankWaits>& waits,
                    const RankHosts& hosts,
                    std::map<std::string, double>& best_rates) {
  std::map<std::pair<std::string, std::string>, Link> links;
  for (size_t at = 0; at < waits.size(); ++at) {
    const RankWaits& own = waits[at];
    if (own.remote < 0 || own.remote_waited < kMuch * own.seconds ||
        own.remote_seconds < kOnTheirWay * own.remote_waited) {
      continue;
    }
    const int rank = static_cast<int>(at);
    auto pair = std::minmax(hosts.host_of(rank), hosts.host_of(own.remote));
    Link& link = links[{pair.first, pair.second}];
    ++link.ranks;
    link.share += own.remote_waited / own.seconds;
    link.bytes += own.remote_bytes;
    link.seconds += own.remote_seconds;
    if (link.ranks == 1) {
      link.example = concat(hosts.name_of(rank), " for ", hosts.name_of(own.remote));
    }
  }
  const auto worst = std::max_element(links.begin(), links.end(), [](const auto& a, const auto& b) {
    return a.second.share < b.second.share;
  });
  if (worst == links.end()) {
    return {};
  }
  const Link& link = worst->second;
  const std::string name =
      concat("the network between ", worst->first.first, " and ", worst->first.second);
  const double share = link.share / link.ranks;
  const double rate = link.bytes / link.seconds / 1e6;
  double& best = best_rates[name];
  best = std::max(best, rate);
  const bool slower = rate < kFarLess * best;
  if (!slower && share < kMostOfTheTime) {
    return {};
  }
  char text[80];
  std::snprintf(text, sizeof(text), slower ? "%.3g MB/s, after %.3g at best" : "%.3g MB/s", rate,
                best);
  return {name, concat(name, " holds up the job: ", link.ranks,
                       link.ranks == 1 ? " rank waits " : " ranks wait ", percent(share),
                       " of the time for what comes over it, at ", text, " (", link.example, ")")};
}

}  // namespace

std::string RankWaits::serialize() const {
  std::ostringstream out;
  out << seconds << ' ' << waited << ' ' << late << ' ' << late_waited << ' ' << remote << ' '
      << remote_waited << ' ' << remote_bytes << ' ' << remote_seconds;
  return out.str();
}

RankWaits RankWaits::parse(const std::string& text) {
  RankWaits waits;
  std::istringstream in(text);
  in >> waits.seconds >> waits.waited >> waits.late >> waits.late_waited >> waits.remote >>
      waits.remote_waited >> waits.remote_bytes >> waits.remote_seconds;
  return waits;
}

Straggler find_straggler(const std::vector<RankWaits>& waits,
                         const RankHosts& hosts,
                         std::map<std::string, double>& best_rates) {
  const auto told = std::count_if(waits.begin(), waits.end(),
                                  [](const RankWaits& own) { return own.seconds > 0; });
  if (2 * static_cast<size_t>(told) <= waits.size()) {
    return {};
  }
  Straggler rank = slow_rank(waits, hosts);
  return rank.what.empty() ? slow_link(waits, hosts, best_rates) : rank;
}

void StragglerWatch::hear(int rank, const RankWaits& waits) {
  waits_.resize(ranks_);
  waits_[static_cast<size_t>(rank)] = waits;
}

std::string StragglerWatch::look(const RankHosts& hosts) {
  const Straggler found = find_straggler(waits_, hosts, best_rates_);
  waits_.clear();
  const bool lasts = !found.what.empty() && found.what == last_;
  if (found.what.empty() && last_.empty()) {
    said_.clear();  // two periods in order: it may be said again
  }
  last_ = found.what;
  if (!lasts || found.what == said_) {
    return "";
  }
  said_ = found.what;
  return found.text;
}

WaitTally::WaitTally(int rank, const RankHosts& hosts)
    : rank_(rank), hosts_(hosts), since_(observer_clock()) {}

bool WaitTally::is_remote(int source) const {
  return hosts_.several() && hosts_.host_of(source) != hosts_.host_of(rank_);
}

void WaitTally::add(double begun, double ended, int source, double announced, double through) {
  sum_.waited += ended - begun;
  if (source < 0) {
    return;
  }
  if (announced > begun) {
    late_[source] += announced - begun;
  }
  if (is_remote(source) && through > begun) {
    remote_[source] += through - begun;
  }
}

void WaitTally::fetch_begins(int source, double now) {
  if (is_remote(source) && fetches_++ == 0) {
    busy_since_ = now;
  }
}

void WaitTally::fetch_ended(int source, int64_t bytes, double now) {
  if (is_remote(source)) {
    sum_.remote_bytes += static_cast<double>(bytes);
    if (--fetches_ == 0) {
      sum_.remote_seconds += now - busy_since_;
    }
  }
}

RankWaits WaitTally::take(double now) {
  RankWaits result = std::exchange(sum_, {});
  result.seconds = now - std::exchange(since_, now);
  std::tie(result.late, result.late_waited) = largest(late_);
  std::tie(result.remote, result.remote_waited) = largest(remote_);
  if (fetches_ > 0) {
    result.remote_seconds += now - std::exchange(busy_since_, now);
  }
  late_.clear();
  remote_.clear();
  return result;
}

}  // namespace tapestry
