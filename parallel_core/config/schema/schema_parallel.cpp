// Rows of `parallel_config`.
#include "parallel_core/config/recompute_tables.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace parallel_section {
namespace {

using P = ModelParallelConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::parallel_config, Path...>();

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

std::string check_recompute(const Value& value) {
  if (value.is<Value::Map>()) {
    for (const auto& [pattern, layers] : value.as<Value::Map>()) {
      std::string error = complaint_of_pattern(pattern);
      if (error.empty()) {
        error = check_recompute(layers);
      }
      if (!error.empty()) {
        return error;
      }
    }
    return {};
  }
  if (!value.is<Value::List>()) {
    return {};
  }
  for (const Value& item : value.as<Value::List>()) {
    std::string error;
    if (item.is<std::string>()) {
      error = complaint_of_pattern(item.as<std::string>());
    } else if (item.is<Value::List>()) {
      error = check_recompute(item);
    } else if (item.is<int64_t>() && item.as<int64_t>() < 0) {
      error = "a number of layers cannot be negative, got " + to_yaml(item);
    }
    if (!error.empty()) {
      return error;
    }
  }
  return {};
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
    {.name = "data_parallel_size",
     .field = f<&P::data_parallel_size>,
     .check = above(0),
     .doc =
         "Data-parallel ranks that the job is meant to have. Their number follows from the ranks "
         "that are started; where this key is given, another number is an error."},
    {.name = "context_parallel_size",
     .field = f<&P::context_parallel_size>,
     .check = above(0),
     .doc = "Ranks that share each sequence: each has two chunks of it, an early and a late one. "
            "`seq_length` must be a multiple of twice as many."},
    {.name = "expert_model_parallel_size",
     .field = f<&P::expert_model_parallel_size>,
     .check = between(1, 2147483647),
     .aliases = "expert_parallel|expert_parallel_size",
     .doc = "Ranks over which the experts of a layer are spread; divides `moe_config.num_experts`. "
            "With `expert_tensor_parallel_size` it divides the ranks of a pipeline stage, whatever "
            "the other axes are."},
    {.name = "expert_tensor_parallel_size",
     .field = f<&P::expert_tensor_parallel_size>,
     .check = between(1, 2147483647),
     .aliases = "expert_model_parallel",
     .default_text = "tensor_model_parallel_size",
     .doc = "Ranks that share each expert's matrices; divides `moe_config.moe_ffn_hidden_size`."},
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
    {.name = "overlap_p2p_comm",
     .field = f<&P::overlap_p2p_comm>,
     .doc =
         "Receive a message from another stage while computing, one ahead of the pass that needs "
         "it. Sending never waits. Has no effect with one stage."},
    {.name = "num_layer_list",
     .field = f<&P::num_layer_list>,
     .check = satisfies(check_layer_list, "layers per stage, or one such row per virtual stage"),
     .doc = "Layers of each pipeline stage, or one such row per chunk; not together with `offset`. "
            "Also as text: \"[2, 3]\". Neither: as even as possible, the last stage last."},
    {.name = "offset",
     .field = f<&P::offset>,
     .check = satisfies(check_offset, "one number per stage, or one such row per virtual stage"),
     .doc = "What each stage's layers differ by from the even share, rounded down: a row per "
            "virtual stage, one row for all of them, or one number for all stages. Not together "
            "with `num_layer_list`."},
    {.name = "recompute_config",
     .field = f<&P::recompute_config>,
     .aliases = "/recompute_config",
     .scalar_entry = "recompute",
     .doc = "What backward passes compute again instead of keeping it. A boolean in place of the "
            "mapping is its `recompute`. Numbers of layers are one per stage, dealt out over its "
            "chunks, or one row of them per chunk; the first layers of a chunk are taken, and a "
            "boolean stands for all or none of a stage, a row or a chunk. See "
            "[memory.md](memory.md)."},
    {.name = "recompute_config.recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::recompute>,
     .check = satisfies(check_recompute, "layers per stage, or rows of them per chunk"),
     .null = Null::kDefault,
     .aliases = "recompute",
     .doc = "Recompute whole layers: of each only its input is kept."},
    {.name = "recompute_config.recompute_layers",
     .field = f<&P::recompute_config, &RecomputeConfig::recompute_layers>,
     .check = at_least(0),
     .doc = "Recompute whole layers by number: layers of the model, from 0. Not together with "
            "`recompute`."},
    {.name = "recompute_config.select_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::select_recompute>,
     .check = satisfies(check_recompute, "layers, patterns, or layers by pattern"),
     .null = Null::kDefault,
     .aliases = "select_recompute",
     .doc = "Results of single operations, named by patterns such as `feed_forward\\.mul`: parts "
            "between `\\.` are regular expressions, each for a whole part of a name. A list of "
            "patterns holds for all layers, a mapping gives each pattern its layers; layers alone "
            "stand for the patterns `feed_forward\\.mul` and `feed_forward\\.w1\\.activation\\."
            "silu`."},
    {.name = "recompute_config.select_recompute_layers",
     .field = f<&P::recompute_config, &RecomputeConfig::select_recompute_layers>,
     .check = at_least(0),
     .doc = "Layers by number, from 0, for which the patterns of `select_recompute` hold in place "
            "of all."},
    {.name = "recompute_config.select_comm_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::select_comm_recompute>,
     .check = satisfies(check_recompute, "layers, patterns, or layers by pattern"),
     .null = Null::kDefault,
     .aliases = "select_comm_recompute",
     .doc = "Communication after the named operations that is repeated: with sequence parallelism "
            "the gathering behind a norm, in the forms of `select_recompute`; layers alone stand "
            "for `.*\\.norm`. This is done in any case, unless it is excluded."},
    {.name = "recompute_config.select_recompute_exclude",
     .field = f<&P::recompute_config, &RecomputeConfig::select_recompute_exclude>,
     .check = satisfies(check_recompute, "layers, patterns, or layers by pattern"),
     .null = Null::kDefault,
     .doc = "Operations whose results are kept, also in layers that are recomputed as a whole. "
            "Layers alone stand for the MLP's activation, which is recomputed unless it is named "
            "here."},
    {.name = "recompute_config.select_comm_recompute_exclude",
     .field = f<&P::recompute_config, &RecomputeConfig::select_comm_recompute_exclude>,
     .check = satisfies(check_recompute, "layers, patterns, or layers by pattern"),
     .null = Null::kDefault,
     .doc = "Operations behind which gathered values are kept; layers alone stand for "
            "`.*\\.norm`."},
    {.name = "recompute_config.mp_comm_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::mp_comm_recompute>,
     .doc = "In layers that are recomputed as a whole, repeat what tensor-parallel ranks "
            "communicate. False: keep the results."},
    {.name = "recompute_config.parallel_optimizer_comm_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::parallel_optimizer_comm_recompute>,
     .doc = "With `zero_level: z3`, gather weights again in backward passes. Null: True, which is "
            "what z3 is for. False: gather them once in a step, and keep them until the update."},
    {.name = "recompute_config.recompute_slice_activation",
     .field = f<&P::recompute_config, &RecomputeConfig::recompute_slice_activation>,
     .doc = "Of the kept input of a recomputed layer, each tensor-parallel rank keeps its share, "
            "which is gathered when it is needed. With `sequence_parallel` that is so anyway."},
};

}  // namespace
}  // namespace parallel_section

std::span<const Key> parallel_keys() { return parallel_section::kKeys; }

}  // namespace tapestry::config
