// Prints text from a trained model.
#include <boost/program_options.hpp>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/training/program.h"
#include "parallel_core/training/resume.h"
#include "parallel_core/training/saved_model.h"
#include "parallel_core/training/terminal.h"
#include "parallel_core/training/training.h"

namespace {

namespace po = boost::program_options;

using tapestry::concat;
using tapestry::kBadInput;
using tapestry::kFailure;
using tapestry::kFinished;
using tapestry::OutputStream;
using tapestry::examples::say;

constexpr const char* kProgram = "generate";

int run(int argc, char** argv) {
  po::options_description options("Usage: generate --checkpoint DIR --prompt TEXT [OPTION]...",
                                  tapestry::examples::help_columns());
  options.add_options()("checkpoint", po::value<std::string>()->value_name("DIR"),
                        "a checkpoint, a folder of checkpoints or a run's folder (the latest is "
                        "taken), or the folder "
                        "of a Hugging Face model")(
      "prompt", po::value<std::string>()->value_name("TEXT"), "text to continue")(
      "max_new_tokens", po::value<int64_t>()->default_value(100)->value_name("N"),
      "tokens to add at most")("temperature",
                               po::value<double>()->default_value(1.0)->value_name("T"),
                               "divides the logits; 0 takes the likeliest token")(
      "top_k", po::value<int64_t>()->default_value(0)->value_name("K"),
      "only among the K likeliest; 0: all")(
      "top_p", po::value<double>()->default_value(1.0)->value_name("P"),
      "only among the likeliest that together have this probability")(
      "seed", po::value<int64_t>()->default_value(0)->value_name("N"),
      "of the random numbers, from 0")("help,h", "print this text");
  std::vector<std::string> words = tapestry::examples::words_of(argc, argv);
  if (tapestry::examples::take_help(words)) {
    std::ostringstream text;
    text << options;
    tapestry::print_result(text.str());
    return kFinished;
  }
  po::variables_map arguments = tapestry::examples::parse_command_line(words, options);
  po::notify(arguments);
  for (const char* needed : {"checkpoint", "prompt"}) {
    if (arguments.count(needed) == 0) {
      say(kProgram, concat("--", needed, " is needed; see --help"));
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
    say(kProgram, concat("the latest checkpoint of ", given, " is ", folder));
  }
  const tapestry::SavedModel saved = tapestry::open_saved_model(folder);
  if (!saved.remark.empty()) {
    say(kProgram, saved.remark);
  }
  const tapestry::AllConfig& config = saved.config;
  const tapestry::data::Tokenizer& tokenizer = *saved.tokenizer;
  tapestry::verify_weights(folder, /*checksums=*/true, *tapestry::single_process_group());
  const auto model = tapestry::get_model(config);
  tapestry::load_weights(*model, config.model_config, folder);

  const std::vector<int32_t> ids = tokenizer.encode(prompt);
  std::vector<int32_t> context = saved.start;
  context.insert(context.end(), ids.begin(), ids.end());
  const std::vector<int32_t> added =
      tapestry::generate(*model, context,
                         {.max_new_tokens = arguments["max_new_tokens"].as<int64_t>(),
                          .temperature = arguments["temperature"].as<double>(),
                          .top_k = arguments["top_k"].as<int64_t>(),
                          .top_p = arguments["top_p"].as<double>(),
                          .seed = static_cast<uint64_t>(seed),
                          .vocab_size = tokenizer.vocab_size(),
                          .eod_id = saved.eod_id,
                          .max_context = config.model_config.seq_length});
  std::vector<int32_t> all = ids;
  all.insert(all.end(), added.begin(), added.end());
  // Bytes that a model makes up could do anything to a terminal.
  const std::string text = tokenizer.decode(all) + "\n";
  tapestry::print_result(tapestry::is_terminal(OutputStream::kOut) ? tapestry::harmless_text(text)
                                                                   : text);
  return kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    say(kProgram, error.what());
    return tapestry::exit_code_of(error);
  }
}
