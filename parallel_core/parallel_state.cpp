#include "parallel_core/parallel_state.h"

#include <utility>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

struct ParallelState {
  std::shared_ptr<ProcessGroup> tensor;
  std::shared_ptr<ProcessGroup> pipeline;
  std::shared_ptr<ProcessGroup> context;
  std::shared_ptr<ProcessGroup> data;
};

struct ParallelStateSlot {
  std::optional<ParallelState> state;
};

std::optional<ParallelState>& slot() {
  return RankContext::current().slot<ParallelStateSlot>().state;
}

ParallelState& state() {
  std::optional<ParallelState>& current = slot();
  check<RuntimeError>(current.has_value(),
                      "parallel state: call initialize_model_parallel() first");
  return *current;
}

}  // namespace

void initialize_model_parallel(const ModelParallelSizes& sizes,
                               std::shared_ptr<ProcessGroup> world) {
  check<RuntimeError>(!slot().has_value(),
                      "initialize_model_parallel: the groups exist already; call "
                      "destroy_model_parallel() first");
  check<RuntimeError>(world != nullptr, "initialize_model_parallel: the world is a null pointer");
  const auto check_size = [](const char* axis, int size) {
    check<RuntimeError>(size >= 1, "initialize_model_parallel: ", axis,
                        " parallel size must be at least 1, got ", size);
  };
  check_size("tensor", sizes.tensor_model_parallel_size);
  check_size("pipeline", sizes.pipeline_model_parallel_size);
  check_size("virtual pipeline", sizes.virtual_pipeline_model_parallel_size.value_or(1));
  check_size("context", sizes.context_parallel_size);
  check_size("expert", sizes.expert_model_parallel_size);
  const int model = sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size *
                    sizes.context_parallel_size;
  check<RuntimeError>(world->size() % model == 0, "initialize_model_parallel: tensor ",
                      sizes.tensor_model_parallel_size, " x pipeline ",
                      sizes.pipeline_model_parallel_size, " x context ",
                      sizes.context_parallel_size, " parallel does not divide a world of ",
                      world->size(), " ranks");
  const int data = world->size() / model;
  check<RuntimeError>(data % sizes.expert_model_parallel_size == 0,
                      "initialize_model_parallel: expert parallel size ",
                      sizes.expert_model_parallel_size, " does not divide the data parallel size ",
                      data);
  check<RuntimeError>(!sizes.virtual_pipeline_model_parallel_size.has_value() ||
                          sizes.pipeline_model_parallel_size >= 2,
                      "initialize_model_parallel: a virtual pipeline needs a pipeline parallel "
                      "size of at least 2");
  check<RuntimeError>(world->size() == 1, "initialize_model_parallel: the world has ",
                      world->size(), " ranks; only a world of one is supported so far");
  // All axes have size one: every group is the group of this process.
  slot() = ParallelState{world, world, world, std::move(world)};
}

bool model_parallel_is_initialized() { return slot().has_value(); }
void destroy_model_parallel() { slot().reset(); }

ProcessGroup& get_tensor_model_parallel_group() { return *state().tensor; }
ProcessGroup& get_pipeline_model_parallel_group() { return *state().pipeline; }
ProcessGroup& get_context_parallel_group() { return *state().context; }
ProcessGroup& get_data_parallel_group() { return *state().data; }

int get_tensor_model_parallel_world_size() { return state().tensor->size(); }
int get_tensor_model_parallel_rank() { return state().tensor->rank(); }
int get_pipeline_model_parallel_world_size() { return state().pipeline->size(); }
int get_pipeline_model_parallel_rank() { return state().pipeline->rank(); }
int get_context_parallel_world_size() { return state().context->size(); }
int get_context_parallel_rank() { return state().context->rank(); }
int get_data_parallel_world_size() { return state().data->size(); }
int get_data_parallel_rank() { return state().data->rank(); }
bool is_pipeline_first_stage() { return get_pipeline_model_parallel_rank() == 0; }
bool is_pipeline_last_stage() {
  return get_pipeline_model_parallel_rank() == get_pipeline_model_parallel_world_size() - 1;
}

}  // namespace tapestry
