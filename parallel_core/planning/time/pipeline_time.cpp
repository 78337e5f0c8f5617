#include "parallel_core/planning/time/pipeline_time.h"

#include <algorithm>
#include <limits>

#include "parallel_core/pipeline_parallel/pipeline_order.h"

namespace tapestry::planning {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// One stage's way through its passes.
struct StageProgress {
  std::vector<PipelinePass> order;
  size_t next = 0;
  double left = 0;  // of the pass that runs
  bool runs = false;
};

class PipelineRun {
 public:
  PipelineRun(const PipelineWorkload& work, int64_t micro_batches)
      : work_(work),
        stages_(static_cast<int>(work.passes.size())),
        chunks_(static_cast<int>(work.passes.front().size())) {
    for (int stage = 0; stage < stages_; ++stage) {
      progress_.push_back(
          {.order = pipeline_order(
               {.stages = stages_, .chunks = chunks_, .micro_batches = micro_batches}, stage)});
    }
    for (auto* done : {&forward_done_, &backward_done_}) {
      done->assign(static_cast<size_t>(stages_) * static_cast<size_t>(chunks_),
                   std::vector<double>(static_cast<size_t>(micro_batches), kNever));
    }
  }

  double run() {
    double now = 0;
    while (true) {
      double next_start = kNever;
      int64_t running = 0;
      for (int stage = 0; stage < stages_; ++stage) {
        next_start = std::min(next_start, start(stage, now));
        running += progress_[static_cast<size_t>(stage)].runs ? 1 : 0;
      }
      if (running == 0 && next_start == kNever) {
        return now;
      }
      const double turns =
          std::max(1.0, static_cast<double>(running * work_.ranks_of_stage) / work_.cores);
      const double rate = 1 / (1 + work_.crowding * (turns - 1));
      double until = next_start;
      for (const StageProgress& stage : progress_) {
        until = stage.runs ? std::min(until, now + stage.left / rate) : until;
      }
      for (int stage = 0; stage < stages_; ++stage) {
        advance(stage, (until - now) * rate, until);
      }
      now = until;
    }
  }

 private:
  // Starts the stage's next pass if it can; else when it can, as far as that is known.
  double start(int stage, double now) {
    StageProgress& own = progress_[static_cast<size_t>(stage)];
    if (own.runs || own.next == own.order.size()) {
      return kNever;
    }
    const PipelinePass& pass = own.order[own.next];
    const double ready = ready_at(stage, pass);
    if (ready > now) {
      return ready;
    }
    const PassTime& time =
        work_.passes[static_cast<size_t>(stage)][static_cast<size_t>(pass.chunk)];
    own.left = pass.backward ? time.backward : time.forward;
    own.runs = true;
    return kNever;
  }

  // Which part of the model, in its order, the stage works on.
  int part_of(int stage, const PipelinePass& pass) const { return pass.chunk * stages_ + stage; }

  double ready_at(int stage, const PipelinePass& pass) const {
    const int part = part_of(stage, pass);
    const auto micro = static_cast<size_t>(pass.micro_batch);
    if (!pass.backward) {
      return part == 0 ? 0 : forward_done_[static_cast<size_t>(part - 1)][micro] + message();
    }
    return part == stages_ * chunks_ - 1
               ? forward_done_[static_cast<size_t>(part)][micro]
               : backward_done_[static_cast<size_t>(part) + 1][micro] + message();
  }

  double message() const { return stages_ > 1 ? work_.message : 0; }

  void advance(int stage, double done, double now) {
    StageProgress& own = progress_[static_cast<size_t>(stage)];
    if (!own.runs) {
      return;
    }
    own.left -= done;
    if (own.left > 1e-12) {
      return;
    }
    const PipelinePass& pass = own.order[own.next++];
    auto& all = pass.backward ? backward_done_ : forward_done_;
    const auto part = static_cast<size_t>(part_of(stage, pass));
    all[part][static_cast<size_t>(pass.micro_batch)] = now;
    own.runs = false;
  }

  const PipelineWorkload& work_;
  int stages_;
  int chunks_;
  std::vector<StageProgress> progress_;
  std::vector<std::vector<double>> forward_done_;  // [part][micro-batch]
  std::vector<std::vector<double>> backward_done_;
};

}  // namespace

double pipeline_seconds(const PipelineWorkload& work) {
  const auto stages = static_cast<int64_t>(work.passes.size());
  // Once the pipeline is full, every round of micro-batches takes the same time.
  const int64_t some = 4 * stages;
  if (work.micro_batches <= 2 * some) {
    return PipelineRun(work, work.micro_batches).run();
  }
  const double once = PipelineRun(work, some).run();
  const double twice = PipelineRun(work, 2 * some).run();
  return twice + (twice - once) * static_cast<double>(work.micro_batches - 2 * some) /
                     static_cast<double>(some);
}

}  // namespace tapestry::planning
