#include "examples/gpt/plan_commands.h"

#include <sched.h>
#include <tapestry_version.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/system_memory.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/comm/measure_messages.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/estimates/time_estimate.h"
#include "parallel_core/planning/measured_costs.h"
#include "parallel_core/planning/plan.h"
#include "parallel_core/planning/planned_run.h"
#include "parallel_core/training/program.h"
#include "text/util/numbers.h"

namespace tapestry::examples {
namespace {

namespace po = boost::program_options;

constexpr const char* kDetails[] = {"memory", "hosts",         "table",
                                    "costs",  "measure_again", "as_configured"};
constexpr size_t kShown = 12;

int64_t number_of(const po::variables_map& arguments, const char* option, int64_t otherwise) {
  if (arguments.count(option) == 0) {
    return otherwise;
  }
  const auto number = arguments[option].as<int64_t>();
  check<ValueError>(number >= 1 && number <= (int64_t{1} << 20U), "--", option, " is ", number,
                    "; expected 1 to 1048576");
  return number;
}

// Cores that this process may use.
int64_t own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

planning::PlanOptions asked_plan(const po::variables_map& arguments, const AllConfig& config) {
  planning::PlanOptions asked;
  asked.ranks = number_of(arguments, "plan", 1);
  asked.hosts = number_of(arguments, "hosts", 1);
  check<ValueError>(asked.ranks % asked.hosts == 0, "--plan ", asked.ranks, " --hosts ",
                    asked.hosts, ": every host has as many ranks; expected a multiple of ",
                    asked.hosts);
  asked.cores = own_cores();
  asked.data_parallel_size =
      planning::planned_run(config, ranks_of_batch(arguments)).data_parallel_size;
  asked.memory = available_memory() / (asked.ranks / asked.hosts);
  if (arguments.count("memory") != 0) {
    const auto gib = arguments["memory"].as<double>();
    check<ValueError>(gib > 0 && gib < 1e6, "--memory is ", gib,
                      "; expected the GiB that one rank may take, such as 3.5");
    asked.memory = static_cast<int64_t>(gib * static_cast<double>(int64_t{1} << 30U));
  }
  return asked;
}

std::string heading(const planning::Plan& plan) {
  const planning::PlanOptions& asked = plan.asked;
  std::string text = concat(
      plan.ranks, plan.ranks == 1 ? " rank" : " ranks", " on ", asked.hosts,
      asked.hosts == 1 ? " host, " : " hosts, ", plan.threads,
      plan.threads == 1 ? " thread" : " threads", " a rank, ", size_text(asked.memory),
      " for each; a batch of ", plan.batch.sequences, " sequences a step is kept",
      plan.batch.micro_batch == 0 ? ""
                                  : concat(", and so are micro-batches of ", plan.batch.micro_batch,
                                           ", which what is computed depends on"),
      "\n");
  if (plan.ranks < asked.ranks) {
    text += concat("of the ", asked.ranks, " ranks ", asked.ranks - plan.ranks,
                   " stay idle: this batch has no layout for more\n");
  }
  return text;
}

// How long the whole run takes, and what of the machines.
std::string length_text(const planning::Plan& plan, const AllConfig& config, int64_t ranks) {
  const planning::RankedLayout& best = plan.fitting.front();
  const planning::PlannedRun run = planning::planned_run(config, ranks);
  const int64_t all = total_training_iters(best.layout.config, best.layout.data_parallel_size);
  const int64_t steps =
      whole_steps(best.layout.config, best.layout.data_parallel_size, all, run.steps_done);
  std::string text = "expected: " + format_pace(best.time.seconds, steps);
  if (steps > 0) {
    const double hours = best.time.seconds * static_cast<double>(steps) / 3600 *
                         static_cast<double>(plan.ranks * plan.threads);
    text += concat(", ", number_text(hours, 3), " core-hours");
  }
  return text + "; evaluations and checkpoints are not counted\n";
}

// What this machine's file has, unless it is to be measured again.
planning::MachineCosts kept_costs(const po::variables_map& arguments, const std::string& path) {
  planning::MachineCosts none{.machine = planning::machine_name(kVersion)};
  if (arguments.count("measure_again") != 0) {
    return none;
  }
  std::string remark;
  planning::MachineCosts costs = planning::load_costs(path, none.machine, remark);
  if (!remark.empty()) {
    say("pretrain_gpt", remark);
  }
  return costs;
}

std::string costs_path(const po::variables_map& arguments) {
  return arguments.count("costs") != 0 ? arguments["costs"].as<std::string>()
                                       : planning::usual_costs_file();
}

planning::Plan planned(const po::variables_map& arguments, const AllConfig& config) {
  constexpr double kMeasuring = 60;  // seconds
  constexpr double kWorthMeasuring = 2.5;
  const planning::PlanOptions asked = asked_plan(arguments, config);
  const std::string path = costs_path(arguments);
  const MachineSpeed speed = measure_speed(config);
  planning::MeasuredCosts costs(kept_costs(arguments, path), speed, kMeasuring);
  const int64_t asked_on_host = asked.ranks / asked.hosts;
  const planning::MessageCosts messages = costs.messages(asked_on_host);
  const planning::TimesOf estimated = [&](const planning::Layout& layout) {
    return planning::estimated_times(layout, speed);
  };
  planning::Plan plan = arguments.count("as_configured") != 0
                            ? plan_as_configured(config, asked, estimated, messages)
                            : make_plan(config, asked, estimated, messages);
  const planning::Hosts hosts = planning::hosts_of(config, asked, plan.ranks);
  refine(
      plan, kWorthMeasuring,
      [&](const planning::Layout& layout) {
        return costs.times(layout, hosts, static_cast<int>(plan.threads));
      },
      messages);
  if (costs.measured() > 0) {
    if (const std::string remark = save_costs(costs.costs(), path); !remark.empty()) {
      say("pretrain_gpt", remark);
    }
  }
  return plan;
}

void check_free(const std::string& path) {
  check<ValueError>(path.ends_with(".yaml") || path.ends_with(".yml"), "--to ", path,
                    ": the name of a configuration file must end in .yaml or .yml");
  check<ValueError>(!std::filesystem::exists(path), path,
                    ": is there already; give another name, or remove it");
}

}  // namespace

int measure_network(const po::variables_map& arguments,
                    const std::shared_ptr<ProcessGroup>& world,
                    int ranks_on_host) {
  check<ValueError>(
      world->size() > 1,
      "--measure_network measures between the ranks of a job; start it with mpirun -n "
      "RANKS, as many as the job is to have on a host, or with one on each of two "
      "hosts");
  const bool one_host = ranks_on_host == world->size();
  std::map<std::pair<int64_t, int64_t>, planning::CollectiveTimes> collectives;
  std::optional<MessageCost> network;
  for (int group = 2; group <= world->size() && one_host; ++group) {
    if (world->size() % group == 0) {
      collectives[{world->size(), group}] = planning::measure_collectives(*world, group);
    }
  }
  if (!one_host) {
    network = measure_messages(*world);
  }
  if (world->rank() != 0) {
    return kFinished;
  }
  const std::string path = costs_path(arguments);
  std::string remark;
  planning::MachineCosts costs =
      planning::load_costs(path, planning::machine_name(kVersion), remark);
  for (auto& [ranks, times] : collectives) {
    costs.collectives.insert_or_assign(ranks, std::move(times));
  }
  costs.network = network ? network : costs.network;
  const std::string failure = planning::save_costs(costs, path);
  check<IoError>(failure.empty(), failure);
  print_result(concat("measured messages between ", world->size(), " ranks on ",
                      one_host ? "one host" : "several hosts", "; ", path, " has them\n"));
  return kFinished;
}

po::options_description plan_options() {
  po::options_description options("Options of --plan", help_columns());
  options.add_options()("memory", po::value<double>()->value_name("GIB"),
                        "memory that one rank may take; else what this machine has free, divided "
                        "by the ranks of a host");
  options.add_options()("hosts", po::value<int64_t>()->value_name("N"),
                        "machines like this one that the ranks run on, as many on each (1)");
  options.add_options()("as_configured",
                        "predict the configuration's own layout alone, in place of a search");
  options.add_options()("table", po::value<std::string>()->value_name("FILE.csv"),
                        "also write every layout with its numbers and settings");
  options.add_options()("costs", po::value<std::string>()->value_name("FILE.json"),
                        "times that were measured of this machine, read and added to; else "
                        "$XDG_CACHE_HOME/tapestry/costs.json or ~/.cache/tapestry/costs.json");
  options.add_options()("measure_again", "measure what that file has as well");
  options.add_options()("measure_network",
                        "under mpirun, without --plan: measure messages between these ranks, for "
                        "plans of as many on a host, or between hosts");
  return options;
}

bool asks_for_plan(const po::variables_map& arguments) {
  const bool plans = arguments.count("plan") != 0;
  if (arguments.count("measure_network") != 0) {
    check<ValueError>(!plans, "--measure_network and --plan exclude each other: measure first");
    return false;
  }
  for (const char* option : kDetails) {
    check<ValueError>(plans || arguments.count(option) == 0, "--", option,
                      " belongs to --plan RANKS, which is not given");
  }
  if (!plans) {
    return false;
  }
  for (const char* other :
       {"dry_run", "evaluate", "verify_layout", "plot_schedule", "print_config", "convert_config",
        "which_data", "which_steps", "overwrite", "replace", "resize_embeddings"}) {
    check<ValueError>(arguments.count(other) == 0, "--plan and --", other, " exclude each other");
  }
  number_of(arguments, "plan", 1);
  if (arguments.count("to") != 0) {
    check_free(arguments["to"].as<std::string>());
  }
  return true;
}

int64_t ranks_of_batch(const po::variables_map& arguments) {
  return number_of(arguments, "ranks", number_of(arguments, "plan", 1));
}

void print_plan(const po::variables_map& arguments,
                const AllConfig& config,
                const ProcessGroup& world) {
  if (world.rank() != 0) {
    return;
  }
  require_supported(config);
  const planning::Plan plan = planned(arguments, config);
  const planning::PlanOptions& asked = plan.asked;
  if (arguments.count("table") != 0) {
    write_file_atomically(arguments["table"].as<std::string>(), plan_csv(plan, config));
  }
  print_result(heading(plan) + plan_table(plan, kShown));
  if (plan.fitting.empty()) {
    const planning::RankedLayout& least = plan.too_large.front();
    throw ValueError(concat("--plan ", asked.ranks, ": no layout fits into ",
                            size_text(asked.memory), " a rank; the least needs ",
                            size_text(least.memory), " (", least.layout.text(),
                            "); more ranks or hosts, or a larger --memory GIB, would help"));
  }
  print_result(length_text(plan, config, ranks_of_batch(arguments)));
  if (arguments.count("to") == 0) {
    print_result(plan_sections(plan, config));
  } else {
    const std::string path = arguments["to"].as<std::string>();
    check_free(path);
    AtomicFile file(path);
    file.write(plan_file(plan));
    file.commit();
    print_result(concat("wrote ", path, "\n"));
  }
  print_result(ranks_line(plan));
}

}  // namespace tapestry::examples
