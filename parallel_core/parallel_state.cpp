#include "parallel_core/parallel_state.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/rank_generator.h"

namespace tapestry {

namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct ParallelState {
  Group world;
  Group tensor, pipeline, context, data, data_context;
  Group tensor_pipeline, tensor_data, tensor_data_context, tensor_context;
  Group expert, expert_tensor, tensor_expert, tensor_expert_pipeline, data_modulo_expert;
  Group embedding, position_embedding;  // null on ranks that are not members
  std::optional<int> virtual_size;
  std::optional<int> virtual_rank;
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

int expert_tensor_size(const ModelParallelSizes& sizes) {
  return sizes.expert_tensor_parallel_size.value_or(sizes.tensor_model_parallel_size);
}

void check_sizes(const ModelParallelSizes& sizes, int world_size) {
  const auto check_size = [](const char* axis, int size) {
    check<RuntimeError>(size >= 1, "initialize_model_parallel: ", axis,
                        " parallel size must be at least 1, got ", size);
  };
  check_size("tensor", sizes.tensor_model_parallel_size);
  check_size("pipeline", sizes.pipeline_model_parallel_size);
  check_size("virtual pipeline", sizes.virtual_pipeline_model_parallel_size.value_or(1));
  check_size("context", sizes.context_parallel_size);
  check_size("expert", sizes.expert_model_parallel_size);
  check_size("expert tensor", expert_tensor_size(sizes));
  const int64_t model = int64_t{sizes.tensor_model_parallel_size} *
                        sizes.pipeline_model_parallel_size * sizes.context_parallel_size;
  check<RuntimeError>(world_size % model == 0, "initialize_model_parallel: tensor ",
                      sizes.tensor_model_parallel_size, " x pipeline ",
                      sizes.pipeline_model_parallel_size, " x context ",
                      sizes.context_parallel_size, " parallel does not divide a world of ",
                      world_size, world_size == 1 ? " rank" : " ranks");
  const int64_t data = world_size / model;
  const int ep = sizes.expert_model_parallel_size;
  const int etp = expert_tensor_size(sizes);
  if (etp == sizes.tensor_model_parallel_size && sizes.context_parallel_size == 1) {
    check<RuntimeError>(data % ep == 0, "initialize_model_parallel: expert parallel size ", ep,
                        " does not divide the data parallel size ", data);
  }
  const int64_t stage = world_size / sizes.pipeline_model_parallel_size;
  check<RuntimeError>(stage % (int64_t{etp} * ep) == 0,
                      "initialize_model_parallel: expert parallel size ", ep,
                      " x expert tensor parallel size ", etp, " does not divide the ", stage,
                      stage == 1 ? " rank" : " ranks", " of a pipeline stage (tensor ",
                      sizes.tensor_model_parallel_size, " x context ", sizes.context_parallel_size,
                      " x data ", data, "); lower one of the two");
  check<RuntimeError>(!sizes.virtual_pipeline_model_parallel_size.has_value() ||
                          sizes.pipeline_model_parallel_size >= 2,
                      "initialize_model_parallel: a virtual pipeline needs a pipeline parallel "
                      "size of at least 2");
}

// The axes of the order, with those that were left out at its end.
std::vector<ParallelAxis> ordered_axes(const ModelParallelSizes& sizes, int data_size) {
  const std::vector<ParallelAxis> known = {{"tp", sizes.tensor_model_parallel_size},
                                           {"cp", sizes.context_parallel_size},
                                           {"ep", sizes.expert_model_parallel_size},
                                           {"dp", data_size},
                                           {"pp", sizes.pipeline_model_parallel_size}};
  const auto position = [](const std::vector<ParallelAxis>& axes, const std::string& name) {
    return std::find_if(axes.begin(), axes.end(),
                        [&](const ParallelAxis& axis) { return axis.name == name; }) -
           axes.begin();
  };
  const std::string where = concat("initialize_model_parallel: order '", sizes.order, "' ");
  check<RuntimeError>(!sizes.order.empty(), where, "is empty");
  std::vector<ParallelAxis> axes;
  for (const std::string& name : split_axes(sizes.order)) {
    const auto found = position(known, name);
    check<RuntimeError>(found < std::ssize(known), where, "has the unknown axis '", name,
                        "'; axes are tp, cp, ep, dp, pp");
    check<RuntimeError>(position(axes, name) == std::ssize(axes), where, "repeats ", name);
    axes.push_back(known[static_cast<size_t>(found)]);
  }
  const auto expert = position(axes, "ep");
  const auto data = position(axes, "dp");
  if (expert < std::ssize(axes) && data < std::ssize(axes)) {
    check<RuntimeError>(expert - data == 1 || data - expert == 1, where,
                        "has ep away from dp, whose ranks it divides");
  }
  for (const ParallelAxis& axis : known) {
    if (position(axes, axis.name) == std::ssize(axes)) {
      // Without ep in the order, dp holds all its ranks; the two are one axis.
      check<RuntimeError>(axis.size == 1, where, "lacks ", axis.name, ", whose size is ",
                          axis.size);
      axes.push_back(axis);
    }
  }
  return axes;
}

std::vector<ParallelAxis> without_experts(std::vector<ParallelAxis> axes) {
  std::erase_if(axes, [](const ParallelAxis& axis) { return axis.name == "ep"; });
  return axes;
}

// The axes along which the ranks of a stage are split for the experts.
std::vector<ParallelAxis> expert_axes(const std::vector<ParallelAxis>& axes,
                                      const ModelParallelSizes& sizes,
                                      int stage_size) {
  const int ep = sizes.expert_model_parallel_size;
  const int etp = expert_tensor_size(sizes);
  std::vector<ParallelAxis> out;
  for (const ParallelAxis& axis : axes) {
    if (axis.name == "tp") {
      out.push_back({"etp", etp});
    } else if (axis.name == "ep") {
      out.push_back({"ep", ep});
    } else if (axis.name == "dp") {
      out.push_back({"edp", stage_size / (ep * etp)});
    }
  }
  return out;
}

Group make_group(ProcessGroup& world, const std::string& axes, const std::vector<int>& ranks) {
  constexpr size_t kNamed = 8;  // of more, the first two and the last show the pattern
  std::string name = axes;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool is_named = ranks.size() <= kNamed || i < 2 || i + 1 == ranks.size();
    name += is_named ? "-" + std::to_string(ranks[i]) : std::string(i == 2 ? "-.." : "");
  }
  return world.new_group(ranks, name);
}

}  // namespace

