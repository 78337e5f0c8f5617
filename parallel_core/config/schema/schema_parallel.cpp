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
     .doc = "Number of ranks that share each layer's matrices. It must divide the attention heads "
            "and `ffn_hidden_size`, and divide or be a multiple of the query groups."},
    {.name = "pipeline_model_parallel_size",
     .field = f<&P::pipeline_model_parallel_size>,
     .check = above(0),
     .doc = "Number of pipeline stages: ranks that each hold some of the layers. The first stage "
            "also has the embeddings, the last the head."},
    {.name = "data_parallel_size",
     .field = f<&P::data_parallel_size>,
     .check = above(0),
     .doc = "Expected number of data-parallel ranks. The number follows from the ranks that are "
            "started; if this key is given, another number is an error."},
    {.name = "context_parallel_size",
     .field = f<&P::context_parallel_size>,
     .check = above(0),
     .doc = "Number of ranks that share each sequence; each has an early and a late chunk of it. "
            "`seq_length` must be a multiple of twice this number."},
    {.name = "expert_model_parallel_size",
     .field = f<&P::expert_model_parallel_size>,
     .check = between(1, 2147483647),
     .aliases = "expert_parallel|expert_parallel_size",
     .doc = "Number of ranks among which the experts of a layer are divided; must divide "
            "`moe_config.num_experts`. Times `expert_tensor_parallel_size` it must divide the "
            "ranks of a pipeline stage, whatever the other axes are."},
    {.name = "expert_tensor_parallel_size",
     .field = f<&P::expert_tensor_parallel_size>,
     .check = between(1, 2147483647),
     .aliases = "expert_model_parallel",
     .default_text = "tensor_model_parallel_size",
     .doc = "Number of ranks that share each expert's matrices; must divide "
            "`moe_config.moe_ffn_hidden_size`."},
    {.name = "virtual_pipeline_model_parallel_size",
     .field = f<&P::virtual_pipeline_model_parallel_size>,
     .check = above(0),
     .doc = "Number of model chunks of each pipeline stage, whose passes are interleaved; null or "
            "1: the schedule 1F1B."},
    {.name = "sequence_parallel",
     .field = f<&P::sequence_parallel>,
     .doc = "Divide activations outside the matrices along the sequence, whose length must be a "
            "multiple of `tensor_model_parallel_size`. Has no effect with one tensor-parallel "
            "rank."},
    {.name = "recv_dtype",
     .field = f<&P::recv_dtype>,
     .doc = "Known for compatibility: pipeline stages send the residual stream in its own type. "
            "Another value than `model_config.compute_dtype` is replaced by it, with a note."},
    {.name = "zero_level",
     .field = f<&P::zero_level>,
     .check = one_of("z1|z2|z3"),
     .doc = "Values that are sharded over the data-parallel ranks. z1: optimizer state, as with "
            "`training_config.use_distributed_optimizer`. z2: also gradients. z3: also weights "
            "between their uses. Has no effect with one data-parallel rank."},
    {.name = "standalone_embedding_stage",
     .field = f<&P::standalone_embedding_stage>,
     .doc = "The first pipeline stage holds the embedding and no layers. Not possible with "
            "interleaving; `num_layer_list` and `offset` then have a number for each of the other "
            "stages."},
    {.name = "overlap_grad_reduce",
     .field = f<&P::overlap_grad_reduce>,
     .accepted = "False",
     .reason = "set training_config.overlap_grad_reduce, the key that counts",
     .doc = "Known for compatibility."},
    {.name = "overlap_p2p_comm",
     .field = f<&P::overlap_p2p_comm>,
     .doc = "Receive a message from another stage during computation, one ahead of the pass that "
            "needs it. Sending never waits. Has no effect with one stage."},
    {.name = "num_layer_list",
     .field = f<&P::num_layer_list>,
     .check = satisfies(check_layer_list, "layers per stage, or one such row per virtual stage"),
     .doc = "Number of layers of each pipeline stage, or one such row per chunk; not together with "
            "`offset`. Also as text: \"[2, 3]\". Without both keys the layers are divided as "
            "evenly as possible, and the last stage is the last to get one more. The last number "
            "may be 0: that chunk then has the head alone."},
    {.name = "offset",
     .field = f<&P::offset>,
     .check = satisfies(check_offset, "one number per stage, or one such row per virtual stage"),
     .doc = "Difference of each stage's number of layers from the even share, rounded down: a row "
            "per virtual stage, one row for all of them, or one number for all stages. Not "
            "together with `num_layer_list`."},
    {.name = "recompute_config",
     .field = f<&P::recompute_config>,
     .aliases = "/recompute_config",
     .scalar_entry = "recompute",
     .doc = "Values that backward passes recompute instead of keeping them. A boolean in place of "
            "the mapping is its `recompute`. Numbers of layers are given per stage and divided "
            "among its chunks, or as one row of them per chunk. The first layers of a chunk are "
            "taken; a boolean stands for all or none of a stage, a row or a chunk. See "
            "[memory.md](memory.md)."},
    {.name = "recompute_config.recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::recompute>,
     .check = satisfies(check_recompute, "layers per stage, or rows of them per chunk"),
     .null = Null::kDefault,
     .aliases = "recompute",
     .doc = "Recompute whole layers: only a layer's input is kept."},
    {.name = "recompute_config.recompute_layers",
     .field = f<&P::recompute_config, &RecomputeConfig::recompute_layers>,
     .check = at_least(0),
     .doc = "Numbers of the layers of the model, from 0, that are recomputed as a whole. Not "
            "together with `recompute`."},
    {.name = "recompute_config.select_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::select_recompute>,
     .check = satisfies(check_recompute, "layers, patterns, or layers by pattern"),
     .null = Null::kDefault,
     .aliases = "select_recompute",
     .doc = "Single operations whose results are recomputed, named by patterns such as "
            "`feed_forward\\.mul`. Parts between `\\.` are regular expressions, each for a whole "
            "part of a name. A list of patterns applies to all layers; a mapping gives each "
            "pattern its layers. Layers without patterns mean `feed_forward\\.mul` and "
            "`feed_forward\\.w1\\.activation\\.silu`."},
    {.name = "recompute_config.select_recompute_layers",
     .field = f<&P::recompute_config, &RecomputeConfig::select_recompute_layers>,
     .check = at_least(0),
     .doc = "Numbers of the layers, from 0, to which the patterns of `select_recompute` apply, in "
            "place of all layers."},
    {.name = "recompute_config.select_comm_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::select_comm_recompute>,
     .check = satisfies(check_recompute, "layers, patterns, or layers by pattern"),
     .null = Null::kDefault,
     .aliases = "select_comm_recompute",
     .doc = "Communication after the named operations that is repeated: with sequence parallelism "
            "the gather after a norm. It takes the forms of `select_recompute`; layers without "
            "patterns mean `.*\\.norm`. These gathers are repeated in any case, unless "
            "`select_comm_recompute_exclude` names them."},
    {.name = "recompute_config.select_recompute_exclude",
     .field = f<&P::recompute_config, &RecomputeConfig::select_recompute_exclude>,
     .check = satisfies(check_recompute, "layers, patterns, or layers by pattern"),
     .null = Null::kDefault,
     .doc = "Operations whose results are kept, also in layers that are recomputed as a whole. "
            "Layers without patterns mean the MLP's activation, which is recomputed unless this "
            "key names it."},
    {.name = "recompute_config.select_comm_recompute_exclude",
     .field = f<&P::recompute_config, &RecomputeConfig::select_comm_recompute_exclude>,
     .check = satisfies(check_recompute, "layers, patterns, or layers by pattern"),
     .null = Null::kDefault,
     .doc = "Operations after which gathered values are kept; layers without patterns mean "
            "`.*\\.norm`."},
    {.name = "recompute_config.mp_comm_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::mp_comm_recompute>,
     .doc = "In layers that are recomputed as a whole, repeat the communication of tensor-parallel "
            "ranks. False: keep its results."},
    {.name = "recompute_config.parallel_optimizer_comm_recompute",
     .field = f<&P::recompute_config, &RecomputeConfig::parallel_optimizer_comm_recompute>,
     .doc = "With `zero_level: z3`, gather weights again in backward passes. null: True, the "
            "purpose of z3. False: gather them once in a step, and keep them until the update."},
    {.name = "recompute_config.recompute_slice_activation",
     .field = f<&P::recompute_config, &RecomputeConfig::recompute_slice_activation>,
     .doc = "Each tensor-parallel rank keeps only its share of a recomputed layer's input, which "
            "is gathered when it is needed. With `sequence_parallel` this is done anyway."},
};

}  // namespace
}  // namespace parallel_section

std::span<const Key> parallel_keys() { return parallel_section::kKeys; }

}  // namespace tapestry::config
