#include "parallel_core/planning/costs/costs_file.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "autograd/io/strict_json.h"
#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/tensor/error.h"

namespace tapestry::planning {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMostBytes = uint64_t{16} << 20U;
constexpr int kForm = 2;  // of the file

std::string processor_name() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("model name")) {
      const size_t colon = line.find(": ");
      return colon == std::string::npos ? line : line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

json of_pass(const PassTime& time) { return json::array({time.forward, time.backward}); }

json of_parts(const PartTimes& parts) {
  json layers = json::array();
  for (const PassTime& layer : parts.layers) {
    layers.push_back(of_pass(layer));
  }
  return {{"layers", std::move(layers)},   {"before", of_pass(parts.before)},
          {"after", of_pass(parts.after)}, {"reduce", parts.reduce},
          {"update", parts.update},        {"fixed", parts.fixed},
          {"parameters", parts.parameters}};
}

double seconds_from(const json& value) {
  const auto number = value.get<double>();
  check<ValueError>(std::isfinite(number) && number >= 0, "expected a number from 0 on, got ",
                    value.dump());
  return number;
}

PassTime pass_from(const json& value) {
  check<ValueError>(value.is_array() && value.size() == 2, "expected [forward, backward], got ",
                    value.dump());
  return {.forward = seconds_from(value[0]), .backward = seconds_from(value[1])};
}

PartTimes parts_from(const json& value) {
  PartTimes parts;
  for (const json& layer : value.at("layers")) {
    parts.layers.push_back(pass_from(layer));
  }
  check<ValueError>(!parts.layers.empty(), "layers: expected at least one");
  parts.before = pass_from(value.at("before"));
  parts.after = pass_from(value.at("after"));
  parts.reduce = seconds_from(value.at("reduce"));
  parts.update = seconds_from(value.at("update"));
  parts.fixed = seconds_from(value.at("fixed"));
  parts.parameters = seconds_from(value.at("parameters"));
  return parts;
}

CollectiveTimes collectives_from(const json& value) {
  CollectiveTimes times;
  for (const json& bytes : value.at("bytes")) {
    times.bytes.push_back(seconds_from(bytes));
  }
  const json& seconds = value.at("seconds");
  check<ValueError>(!times.bytes.empty() && seconds.size() == kCollectives &&
                        std::is_sorted(times.bytes.begin(), times.bytes.end()),
                    "expected ascending bytes, and the seconds of ", kCollectives, " collectives");
  for (size_t i = 0; i < kCollectives; ++i) {
    for (const json& one : seconds[i]) {
      times.seconds[i].push_back(seconds_from(one));
    }
    check<ValueError>(times.seconds[i].size() == times.bytes.size(),
                      "expected as many seconds as bytes");
  }
  return times;
}

json of_message(const MessageCost& cost) {
  return {{"latency", cost.latency},
          {"overhead", cost.overhead},
          {"per_byte", cost.per_byte},
          {"add_per_byte", cost.add_per_byte}};
}

MessageCost message_from(const json& value) {
  return {.latency = seconds_from(value.at("latency")),
          .overhead = seconds_from(value.at("overhead")),
          .per_byte = seconds_from(value.at("per_byte")),
          .add_per_byte = seconds_from(value.at("add_per_byte"))};
}

}  // namespace

MessageCosts messages_of(const MachineCosts& costs, int64_t ranks_on_host) {
  MessageCosts messages;
  messages.network = costs.network.value_or(assumed_network());
  for (const auto& [ranks, times] : costs.collectives) {
    if (ranks.first == ranks_on_host) {
      messages.on_host.emplace(ranks.second, times);
    }
  }
  return messages;
}

std::string machine_name(const std::string& program) {
  return concat(processor_name(), "; ", name_of(cpu_level()), "; ", kernels::blas_flavour(), "; ",
                program);
}

std::string usual_costs_file() {
  // NOLINTBEGIN(concurrency-mt-unsafe): nobody sets variables
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  // NOLINTEND(concurrency-mt-unsafe)
  if (cache != nullptr && *cache == '/') {
    return std::string(cache) + "/tapestry/costs.json";
  }
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/tapestry/costs.json"
                                         : std::string();
}

std::string costs_json(const MachineCosts& costs) {
  json all = {{"form", kForm}, {"machine", costs.machine}};
  all["parts"] = json::object();
  for (const auto& [key, parts] : costs.parts) {
    all["parts"][key] = of_parts(parts);
  }
  all["collectives"] = json::array();
  for (const auto& [ranks, times] : costs.collectives) {
    all["collectives"].push_back({{"ranks", ranks.first},
                                  {"group", ranks.second},
                                  {"bytes", times.bytes},
                                  {"seconds", times.seconds}});
  }
  all["network"] = costs.network ? of_message(*costs.network) : json();
  return all.dump(1) + "\n";
}

namespace {

MachineCosts costs_from(const json& all, const std::string& source) {
  std::string place = "form";
  try {
    check<ValueError>(all.at("form").get<int>() == kForm, "expected ", kForm);
    MachineCosts costs;
    place = "machine";
    costs.machine = all.at("machine").get<std::string>();
    for (const auto& [key, parts] : all.at("parts").items()) {
      place = concat("parts '", key, "'");
      costs.parts.emplace(key, parts_from(parts));
    }
    for (const json& entry : all.at("collectives")) {
      place = concat("collectives ", entry.dump());
      costs.collectives.emplace(
          std::pair(entry.at("ranks").get<int64_t>(), entry.at("group").get<int64_t>()),
          collectives_from(entry));
    }
    place = "network";
    if (!all.at("network").is_null()) {
      costs.network = message_from(all.at("network"));
    }
    return costs;
  } catch (const std::exception& error) {
    throw IoError(concat(source, ": ", place, ": ", error.what()));
  }
}

}  // namespace

MachineCosts read_costs(const std::string& path) {
  const InputFile file(path);
  return costs_from(read_strict_json(file, "costs", kMostBytes), path);
}

MachineCosts load_costs(const std::string& path, const std::string& machine, std::string& remark) {
  std::error_code error;
  MachineCosts none{.machine = machine};
  if (path.empty() || !fs::exists(path, error)) {
    return none;
  }
  try {
    MachineCosts costs = read_costs(path);
    if (costs.machine == machine) {
      return costs;
    }
    remark = concat(path, " is of another machine or program (", costs.machine,
                    "); all is measured anew");
  } catch (const Error& fault) {
    remark = concat(fault.what(), "; all is measured anew");
  }
  return none;
}

std::string save_costs(const MachineCosts& costs, const std::string& path) {
  if (path.empty()) {
    return "neither XDG_CACHE_HOME nor HOME names a folder: what was measured is not kept";
  }
  try {
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    write_file_atomically(path, costs_json(costs));
    return {};
  } catch (const Error& fault) {
    return concat(fault.what(), "; what was measured is not kept");
  }
}

}  // namespace tapestry::planning
