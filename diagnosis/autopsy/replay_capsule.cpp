#include "diagnosis/autopsy/replay_capsule.h"

#include <bit>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <optional>
#include <vector>

#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/autopsy/capsule.h"
#include "diagnosis/autopsy/dissect_step.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/config/config.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/step/metrics.h"
#include "parallel_core/training/step/train_one_step.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

using autopsy::CapsuleRecord;

// The groups of the ranks, for as long as it lives.
class Groups {
 public:
  Groups(const ModelParallelSizes& sizes, const std::shared_ptr<ProcessGroup>& world) {
    initialize_model_parallel(sizes, world);
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  ~Groups() { destroy_model_parallel(); }
};

// What a rank finds when it runs the step.
struct Replayed {
  StepResult result;
  std::optional<autopsy::Fault> fault;
};

// Keeps what the step comes to, and has nothing updated.
class ReplayExaminer final : public StepExaminer {
 public:
  ReplayExaminer(ParallelModel& model, bool finds_place)
      : model_(model), finds_place_(finds_place) {}

  bool suspects_loss(double /*loss*/) override { return true; }
  bool examine(ComputedStep& step) override {
    replayed_.result = step.result;
    if (finds_place_) {
      const auto is_bad = [&](const StepResult& result) {
        return !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
      };
      replayed_.fault = dissect_step(step, model_, {.is_bad = is_bad}).fault;
    }
    return false;
  }
  const Replayed& replayed() const { return replayed_; }

