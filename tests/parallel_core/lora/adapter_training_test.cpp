// Trainings with adapters: in every layout what one process does, from the base's loss, with no
// memory and no product for what is frozen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "autograd/kernels/machine/work_counter.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/lora/adapter_plan.h"
#include "parallel_core/training/pretrain.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace adapter_training_test {
namespace {

using testing::joined;
using testing::kDropout;
using testing::kLlama;
using testing::make_batch;
using testing::Overrides;
using testing::Reference;
using testing::reference_run;
using testing::run_parallel;
using testing::RunOptions;
using testing::small_config;
using testing::State;
using testing::Trainer;

const Overrides kGpt2 = {"model_config.position_embedding_type=learned_absolute",
                         "model_config.add_bias_linear=True",
                         "model_config.untie_embeddings_and_output_weights=False"};
const Overrides kAdapters = {
    "lora_config.use_lora=True",
    "lora_config.lora_rank=3",
    "lora_config.lora_alpha=5",
    "lora_config.lora_dropout=0.25",
    "lora_config.target_cells=[{target_cells: ['.*']}, {cell: '.*(wv|w_up)', rank: 2, alpha: 3}]",
    "model_config.num_layers=4"};

struct Layout {
  std::string name;
  int ranks;
  Overrides settings;
};
std::ostream& operator<<(std::ostream& out, const Layout& l) { return out << l.name; }

std::string set(const char* key, const std::string& value) {
  return concat("parallel_config.", key, "=", value);
}

const std::vector<Layout>& layouts() {
  static const std::string kTp = "tensor_model_parallel_size";
  static const std::string kPp = "pipeline_model_parallel_size";
  static const std::vector<Layout> all = {
      {"tp2", 2, {set("tensor_model_parallel_size", "2")}},
      {"tp2_sp", 2, {set("tensor_model_parallel_size", "2"), set("sequence_parallel", "True")}},
      {"tp4_sp_sbh",
       4,
       {set("tensor_model_parallel_size", "4"), set("sequence_parallel", "True"),
        "dataset_config.data_layout=SBH"}},
      {"pp2", 2, {set("pipeline_model_parallel_size", "2")}},
      {"pp2_vpp2",
       2,
       {set("pipeline_model_parallel_size", "2"),
        set("virtual_pipeline_model_parallel_size", "2")}},
      {"cp2", 2, {set("context_parallel_size", "2")}},
      {"dp2", 2, {}},
      {"z1", 2, {set("zero_level", "z1")}},
      {"z2", 2, {set("zero_level", "z2")}},
      {"z3", 2, {set("zero_level", "z3")}},
      {"tp2_sp_cp2",
       4,
       {set("tensor_model_parallel_size", "2"), set("sequence_parallel", "True"),
        set("context_parallel_size", "2")}},
      {"tp2_pp2_recomputed",
       4,
       {set("tensor_model_parallel_size", "2"), set("pipeline_model_parallel_size", "2"),
        set("recompute_config", "True")}},
      {"tp2_sp_z3_recomputed",
       4,
       {set("tensor_model_parallel_size", "2"), set("sequence_parallel", "True"),
        set("zero_level", "z3"), set("recompute_config", "True")}},
  };
  return all;
}

void on_ranks(const AllConfig& config, int ranks, const std::function<void()>& body) {
  run_parallel(ranks, model_parallel_sizes(config.parallel_config), body);
}

class AdaptersInLayouts : public ::testing::TestWithParam<Layout> {};

void expect_run_of_one_process(const Overrides& model, const Layout& layout) {
  const Overrides overrides = joined({model, kAdapters, kDropout, {"optimizer_config.eps=0.001"}});
  const RunOptions options = {.steps = 2, .micro_batches = 4};
  const Reference& single = reference_run(overrides, options);
  // Nothing but adapters has gradients, and nothing else moves.
  for (const auto& [name, gradient] : single.run.gradients) {
    EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
    EXPECT_GT(testing::largest(gradient), 0) << name;
  }
  for (const auto& [name, tensor] : single.run.weights) {
    EXPECT_EQ(testing::same_bits(tensor, single.start.at(name)),
              name.find(".lora_") == std::string::npos)
        << name;
  }
  const AllConfig config = small_config(joined(overrides, layout.settings));
  ASSERT_TRUE(config.unsupported.empty());
  on_ranks(config, layout.ranks, [&] {
    testing::expect_same_run(train_model(config, single.start, options), single.run, single.bounds);
  });
}

TEST_P(AdaptersInLayouts, OfGemma4TrainLikeOneProcess) {
  expect_run_of_one_process(testing::gemma4({"model_config.num_kv_shared_layers=0",
                                             "model_config.use_double_wide_mlp=False"}),
                            GetParam());
}

TEST_P(AdaptersInLayouts, OfSeveralStreamsTrainLikeOneProcess) {
  expect_run_of_one_process(joined(kLlama, {"model_config.enable_hyper_connections=True"}),
                            GetParam());
}
TEST_P(AdaptersInLayouts, OfLlamaTrainLikeOneProcess) {
  expect_run_of_one_process(kLlama, GetParam());
}
TEST_P(AdaptersInLayouts, OfGpt2TrainLikeOneProcess) {
  expect_run_of_one_process(kGpt2, GetParam());
}
TEST_P(AdaptersInLayouts, WithMagnitudesTrainLikeOneProcess) {
  expect_run_of_one_process(joined(kLlama, {"lora_config.use_dora=True"}), GetParam());
}
TEST_P(AdaptersInLayouts, OfLastLayersAndWhatIsSavedTrainLikeOneProcess) {
  const Overrides overrides = joined(
      {kLlama,
       kAdapters,
       {"lora_config.target_cells=[{target_cells: ['layers.3.*']}]",
        "lora_config.modules_to_save=[lm_head, 'layers.3.*norm']", "optimizer_config.eps=0.001"}});
  const RunOptions options = {.steps = 2, .micro_batches = 4};
  const Reference& single = reference_run(overrides, options);
  EXPECT_FALSE(testing::same_bits(single.run.weights.at("lm_head.weight"),
                                  single.start.at("lm_head.weight")));
  const AllConfig config = small_config(joined(overrides, GetParam().settings));
  on_ranks(config, GetParam().ranks, [&] {
    testing::expect_same_run(train_model(config, single.start, options), single.run, single.bounds);
  });
}

TEST_P(AdaptersInLayouts, AndTheBiasesBesideThemTrainLikeOneProcess) {
  const Overrides overrides =
      joined({kGpt2,
              kAdapters,
              {"lora_config.target_cells=[{target_cells: ['.*(c_attn|mlp.c_fc|attn.c_proj)']}]",
               "lora_config.bias=lora_only", "optimizer_config.eps=0.001"}});
  const RunOptions options = {.steps = 2, .micro_batches = 4};
  const Reference& single = reference_run(overrides, options);
  for (const auto& [name, tensor] : single.run.weights) {
    const bool is_trained = name.ends_with("wq.bias") || name.ends_with("wv.bias") ||
                            name.ends_with("wo.bias") || name.ends_with("w_up.bias") ||
                            name.find(".lora_") != std::string::npos;
    // The same number for every key changes no probability.
    if (!name.ends_with("wk.bias")) {
      EXPECT_EQ(testing::same_bits(tensor, single.start.at(name)), !is_trained) << name;
    }
  }
  const AllConfig config = small_config(joined(overrides, GetParam().settings));
  on_ranks(config, GetParam().ranks, [&] {
    testing::expect_same_run(train_model(config, single.start, options), single.run, single.bounds);
  });
}

// A and B of every expert, of which ranks have some or slices.
class ExpertAdaptersInLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(ExpertAdaptersInLayouts, TrainLikeOneProcess) {
  const Overrides overrides = joined(
      {testing::gpt_oss(),
       {"model_config.num_layers=2", "lora_config.use_lora=True", "lora_config.lora_rank=3",
        "lora_config.lora_alpha=5",
        "lora_config.target_cells=[{target_cells: ['.*q_proj', '.*experts.(gate_up|down)_proj']}, "
        "{cell: '.*experts.w_down', rank: 2}]",
        "optimizer_config.eps=0.001"}});
  const RunOptions options = {.steps = 2, .micro_batches = 4};
  const Reference& single = reference_run(overrides, options);
  int64_t of_experts = 0;
  for (const auto& [name, gradient] : single.run.gradients) {
    EXPECT_GT(testing::largest(gradient), 0) << name;
    of_experts += name.find(".moe.experts.") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(of_experts, 2 * 4 * 5);  // A and two Bs of gate and up, A and B of down
  for (const auto& [name, tensor] : single.run.weights) {
    EXPECT_EQ(testing::same_bits(tensor, single.start.at(name)),
              name.find(".lora_") == std::string::npos)
        << name;
  }
  const AllConfig config = small_config(joined(overrides, GetParam().settings));
  on_ranks(config, GetParam().ranks, [&] {
    testing::expect_same_run(train_model(config, single.start, options), single.run, single.bounds);
  });
}

const std::vector<Layout>& expert_layouts() {
  static const std::vector<Layout> all = {
      {"ep2", 2, {set("expert_model_parallel_size", "2")}},
      {"etp2_sp", 2, {set("tensor_model_parallel_size", "2"), set("sequence_parallel", "True")}},
      {"tp2_sp_ep2",
       2,
       {set("tensor_model_parallel_size", "2"), set("sequence_parallel", "True"),
        set("expert_model_parallel_size", "2"), set("expert_tensor_parallel_size", "1")}},
      {"tp2_sp_ep2_dp2_z3",
       4,
       {set("tensor_model_parallel_size", "2"), set("sequence_parallel", "True"),
        set("expert_model_parallel_size", "2"), set("zero_level", "z3")}},
      {"pp2", 2, {set("pipeline_model_parallel_size", "2")}},
      {"cp2_recomputed", 2, {set("context_parallel_size", "2"), set("recompute_config", "True")}},
  };
  return all;
}
INSTANTIATE_TEST_SUITE_P(Adapters,
                         ExpertAdaptersInLayouts,
                         ::testing::ValuesIn(expert_layouts()),
                         [](const auto& info) { return info.param.name; });

// B is zero at the start.
TEST_P(AdaptersInLayouts, BeginWithTheLossOfTheBase) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Overrides model =
        joined({kLlama,
                GetParam().settings,
                {"model_config.num_layers=4", concat("model_config.compute_dtype=", dtype)}});
    const auto losses = [&](const Overrides& lora) {
      const AllConfig config = small_config(joined(model, lora));
      std::vector<double> out(static_cast<size_t>(GetParam().ranks));
      on_ranks(config, GetParam().ranks, [&] {
        Trainer trainer(config);
        std::vector<data::Batch> batches = {make_batch(config, 2, 2L * get_data_parallel_rank())};
        out[static_cast<size_t>(RankContext::current().rank())] = trainer.cell(batches).loss;
      });
      return out;
    };
    EXPECT_EQ(losses(kAdapters), losses({})) << dtype;
  }
}

