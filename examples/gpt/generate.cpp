// Prints text from a trained model.
#include <boost/program_options.hpp>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/tokenizer.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/generation.h"
#include "parallel_core/training/training.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

constexpr int kFinished = 0;
constexpr int kFailure = 1;
constexpr int kBadInput = 2;

int run(int argc, char** argv) {
  po::options_description options("generate --checkpoint DIR --prompt TEXT [options]");
  options.add_options()(
      "checkpoint", po::value<std::string>(),
      "a checkpoint, a folder of checkpoints or a run's folder (the latest is taken)")(
      "prompt", po::value<std::string>(), "text to continue")(
      "max_new_tokens", po::value<int64_t>()->default_value(100), "tokens to add at most")(
      "temperature", po::value<double>()->default_value(1.0),
      "divides the logits; 0 takes the likeliest token")(
      "top_k", po::value<int64_t>()->default_value(0), "only among the k likeliest; 0: all")(
      "top_p", po::value<double>()->default_value(1.0),
      "only among the likeliest that together have this probability")(
      "seed", po::value<int64_t>()->default_value(0), "of the random numbers, from 0")(
      "help,h", "print this text");
  std::vector<std::string> words = tapestry::examples::words_of(argc, argv);
  if (tapestry::examples::take_help(words)) {
    std::cout << options;
    return kFinished;
  }
  po::variables_map arguments = tapestry::examples::parse_command_line(words, options);
  po::notify(arguments);
  for (const char* needed : {"checkpoint", "prompt"}) {
    if (arguments.count(needed) == 0) {
      std::cerr << "generate: --" << needed << " is needed; see --help\n";
      return kBadInput;
    }
  }
  const auto seed = arguments["seed"].as<int64_t>();
  tapestry::check<tapestry::ValueError>(seed >= 0, "--seed must not be negative, got ", seed);
  const auto prompt = arguments["prompt"].as<std::string>();
  tapestry::check<tapestry::ValueError>(!prompt.empty(),
                                        "--prompt is empty, expected a text to continue");
  const auto given = arguments["checkpoint"].as<std::string>();
  const std::string folder = tapestry::resolve_checkpoint(given);
  if (folder != given) {
    std::cerr << "generate: the latest checkpoint of " << given << " is " << folder << "\n";
  }
  tapestry::check<tapestry::IoError>(
      fs::exists(folder + "/config.yaml"), folder,
      ": has no config.yaml; --checkpoint names a checkpoint folder of pretrain_gpt");
  const tapestry::AllConfig config = tapestry::init_configs_from_yaml(folder + "/config.yaml");
  const std::string& type = config.dataset_config.tokenizer_type;
  const std::string tokenizer_file = type == "byte" ? "" : folder + "/tokenizer.model";
  tapestry::check<tapestry::IoError>(
      type == "byte" || fs::exists(tokenizer_file), tokenizer_file,
      ": is missing; the run that saved the checkpoint had no dataset_config.tokenizer_model, put "
      "the tokenizer of its text there");
  const auto tokenizer = tapestry::data::make_tokenizer(type, tokenizer_file);
  tapestry::check<tapestry::ValueError>(
      tokenizer->vocab_size() <= config.model_config.vocab_size, folder,
      ": the model's vocab_size is ", config.model_config.vocab_size, ", but beside it is the ",
      tokenizer->describe(), "; it is not the tokenizer of this model");
  const auto model = tapestry::get_model(config);
  tapestry::load_weights(*model, config.model_config, folder);

  const std::vector<int32_t> ids = tokenizer->encode(prompt);
  const std::vector<int32_t> added =
      tapestry::generate(*model, ids,
                         {.max_new_tokens = arguments["max_new_tokens"].as<int64_t>(),
                          .temperature = arguments["temperature"].as<double>(),
                          .top_k = arguments["top_k"].as<int64_t>(),
                          .top_p = arguments["top_p"].as<double>(),
                          .seed = static_cast<uint64_t>(seed),
                          .vocab_size = tokenizer->vocab_size(),
                          .eod_id = tokenizer->eod_id(),
                          .max_context = config.model_config.seq_length});
  std::vector<int32_t> all = ids;
  all.insert(all.end(), added.begin(), added.end());
  std::cout << tokenizer->decode(all) << "\n";
  return kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const tapestry::RuntimeError& error) {
    std::cerr << "generate: " << error.what() << "\n";
    return kFailure;
  } catch (const tapestry::Error& error) {
    std::cerr << "generate: " << error.what() << "\n";
    return kBadInput;
  } catch (const std::exception& error) {
    std::cerr << "generate: " << error.what() << "\n";
    return kFailure;
  }
}