void initialize_model_parallel(const ModelParallelSizes& sizes,
                               std::shared_ptr<ProcessGroup> world) {
  check<RuntimeError>(!slot().has_value(),
                      "initialize_model_parallel: the groups exist already; call "
                      "destroy_model_parallel() first");
  check<RuntimeError>(world != nullptr, "initialize_model_parallel: the world is a null pointer");
  check_sizes(sizes, world->size());
  const int data_size =
      world->size() / (sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size *
                       sizes.context_parallel_size);
  const std::vector<ParallelAxis> axes = ordered_axes(sizes, data_size);
  const RankGenerator dense(without_experts(axes));
  const int rank = world->rank();
  const std::vector<int> stage = dense.group_of(rank, "tp-cp-dp");
  const RankGenerator experts(expert_axes(axes, sizes, static_cast<int>(stage.size())));
  const auto dense_group = [&](const char* names) {
    return make_group(*world, names, dense.group_of(rank, names));
  };
  // Members of the grid of experts, of a stage that is given by its ranks.
  const auto place = static_cast<int>(std::find(stage.begin(), stage.end(), rank) - stage.begin());
  const auto of_stage = [&](const std::vector<int>& ranks, const char* names) {
    std::vector<int> members = experts.group_of(place, names);
    for (int& member : members) {
      member = ranks[static_cast<size_t>(member)];
    }
    return members;
  };
  const auto expert_group = [&](const char* label, const char* names) {
    return make_group(*world, label, of_stage(stage, names));
  };

  ParallelState state;
  state.tensor = dense_group("tp");
  state.pipeline = dense_group("pp");
  state.context = dense_group("cp");
  state.data = dense_group("dp");
  state.data_context = dense_group("dp-cp");
  state.tensor_pipeline = dense_group("tp-pp");
  state.tensor_data = dense_group("tp-dp");
  state.tensor_data_context = dense_group("tp-dp-cp");
  state.tensor_context = dense_group("tp-cp");
  state.expert = expert_group("ep", "ep");
  state.expert_tensor = expert_group("etp", "etp");
  state.tensor_expert = expert_group("tp-ep", "etp-ep");
  std::vector<int> one_copy;
  for (const int other : state.pipeline->world_ranks()) {
    const std::vector<int> members = of_stage(dense.group_of(other, "tp-cp-dp"), "etp-ep");
    one_copy.insert(one_copy.end(), members.begin(), members.end());
  }
  std::sort(one_copy.begin(), one_copy.end());
  state.tensor_expert_pipeline = make_group(*world, "tp-ep-pp", one_copy);
  state.data_modulo_expert = expert_group("dp-independent_ep", "edp");
  const std::vector<int>& stages = state.pipeline->world_ranks();
  std::vector<int> ends = {stages.front()};
  if (stages.size() > 1) {
    ends.push_back(stages.back());
  }
  if (std::find(ends.begin(), ends.end(), rank) != ends.end()) {
    state.embedding = make_group(*world, "embedding", ends);
  }
  if (rank == stages.front()) {
    state.position_embedding = make_group(*world, "position_embedding", {rank});
  }
  state.virtual_size = sizes.virtual_pipeline_model_parallel_size;
  if (state.virtual_size) {
    state.virtual_rank = 0;
  }
  state.world = std::move(world);
  slot() = std::move(state);
}

bool model_parallel_is_initialized() { return slot().has_value(); }
void destroy_model_parallel() { slot().reset(); }

