// Measures inference as `generate` runs it: prompts, and one token after the other, of one text and
// of several. Prints one JSON object.
#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "bench/bench_options.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/inference/open_model.h"

namespace tapestry {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// As open_model has it: blocks are widened to float32.
std::string computed_in(const std::string& dtype) {
  const bool blocks = kernels::block_format(dtype).has_value();
  check<ValueError>(dtype == "float32" || dtype == "bfloat16" || blocks, "--dtype is '", dtype,
                    "', expected float32, bfloat16, q8_0 or q4_0");
  return blocks ? "float32" : dtype;
}

// A Llama with random weights.
AllConfig config_of(const std::string& preset, const std::string& dtype) {
  Json model = {{"position_embedding_type", "rope"},
                {"normalization", "RMSNorm"},
                {"hidden_act", "swiglu"},
                {"add_bias_linear", false},
                {"group_query_attention", true},
                {"untie_embeddings_and_output_weights", true},
                {"seq_length", 2048},
                {"compute_dtype", computed_in(dtype)},
                {"params_dtype", computed_in(dtype)}};
  const auto size = [&](int64_t layers, int64_t hidden, int64_t heads, int64_t groups, int64_t ffn,
                        int64_t vocabulary) {
    model.update({{"num_layers", layers},
                  {"hidden_size", hidden},
                  {"num_attention_heads", heads},
                  {"num_query_groups", groups},
                  {"ffn_hidden_size", ffn},
                  {"vocab_size", vocabulary}});
  };
  if (preset == "llama_1b") {
    size(22, 2048, 32, 4, 5632, 32000);
  } else if (preset == "llama_110m") {
    size(12, 768, 12, 12, 2048, 32000);
  } else {
    check<ValueError>(preset == "tiny", "--preset is '", preset,
                      "', expected llama_1b, llama_110m or tiny");
    size(2, 64, 4, 2, 128, 500);
  }
  return init_configs_from_dict({{"training_config", {{"training_iters", 1}}},
                                 {"model_config", nlohmann::json(model)},
                                 {"optimizer_config", {{"learning_rate", 1.0}}}});
}

// Each weight repeats a block of random numbers: what they are has no effect on time, but they must
// not lie in a cache.
int64_t fill_weights(GPTModel& model) {
  const Tensor block = normal(0, 0.02, {1 << 20}, kFloat32, RandomKey{1, 2, 0});
  int64_t bytes = 0;
  for (const auto& entry : model.named_parameters()) {
    const nn::Parameter& parameter = *entry.parameter;
    if (parameter.is_quantized()) {
      const QuantizedMatrix& matrix = parameter.quantized();
      const Tensor& blocks = matrix.bytes();
      const int64_t whole = block.numel() / matrix.in() * matrix.in();
      const Tensor some =
          quantize(block.slice(0, 0, whole).view({-1, matrix.in()}), matrix.format()).bytes();
      for (int64_t row = 0; row < blocks.shape()[0]; row += some.shape()[0]) {
        const int64_t rows = std::min(some.shape()[0], blocks.shape()[0] - row);
        std::memcpy(static_cast<char*>(blocks.raw()) + row * blocks.shape()[1], some.raw(),
                    static_cast<size_t>(rows * blocks.shape()[1]));
      }
      bytes += blocks.numel();
      continue;
    }
    const Tensor values = block.to(parameter.dtype());
    const auto total = static_cast<size_t>(parameter.numel() * size_of(parameter.dtype()));
    const auto piece = static_cast<size_t>(values.numel() * size_of(values.dtype()));
    for (size_t done = 0; done < total; done += piece) {
      std::memcpy(static_cast<char*>(parameter.raw()) + done, values.raw(),
                  std::min(piece, total - done));
    }
    bytes += static_cast<int64_t>(total);
  }
  return bytes;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Timing {
  double prompt_seconds = 0;  // of all prompts
  double token_seconds = 0;   // median of a pass with one token of each text
};

Timing timed(GPTModel& model, int64_t texts, int64_t context, int64_t tokens, int64_t vocabulary) {
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < texts; ++i) {
    GenerationRequest request;
    for (int64_t t = 0; t < context; ++t) {
      request.prompt.push_back(static_cast<int32_t>((i * 7919 + t * 104729) % vocabulary));
    }
    request.options = {.max_new_tokens = tokens + 1, .temperature = 0};
    requests.push_back(std::move(request));
  }
  std::vector<Clock::time_point> times;  // of the last text's tokens
  const auto start = Clock::now();
  generate_batch(model, requests, {.batch_size = texts},
                 [&](size_t request, const GeneratedToken&) {
                   if (request + 1 == requests.size()) {
                     times.push_back(Clock::now());
                   }
                   return true;
                 });
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  Timing out{.prompt_seconds = seconds(times.front() - start)};
  std::vector<double> steps;
  for (size_t i = 1; i < times.size(); ++i) {
    steps.push_back(seconds(times[i] - times[i - 1]));
  }
  out.token_seconds = median(steps);
  return out;
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options("generate_bench");
  options.add_options()("preset", po::value<std::string>()->default_value("llama_1b"),
                        "llama_1b | llama_110m | tiny")(
      "dtype", po::value<std::string>()->default_value("bfloat16"),
      "float32 | bfloat16 | q8_0 | q4_0")("context", po::value<int64_t>()->default_value(512),
                                          "tokens of each prompt")(
      "tokens", po::value<int64_t>()->default_value(16), "that are added to each")(
      "batch", po::value<int64_t>()->default_value(16), "texts side by side")(
      "machine", po::value<std::string>(),
      "what machine_bench has printed: limits to compare with")(
      "rounds", po::value<int64_t>()->default_value(3), "the median counts");
  const std::optional<po::variables_map> parsed = bench::parse_options(argc, argv, options);
  if (!parsed) {
    return 0;
  }
  const auto count = [&](const char* name) { return (*parsed)[name].as<int64_t>(); };
  const auto dtype = (*parsed)["dtype"].as<std::string>();
  const AllConfig config = config_of((*parsed)["preset"].as<std::string>(), dtype);
  const TransformerConfig& c = config.model_config;
  const auto blocks = kernels::block_format(dtype);
  const auto model = model_without_weights(config, blocks ? all_in(*blocks) : BlocksOf());
  const int64_t bytes = fill_weights(*model);
  int64_t parameters = 0;
  for (const auto& entry : model->named_parameters()) {
    parameters += entry.parameter->numel();
  }
  const int64_t table = c.vocab_size * c.hidden_size;
  const auto context = static_cast<double>(count("context"));
  // A token's products, and those of attention's scores and values with what it sees.
  const auto operations = [&](double seen) {
    return 2.0 * static_cast<double>(parameters - table) +
           4.0 * static_cast<double>(c.num_layers * c.hidden_size) * seen;
  };
  // The table of embeddings is not read but for a row.
  const auto read = static_cast<double>(bytes - table * size_of(c.compute_dtype));
  std::vector<double> prompt_seconds;
  std::vector<double> one_seconds;
  std::vector<double> batch_seconds;
  for (int64_t round = 0; round < count("rounds"); ++round) {
    const Timing one = timed(*model, 1, count("context"), count("tokens"), c.vocab_size);
    const Timing many =
        timed(*model, count("batch"), count("context"), count("tokens"), c.vocab_size);
    prompt_seconds.push_back(one.prompt_seconds);
    one_seconds.push_back(one.token_seconds);
    batch_seconds.push_back(many.token_seconds);
  }
  const auto batch = static_cast<double>(count("batch"));
  const double prompt = median(prompt_seconds);
  const double one = median(one_seconds);
  const double many = median(batch_seconds);
  // The head is computed for a prompt's last token alone.
  const double prompt_operations =
      context * (operations(context / 2) - 2.0 * static_cast<double>(table)) +
      2.0 * static_cast<double>(table);
  Json out;
  out["tapestry"] = TAPESTRY_VERSION;
  out["threads"] = num_threads();
  out["cpu_level"] = name_of(cpu_level());
  out["dtype"] = dtype;
  out["parameters"] = parameters;
  out["weight_bytes"] = bytes;
  out["prompt"] = {{"tokens_per_second", context / prompt},
                   {"gflops", prompt_operations / prompt / 1e9}};
  out["one_text"] = {{"tokens_per_second", 1 / one}, {"gbs", read / one / 1e9}};
  out["texts"] = {{"count", count("batch")},
                  {"tokens_per_second", batch / many},
                  {"gbs", read / many / 1e9},
                  {"gflops", batch * operations(context) / many / 1e9}};
  if (parsed->count("machine") != 0) {
    const Json machine = Json::parse(read_file((*parsed)["machine"].as<std::string>()));
    const double gflops = machine.at("gemm").at(computed_in(dtype)).at("peak_gflops").get<double>();
    const double gbs = machine.at("memory").at("read_gbs").get<double>();
    const double limit = std::max(read / (gbs * 1e9), batch * operations(context) / (gflops * 1e9));
    out["of_limits"] = {{"prompt_of_product", prompt_operations / prompt / 1e9 / gflops},
                        {"one_text_of_bandwidth", read / one / 1e9 / gbs},
                        {"texts_of_nearer", limit / many}};
  }
  std::cout << out.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  try {
    return tapestry::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "generate_bench: " << error.what() << "\n";
    return 2;
  }
}