int64_t bytes_of(MemoryKind kind) {
  return memory_stats().current_by_kind.at(static_cast<size_t>(kind));
}

// What blocks of these numbers of elements take.
int64_t bytes_of_blocks(const std::vector<int64_t>& sizes, DType dtype) {
  const int64_t before = bytes_of(MemoryKind::kWorkspace);
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  TensorList blocks;
  for (const int64_t size : sizes) {
    blocks.push_back(empty({size}, dtype));
  }
  return bytes_of(MemoryKind::kWorkspace) - before;
}

int64_t rounded_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

// Gradients (or buckets, or shards of them) and moments of the adapters of this rank, and nothing
// else; in 16 bits also masters of what is trained whole.
void expect_memory_of_adapters_alone(const AllConfig& config) {
  const int64_t gradients = bytes_of(MemoryKind::kGradient);
  const int64_t states = bytes_of(MemoryKind::kOptimizer);
  Trainer trainer(config);
  const int64_t ranks = model_parallel_is_initialized()
                            ? get_data_parallel_world_size(/*with_context_parallel=*/true)
                            : 1;
  const int level = ranks > 1 ? zero_level(config) : 0;
  trainer.cell({make_batch(config, 2, 2L * (ranks > 1 ? get_data_parallel_rank() : 0))});
  std::vector<int64_t> gradient_sizes;
  std::vector<int64_t> moment_sizes;
  int64_t bucket = 0;
  for (const auto& entry : trainer.model->named_parameters()) {
    const nn::Parameter& parameter = *entry.parameter;
    EXPECT_EQ(parameter.requires_grad(), parameter.flags().adapter) << entry.name;
    if (!parameter.flags().adapter) {
      EXPECT_FALSE(parameter.grad().defined()) << entry.name;
      EXPECT_FALSE(parameter.main_grad().defined()) << entry.name;
      EXPECT_EQ(parameter.dtype(), config.model_config.params_dtype) << entry.name;
      EXPECT_TRUE(parameter.dtype() == config.model_config.compute_dtype
                      ? !compute_copy_buffer(parameter).defined()
                      : true)
          << entry.name;
      continue;
    }
    EXPECT_EQ(parameter.dtype(), kFloat32) << entry.name;
    const optim::Optimizer::OwnPart own = trainer.optimizer->own_part(entry.name);
    moment_sizes.insert(moment_sizes.end(), 2, own.count);
    if (ranks == 1) {
      gradient_sizes.push_back(parameter.numel());
    } else if (level == 3 && parameter.dim() >= 2) {  // a bucket of its own
      gradient_sizes.push_back(rounded_up(parameter.numel(), 64 * ranks) / ranks);
    } else {
      bucket += rounded_up(parameter.numel(), 64);
    }
  }
  if (bucket > 0) {
    const int64_t whole = rounded_up(bucket, 64 * ranks);
    gradient_sizes.push_back(level >= 2 ? whole / ranks : whole);
  }
  EXPECT_EQ(bytes_of(MemoryKind::kGradient) - gradients, bytes_of_blocks(gradient_sizes, kFloat32));
  EXPECT_EQ(bytes_of(MemoryKind::kOptimizer) - states, bytes_of_blocks(moment_sizes, kFloat32));
}

