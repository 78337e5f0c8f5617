#include "parallel_core/training/measured_rounding.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/kernels/cpu.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dump/dump_reader.h"
#include "parallel_core/dump/logical_tensor.h"
#include "parallel_core/dump/rounding_file.h"
#include "parallel_core/dump/tensor_distance.h"
#include "parallel_core/training/logging.h"
#include "parallel_core/training/resume.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

class Movements {
 public:
  // The largest distances between the dump of the run and that of a repetition.
  void add(const std::string& run, const std::string& repetition) {
    const dump::DumpReader ours(run);
    const dump::DumpReader theirs(repetition);
    for (const int64_t iteration : ours.iterations()) {
      const auto expected = dump::logical_tensors(ours.tensors(iteration));
      const auto moved = dump::logical_tensors(theirs.tensors(iteration));
      check<RuntimeError>(expected.size() == moved.size(), "measure_rounding: iteration ",
                          iteration, " has ", expected.size(), " tensors, and ", moved.size(),
                          " when it runs again");
      for (size_t i = 0; i < expected.size(); ++i) {
        add(iteration, expected[i], moved[i]);
      }
    }
  }

  std::vector<dump::RoundingRow> rows() const {
    std::vector<dump::RoundingRow> out;
    for (const auto& [key, distance] : largest_) {
      const auto& [iteration, pass, name, input, slot] = key;
      out.push_back({.op_name = name,
                     .input = input,
                     .slot = slot,
                     .pass = pass,
                     .iteration = iteration,
                     .distance = distance});
    }
    return out;
  }

 private:
  using Key = std::tuple<int64_t, std::string, std::string, bool, int64_t>;

  void add(int64_t iteration,
           const dump::LogicalTensor& expected,
           const dump::LogicalTensor& moved) {
    const dump::DumpRow& row = expected.row();
    const bool floating = row.data_type.starts_with("float") || row.data_type.starts_with("bfloat");
    if (!floating || !expected.problem().empty() || !expected.has_values() || !moved.has_values()) {
      return;
    }
    check<RuntimeError>(row.op_name == moved.row().op_name, "measure_rounding: '", row.op_name,
                        "' is '", moved.row().op_name, "' when it runs again");
    dump::DistanceSum sum(dump::distance_unit(row.data_type));
    const dump::JoinedTensor a = expected.load();
    const dump::JoinedTensor b = moved.load();
    for (size_t i = 0; i < a.values.size(); ++i) {
      sum.add(b.values[i], a.values[i]);
    }
    double& largest = largest_[{iteration, row.pass, row.op_name, row.input, row.slot}];
    if (std::isfinite(sum.distance())) {  // a value that overflows now and then has no bound
      largest = std::max(largest, sum.distance());
    }
  }

  std::map<Key, double> largest_;
};

CpuLevel other_level() {
  return cpu_level() > CpuLevel::kAvx2 ? CpuLevel::kAvx2 : CpuLevel::kPortable;
}

class LevelScope {
 public:
  explicit LevelScope(CpuLevel level) : previous_(cpu_level()) { set_cpu_level(level); }
  LevelScope(const LevelScope&) = delete;
  LevelScope& operator=(const LevelScope&) = delete;
  ~LevelScope() { set_cpu_level(previous_); }

 private:
  CpuLevel previous_;
};

}  // namespace

void check_rounding_can_be_measured(const AllConfig& config,
                                    const dump::DumpConfig& dump,
                                    int64_t repetitions) {
  check<ValueError>(repetitions >= 1, "--measure_rounding ", repetitions,
                    ": expected at least one repetition");
  check<ValueError>(dump.saves_values(),
                    "--measure_rounding: the dump has statistics alone, and movements are those "
                    "of tensors; set saved_data to \"tensor\" or \"full\"");
  check<ValueError>(dump.iteration.last() < std::numeric_limits<int64_t>::max() ||
                        total_training_iters(config) > 0,
                    "--measure_rounding: the dump covers all iterations of a run without a number "
                    "of steps; name some in \"iteration\"");
  check<ValueError>(!resumes_in_place(config.training_config),
                    "--measure_rounding: a run that goes on from a checkpoint of its own cannot be "
                    "repeated; load that checkpoint with training_config.load_checkpoint into "
                    "another output_dir");
}

void measure_rounding(const AllConfig& config,
                      const PretrainOptions& options,
                      int64_t repetitions) {
  check_rounding_can_be_measured(config, *options.dump, repetitions);
  const std::string folder = options.dump->path;
  const std::string aside = folder + "/.rounding";
  const bool first = options.world->rank() == 0;
  AllConfig again = config;
  again.training_config.output_dir = aside + "/output";
  PretrainOptions rehearsal = options;
  rehearsal.dump->path = aside + "/dump";
  rehearsal.rehearsed_steps = options.dump->iteration.last() < std::numeric_limits<int64_t>::max()
                                  ? options.dump->iteration.last() + 1
                                  : total_training_iters(config);
  Movements movements;
  for (int64_t k = 0; k <= repetitions; ++k) {
    if (first) {
      fs::remove_all(aside);
    }
    options.world->barrier();
    if (k < repetitions) {
      log_info(concat("rounding: repetition ", k + 1, " of ", repetitions));
      rehearsal.rounding_draw = static_cast<uint64_t>(k);
      pretrain(again, rehearsal);
    } else {
      const LevelScope scope(other_level());
      log_info(concat("rounding: with the kernels of ", name_of(cpu_level())));
      rehearsal.rounding_draw.reset();
      pretrain(again, rehearsal);
    }
    options.world->barrier();
    if (first) {
      movements.add(folder, rehearsal.dump->path);
    }
  }
  if (first) {
    fs::remove_all(aside);
    dump::write_rounding(dump::rounding_path(folder), movements.rows());
    log_info(concat("rounding: wrote ", dump::rounding_path(folder)));
  }
}

}  // namespace tapestry
