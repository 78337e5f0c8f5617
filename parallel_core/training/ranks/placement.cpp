#include "parallel_core/training/ranks/placement.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/agreement.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr int kMostCores = 1 << 20;  // no list of a kernel has more

// The mask of the calling process. The kernel refuses a set that is too small for the machine.
std::vector<int> allowed_cores() {
  for (size_t room = CPU_SETSIZE; room <= kMostCores; room *= 2) {
    std::vector<cpu_set_t> set(room / CPU_SETSIZE);
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, set.data()) == 0) {
      std::vector<int> cores;
      for (size_t core = 0; core < room; ++core) {
        if (CPU_ISSET_S(core, bytes, set.data())) {
          cores.push_back(static_cast<int>(core));
        }
      }
      return cores;
    }
    if (errno != EINVAL) {
      break;
    }
  }
  return {};
}

std::string placement_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// "core 3", "cores 0-7".
std::string counted(const char* one, const std::vector<int>& numbers) {
  return concat(one, numbers.size() == 1 ? " " : "s ", cpu_list(numbers));
}

std::string threads_text(int64_t threads) {
  return concat(threads, threads == 1 ? " thread" : " threads");
}

nlohmann::json json_of(const RankPlacement& rank) {
  return {{"host", rank.host},
          {"cores", rank.cores},
          {"numa_nodes", rank.numa_nodes},
          {"threads", rank.threads}};
}

RankPlacement placement_from(const nlohmann::json& json) {
  return {.host = json.at("host").get<std::string>(),
          .cores = json.at("cores").get<std::vector<int>>(),
          .numa_nodes = json.at("numa_nodes").get<std::vector<int>>(),
          .threads = json.at("threads").get<int>()};
}

// The threads of all ranks of a host, and the cores that these have together.
struct HostUse {
  int64_t ranks = 0;
  int64_t threads = 0;
  std::set<int> cores;
};

std::map<std::string, HostUse> use_of_hosts(const std::vector<RankPlacement>& ranks) {
  std::map<std::string, HostUse> hosts;
  for (const RankPlacement& rank : ranks) {
    HostUse& host = hosts[rank.host];
    ++host.ranks;
    host.threads += rank.threads;
    host.cores.insert(rank.cores.begin(), rank.cores.end());
  }
  return hosts;
}

std::optional<std::string> crossing_warning(const std::vector<RankPlacement>& ranks) {
  std::vector<int> crossing;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].threads > 1 && ranks[i].numa_nodes.size() > 1) {
      crossing.push_back(static_cast<int>(i));
    }
  }
  if (crossing.empty()) {
    return std::nullopt;
  }
  const RankPlacement& first = ranks[static_cast<size_t>(crossing.front())];
  return concat("threads cross NUMA nodes, and reading another node's memory is slower: ",
                counted("rank", crossing), ", the first of them on ", first.describe(),
                ". Start a rank for each node (a multiple of ", first.numa_nodes.size(),
                " on such a host), bound to it: under Slurm --ntasks-per-node and --cpus-per-task, "
                "else BIND=numa with RANKS of pretrain_gpt.sh");
}

std::optional<std::string> crowding_warning(const std::vector<RankPlacement>& ranks) {
  for (const auto& [name, host] : use_of_hosts(ranks)) {
    const auto cores = static_cast<int64_t>(host.cores.size());
    if (cores > 0 && host.threads > cores) {
      const int64_t fitting = std::max<int64_t>(1, cores / host.ranks);
      return concat("more threads than cores on host ", name, ": ", host.ranks,
                    host.ranks == 1 ? " rank with " : " ranks with ", threads_text(host.threads),
                    " on ", counted("core", {host.cores.begin(), host.cores.end()}),
                    ", so they wait for each other. Set OMP_NUM_THREADS, or "
                    "training_config.num_threads, to ",
                    fitting,
                    host.ranks > cores ? concat(" and start at most ", cores,
                                                cores == 1 ? " rank there" : " ranks there")
                                       : "",
                    ", or ask for more cores (--cpus-per-task under Slurm)");
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    int last = first;
    if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
    }
    if (parsed.ec != std::errc() || first < 0 || last >= kMostCores) {
      break;
    }
    for (int number = first; number <= last; ++number) {
      numbers.push_back(number);
    }
    if (parsed.ptr == end || *parsed.ptr != ',') {
      break;
    }
    at = parsed.ptr + 1;
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::string cpu_list(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) {
      ++last;
    }
    text += concat(text.empty() ? "" : ",", numbers[i],
                   last == i ? std::string() : concat("-", numbers[last]));
    i = last + 1;
  }
  return text;
}

NumaNodes read_numa_nodes(const std::string& folder) {
  NumaNodes nodes;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "node";
    const char* end = name.data() + name.size();
    int number = 0;
    if (!name.starts_with(kPrefix)) {
      continue;
    }
    const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, number);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      continue;
    }
    std::ifstream file(entry.path() / "cpulist");
    std::string list;
    std::getline(file, list);
    if (std::vector<int> cores = parse_cpu_list(list); !cores.empty()) {  // some are memory alone
      nodes[number] = std::move(cores);
    }
  }
  return nodes;
}

RankPlacement RankPlacement::own(const NumaNodes& nodes) {
  RankPlacement rank{.host = placement_host(),
                     .cores = allowed_cores(),
                     .numa_nodes = {},
                     .threads = num_threads()};
  for (const auto& [number, cores] : nodes) {
    if (std::find_first_of(cores.begin(), cores.end(), rank.cores.begin(), rank.cores.end()) !=
        cores.end()) {
      rank.numa_nodes.push_back(number);
    }
  }
  return rank;
}

std::string RankPlacement::describe() const {
  return concat(
      "host ", host, cores.empty() ? std::string() : concat(", ", counted("core", cores)),
      numa_nodes.empty() ? std::string() : concat(" of ", counted("NUMA node", numa_nodes)), ", ",
      threads_text(threads));
}

std::vector<RankPlacement> gather_placements(ProcessGroup& world, const RankPlacement& own) {
  if (world.size() == 1) {
    return {own};
  }
  std::vector<RankPlacement> ranks;
  for (const std::string& text : all_gather_text(world, json_of(own).dump())) {
    ranks.push_back(placement_from(nlohmann::json::parse(text)));
  }
  return ranks;
}

std::vector<std::string> placement_lines(const std::vector<RankPlacement>& ranks) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < ranks.size(); ++i) {
    lines.push_back(concat("rank ", i, ": ", ranks[i].describe()));
  }
  return lines;
}

std::vector<std::string> placement_warnings(const std::vector<RankPlacement>& ranks) {
  std::vector<std::string> warnings;
  for (const auto& warning : {crossing_warning(ranks), crowding_warning(ranks)}) {
    if (warning) {
      warnings.push_back(*warning);
    }
  }
  return warnings;
}

}  // namespace tapestry
