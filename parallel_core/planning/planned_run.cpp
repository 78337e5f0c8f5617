#include "parallel_core/planning/planned_run.h"

#include <charconv>
#include <string_view>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/training/checkpoints/resume.h"

namespace tapestry::planning {

std::optional<int64_t> data_parallel_size_of(const std::string& layout_line) {
  constexpr std::string_view kStart = "dp ";
  if (!layout_line.starts_with(kStart)) {
    return std::nullopt;
  }
  int64_t size = 0;
  const char* const end = layout_line.data() + layout_line.size();
  const auto read = std::from_chars(layout_line.data() + kStart.size(), end, size);
  const bool whole = read.ec == std::errc() && (read.ptr == end || *read.ptr == ' ');
  return whole && size > 0 ? std::optional(size) : std::nullopt;
}

PlannedRun planned_run(const AllConfig& config, int64_t ranks) {
  PlannedRun run;
  std::optional<int64_t> written;
  if (config.training_config.resume_training.on) {
    const auto resume =
        find_resume_point(config, *single_process_group(), is_started_again(config.training_config),
                          [](const std::string&) {});
    if (resume) {
      written = data_parallel_size_of(resume->trainer.layout);
      run.steps_done = resume->trainer.position.seen;
    }
  }
  const ModelParallelConfig& p = config.parallel_config;
  if (p.data_parallel_size || written) {
    run.data_parallel_size = p.data_parallel_size ? *p.data_parallel_size : *written;
    return run;
  }
  const int64_t model =
      p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size;
  check<ValueError>(ranks % model == 0, "parallel_config: the layout of the configuration needs ",
                    model, " ranks or a multiple of it, so the batch of a step that it has on ",
                    ranks, ranks == 1 ? " rank" : " ranks",
                    " is not known; say with --ranks N how many ranks it is for, or set "
                    "parallel_config.data_parallel_size");
  run.data_parallel_size = ranks / model;
  return run;
}

}  // namespace tapestry::planning
