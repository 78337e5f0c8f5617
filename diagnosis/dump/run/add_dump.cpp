#include "diagnosis/dump/run/add_dump.h"

#include <memory>

#include "autograd/tensor/error.h"
#include "diagnosis/dump/run/rounded_steps.h"
#include "diagnosis/dump/run/tensor_dump.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

void add_dump(const AllConfig& config,
              const dump::DumpConfig& dump,
              PretrainOptions& options,
              std::optional<uint64_t> rounding_draw) {
  if (rounding_draw) {  // before the dump, which is to see what was moved
    options.observers.emplace_back(
        [draw = *rounding_draw, iterations = dump.iteration](TrainOneStepCell&) {
          return std::make_unique<RoundedSteps>(draw, iterations);
        });
  }
  const int64_t rank_on_host = options.rank_on_host.value_or(options.world->rank());
  options.observers.emplace_back([&config, dump, rank_on_host](TrainOneStepCell& cell) {
    auto observer = std::make_unique<TensorDump>(cell, config, dump, rank_on_host);
    log_info(concat("dumps tensors to ", dump.path));
    return observer;
  });
}

}  // namespace tapestry