ProcessGroup& get_world_group() { return *state().world; }
ProcessGroup& get_tensor_model_parallel_group() { return *state().tensor; }
ProcessGroup& get_pipeline_model_parallel_group() { return *state().pipeline; }
ProcessGroup& get_context_parallel_group() { return *state().context; }
ProcessGroup& get_data_parallel_group(bool with_context_parallel) {
  return with_context_parallel ? *state().data_context : *state().data;
}
ProcessGroup& get_expert_model_parallel_group() { return *state().expert; }
ProcessGroup& get_expert_tensor_parallel_group() { return *state().expert_tensor; }
ProcessGroup& get_model_parallel_group(bool with_expert_parallel) {
  return with_expert_parallel ? *state().tensor_expert_pipeline : *state().tensor_pipeline;
}
ProcessGroup& get_tensor_and_data_parallel_group(bool with_context_parallel) {
  return with_context_parallel ? *state().tensor_data_context : *state().tensor_data;
}
ProcessGroup& get_tensor_and_context_parallel_group() { return *state().tensor_context; }
ProcessGroup& get_tensor_and_expert_parallel_group() { return *state().tensor_expert; }
ProcessGroup& get_data_modulo_expert_parallel_group() { return *state().data_modulo_expert; }

ProcessGroup& get_embedding_group() {
  check<RuntimeError>(state().embedding != nullptr, "get_embedding_group: pipeline rank ",
                      get_pipeline_model_parallel_rank(),
                      " holds neither the embedding nor the output layer");
  return *state().embedding;
}
ProcessGroup& get_position_embedding_group() {
  check<RuntimeError>(state().position_embedding != nullptr,
                      "get_position_embedding_group: pipeline rank ",
                      get_pipeline_model_parallel_rank(), " holds no position embedding");
  return *state().position_embedding;
}

int get_tensor_model_parallel_world_size() { return state().tensor->size(); }
int get_tensor_model_parallel_rank() { return state().tensor->rank(); }
int get_pipeline_model_parallel_world_size() { return state().pipeline->size(); }
int get_pipeline_model_parallel_rank() { return state().pipeline->rank(); }
int get_context_parallel_world_size() { return state().context->size(); }
int get_context_parallel_rank() { return state().context->rank(); }
int get_data_parallel_world_size(bool with_context_parallel) {
  return get_data_parallel_group(with_context_parallel).size();
}
int get_data_parallel_rank(bool with_context_parallel) {
  return get_data_parallel_group(with_context_parallel).rank();
}
int get_expert_model_parallel_world_size() { return state().expert->size(); }
int get_expert_model_parallel_rank() { return state().expert->rank(); }
int get_expert_tensor_parallel_world_size() { return state().expert_tensor->size(); }
int get_expert_tensor_parallel_rank() { return state().expert_tensor->rank(); }
int get_tensor_and_expert_parallel_world_size() { return state().tensor_expert->size(); }
int get_tensor_and_context_parallel_world_size() { return state().tensor_context->size(); }
int get_data_modulo_expert_parallel_world_size() { return state().data_modulo_expert->size(); }
int get_data_modulo_expert_parallel_rank() { return state().data_modulo_expert->rank(); }

std::optional<int> get_virtual_pipeline_model_parallel_world_size() { return state().virtual_size; }
std::optional<int> get_virtual_pipeline_model_parallel_rank() { return state().virtual_rank; }
void set_virtual_pipeline_model_parallel_rank(int rank) {
  ParallelState& current = state();
  check<RuntimeError>(current.virtual_size.has_value(),
                      "set_virtual_pipeline_model_parallel_rank: there is no virtual pipeline");
  check<RuntimeError>(rank >= 0 && rank < *current.virtual_size,
                      "set_virtual_pipeline_model_parallel_rank: ", rank, " is not below ",
                      *current.virtual_size);
  current.virtual_rank = rank;
}

bool is_pipeline_first_stage(bool ignore_virtual) {
  return (ignore_virtual || state().virtual_rank.value_or(0) == 0) &&
         get_pipeline_model_parallel_rank() == 0;
}
bool is_pipeline_last_stage(bool ignore_virtual) {
  const ParallelState& current = state();
  const int last = current.virtual_size.value_or(1) - 1;
  return (ignore_virtual || current.virtual_rank.value_or(0) == last) &&
         current.pipeline->rank() == current.pipeline->size() - 1;
}
bool is_rank_in_embedding_group(bool ignore_virtual) {
  return is_pipeline_first_stage(ignore_virtual) || is_pipeline_last_stage(ignore_virtual);
}

int get_pipeline_model_parallel_first_rank() { return state().pipeline->world_ranks().front(); }
int get_pipeline_model_parallel_last_rank() { return state().pipeline->world_ranks().back(); }
int get_pipeline_model_parallel_prev_rank() {
  const ProcessGroup& stages = *state().pipeline;
  return stages
      .world_ranks()[static_cast<size_t>((stages.rank() + stages.size() - 1) % stages.size())];
}
int get_pipeline_model_parallel_next_rank() {
  const ProcessGroup& stages = *state().pipeline;
  return stages.world_ranks()[static_cast<size_t>((stages.rank() + 1) % stages.size())];
}
std::vector<int> get_cp_global_ranks() { return state().context->world_ranks(); }

}  // namespace tapestry
