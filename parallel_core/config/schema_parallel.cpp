// Rows of `parallel_config`.
#include "parallel_core/config/schema.h"

namespace tapestry::config {
namespace parallel_section {
namespace {

using P = ModelParallelConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::parallel_config, Path...>();

constexpr std::string_view kExperts = "mixtures of experts are not built yet";
constexpr std::string_view kRecompute = "recomputation of activations is not built yet";
constexpr std::string_view kHetero =
    "all stages have the same number of ranks; num_layer_list and offset give them different "
    "numbers of layers";

std::string check_layer_table(const Value& value) {
  const auto& list = value.as<Value::List>();
  size_t width = 0;
  for (const Value& row : list) {
    if (row.is<Value::List>() != list.front().is<Value::List>()) {
      return "mixes numbers and rows";
    }
    if (!row.is<Value::List>()) {
      continue;
    }
    const size_t size = row.as<Value::List>().size();
    if (width != 0 && size != width) {
      return "has rows of different lengths";
    }
    if (size == 0) {
      return "has an empty row";
    }
    width = size;
  }
  return {};
}

std::string check_counts(const Value& value) {
  for (const Value& item : value.as<Value::List>()) {
    if (item.is<Value::List>()) {
      if (std::string error = check_counts(item); !error.empty()) {
        return error;
      }
    } else if (item.as<int64_t>() < 0) {
      return "a number of layers cannot be negative, got " + to_yaml(item);
    }
  }
  return value.as<Value::List>().empty() ? "" : check_layer_table(value);
}

std::string check_layer_list(const Value& value) {
  return value.as<Value::List>().empty() ? "must not be empty" : check_counts(value);
}

std::string check_offset(const Value& value) {
  return value.as<Value::List>().empty() ? "must not be empty" : check_layer_table(value);
}

constexpr Key kKeys[] = {
    {.name = "tensor_model_parallel_size",
     .field = f<&P::tensor_model_parallel_size>,
     .check = above(0),
     .doc = "Ranks that share each layer's matrices. Must divide the attention heads and "
            "`ffn_hidden_size`, and divide or be a multiple of the query groups."},
    {.name = "pipeline_model_parallel_size",
     .field = f<&P::pipeline_model_parallel_size>,
     .check = above(0),
     .doc = "Pipeline stages: ranks that each hold some of the layers. The first also has the "
            "embeddings, the last the head."},
    {.name = "context_parallel_size",
     .field = f<&P::context_parallel_size>,
     .check = above(0),
     .doc = "Ranks that share each sequence: each has two chunks of it, an early and a late one. "
            "`seq_length` must be a multiple of twice as many."},
    {.name = "expert_model_parallel_size",
     .field = f<&P::expert_model_parallel_size>,
     .check = above(0),
     .accepted = "1",
     .reason = kExperts,
     .doc = "Ranks that share the experts."},
    {.name = "virtual_pipeline_model_parallel_size",
     .field = f<&P::virtual_pipeline_model_parallel_size>,
     .check = above(0),
     .doc = "Model chunks of one pipeline stage, which are interleaved; null or 1: 1F1B."},
    {.name = "sequence_parallel",
     .field = f<&P::sequence_parallel>,
     .doc = "Divide activations outside the matrices along the sequence, whose length must be a "
            "multiple of `tensor_model_parallel_size`. Has no effect with one tensor-parallel "
            "rank."},
    {.name = "recv_dtype",
     .field = f<&P::recv_dtype>,
     .doc =
         "Known for compatibility: between pipeline stages the residual stream is sent as it is. "
         "Always `model_config.compute_dtype`; another value is replaced, with a note."},
    {.name = "zero_level",
     .field = f<&P::zero_level>,
     .check = one_of("z1|z2|z3"),
     .doc =
         "What each data-parallel rank keeps only its share of: optimizer state (z1, the same as "
         "`training_config.use_distributed_optimizer`), also gradients (z2), also weights "
         "between their uses (z3). Has no effect with one data-parallel rank."},
    {.name = "standalone_embedding_stage",
     .field = f<&P::standalone_embedding_stage>,
     .doc = "The first pipeline stage holds the embedding and no layers. Without interleaving; "
            "`num_layer_list` and `offset` then have a number for each of the other stages."},
    {.name = "overlap_grad_reduce",
     .field = f<&P::overlap_grad_reduce>,
     .accepted = "False",
     .reason = "set training_config.overlap_grad_reduce, the key that counts",
     .doc = "Known for compatibility."},
    {.name = "gradient_accumulation_fusion",
     .field = f<&P::gradient_accumulation_fusion>,
     .doc =
         "Known for compatibility: matrix products always add weight gradients straight into the "
         "accumulated ones."},
    {.name = "overlap_p2p_comm",
     .field = f<&P::overlap_p2p_comm>,
     .doc =
         "Receive a message from another stage while computing, one ahead of the pass that needs "
         "it. Sending never waits. Has no effect with one stage."},
    {.name = "use_cpu_initialization",
     .field = f<&P::use_cpu_initialization>,
     .doc = "Initialise weights on the CPU. Always so here."},
    {.name = "deterministic_mode",
     .field = f<&P::deterministic_mode>,
     .doc = "Same bits every run. Always so here."},
    {.name = "num_layer_list",
     .field = f<&P::num_layer_list>,
     .check = satisfies(check_layer_list, "layers per stage, or one such row per virtual stage"),
     .doc = "Layers of each pipeline stage, or one such row per chunk; not together with `offset`. "
            "Also as text: \"[2, 3]\". Neither: as even as possible, the last stage last."},
    {.name = "offset",
     .field = f<&P::offset>,
     .check = satisfies(check_offset, "one number per stage, or one such row per virtual stage"),
     .doc = "What each stage's layers differ by from the even share, rounded down; not together "
            "with `num_layer_list`."},
    {.name = "recompute_config",
     .field = f<&P::recompute_config>,
     .aliases = "/recompute_config",
     .doc = "Recomputation of activations in the backward pass."},
    {.name = "recompute_config.recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::recompute>,
     .check = satisfies(check_counts, "layers per stage"),
     .null = Null::kDefault,
     .aliases = "recompute",
     .accepted = "[]|[0]",
     .reason = kRecompute,
     .doc = "Layers of each stage that are recomputed as a whole."},
    {.name = "recompute_config.select_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::select_recompute>,
     .check = satisfies(check_counts, "layers per stage"),
     .null = Null::kDefault,
     .aliases = "select_recompute",
     .accepted = "[]|[0]",
     .reason = kRecompute,
     .doc = "Layers of each stage whose attention is recomputed."},
    {.name = "recompute_config.select_comm_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::select_comm_recompute>,
     .check = satisfies(check_counts, "layers per stage"),
     .null = Null::kDefault,
     .aliases = "select_comm_recompute",
     .accepted = "[]|[0]",
     .reason = kRecompute,
     .doc = "Layers of each stage whose gathered inputs are gathered again."},
    {.name = "heterogeneous_pipeline",
     .field = f<&P::heterogeneous_pipeline>,
     .accepted = "False",
     .reason = kHetero,
     .doc = "Stages with different numbers of ranks."},
    {.name = "pipeline_stage_device",
     .field = f<&P::pipeline_stage_device>,
     .check = at_least(1),
     .accepted = "null",
     .reason = kHetero,
     .doc = "Ranks of each stage."},
};

}  // namespace
}  // namespace parallel_section

std::span<const Key> parallel_keys() { return parallel_section::kKeys; }

}  // namespace tapestry::config
