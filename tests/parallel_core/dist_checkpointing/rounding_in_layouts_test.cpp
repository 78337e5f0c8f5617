// With which random numbers an element is rounded does not depend on who holds it: the same
// gradients give the same checkpoint, bit for bit, in every layout.
#include <gtest/gtest.h>

#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/pretrain.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/rank_layouts.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using data::TempDir;
using testing::ep;
using testing::joined;
using testing::kParallel;
using testing::Overrides;
using testing::pp;
using testing::RankLayout;
using testing::small_config;
using testing::tp;
using testing::zero;

const std::vector<RankLayout> kLayouts = {
    {2, tp(2)},
    {4, joined(tp(4), {kParallel + "sequence_parallel=True"})},
    {2, pp(2)},
    {2, joined(pp(2), {kParallel + "virtual_pipeline_model_parallel_size=2"})},
    {2, {}},
    {2, zero("z1")},
    {4, zero("z2")},
    {2, zero("z3")},
    {4, joined(tp(2), zero("z1"))},
    {8, joined({tp(2), pp(2), zero("z3")})},
};

const std::vector<RankLayout> kExpertLayouts = {
    {2, ep(2)},
    {4, joined(ep(2), zero("z2"))},
    {4, joined(tp(2), ep(2))},
    {2, tp(2)},
    {4, joined({tp(2), ep(4), {kParallel + "expert_tensor_parallel_size=1"}})},
    {4, joined(pp(2), ep(2))},
};

// Of a logical tensor in a step: the same for whoever asks, and in whatever it is kept.
Tensor gradient(const std::string& name, const Shape& shape, int64_t step) {
  return normal(0, 1, shape, kFloat32,
                RandomKey{17, combine(stream_of(name), static_cast<uint64_t>(step)), 0})
      .to(kBFloat16)
      .to(kFloat32);
}

// Gives the tensors that this rank updates their slices and pieces of these gradients.
void set_gradients(const GPTModel& model, optim::Optimizer& optimizer, int64_t step) {
  const NoGradGuard guard;
  std::map<std::string, const nn::Parameter*> parameters;
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    parameters[entry.name] = entry.parameter;
  }
  for (const optim::ParamGroup& group : optimizer.param_groups()) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      const nn::Parameter& parameter = *parameters.at(group.names[i]);
      const Tensor whole = zeros(parameter.shape());
      for (const nn::LogicalTensor& logical : parameter.logical()) {
        const Tensor piece = logical.view_of(whole);
        const Tensor given = gradient(logical.name, logical.shape, step);
        copy_values(dense(logical.slice_of(given)).view(piece.shape()), piece);
      }
      const auto part = optimizer.own_part(group.names[i]);
      const Tensor& updated = group.params[i];
      const Tensor own =
          whole.view({-1}).slice(0, part.first, part.first + part.count).view(updated.shape());
      if (const Tensor buffer = updated.main_grad(); buffer.defined()) {
        copy_values(own, buffer);
      } else {
        updated.set_grad(own.to(updated.dtype()).clone());
      }
    }
  }
}

struct Training {
  explicit Training(const AllConfig& config, const std::string& from = "")
      : model(get_model(config)) {
    if (!from.empty()) {
      load_weights(*model, config.model_config, from);
    }
    data_parallel = get_data_parallel(config, *model);
    optimizer = get_optimizer(config, *model, data_parallel.get());
    if (!from.empty()) {
      load_optimizer_state(from, *model, *optimizer);
    }
  }
  void step(int64_t number) const {
    set_gradients(*model, *optimizer, number);
    optimizer->step();
    if (data_parallel != nullptr) {
      data_parallel->parameters_changed();
    }
  }

  std::unique_ptr<GPTModel> model;
  std::unique_ptr<DistributedDataParallel> data_parallel;
  std::unique_ptr<optim::Optimizer> optimizer;
};

// What this rank has, further copies included that no checkpoint takes from it.
void expect_same_states(const Training& found, const Training& expected) {
  for (const nn::Module::NamedParameter& entry : found.model->trained_parameters()) {
    const auto states = found.optimizer->own_state(entry.name);
    for (const auto& [name, tensor] : expected.optimizer->own_state(entry.name)) {
      EXPECT_EQ(states.at(name).to(kFloat32).to_vector<float>(),
                tensor.to(kFloat32).to_vector<float>())
          << entry.name << " " << name;
    }
  }
}

