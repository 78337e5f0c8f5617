// Times whole training steps: gradients to zero, forward, backward, norm and clip, AdamW.
//
// The models, options and printed fields are those of peer/torch_gpt.py; the step is the one that
// pretrain_gpt runs (TrainOneStepCell). Prints one JSON object, with the state of the processors
// before and after the timed steps (core_round_trip.h).
#include <sys/resource.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cmath>
#include <exception>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "bench/bench_options.h"
#include "bench/core_round_trip.h"
#include "diagnosis/profile/memory_watch.h"
#include "diagnosis/profile/recorder.h"
#include "parallel_core/config/config.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/step/train_one_step.h"
#include "parallel_core/training/training.h"

namespace tapestry {
namespace {

using Clock = std::chrono::steady_clock;

/// A model's shape. Llama-like: RMSNorm, rotary positions, SwiGLU, no biases, an output matrix of
/// its own. Otherwise as GPT-2: LayerNorm, learned positions, GELU, biases, tied output. Small ones
/// keep the MLP's activation, as their files in examples/gpt do. Qwen2 is Llama-like with biases of
/// queries, keys and values, and a tied output.
struct Preset {
  int64_t layers, hidden, ffn, heads, kv_heads, vocab;
  bool llama;
  bool keeps_activation = false;
  bool qwen2 = false;
};

const std::map<std::string, Preset>& presets() {
  static const std::map<std::string, Preset> table = {
      {"char", {4, 128, 512, 4, 4, 65, false, true}},
      {"tiny", {4, 256, 1024, 4, 4, 512, false, true}},
      {"llama_15m", {6, 288, 768, 6, 6, 32000, true}},
      {"gpt2_124m", {12, 768, 3072, 12, 12, 50304, false}},
      {"llama_110m", {12, 768, 2048, 12, 12, 32000, true}},
      {"llama_gqa", {8, 1024, 2816, 16, 4, 32000, true}},
      {"layer_7b", {1, 4096, 11008, 32, 32, 32000, true}},
      // Qwen2-0.5B with a vocabulary of 32,000 in place of 151,936: 0.39 billion weights.
      {"qwen2_390m", {24, 896, 4864, 14, 2, 32000, true, false, true}},
  };
  return table;
}

struct Options {
  std::string preset;
  std::string dtype;
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t steps = 0;
  int64_t warmup = 0;
  int64_t lora = 0;
  std::string profile;
  std::vector<std::string> overrides;
};

std::string yaml_of(const Preset& p, const Options& o) {
  const char* biases = p.llama ? "False" : "True";
  std::ostringstream yaml;
  yaml << "training_config:\n  seed: 42\n  training_iters: " << o.warmup + o.steps << "\n"
       << (o.dtype == "bfloat16" ? "  bf16: True\n" : "")  //
       << "dataset_config:\n  batch_size: " << o.batch << "\n  micro_batch_num: 1\n"
       << "model_config:\n  num_layers: " << p.layers << "\n  hidden_size: " << p.hidden
       << "\n  ffn_hidden_size: " << p.ffn << "\n  num_attention_heads: " << p.heads
       << "\n  vocab_size: " << p.vocab << "\n  seq_length: " << o.seq
       << "\n  position_embedding_type: " << (p.llama ? "rope" : "learned_absolute")
       << "\n  normalization: " << (p.llama ? "RMSNorm" : "LayerNorm")
       << "\n  hidden_act: " << (p.llama ? "swiglu" : "gelu")  //
       << "\n  qkv_has_bias: " << (p.qwen2 ? "True" : biases) << "\n  out_proj_has_bias: " << biases
       << "\n  mlp_has_bias: " << biases
       << "\n  untie_embeddings_and_output_weights: " << (p.llama && !p.qwen2 ? "True" : "False")
       << "\n  init_method_std: 0.02\n";
  if (p.kv_heads != p.heads) {
    yaml << "  group_query_attention: True\n  num_query_groups: " << p.kv_heads << "\n";
  }
  if (o.lora > 0) {  // the base as a file of its dtype has it, and no second copy
    yaml << "  params_dtype: " << o.dtype << "\n";
  }
  if (p.keeps_activation) {
    yaml << "recompute_config:\n  select_recompute_exclude: True\n";
  }
  yaml << "optimizer_config:\n  optimizer_type: AdamW\n  learning_rate: 3.0e-4\n"
       << "  lr_decay_style: constant\n  weight_decay: 0.1\n  betas: [0.9, 0.95]\n"
       << "  eps: 1.0e-8\n  clip_grad: 1.0\n";
  if (o.lora > 0) {
    yaml << "lora_config:\n  use_lora: True\n  lora_rank: " << o.lora
         << "\n  lora_alpha: " << 2 * o.lora << "\n";
  }
  return yaml.str();
}

data::Batch random_batch(const Options& o, int64_t vocab) {
  std::mt19937_64 engine(42);
  std::uniform_int_distribution<int64_t> token(0, vocab - 1);
  data::Batch batch;
  batch.batch = o.batch;
  batch.seq = o.seq;
  const auto count = static_cast<size_t>(o.batch * o.seq);
  for (size_t i = 0; i < count; ++i) {
    batch.tokens.push_back(token(engine));
    batch.labels.push_back(token(engine));
  }
  batch.loss_mask.assign(count, 1.0F);
  for (int64_t row = 0; row < o.batch; ++row) {
    batch.sample_ids.push_back(row);
  }
  return batch;
}

/// Arithmetic of a step: six operations per weight of a matrix product and token (the output matrix
/// counts once, tables that are only looked up do not), and attention over the visible half. Beside
/// adapters it is four per weight: what is frozen has no gradient of its own.
double step_flops(const Preset& p, const Options& o, const nn::Module& model) {
  int64_t trained = 0;
  for (const Tensor& parameter : model.parameters()) {
    trained += parameter.requires_grad() ? parameter.numel() : 0;
  }
  const int64_t looked_up = !p.llama ? o.seq * p.hidden : p.qwen2 ? 0 : p.vocab * p.hidden;
  const int64_t multiplied = model.num_parameters() - looked_up;
  const int64_t frozen = o.lora > 0 ? multiplied - trained : 0;
  return static_cast<double>(o.batch * o.seq) *
         (6.0 * static_cast<double>(multiplied - frozen) + 4.0 * static_cast<double>(frozen) +
          6.0 * static_cast<double>(p.layers * p.hidden * o.seq));
}

rusage usage() {
  rusage out = {};
  getrusage(RUSAGE_SELF, &out);
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double rounded(double value, double per_unit) { return std::round(value * per_unit) / per_unit; }

profile::Detail detail_of(const std::string& level) {
  return {.ops = level != "level0", .memory = level != "level2"};
}

/// A step with what pretrain_gpt records of it. Writing the files comes after the steps there.
double profiled_seconds(TrainOneStepCell& cell,
                        const std::vector<data::Batch>& batches,
                        const std::string& level,
                        double& flops) {
  profile::Recorder recorder(detail_of(level));
  recorder.start_step(1);
  std::optional<profile::MemoryWatch> memory;
  if (level == "level2") {
    memory.emplace(Ref<CachingAllocator>(&RankContext::current().allocator()));
    memory->start_points();
  }
  const ObserverScope scope(recorder);
  const auto start = Clock::now();
  cell(batches);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  flops = 0;
  for (const auto& [key, sum] : recorder.take().work) {
    flops += sum.flops;
  }
  return seconds;
}

int measure(const Options& o) {
  const Preset& preset = presets().at(o.preset);
  AllConfig config = init_configs_from_text(yaml_of(preset, o), "step_bench " + o.preset,
                                            {.overrides = o.overrides});
  if (!config.unsupported.empty()) {
    std::cerr << "step_bench: --preset " << o.preset << " --dtype " << o.dtype
              << " is not supported yet\n";
    for (const std::string& finding : config.unsupported) {
      std::cerr << "  " << finding << "\n";
    }
    return 2;
  }
  initialize_model_parallel();
  const auto model = get_model(config);
  const auto optimizer = get_optimizer(config, *model);
  const auto schedule = get_optimizer_param_scheduler(config, 1);
  TrainOneStepCell cell(*model, *optimizer, *schedule, config);
  const std::vector<data::Batch> batches = {random_batch(o, preset.vocab)};

  std::vector<double> seconds;
  std::vector<double> profiled;
  std::vector<double> ratios;  // of a profiled step and the plain one before it
  double counted_flops = 0;
  StepResult result;
  rusage before = {};
  bench::CoreRoundTrip trip_before;
  int64_t system_allocations = 0;
  for (int64_t i = 0; i < o.warmup + o.steps; ++i) {
    if (i == o.warmup) {
      trip_before = bench::core_round_trip();
      before = usage();
      system_allocations = memory_stats().system_allocations;
    }
    const auto start = Clock::now();
    result = cell(batches);
    if (i >= o.warmup) {
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    if (!o.profile.empty()) {
      const double own = profiled_seconds(cell, batches, o.profile, counted_flops);
      if (i >= o.warmup) {
        profiled.push_back(own);
        ratios.push_back(own / seconds.back());
      }
    }
  }
  const rusage after = usage();
  const bench::CoreRoundTrip trip_after = bench::core_round_trip();
  const double middle = median(seconds);
  const int64_t parameters = model->num_parameters();
  const auto steps = static_cast<double>(o.steps);

  nlohmann::ordered_json out;
  out["peer"] = std::string("tapestry ") + TAPESTRY_VERSION;
  out["preset"] = o.preset;
  out["dtype"] = o.dtype;
  if (o.lora > 0) {
    out["lora"] = o.lora;
  }
  out["threads"] = num_threads();
  out["batch"] = o.batch;
  out["seq"] = o.seq;
  out["params"] = parameters;
  out["step_ms"] = rounded(middle * 1e3, 10);
  out["min_ms"] = rounded(*std::min_element(seconds.begin(), seconds.end()) * 1e3, 10);
  out["tokens_per_s"] = rounded(static_cast<double>(o.batch * o.seq) / middle, 10);
  out["gflops"] = rounded(step_flops(preset, o, *model) / middle / 1e9, 10);
  out["peak_rss_mib"] = after.ru_maxrss / 1024;
  out["loss"] = rounded(result.loss, 1e4);
  out["page_faults_per_step"] =
      rounded(static_cast<double>(after.ru_minflt - before.ru_minflt) / steps, 10);
  out["system_allocations_per_step"] =
      static_cast<double>(memory_stats().system_allocations - system_allocations) / steps;
  out["allocator_peak_mib"] = memory_stats().peak_bytes / (1 << 20);
  out["round_trip_ns"] = rounded(trip_before.largest, 10);
  out["state"] = bench::state_of(trip_before);
  out["round_trip_ns_after"] = rounded(trip_after.largest, 10);
  out["state_after"] = bench::state_of(trip_after);
  if (!profiled.empty()) {
    out["profiled_step_ms"] = rounded(median(profiled) * 1e3, 10);
    out["profiled_of_plain"] = rounded(median(ratios), 1e4);
    out["counted_of_gflops"] = rounded(counted_flops / step_flops(preset, o, *model), 1e4);
  }
  std::cout << out.dump() << "\n";
  return 0;
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  std::string names;
  for (const auto& [name, preset] : presets()) {
    names += (names.empty() ? "" : ", ") + name;
  }
  Options o;
  po::options_description options("step_bench");
  options.add_options()("preset", po::value(&o.preset)->default_value("gpt2_124m"), names.c_str())(
      "dtype", po::value(&o.dtype)->default_value("float32"), "float32 or bfloat16")(
      "batch", po::value(&o.batch)->default_value(4), "sequences of a step")(
      "seq", po::value(&o.seq)->default_value(256), "tokens of a sequence")(
      "steps", po::value(&o.steps)->default_value(5), "steps that are timed")(
      "warmup", po::value(&o.warmup)->default_value(2), "steps before them")(
      "lora", po::value(&o.lora)->default_value(0),
      "train adapters of that rank beside all matrices of attention and MLP; 0: the model itself")(
      "profile", po::value(&o.profile),
      "level0, level1 or level2: follow each step by a profiled one, and compare")(
      "set", po::value(&o.overrides)->composing(),
      "section.key=value of the configuration, for example to switch a fusion off");
  if (!bench::parse_options(argc, argv, options)) {
    return 0;
  }
  check<ValueError>(presets().contains(o.preset), "--preset '", o.preset,
                    "' is not known; choose one of ", names);
  check<ValueError>(o.dtype == "float32" || o.dtype == "bfloat16", "--dtype '", o.dtype,
                    "' is not known; choose float32 or bfloat16");
  check<ValueError>(o.batch > 0 && o.seq > 0 && o.steps > 0 && o.warmup >= 0,
                    "--batch, --seq and --steps must be above 0 and --warmup not below, got ",
                    o.batch, ", ", o.seq, ", ", o.steps, " and ", o.warmup);
  check<ValueError>(o.lora >= 0, "--lora must not be below 0, got ", o.lora);
  check<ValueError>(
      o.profile.empty() || o.profile == "level0" || o.profile == "level1" || o.profile == "level2",
      "--profile '", o.profile, "' is not known; choose level0, level1 or level2");
  return measure(o);
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  try {
    return tapestry::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "step_bench: " << error.what() << "\n";
    return 2;
  }
}
