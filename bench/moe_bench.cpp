// Times one layer of experts, forward and backward, beside the dense SwiGLU layer that has as many
// multiply-adds per token: the work of peer/torch_moe.py. One JSON line per case; the two layers of
// a dtype are measured in turns, so that a change of the machine's speed meets both.
#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/generator.h"
#include "bench/bench_options.h"
#include "parallel_core/config/config.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/transformer/moe/moe_layer.h"

namespace tapestry {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  int64_t tokens = 0;
  int64_t hidden = 0;
  int64_t ffn = 0;
  int64_t experts = 0;
  int64_t topk = 0;
  int64_t repeats = 0;
};

AllConfig config_of(const Options& o, bool is_bfloat16) {
  const std::string text =
      concat("training_config:\n  training_iters: 1\n  bf16: ", is_bfloat16 ? "True" : "False",
             "\nmodel_config:\n  num_layers: 1\n  hidden_size: ", o.hidden,
             "\n  ffn_hidden_size: ", o.topk * o.ffn,
             "\n  num_attention_heads: 1\n  vocab_size: 64", "\n  seq_length: ", o.tokens,
             "\n  hidden_act: swiglu\n  mlp_has_bias: False\n  qkv_has_bias: False",
             "\n  out_proj_has_bias: False\n  position_embedding_type: none",
             "\nmoe_config:\n  num_experts: ", o.experts, "\n  moe_router_topk: ", o.topk,
             "\n  moe_ffn_hidden_size: ", o.ffn, "\n");
  return init_configs_from_text(text, "moe_bench", {});
}

double microseconds_of(MlpBlock& layer, const Tensor& x, const Tensor& dy) {
  layer.zero_grad();
  x.set_grad({});
  const auto start = Clock::now();
  layer.forward(x).output.backward(dy);
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void measure(const Options& o, bool is_bfloat16) {
  const AllConfig config = config_of(o, is_bfloat16);
  MoELayer moe(config.model_config, 1, false);
  ParallelMLP dense(config.model_config, 1, false);
  Generator generator(1);
  const DType dtype = is_bfloat16 ? kBFloat16 : kFloat32;
  const Shape shape = {1, o.tokens, o.hidden};
  const Tensor x = randn(shape, kFloat32, generator).to(dtype).detach();
  x.set_requires_grad(true);
  const Tensor dy = randn(shape, kFloat32, generator).to(dtype);
  std::vector<double> of_moe;
  std::vector<double> of_dense;
  for (int64_t i = 0; i < o.repeats + 2; ++i) {
    const double first = microseconds_of(moe, x, dy);
    const double second = microseconds_of(dense, x, dy);
    if (i >= 2) {
      of_moe.push_back(first);
      of_dense.push_back(second);
    }
  }
  const auto print = [&](const std::string& op, const std::string& size,
                         const std::vector<double>& times) {
    nlohmann::ordered_json out;
    out["op"] = op;
    out["shape"] = concat(o.tokens, "x", o.hidden, "/", size);
    out["dtype"] = is_bfloat16 ? "bfloat16" : "float32";
    out["threads"] = num_threads();
    out["us"] = median(times);
    if (op == "moe_layer") {
      out["of_dense"] = median(times) / median(of_dense);
    }
    std::cout << out.dump() << std::endl;
  };
  print("moe_layer", concat("E", o.experts, "k", o.topk, "F", o.ffn), of_moe);
  print("dense_layer", concat("F", o.topk * o.ffn), of_dense);
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  Options o;
  po::options_description options("moe_bench");
  options.add_options()("tokens", po::value(&o.tokens)->default_value(2048), "tokens of a pass")(
      "hidden", po::value(&o.hidden)->default_value(768), "width of hidden states")(
      "ffn", po::value(&o.ffn)->default_value(1536), "width inside an expert")(
      "experts", po::value(&o.experts)->default_value(8), "experts")(
      "topk", po::value(&o.topk)->default_value(2), "experts of a token")(
      "repeats", po::value(&o.repeats)->default_value(15), "passes that are timed");
  if (!bench::parse_options(argc, argv, options)) {
    return 0;
  }
  check<ValueError>(
      std::min({o.tokens, o.hidden, o.ffn, o.experts - 1, o.topk, o.repeats}) > 0,
      "--tokens, --hidden, --ffn, --topk and --repeats must be above 0 and --experts above 1, got ",
      o.tokens, ", ", o.hidden, ", ", o.ffn, ", ", o.topk, ", ", o.repeats, " and ", o.experts);
  initialize_model_parallel();
  measure(o, false);
  measure(o, true);
  return 0;
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  try {
    return tapestry::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "moe_bench: " << error.what() << "\n";
    return 2;
  }
}