TEST_P(AdaptersInLayouts, HaveTheOnlyGradientsBucketsMastersAndMoments) {
  for (const Overrides& model : {joined(kLlama, {"model_config.compute_dtype=bfloat16",
                                                 "model_config.params_dtype=bfloat16"}),
                                 kLlama, kGpt2}) {
    const AllConfig config = small_config(joined({model, kAdapters, GetParam().settings}));
    on_ranks(config, GetParam().ranks, [&] { expect_memory_of_adapters_alone(config); });
  }
}

INSTANTIATE_TEST_SUITE_P(Adapters,
                         AdaptersInLayouts,
                         ::testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

TEST(Adapters, HaveTheOnlyGradientsInOneProcess) {
  expect_memory_of_adapters_alone(small_config(joined(kLlama, kAdapters)));
}

double flops_of_step(const Overrides& overrides) {
  Trainer trainer(small_config(overrides));
  const double before = kernels::work_counter().flops;
  trainer.cell({make_batch(trainer.config, 2)});
  return kernels::work_counter().flops - before;
}

// Of every frozen matrix there are the products with x and with dy, and none for its own gradient;
// of an adapter all three. In those of x and dy the Bs of a layer are one matrix, whose zeros
// count.
TEST(Adapters, MakeNoGradientOfAFrozenMatrix) {
  const Overrides model = joined(kLlama, {"model_config.num_layers=2"});
  const Overrides lora = joined({model,
                                 {"lora_config.use_lora=True", "lora_config.lora_rank=2",
                                  "lora_config.target_cells=[{target_cells: ['.*']}]"}});
  const AllConfig config = small_config(lora);
  const int64_t tokens = 2 * config.model_config.seq_length;
  double matrices = 0;
  double first = 0;  // whose input has no gradient
  double adapters = 0;
  double first_down = 0;
  double zeros = 0;
  std::map<std::string, const nn::Parameter*> parameters;
  const auto built = get_model(config);
  for (const auto& entry : built->named_parameters()) {
    const nn::Parameter& parameter = *entry.parameter;
    parameters[entry.name] = &parameter;
    const auto size = 2.0 * static_cast<double>(tokens * parameter.numel());
    const bool is_first = entry.name.find("layers.0.attention.qkv_proj") != std::string::npos;
    if (parameter.flags().adapter) {
      adapters += size;
      first_down += is_first && entry.name.ends_with("lora_a") ? size : 0;
    } else if (parameter.flags().matmul) {
      matrices += size;
      first += is_first ? size : 0;
    }
  }
  for (const auto& [name, b] : parameters) {
    if (name.ends_with("lora_b")) {
      const std::string layer = name.substr(0, name.size() - std::string("lora_b").size());
      const int64_t one_matrix =
          parameters.at(layer + "weight")->size(0) * parameters.at(layer + "lora_a")->size(0);
      zeros += 2.0 * static_cast<double>(tokens * (one_matrix - b->numel()));
    }
  }
  const double full = flops_of_step(model);  // the first matrix' input has a gradient: the table's
  EXPECT_DOUBLE_EQ(flops_of_step(lora),
                   full - matrices - first + 3 * adapters - first_down + 2 * zeros);
}

// An input is kept where A needs it, once, and nowhere else.
TEST(Adapters, KeepInputsOnlyWhereTheyAreNeeded) {
  const auto kept = [](const Overrides& overrides) {
    Trainer trainer(small_config(overrides));
    const double before = kernels::work_counter().saved_bytes;
    trainer.cell({make_batch(trainer.config, 2)});
    return kernels::work_counter().saved_bytes - before;
  };
  const Overrides lora = joined(kLlama, {"lora_config.use_lora=True", "lora_config.lora_rank=1"});
  const double all = kept(joined(lora, {"lora_config.target_cells=[{target_cells: ['.*']}]"}));
  const double last = kept(joined(
      lora, {"lora_config.target_cells=[{target_cells: ['layers.1.feed_forward.w_down']}]"}));
  EXPECT_LT(last, 0.5 * all);
  EXPECT_LT(all, kept(kLlama));
}

}  // namespace
}  // namespace adapter_training_test
}  // namespace tapestry
