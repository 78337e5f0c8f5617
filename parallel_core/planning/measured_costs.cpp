#include "parallel_core/planning/measured_costs.h"

#include <algorithm>
#include <utility>

#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/system_memory.h"
#include "parallel_core/comm/polling_transport.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/estimates/memory_estimate.h"

namespace tapestry::planning {

namespace {

// Steps that a measurement has at least, with what goes before them.
constexpr double kLeastSteps = 12;
constexpr double kShareOfMemory = 0.7;
constexpr int64_t kMostThreadRanks = 16;

}  // namespace

MeasuredCosts::MeasuredCosts(MachineCosts costs, const MachineSpeed& speed, double seconds)
    : costs_(std::move(costs)), speed_(speed), seconds_(seconds) {}

bool MeasuredCosts::has_room(const ShareModel& share, int at_once, double turns) const {
  const auto bytes =
      static_cast<double>(estimate_memory(share.config, share.copies).peak()) * at_once;
  return bytes < kShareOfMemory * static_cast<double>(available_memory()) &&
         kLeastSteps * turns * step_seconds(step_work(share.config, share.copies), speed_) <
             seconds_;
}

namespace {

// How many ranks are to run at once: whole shares, as many as a host has; of ranks that do not
// talk to each other those that have a core.
int64_t ranks_at_once(int64_t ranks_of_share, const Hosts& hosts) {
  const int64_t all = hosts.ranks_on_host();
  return ranks_of_share == 1 ? std::clamp<int64_t>(static_cast<int64_t>(hosts.cores), 1, all)
                             : all / ranks_of_share * ranks_of_share;
}

}  // namespace

std::optional<PartTimes> MeasuredCosts::parts(const ShareModel& share,
                                              int at_once,
                                              double turns,
                                              int threads) {
  const std::string key = concat(at_once, " x ", threads, " threads: ", share.key);
  auto found = costs_.parts.find(key);
  if (found == costs_.parts.end()) {
    if (!has_room(share, at_once, turns)) {
      return std::nullopt;
    }
    const double start = observer_clock();
    found = costs_.parts.emplace(key, measure_parts(share, {.ranks = at_once, .threads = threads}))
                .first;
    seconds_ -= observer_clock() - start;
    ++measured_;
  }
  return found->second;
}

std::optional<ModelTimes> MeasuredCosts::times(const Layout& layout,
                                               const Hosts& hosts,
                                               int threads) {
  try {
    const ShareModel share = share_model(layout, hosts.count == 1);
    const auto at_once = static_cast<int>(ranks_at_once(share.ranks(), hosts));
    if (at_once == 0) {
      return std::nullopt;
    }
    const double turns = std::max(1.0, at_once / hosts.cores);
    const std::optional<PartTimes> all = parts(share, at_once, turns, threads);
    if (!all) {
      return std::nullopt;
    }
    // While other stages wait one has the cores to itself.
    const auto own = static_cast<int>(share.ranks());
    if (own > 1 && own < at_once && turns > 1 && own <= hosts.cores) {
      if (const std::optional<PartTimes> alone = parts(share, own, 1, threads)) {
        return measured_times(layout, share, *all, turns, *alone);
      }
    }
    return measured_times(layout, share, *all, turns);
  } catch (const Error&) {  // a share that is no model by itself
    return std::nullopt;
  }
}

MessageCosts MeasuredCosts::messages(int64_t ranks_on_host) {
  MessageCosts known = messages_of(costs_, ranks_on_host);
  if (ranks_on_host < 2 || ranks_on_host > kMostThreadRanks || !known.on_host.empty()) {
    return known;
  }
  for (int64_t group = 2; group <= ranks_on_host; ++group) {
    if (ranks_on_host % group != 0) {
      continue;
    }
    CollectiveTimes& times = costs_.collectives[{ranks_on_host, group}];
    run_thread_ranks(
        static_cast<int>(ranks_on_host),
        [&](const std::shared_ptr<ProcessGroup>& world) {
          const CollectiveTimes found = measure_collectives(*world, static_cast<int>(group));
          if (world->rank() == 0) {
            times = found;
          }
        },
        waiting_like_processes());
    ++measured_;
  }
  return messages_of(costs_, ranks_on_host);
}

}  // namespace tapestry::planning
