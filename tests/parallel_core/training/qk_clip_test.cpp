// QK-clip: scores that have grown too large come back to the threshold, by weights alone.
#include "parallel_core/training/step/qk_clip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/tensor/error.h"
#include "optim/optim.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/training/watch/max_logits_log.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace qk_clip_test {
namespace {

using ::testing::HasSubstr;
using testing::joined;
using testing::kModel;
using testing::llama;
using testing::make_batch;
using testing::Overrides;
using testing::State;
using testing::Trainer;

// Large weights, and updates that are too small to move a number.
Overrides still(const Overrides& model) {
  return joined({{kModel + "init_method_std=0.6", "optimizer_config.learning_rate=1e-30",
                  "monitor_config.max_logits_interval=1"},
                 model});
}

Overrides clipped(double threshold) {
  return {"optimizer_config.qk_clip_enabled=True",
          concat("optimizer_config.qk_clip_threshold=", threshold)};
}

Overrides latent(const Overrides& more = {}) {
  return joined(
      {kModel + "position_embedding_type=rope", kModel + "normalization=RMSNorm",
       kModel + "multi_latent_attention=True", kModel + "kv_lora_rank=12", kModel + "qk_head_dim=6",
       kModel + "qk_pos_emb_head_dim=4", kModel + "v_head_dim=8"},
      more);
}

struct Family {
  std::string name;
  Overrides model;
};

std::vector<Family> families() {
  return {{"heads alone", {}},
          {"biases", {testing::kQkvBias, kModel + "position_embedding_type=rope"}},
          {"groups", llama({testing::kQkvBias})},
          {"one group", llama({kModel + "num_query_groups=1"})},
          {"gates", llama({kModel + "attention_output_gate=True"})},
          {"latent", latent({kModel + "q_lora_rank=16"})},
          {"latent, queries at once", latent()},
          {"keys of another layer", testing::gemma4({kModel + "qk_layernorm=False"})},
          {"values that are keys", testing::gemma4_moe({kModel + "qk_layernorm=False"})}};
}

HeadMaxima maxima_of(Trainer& trainer) {
  return trainer.cell({make_batch(trainer.config, 2), make_batch(trainer.config, 2, 2)}).max_logits;
}

// The middle one of a layer's, so that some heads are clipped and others are not.
double threshold_of(const std::vector<float>& heads) {
  std::vector<float> sorted = heads;
  std::sort(sorted.begin(), sorted.end());
  // With two digits: the same number when it is read from a setting.
  return std::floor(static_cast<double>(sorted[sorted.size() / 2]) * 100) / 100;
}

// Everything before the layer is as it was, so its scores are scaled by just its factors.
TEST(QkClip, BringsScoresToTheThreshold) {
  for (const Family& family : families()) {
    const HeadMaxima before = [&] {
      Trainer trainer(still(family.model));
      return maxima_of(trainer);
    }();
    ASSERT_FALSE(before.empty());
    for (const auto& [layer, heads] : before) {
      SCOPED_TRACE(concat(family.name, ", layer ", layer));
      ASSERT_EQ(heads.size(), 4U);
      const double threshold = threshold_of(heads);
      ASSERT_GT(threshold, 0);
      Trainer trainer(still(family.model));
      const QkClip clip(*trainer.model, *trainer.optimizer, threshold);
      EXPECT_EQ(clip.scale_weights({{layer, heads}}),
                std::count_if(heads.begin(), heads.end(), [&](float m) { return m >= threshold; }));
      const HeadMaxima after = maxima_of(trainer);
      for (size_t h = 0; h < heads.size(); ++h) {
        // Weights and scores are rounded again: sums of 32 products, over which sums of 32 go.
        EXPECT_NEAR(after.at(layer)[h], std::min<double>(heads[h], threshold), 1e-5 * threshold)
            << "head " << h;
      }
    }
  }
}

struct Rows {
  int64_t begin;
  int64_t count;
  double factor;
};

// The rows of a logical tensor times their factors, in double precision; the others as they are.
void expect_rows(const State& before,
                 const State& after,
                 const std::string& name,
                 const std::vector<Rows>& all) {
  const std::vector<double> old = before.at(name).to_vector<double>();
  const std::vector<double> found = after.at(name).to_vector<double>();
  const int64_t columns = before.at(name).numel() / before.at(name).size(0);
  int64_t rows = 0;
  for (const Rows& part : all) {
    EXPECT_EQ(part.begin, rows);
    rows += part.count;
    for (int64_t e = part.begin * columns; e < rows * columns; ++e) {
      const double wanted = old[static_cast<size_t>(e)] * part.factor;
      EXPECT_NEAR(found[static_cast<size_t>(e)], wanted, 1e-6 * std::abs(wanted))
          << name << ", element " << e;
    }
  }
  EXPECT_EQ(rows, before.at(name).size(0)) << name;
}

// The formulas, written down for the logical tensors. Everything else keeps its bits.
TEST(QkClip, ScalesRowsAsTheFormulasSay) {
  for (const Overrides& model : {Overrides{testing::kQkvBias}, llama({testing::kQkvBias}), latent(),
                                 latent({kModel + "q_lora_rank=16"})}) {
    SCOPED_TRACE(::testing::PrintToString(model));
    Trainer trainer(still(model));
    const TransformerConfig& c = trainer.config.model_config;
    const State before = [&] {
      State copies;
      for (const auto& [name, value] : get_logical_state(*trainer.model)) {
        copies.emplace(name, value.clone());
      }
      return copies;
    }();
    const HeadMaxima maxima = {{0, {5.0F, 20.0F, -30.0F, 10.0F}}, {1, {9.0F, 1.0F, 40.0F, 9.9F}}};
    EXPECT_EQ(QkClip(*trainer.model, *trainer.optimizer, 10).scale_weights(maxima), 3);
    const State after = get_logical_state(*trainer.model);
    std::vector<std::string> changed;
    for (const auto& [layer, heads] : maxima) {
      const std::string at = concat("layers.", layer, ".attention.");
      std::vector<double> g;
      for (const float m : heads) {
        g.push_back(m >= 10 ? 10 / static_cast<double>(m) : 1);
      }
      std::vector<Rows> queries;
      std::vector<Rows> keys;
      const auto add = [](std::vector<Rows>& rows, int64_t count, double factor) {
        const int64_t begin = rows.empty() ? 0 : rows.back().begin + rows.back().count;
        rows.push_back({begin, count, factor});
      };
      if (c.multi_latent_attention) {
        for (const double factor : g) {
          add(queries, c.qk_head_dim, std::sqrt(factor));
          add(queries, c.qk_pos_emb_head_dim, factor);
          add(keys, c.qk_head_dim, std::sqrt(factor));
          add(keys, c.v_head_dim, 1);
        }
        const std::string q = at + (c.q_lora_rank ? "wq_b.weight" : "wq.weight");
        expect_rows(before, after, q, queries);
        expect_rows(before, after, at + "wkv_b.weight", keys);
        changed.insert(changed.end(), {q, at + "wkv_b.weight"});
        continue;
      }
      const int64_t groups = c.num_query_groups;
      const int64_t of_group = 4 / groups;
      for (int64_t group = 0; group < groups; ++group) {
        double smallest = 1;
        for (int64_t h = group * of_group; h < (group + 1) * of_group; ++h) {
          smallest = std::min(smallest, g[static_cast<size_t>(h)]);
        }
        for (int64_t h = group * of_group; h < (group + 1) * of_group; ++h) {
          add(queries, 8, g[static_cast<size_t>(h)] / std::sqrt(smallest));
        }
        add(keys, 8, std::sqrt(smallest));
      }
      for (const std::string kind : {"weight", "bias"}) {
        expect_rows(before, after, at + "wq." + kind, queries);
        expect_rows(before, after, at + "wk." + kind, keys);
        changed.insert(changed.end(), {at + "wq." + kind, at + "wk." + kind});
      }
    }
    for (const auto& [name, value] : before) {
      if (std::count(changed.begin(), changed.end(), name) == 0) {
        EXPECT_TRUE(testing::same_bits(after.at(name), value)) << name;
      }
    }
  }
}

// Masters, 16-bit weights, and the halves of float32 weights beside bfloat16 ones.
TEST(QkClip, ScalesMastersAndTheirWeights) {
  for (const Overrides& storage :
       {Overrides{kModel + "compute_dtype=bfloat16", kModel + "params_dtype=bfloat16"},
        Overrides{kModel + "compute_dtype=bfloat16",
                  "optimizer_config.store_param_remainders=True"},
        Overrides{kModel + "compute_dtype=bfloat16"}}) {
    SCOPED_TRACE(storage.front() + (storage.size() > 1 ? ", remainders" : ""));
    Trainer trainer(still(joined(llama(), storage)));
    maxima_of(trainer);  // so that there are states
    const std::string name = [&] {
      for (const auto& entry : trainer.model->named_parameters()) {
        if (entry.name.find("qkv_proj.weight") != std::string::npos) {
          return entry.name;
        }
      }
      return std::string();
    }();
    const Tensor old = trainer.optimizer->main_param(name).clone();
    const auto states = [&] {
      std::map<std::string, std::vector<float>> out;
      for (const auto& [key, value] : trainer.optimizer->state(name)) {
        out[key] = value.to_vector<float>();
      }
      return out;
    };
    const auto moments = states();
    QkClip(*trainer.model, *trainer.optimizer, 10).scale_weights({{0, {40, 40, 40, 40}}});
    const Tensor master = trainer.optimizer->main_param(name);
    EXPECT_EQ(master.dtype(), kFloat32);
    EXPECT_EQ(states(), moments);
    const std::vector<float> a = old.to_vector<float>();
    const std::vector<float> b = master.to_vector<float>();
    for (size_t e = 0; e < a.size(); ++e) {
      const bool is_value = e / (8 * 32) % 4 == 3;  // rows: two queries, key, value of a group
      EXPECT_EQ(b[e], is_value ? a[e] : a[e] * 0.5F) << e;
    }
    for (const auto& entry : trainer.model->named_parameters()) {
      if (entry.name == name) {
        EXPECT_TRUE(testing::same_bits(*entry.parameter, master.to(entry.parameter->dtype())));
      }
    }
  }
}

// What a step does with it: by the maxima of all its micro-batches, after its update.
TEST(QkClip, FollowsTheUpdateOfAStep) {
  const Overrides model = llama({kModel + "init_method_std=0.6"});
  for (const std::string optimizer : {"AdamW", "Muon", "SGD"}) {
    SCOPED_TRACE(optimizer);
    const Overrides base = joined(model, {"optimizer_config.optimizer_type=" + optimizer,
                                          "monitor_config.max_logits_interval=1"});
    Trainer plain(base);
    const HeadMaxima maxima = maxima_of(plain);
    const double threshold = threshold_of(maxima.at(0));
    QkClip(*plain.model, *plain.optimizer, threshold).scale_weights(maxima);
    Trainer trainer(joined(base, clipped(threshold)));
    EXPECT_EQ(maxima_of(trainer), maxima);
    testing::expect_states_equal(get_logical_state(*trainer.model),
                                 get_logical_state(*plain.model));
  }
}

TEST(QkClip, LeavesWeightsAloneBelowTheThreshold) {
  const Overrides model = llama({kModel + "init_method_std=0.6"});
  Trainer plain(model);
  Trainer trainer(joined(model, clipped(1e6)));
  EXPECT_TRUE(maxima_of(plain).empty());
  EXPECT_EQ(maxima_of(trainer).size(), 2U);
  testing::expect_states_equal(get_logical_state(*trainer.model), get_logical_state(*plain.model));
}

TEST(QkClip, IsSkippedWithTheUpdate) {
  Trainer trainer(
      joined({still(llama()),
              clipped(0.01),
              {"monitor_config.monitor_on=True", "monitor_config.use_skip_data_by_global_norm=True",
               "monitor_config.global_norm_spike_threshold=1e-9"}}));
  State before;
  for (const auto& [name, value] : get_logical_state(*trainer.model)) {
    before.emplace(name, value.clone());
  }
  maxima_of(trainer);
  testing::expect_states_equal(get_logical_state(*trainer.model), before);
}

TEST(QkClip, WorksWithUpdatesInBackward) {
  const Overrides base = joined(llama({kModel + "init_method_std=0.6"}), clipped(3));
  Trainer usual(base);
  Trainer early(joined(base, {"optimizer_config.optimizer_in_backward=True"}));
  for (Trainer* trainer : {&usual, &early}) {
    const HeadMaxima maxima = trainer->cell({make_batch(trainer->config, 2)}).max_logits;
    EXPECT_GT(maxima.at(0).front(), 3);
  }
  const State expected = get_logical_state(*usual.model);
  const State found = get_logical_state(*early.model);
  int compared = 0;
  for (const auto& [name, value] : expected) {  // gradients of the token table are summed otherwise
    if (name.find(".attention.") != std::string::npos) {
      EXPECT_TRUE(testing::same_bits(found.at(name), value)) << name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 8);
}

// The forms of attention, and passes that are computed twice.
TEST(MaxLogits, DoNotDependOnHowTheyAreComputed) {
  const Overrides base = still(llama({kModel + "num_layers=4"}));
  Trainer trainer(base);
  const HeadMaxima expected = maxima_of(trainer);
  ASSERT_EQ(expected.size(), 4U);
  for (const Overrides& more : {Overrides{"parallel_config.recompute_config=True"},
                                Overrides{"dataset_config.data_layout=SBH"},
                                Overrides{kModel + "use_fused_kernels=False"}}) {
    SCOPED_TRACE(more.front());
    Trainer other(joined(base, more));
    for (const auto& [layer, heads] : maxima_of(other)) {
      for (size_t h = 0; h < heads.size(); ++h) {
        EXPECT_NEAR(heads[h], expected.at(layer)[h], 1e-5 * std::abs(expected.at(layer)[h]));
      }
    }
  }
}

TEST(MaxLogits, AreThoseOfAllMicroBatchesOfTheStep) {
  const Overrides base = still(llama());
  Trainer trainer(base);
  const auto of = [&](const std::vector<data::Batch>& batches) {
    return trainer.cell(batches).max_logits;
  };
  const data::Batch a = make_batch(trainer.config, 2);
  const data::Batch b = make_batch(trainer.config, 2, 2);
  const HeadMaxima first = of({a});
  const HeadMaxima second = of({b});
  const HeadMaxima both = of({a, b});
  bool differ = false;
  for (const auto& [layer, heads] : both) {
    for (size_t h = 0; h < heads.size(); ++h) {
      differ = differ || first.at(layer)[h] != second.at(layer)[h];
      EXPECT_EQ(heads[h], std::max(first.at(layer)[h], second.at(layer)[h]));
    }
  }
  EXPECT_TRUE(differ);
}

struct Layout {
  int ranks;
  ModelParallelSizes sizes;
  Overrides keys;
};

std::vector<Layout> layouts() {
  const auto size = [](const char* what, int value) {
    return concat("parallel_config.", what, "_parallel_size=", value);
  };
  const std::string sequence = "parallel_config.sequence_parallel=True";
  return {{2, {.tensor_model_parallel_size = 2}, {size("tensor_model", 2)}},
          {4, {.tensor_model_parallel_size = 4}, {size("tensor_model", 4), sequence}},
          {2, {.pipeline_model_parallel_size = 2}, {size("pipeline_model", 2)}},
          {2,
           {.pipeline_model_parallel_size = 2, .virtual_pipeline_model_parallel_size = 2},
           {size("pipeline_model", 2), size("virtual_pipeline_model", 2)}},
          {2, {}, {}},
          {2, {.context_parallel_size = 2}, {size("context", 2)}},
          {2, {}, {"parallel_config.zero_level=z1"}},
          {2, {}, {"parallel_config.zero_level=z2"}},
          {2, {}, {"parallel_config.zero_level=z3"}},
          {8,
           {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2},
           {size("tensor_model", 2), size("pipeline_model", 2), "parallel_config.zero_level=z2"}}};
}

const std::string kVocab = kModel + "vocab_size=32";  // which ranks can divide

// Two steps, of which the first clips so that the second one's maxima tell of it. `threshold` 0:
// none is clipped.
struct TwoSteps {
  HeadMaxima first, second;  // on rank 0
  State weights;
};
TwoSteps two_steps(const Overrides& overrides, double threshold, int64_t ranks) {
  Trainer trainer(joined(overrides, threshold > 0 ? clipped(threshold) : Overrides()));
  MaxLogitsLog log(trainer.config, 2);
  TwoSteps out;
  for (int64_t step = 0; step < 2; ++step) {
    FinishedStep finished{.record = {.step = step + 1}};
    std::vector<data::Batch> batches;
    const int64_t rank = ranks > 1 ? get_data_parallel_rank() : 0;
    for (int64_t m = rank; m < 4; m += ranks) {
      batches.push_back(make_batch(trainer.config, 2, 2 * m));
    }
    finished.result = trainer.cell(batches);
    log.after(finished);
    (step == 0 ? out.first : out.second) = finished.record.max_logits;
  }
  for (const auto& [name, value] :
       gather_over_pipeline(get_logical_state(*trainer.model, trainer.optimizer.get()))) {
    out.weights.emplace(name, value.clone());
  }
  return out;
}

TEST(QkClip, IsTheSameInEveryLayout) {
  for (const Overrides& model :
       {still(llama({kVocab, kModel + "num_layers=4", testing::kQkvBias})),
        still(latent({kVocab, kModel + "num_layers=4", kModel + "q_lora_rank=16"}))}) {
    const HeadMaxima plain = two_steps(model, 0, 1).first;
    const double threshold = threshold_of(plain.at(0));
    const TwoSteps expected = two_steps(model, threshold, 1);
    ASSERT_EQ(expected.first, plain);
    ASSERT_NE(expected.second, plain);
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(::testing::PrintToString(layout.keys));
      testing::run_parallel(layout.ranks, layout.sizes, [&] {
        const TwoSteps found =
            two_steps(joined(layout.keys, model), threshold, get_data_parallel_world_size());
        if (get_world_group().rank() != 0) {
          return;
        }
        const auto expect_near = [](const HeadMaxima& a, const HeadMaxima& b) {
          ASSERT_EQ(a.size(), b.size());
          for (const auto& [layer, heads] : b) {
            ASSERT_EQ(a.at(layer).size(), heads.size());
            for (size_t h = 0; h < heads.size(); ++h) {
              // Activations of four layers are rounded in another order.
              EXPECT_NEAR(a.at(layer)[h], heads[h], 1e-5 * threshold_of(heads))
                  << "layer " << layer << ", head " << h;
            }
          }
        };
        expect_near(found.first, expected.first);
        expect_near(found.second, expected.second);
        // Factors are quotients of maxima.
        testing::expect_states_close(found.weights, expected.weights, 1e-5);
      });
    }
  }
}

TEST(QkClip, RefusesWhatItCannotScale) {
  Trainer trainer;
  EXPECT_THAT(message_of<ValueError>([&] { QkClip(*trainer.model, *trainer.optimizer, 0); }),
              HasSubstr("qk_clip: the threshold must be above 0, got 0"));
  std::map<std::string, Tensor> fixed;
  for (const auto& entry : trainer.model->named_parameters()) {
    if (entry.name.find("layers.1.attention.qkv_proj.weight") != std::string::npos) {
      fixed.emplace(entry.name, *entry.parameter);
    }
  }
  ASSERT_EQ(fixed.size(), 1U);
  const std::string name = fixed.begin()->first;
  optim::AdamW others(TensorList{zeros({1}).set_requires_grad()});
  others.set_fixed(fixed);
  EXPECT_THAT(message_of<ValueError>([&] { QkClip(*trainer.model, others, 1); }),
              HasSubstr("'" + name + "' is frozen"));
}

}  // namespace
}  // namespace qk_clip_test
}  // namespace tapestry
