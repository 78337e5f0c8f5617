#include "diagnosis/dump/run/measured_rounding.h"

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/tensor/error.h"
#include "diagnosis/dump/movements.h"
#include "diagnosis/dump/rounding_file.h"
#include "diagnosis/dump/run/add_dump.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

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
                      const dump::DumpConfig& dump,
                      int64_t repetitions) {
  check_rounding_can_be_measured(config, dump, repetitions);
  const std::string& folder = dump.path;
  const std::string aside = folder + "/.rounding";
  const bool first = options.world->rank() == 0;
  AllConfig again = config;
  again.training_config.output_dir = aside + "/output";
  dump::DumpConfig moved = dump;
  moved.path = aside + "/dump";
  PretrainOptions rehearsal = options;
  rehearsal.rehearsed_steps = dump.iteration.last() < std::numeric_limits<int64_t>::max()
                                  ? dump.iteration.last() + 1
                                  : total_training_iters(config);
  const auto run_with = [&](std::optional<uint64_t> draw) {
    PretrainOptions run = rehearsal;
    add_dump(again, moved, run, draw);
    pretrain(again, run);
  };
  dump::Movements movements;
  for (int64_t k = 0; k <= repetitions; ++k) {
    if (first) {
      fs::remove_all(aside);
    }
    options.world->barrier();
    if (k < repetitions) {
      log_info(concat("rounding: repetition ", k + 1, " of ", repetitions));
      run_with(static_cast<uint64_t>(k));
    } else {
      const LevelScope scope(other_level());
      log_info(concat("rounding: with the kernels of ", name_of(cpu_level())));
      run_with(std::nullopt);
    }
    options.world->barrier();
    if (first) {
      movements.add(folder, moved.path);
    }
  }
  if (first) {
    fs::remove_all(aside);
    dump::write_rounding(dump::rounding_path(folder), movements.rows());
    log_info(concat("rounding: wrote ", dump::rounding_path(folder)));
  }
}

}  // namespace tapestry