 private:
  ParallelModel& model_;
  bool finds_place_;
  Replayed replayed_;
};

// The model with the capsule's weights, on the current rank.
Replayed run_step(const std::string& capsule,
                  const CapsuleRecord& record,
                  const AllConfig& config) {
  const std::string weights = capsule + "/weights";
  const bool in_pieces = zero_level(config) == 3 && !config.lora_config.use_lora &&
                         get_data_parallel_world_size(/*with_context_parallel=*/true) > 1;
  std::unique_ptr<ParallelModel> model;
  {
    std::optional<DeferInitialValues> deferred;
    if (in_pieces) {
      deferred.emplace(DeferInitialValues::Values::kZeros);
    }
    model = get_model(config);
  }
  if (!in_pieces) {
    load_weights(*model, config.model_config, weights);
  }
  const auto data_parallel = get_data_parallel(config, *model);
  const auto optimizer = get_optimizer(config, *model, data_parallel.get());
  if (in_pieces) {
    load_own_weights(*model, config.model_config, weights, *optimizer);
    data_parallel->parameters_changed();
  }
  const int64_t ranks = get_data_parallel_world_size();
  const auto schedule = get_optimizer_param_scheduler(config, ranks);
  TrainOneStepCell cell(*model, *optimizer, *schedule, config, data_parallel.get());
  cell.set_position(
      {.applied = record.applied, .seen = record.step - 1, .skipped = record.skipped});
  cell.grad_scaler().set_state({.scale = record.loss_scale, .good_steps = record.scale_good_steps});
  const auto rank = static_cast<size_t>(RankContext::current().rank());
  RankContext::current().default_generator().set_state(record.ranks[rank].generator);
  ReplayExaminer examiner(
      *model, record.anomaly.starts_with("nonfinite") && record.verdict == "deterministic");
  cell.set_examiner(&examiner);
  const DatasetConfig& d = config.dataset_config;
  cell(autopsy::read_capsule_batches(capsule, get_data_parallel_rank(), ranks,
                                     autopsy::capsule_rows(capsule) / (ranks * d.batch_size),
                                     d.batch_size));
  return examiner.replayed();
}

void check_machine(const std::string& capsule, const CapsuleRecord& record) {
  const autopsy::Machine here = autopsy::this_machine();
  const autopsy::Machine& there = record.ranks.front().machine;
  check<ValueError>(here.cpu_level == there.cpu_level, capsule, ": was made at the CPU level ",
                    there.cpu_level, ", this is ", here.cpu_level,
                    ", which computes other bits; set TAPESTRY_CPU_LEVEL=", there.cpu_level,
                    " on a processor that has it");
  check<ValueError>(here.blas == there.blas, capsule, ": was made with ", there.blas, ", this is ",
                    here.blas,
                    ", which computes other bits; OPENBLAS_CORETYPE chooses OpenBLAS' kernels");
}

int check_ranks(const std::string& capsule, const CapsuleRecord& record, int world) {
  const auto ranks = static_cast<int>(record.ranks.size());
  check<ValueError>(world == 1 || world == ranks, capsule, ": is of ", ranks,
                    " ranks, this job has ", world,
                    "; start it with one process, or with mpirun -n ", ranks);
  for (const autopsy::CapsuleRank& rank : record.ranks) {
    check<ValueError>(world == ranks || rank.machine.threads == 1, capsule, ": its ranks had ",
                      rank.machine.threads,
                      " threads each, as ranks of one process cannot; start it with mpirun -n ",
                      ranks, " pretrain_gpt --replay ", capsule);
  }
  return ranks;
}

bool same_number(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

std::string compared_line(const char* what, const std::string& recorded, const std::string& here) {
  return concat("  ", what, "  recorded ", recorded, ", here ", here, "\n");
}

std::string with_bits(double value) {
  return concat(without_nan_sign(value), " (bits ", autopsy::bits_text(value), ")");
}

ReplayReport compare(const CapsuleRecord& record, const Replayed& found) {
  const bool finds_place = found.fault.has_value();
  const std::string place = finds_place ? fault_place(*found.fault) : std::string();
  ReplayReport report;
  report.returns = same_number(record.loss, found.result.loss) &&
                   (record.forward_only || same_number(record.grad_norm, found.result.grad_norm)) &&
                   (!finds_place || place == record.place);
  report.text = concat("step ", record.step, ", ", record.layout, ": ", record.anomaly, ", ",
                       record.verdict, "\n");
  report.text += compared_line("loss ", with_bits(record.loss), with_bits(found.result.loss));
  if (!record.forward_only) {
    report.text +=
        compared_line("norm ", with_bits(record.grad_norm), with_bits(found.result.grad_norm));
  }
  if (finds_place) {
    const auto or_none = [](const std::string& text) { return text.empty() ? "none" : text; };
    report.text += compared_line("place", or_none(record.place), or_none(place));
    report.text += concat(autopsy::fault_sentence(*found.fault), "\n");
  }
  if (report.returns) {
    report.text += "The recorded bits return.\n";
  } else if (record.verdict == "transient") {
    report.text +=
        "The recorded bits do not return: they did not when the step was run again either.\n";
  } else {
    report.text += "The recorded bits do not return.\n";
  }
  return report;
}

}  // namespace

ReplayReport replay_capsule(const std::string& capsule,
                            const std::shared_ptr<ProcessGroup>& world) {
  const CapsuleRecord record = autopsy::read_capsule_record(capsule);
  check_machine(capsule, record);
  const int ranks = check_ranks(capsule, record, world->size());
  const AllConfig config = init_configs_from_yaml(capsule + "/config.yaml");
  check_world_size(config.parallel_config, ranks);
  check_expert_ranks(config, ranks);
  std::mutex mutex;
  std::optional<Replayed> first;
  const auto body = [&](const std::shared_ptr<ProcessGroup>& group) {
    const Groups groups(model_parallel_sizes(config.parallel_config), group);
    Replayed own = run_step(capsule, record, config);
    if (group->rank() == 0 || group->size() == world->size()) {
      const std::lock_guard<std::mutex> lock(mutex);
      first = std::move(own);
    }
  };
  if (world->size() == ranks) {
    set_num_threads(record.ranks[static_cast<size_t>(world->rank())].machine.threads);
    body(world);
  } else {
    run_thread_ranks(ranks, body);
  }
  return compare(record, *first);
}

}  // namespace tapestry
