#include "parallel_core/pipeline_parallel/pipeline_order.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

void check_shape(const PipelineShape& shape) {
  check<ValueError>(shape.stages >= 1 && shape.chunks >= 1 && shape.micro_batches >= 1,
                    "pipeline: stages, chunks and micro-batches must be at least 1, got ",
                    shape.stages, ", ", shape.chunks, ", ", shape.micro_batches);
}

std::vector<PipelinePass> passes_of_one_direction(const PipelineShape& shape, bool backward) {
  std::vector<PipelinePass> passes;
  for (int64_t begin = 0; begin < shape.micro_batches; begin += shape.stages) {
    const int64_t end = std::min<int64_t>(begin + shape.stages, shape.micro_batches);
    for (int c = 0; c < shape.chunks; ++c) {
      const int chunk = backward ? shape.chunks - 1 - c : c;
      for (int64_t i = begin; i < end; ++i) {
        passes.push_back({backward, chunk, i});
      }
    }
  }
  return passes;
}

// Finds when each pass ends on a machine without latency.
class Simulation {
 public:
  explicit Simulation(const PipelineShape& shape)
      : shape_(shape),
        ends_(static_cast<size_t>(2 * shape.stages * shape.chunks) *
              static_cast<size_t>(shape.micro_batches)) {
    std::fill(ends_.begin(), ends_.end(), -1);
  }

  double run() {
    std::vector<std::vector<PipelinePass>> orders;
    orders.reserve(static_cast<size_t>(shape_.stages));
    for (int rank = 0; rank < shape_.stages; ++rank) {
      orders.push_back(pipeline_order(shape_, rank));
    }
    std::vector<size_t> next(orders.size(), 0);
    std::vector<double> free_at(orders.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < orders.size(); ++rank) {
        while (next[rank] < orders[rank].size() &&
               advance(static_cast<int>(rank), orders[rank][next[rank]], free_at[rank])) {
          ++next[rank];
          moved = true;
        }
      }
    }
    for (size_t rank = 0; rank < orders.size(); ++rank) {
      check<RuntimeError>(next[rank] == orders[rank].size(), "pipeline: rank ", rank,
                          " would wait for ever at its pass ", next[rank]);
    }
    return *std::max_element(free_at.begin(), free_at.end());
  }

 private:
  double& end_of(bool backward, int stage, int64_t micro_batch) {
    const auto row =
        static_cast<size_t>(stage) +
        (backward ? static_cast<size_t>(shape_.stages) * static_cast<size_t>(shape_.chunks) : 0);
    return ends_[row * static_cast<size_t>(shape_.micro_batches) +
                 static_cast<size_t>(micro_batch)];
  }

  // Runs a pass unless what it needs is still missing.
  bool advance(int rank, const PipelinePass& pass, double& free_at) {
    const int stage = pass.chunk * shape_.stages + rank;
    const int neighbour = pass.backward ? stage + 1 : stage - 1;
    double start = free_at;
    if (neighbour >= 0 && neighbour < shape_.stages * shape_.chunks) {
      const double ready = end_of(pass.backward, neighbour, pass.micro_batch);
      if (ready < 0) {
        return false;
      }
      start = std::max(start, ready);
    }
    free_at = start + (pass.backward ? 2 : 1);
    end_of(pass.backward, stage, pass.micro_batch) = free_at;
    return true;
  }

  PipelineShape shape_;
  std::vector<double> ends_;
};

}  // namespace

std::vector<PipelinePass> pipeline_order(const PipelineShape& shape, int rank) {
  check_shape(shape);
  check<ValueError>(rank >= 0 && rank < shape.stages, "pipeline: there is no rank ", rank, " of ",
                    shape.stages);
  PipelineShape whole = shape;
  if (shape.chunks > 1) {
    whole.micro_batches = (shape.micro_batches + shape.stages - 1) / shape.stages * shape.stages;
  }
  std::vector<PipelinePass> order = passes_of_one_direction(whole, false);
  if (!shape.forward_only) {
    const std::vector<PipelinePass> forward = std::move(order);
    const std::vector<PipelinePass> backward = passes_of_one_direction(whole, true);
    const int behind = shape.stages - 1 - rank;
    const int wanted = shape.chunks == 1 ? behind : 2 * behind + (shape.chunks - 1) * shape.stages;
    const size_t warmup = std::min(static_cast<size_t>(wanted), forward.size());
    order.assign(forward.begin(), forward.begin() + static_cast<int64_t>(warmup));
    for (size_t i = warmup; i < forward.size(); ++i) {
      order.push_back(forward[i]);
      order.push_back(backward[i - warmup]);
    }
    order.insert(order.end(), backward.end() - static_cast<int64_t>(warmup), backward.end());
  }
  std::erase_if(order,
                [&](const PipelinePass& pass) { return pass.micro_batch >= shape.micro_batches; });
  return order;
}

int64_t max_in_flight(const PipelineShape& shape, int rank) {
  int64_t now = 0;
  int64_t most = 0;
  for (const PipelinePass& pass : pipeline_order(shape, rank)) {
    now += pass.backward ? -1 : 1;
    most = std::max(most, now);
  }
  return most;
}

double theoretical_bubble(const PipelineShape& shape) {
  check_shape(shape);
  const double busy =
      static_cast<double>(shape.micro_batches) * shape.chunks * (shape.forward_only ? 1 : 3);
  return 1 - busy / Simulation(shape).run();
}

}  // namespace tapestry