class RoundingInLayouts : public ::testing::TestWithParam<Overrides> {
 protected:
  // The checkpoint after steps [first, end) from another (empty: from the initial weights). What
  // ranks have then is held against `expected` where it is given.
  std::string go_on(const RankLayout& layout,
                    const std::string& from,
                    int64_t first,
                    int64_t end,
                    const std::string& name,
                    const std::string& expected = "") {
    std::string saved;
    run_thread_ranks(layout.ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
      const AllConfig config =
          small_config(joined({{"model_config.num_layers=4"}, GetParam(), layout.overrides}));
      initialize_ranks(config, world);
      const Training training(config, from);
      for (int64_t step = first; step < end; ++step) {
        training.step(step);
      }
      if (!expected.empty()) {
        expect_same_states(training, Training(config, expected));
      }
      CheckpointOptions options;
      options.directory = dir_.file(name);
      options.training_state = "{}";
      const std::string folder = write_checkpoint(*training.model, config.model_config, end,
                                                  options, training.optimizer.get());
      if (world->rank() == 0) {
        saved = folder;
      }
    });
    return saved;
  }
  std::string read(const std::string& folder, const std::string& file) const {
    return dir_.read(folder.substr(dir_.path().size() + 1) + "/" + file);
  }
  void expect_same_bits(const std::string& folder, const std::string& expected) const {
    for (const char* file : {"training_state.safetensors", "model.safetensors"}) {
      EXPECT_TRUE(read(folder, file) == read(expected, file)) << file;
    }
  }

  TempDir dir_;
};

const Overrides kNarrow = {"optimizer_config.exp_avg_dtype=bfloat16"};
const Overrides kBothNarrow =
    joined(kNarrow,
           {"optimizer_config.exp_avg_sq_dtype=bfloat16", "training_config.bf16=True",
            "model_config.params_dtype=bfloat16", "optimizer_config.store_param_remainders=True"});

Overrides optimizer(const std::string& type, const Overrides& more = kNarrow) {
  return joined({"optimizer_config.optimizer_type=" + type}, more);
}

bool has_experts_in(const Overrides& overrides) {
  return std::any_of(overrides.begin(), overrides.end(), [](const std::string& line) {
    return line.find("num_experts") != std::string::npos;
  });
}

// Steps 0 to 2 in each layout from the start; then step 2 alone, on what one process has saved, as
// a run does that goes on elsewhere.
TEST_P(RoundingInLayouts, TheSameGradientsGiveTheSameBits) {
  const RankLayout alone = {1, {}};
  const std::string start = go_on(alone, "", 0, 0, "start");
  const std::string middle = go_on(alone, start, 0, 2, "middle");
  const std::string expected = go_on(alone, start, 0, 3, "expected");
  ASSERT_NE(read(middle, "training_state.safetensors"),
            read(expected, "training_state.safetensors"));
  int number = 0;
  for (const RankLayout& layout : has_experts_in(GetParam()) ? kExpertLayouts : kLayouts) {
    SCOPED_TRACE(::testing::PrintToString(layout.overrides));
    ++number;
    expect_same_bits(go_on(layout, start, 0, 3, concat("begun_", number), expected), expected);
    expect_same_bits(go_on(layout, middle, 2, 3, concat("resumed_", number), expected), expected);
  }
}

// Two key-value heads: of four tensor-parallel ranks, two hold each. Tied embeddings: the first and
// the last stage hold the table.
INSTANTIATE_TEST_SUITE_P(Optimizers,
                         RoundingInLayouts,
                         ::testing::Values(optimizer("AdamW"),
                                           testing::llama(optimizer("AdamW", kBothNarrow)),
                                           testing::llama(optimizer("Lion")),
                                           testing::llama(optimizer("Muon")),
                                           optimizer("Adam"),
                                           testing::mixtral(optimizer("AdamW", kBothNarrow)),
                                           testing::mixtral(optimizer("Lion"))));

}  // namespace
}  // namespace tapestry
