#include "parallel_core/comm/rank_hosts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr size_t kMaxListed = 4;  // hosts, and ranks of each

std::string ranks_in_words(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t listed = std::min(ranks.size(), kMaxListed);
  for (size_t i = 0; i < listed; ++i) {
    const bool last = i + 1 == ranks.size();
    text += concat(i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  return ranks.size() > listed ? concat(text, " and ", ranks.size() - listed, " more") : text;
}

}  // namespace

RankHosts::RankHosts(std::vector<std::string> host_of_rank)
    : host_of_rank_(std::move(host_of_rank)) {
  several_ = std::any_of(host_of_rank_.begin(), host_of_rank_.end(),
                         [&](const std::string& host) { return host != host_of_rank_.front(); });
}

const std::string& RankHosts::host_of(int rank) const {
  static const std::string kUnknown;
  const auto at = static_cast<size_t>(rank);
  return rank >= 0 && at < host_of_rank_.size() ? host_of_rank_[at] : kUnknown;
}

std::string RankHosts::name_of(int rank) const {
  return several_ ? concat("rank ", rank, " on ", host_of(rank)) : concat("rank ", rank);
}

std::string RankHosts::whole_hosts(const std::vector<bool>& among) const {
  if (!several_) {
    return "";
  }
  std::map<std::string, std::vector<int>> ranks_of;
  for (size_t rank = 0; rank < host_of_rank_.size(); ++rank) {
    ranks_of[host_of_rank_[rank]].push_back(static_cast<int>(rank));
  }
  std::erase_if(ranks_of, [&](const auto& host) {
    return !std::all_of(host.second.begin(), host.second.end(),
                        [&](int rank) { return among[static_cast<size_t>(rank)]; });
  });
  std::string text;
  size_t listed = 0;
  for (const auto& [host, ranks] : ranks_of) {
    if (listed == kMaxListed) {
      return concat(text, " and ", ranks_of.size() - listed, " more hosts");
    }
    text += concat(listed == 0 ? "host " : ", host ", host, " (", ranks_in_words(ranks), ")");
    ++listed;
  }
  return text;
}

}  // namespace tapestry
