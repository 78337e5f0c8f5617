// Compares a parallel layout with one process: everything that both compute, in the order in which
// they compute it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/tape/observer.h"
#include "diagnosis/verify/layout_findings.h"
#include "diagnosis/verify/layout_text.h"
#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/training/step/get_model.h"

namespace tapestry {

/// The two trainings. Both see the same samples in the same micro-batches, so that `single` has
/// those of all data-parallel ranks of `layout` (single_process_overrides).
struct LayoutPair {
  AllConfig single;
  AllConfig layout;
  int64_t data_parallel_size = 1;
};

/// What the two are made of, where that is not what a run would take.
struct LayoutParts {
  /// The samples; empty: open_data.
  std::function<std::unique_ptr<data::DataSource>(const AllConfig&)> data;
  /// The model of a rank of the layout; empty: that of both trainings.
  std::function<std::unique_ptr<ParallelModel>(const AllConfig&)> model;
  /// The world that a rank of the layout sees, made of its own.
  std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup>)> world;
  /// Called on each rank of the layout when its start weights are in, and before each step (from
  /// 1).
  std::function<void(ParallelModel&)> started;
  std::function<void(ParallelModel&, int64_t step)> before_step;
  /// Told of what each rank of the layout runs in its steps; made anew for each rank.
  std::function<std::unique_ptr<Observer>()> observer;
  /// The configuration from which optimizer, schedule and training step of the layout are made.
  std::function<AllConfig(const AllConfig&)> step_config;
};

struct VerifyOptions {
  int64_t steps = 3;
  /// Compare activations, gradients and weights in each step; else activations and gradients of the
  /// first one and weights after the last one, losses and norms in all.
  bool every_step = true;
  /// How far start weights are moved off their initial values (standard deviation), so that gains
  /// of 1 and biases of 0 hide nothing. Not used with load_checkpoint.
  double jitter = 0.02;
  /// Of both trainings; empty: the GPT of the configuration, in the groups of its flags.
  ModelProvider model;
  ParamGroupsProvider param_groups;
  /// Start weights of a model by logical name, in place of load_checkpoint; not in layouts.
  std::function<LogicalState(const ParallelModel&)> start_weights;
  /// How often one process trains again to measure what rounding does (RoundingSpread).
  int64_t rounding_runs = 3;
  double timeout_seconds = 600;  ///< after which ranks give up on each other
  LayoutParts parts;
};

struct LayoutReport {
  /// Ranks share it while they run.
  std::shared_ptr<LayoutFindings> findings;
  int64_t steps = 0;
  /// Of each rank, over the bits of its losses, norms and final weights.
  std::vector<uint64_t> checksums;
  /// Choices of experts that were so close that rounding would have made them otherwise on the
  /// layout's ranks, which took those of one process (ImposedChoices).
  int64_t imposed_choices = 0;

  bool agrees() const { return findings->agree(); }
};

/// Trains both in this process, the layout on ranks that are threads, and compares in each step,
/// in this order: number of tokens; the activations that the model reports (ActivationRecorder) for
/// the first sequence of each data-parallel rank's first and last micro-batch; loss; gradients of
/// all logical tensors, from the head back to the embeddings; their norm; learning rates; updated
/// weights. Before the first step the initial and the start weights, which must have the same bits.
/// Each rank's pieces are compared with their places in the whole tensors of one process, so that a
/// difference names the rank.
///
/// Start weights are those of load_checkpoint or else initial ones, moved by `jitter`. The schedule
/// starts where its learning rate is largest, so that a warm-up does not hide updates. Bounds are
/// multiples of what rounding does to one process (RoundingSpread). Gradients that are zero but for
/// rounding are compared with the norm of all. Their weights, of which AdamW
/// makes steps of full size, are left out, and so are the keys that such a bias moves
/// (has_zero_gradient).
///
/// No more steps than the configuration trains. What either training throws is thrown.
LayoutReport compare_layout(const LayoutPair& pair, const VerifyOptions& options = {});

/// The two configurations of a layout in text (parse_layout). ConfigError or ValueError for a
/// layout that is not understood or not possible.
LayoutPair load_layout_pair(const std::string& layout, const ConfigLoader& load);

/// What --verify_layout prints: both layouts, the table of worst distances, and the first
/// difference or that there is none.
std::string report_text(const LayoutReport& report, const LayoutPair& pair);

}  // namespace tapestry
