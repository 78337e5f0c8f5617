// Prints text from a trained model.
#include <algorithm>
#include <boost/program_options.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "examples/gpt/generate_answers.h"
#include "examples/gpt/generate_chat.h"
#include "examples/gpt/generate_log_probs.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/inference/open_model.h"
#include "parallel_core/inference/prompt_lines.h"
#include "parallel_core/training/data/built_in_chat.h"
#include "parallel_core/training/program.h"

namespace {

namespace po = boost::program_options;

using tapestry::check;
using tapestry::concat;
using tapestry::kBadInput;
using tapestry::kFinished;
using tapestry::ValueError;
using tapestry::examples::Answers;
using tapestry::examples::say;

constexpr const char* kProgram = "generate";

po::options_description options_of_program() {
  po::options_description options("Usage: generate --checkpoint DIR --prompt TEXT [OPTION]...",
                                  tapestry::examples::help_columns());
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  const auto texts = [](const char* name) {
    return po::value<std::vector<std::string>>()->composing()->value_name(name);
  };
  const auto count = [](int64_t usual, const char* name = "N") {
    return po::value<int64_t>()->default_value(usual)->value_name(name);
  };
  const auto number = [](double usual, const char* name) {
    std::ostringstream shown;
    shown << usual;
    return po::value<double>()->default_value(usual, shown.str())->value_name(name);
  };
  options.add_options()  //
      ("checkpoint", text("DIR"),
       "a checkpoint, a run's folder (its latest is taken), a Hugging Face model or a GGUF file")  //
      ("adapter", text("DIR"), "beside its weights: a PEFT folder, or a run that tuned them")  //
      ("prompt", texts("TEXT"), "text to continue; may be given several times")                //
      ("prompts", text("FILE"), "one in each line, as JSON; so are the answers")               //
      ("chat", po::bool_switch(),
       "prompts are what a user says, in the model's chat template; without any, a conversation")  //
      ("system", text("TEXT"), "with --chat: what the system says first")                        //
      ("max_new_tokens", count(100), "tokens to add at most")                                    //
      ("temperature", number(1, "T"), "divides the logits; 0 takes the likeliest token")         //
      ("top_k", count(0, "K"), "only among the K likeliest; 0: all")                             //
      ("top_p", number(1, "P"), "only among the likeliest that together have this probability")  //
      ("min_p", number(0, "P"), "only with this share of the likeliest one's probability")       //
      ("repetition_penalty", number(1, "R"), "divides logits of tokens that are there already")  //
      ("seed", count(0), "of the random numbers, from 0; the next prompt has the next one")      //
      ("use_generation_config", po::bool_switch(),
       "takes what generation_config.json says of these where they are not given")    //
      ("stop", texts("TEXT"), "ends the text before it; may be given several times")  //
      ("stream", po::bool_switch(), "prints text as it comes")                        //
      ("json", po::bool_switch(), "prints a JSON object a prompt")                    //
      ("logprobs", po::value<int64_t>()->value_name("N"),
       "in JSON: log-probabilities of each token and of the N likeliest")  //
      ("to", text("FILE"),
       "with --logprobs and --prompts: log-probabilities of the N likeliest at each token of the "
       "answers, or of the lines' own \"completion\", in a safetensors file to distil from")  //
      ("logprobs_temperature", number(1, "T"),
       "with --to: divides the logits that they are of; that of the distillation")  //
      ("dtype", text("TYPE"),
       "float32 | bfloat16 | q8_0 | q4_0; unset: that of a run's products, float32 for other "
       "models")  //
      ("context", po::value<int64_t>()->value_name("N"),
       "tokens that the model sees at most; unset: seq_length, or positions of the model")  //
      ("stop_at_context", po::bool_switch(),
       "ends a text there; else its beginning is forgotten")                           //
      ("batch_size", count(16), "texts that are continued together")                   //
      ("prefill_tokens", count(512), "tokens of prompts that are computed together")   //
      ("no_cache", po::bool_switch(), "computes the whole text again for each token")  //
      ("tensor_parallel", count(1), "processes that share each layer, under mpirun")   //
      ("pipeline_parallel", count(1), "groups of layers, each with its processes")     //
      ("threads", po::value<int64_t>()->value_name("N"), "of each process")            //
      ("help,h", "print this text");
  return options;
}

std::optional<std::string> option_if_given(const po::variables_map& arguments, const char* name) {
  return arguments.count(name) == 0 ? std::nullopt
                                    : std::optional(arguments[name].as<std::string>());
}

std::vector<std::string> options_if_given(const po::variables_map& arguments, const char* name) {
  return arguments.count(name) == 0 ? std::vector<std::string>()
                                    : arguments[name].as<std::vector<std::string>>();
}

bool is_set(const po::variables_map& arguments, const char* name) {
  return arguments[name].as<bool>();
}

// What the options say of every text, without what the model knows.
tapestry::GenerationOptions sampling_of(const po::variables_map& arguments) {
  const auto seed = arguments["seed"].as<int64_t>();
  check<ValueError>(seed >= 0, "--seed must not be negative, got ", seed);
  tapestry::GenerationOptions out;
  out.max_new_tokens = arguments["max_new_tokens"].as<int64_t>();
  out.temperature = arguments["temperature"].as<double>();
  out.top_k = arguments["top_k"].as<int64_t>();
  out.top_p = arguments["top_p"].as<double>();
  out.seed = static_cast<uint64_t>(seed);
  out.min_p = arguments["min_p"].as<double>();
  out.repetition_penalty = arguments["repetition_penalty"].as<double>();
  out.stops_at_context = is_set(arguments, "stop_at_context");
  if (arguments.count("logprobs") != 0) {
    out.top_log_probs = arguments["logprobs"].as<int64_t>();
    check<ValueError>(out.top_log_probs >= 0, "--logprobs must not be negative, got ",
                      out.top_log_probs);
  }
  check_generation_options(out);
  return out;
}

// generation_config.json where no option says otherwise, if it is asked for.
void take_suggestions(const po::variables_map& arguments,
                      const tapestry::SuggestedSampling& suggested,
                      tapestry::GenerationOptions& options,
                      bool speaks) {
  if (!is_set(arguments, "use_generation_config")) {
    if (const std::string text = suggested.describe(); speaks && !text.empty()) {
      say(kProgram,
          concat(suggested.file, " suggests ", text, "; --use_generation_config takes that"));
    }
    return;
  }
  check<ValueError>(!suggested.file.empty(),
                    "--use_generation_config: there is no generation_config.json beside the "
                    "weights; leave it out");
  tapestry::SuggestedSampling taken = suggested;
  const auto is_given = [&](const char* name) { return !arguments[name].defaulted(); };
  const auto drop = [&](const char* name, auto& value) {
    if (is_given(name)) {
      value.reset();
    }
  };
  if (is_given("temperature")) {
    taken.do_sample.reset();
  }
  drop("temperature", taken.temperature);
  drop("top_k", taken.top_k);
  drop("top_p", taken.top_p);
  drop("min_p", taken.min_p);
  drop("repetition_penalty", taken.repetition_penalty);
  drop("max_new_tokens", taken.max_new_tokens);
  taken.apply_to(options);
}

// What is wrong with the options together, before a model is loaded.
void check_arguments(const po::variables_map& arguments, const std::vector<std::string>& prompts) {
  const bool chat = is_set(arguments, "chat");
  const bool from_file = arguments.count("prompts") != 0;
  check<ValueError>(arguments.count("checkpoint") != 0, "--checkpoint is needed; see --help");
  check<ValueError>(!prompts.empty() || from_file || chat, "--prompt is needed; see --help");
  check<ValueError>(prompts.empty() || !from_file, "--prompt and --prompts: keep one of them");
  for (const std::string& prompt : prompts) {
    check<ValueError>(!prompt.empty(), "--prompt is empty, expected a text to continue");
  }
  for (const std::string& stop : options_if_given(arguments, "stop")) {
    check<ValueError>(!stop.empty(), "--stop is empty, expected a text that ends the answer");
  }
  check<ValueError>(!is_set(arguments, "stream") || (!from_file && prompts.size() < 2),
                    "--stream shows one text as it comes; give one --prompt");
  const bool json = is_set(arguments, "json") || from_file;
  check<ValueError>(!json || !is_set(arguments, "stream"),
                    "--stream and JSON, which is complete or not at all: keep one of them");
  const bool to_file = arguments.count("to") != 0;
  check<ValueError>(!to_file || arguments.count("logprobs") != 0,
                    "--to is the file of log-probabilities; add --logprobs K");
  check<ValueError>(!to_file || from_file,
                    "--to needs a file of texts; give it with --prompts FILE");
  check<ValueError>(!to_file || !is_set(arguments, "json"),
                    "--json and --to, which prints no answers: keep one of them");
  check<ValueError>(to_file || arguments["logprobs_temperature"].defaulted(),
                    "--logprobs_temperature is that of a file; add --to FILE");
  const auto temperature = arguments["logprobs_temperature"].as<double>();
  check<ValueError>(temperature > 0 && std::isfinite(temperature),
                    "--logprobs_temperature must be above 0, got ", temperature);
  check<ValueError>(arguments.count("logprobs") == 0 || json,
                    "--logprobs are printed as JSON only; add --json");
  check<ValueError>(arguments.count("system") == 0 || chat,
                    "--system is a part of a conversation; add --chat");
}

int run(const std::vector<std::string>& given, const tapestry::Distributed& job) {
  std::vector<std::string> words = given;
  const po::options_description options = options_of_program();
  if (tapestry::examples::answer_help(words, options)) {
    return kFinished;
  }
  po::variables_map arguments = tapestry::examples::parse_command_line(words, options);
  po::notify(arguments);
  const std::vector<std::string> prompts = options_if_given(arguments, "prompt");
  check_arguments(arguments, prompts);
  tapestry::GenerationOptions sampling = sampling_of(arguments);
  std::vector<tapestry::PromptLine> lines;
  const auto file = option_if_given(arguments, "prompts");
  const auto to = option_if_given(arguments, "to");
  if (file && !to) {
    lines = tapestry::read_prompt_lines(*file);
  }
  if (arguments.count("threads") != 0) {
    const auto threads = arguments["threads"].as<int64_t>();
    check<ValueError>(threads > 0, "--threads must be positive, got ", threads);
    tapestry::set_num_threads(static_cast<int>(threads));
  }

  const bool speaks = job.world()->rank() == 0;
  const bool chat = is_set(arguments, "chat");
  const bool needs_format = chat || (to && tapestry::examples::has_conversations(*file)) ||
                            std::any_of(lines.begin(), lines.end(),
                                        [](const auto& line) { return line.messages != nullptr; });
  std::optional<tapestry::chat::ChatFormat> format;
  if (needs_format) {  // before weights are read: a template may be refused
    format = tapestry::examples::chat_of(
        tapestry::resolve_checkpoint(*option_if_given(arguments, "checkpoint")));
  }
  const tapestry::OpenModel opened =
      open_model({.checkpoint = *option_if_given(arguments, "checkpoint"),
                  .adapter = option_if_given(arguments, "adapter").value_or(""),
                  .dtype = option_if_given(arguments, "dtype").value_or(""),
                  .tensor_parallel = arguments["tensor_parallel"].as<int64_t>(),
                  .pipeline_parallel = arguments["pipeline_parallel"].as<int64_t>()},
                 job.world());
  for (const std::string& remark : opened.remarks) {
    if (speaks) {
      say(kProgram, remark);
    }
  }
  take_suggestions(arguments, opened.suggested, sampling, speaks);
  sampling.vocab_size = opened.saved.tokenizer->vocab_size();
  sampling.stop_ids = opened.stop_ids;
  sampling.max_context = opened.saved.config.model_config.seq_length;
  if (arguments.count("context") != 0) {
    sampling.max_context = arguments["context"].as<int64_t>();
    check<ValueError>(sampling.max_context > 0, "--context must be positive, got ",
                      sampling.max_context);
  }
  const tapestry::GenerationBatch batch = {
      .batch_size = arguments["batch_size"].as<int64_t>(),
      .prefill_tokens = arguments["prefill_tokens"].as<int64_t>(),
      .use_cache = !is_set(arguments, "no_cache")};
  Answers answers(opened, sampling, batch, options_if_given(arguments, "stop"), speaks);
  const bool json = is_set(arguments, "json") || !lines.empty();
  if (needs_format && !format) {
    format = tapestry::built_in_chat(*opened.saved.tokenizer);
    if (speaks) {
      say(kProgram, concat("the model's folder has no chat template (chat_template.jinja, or "
                           "chat_template in tokenizer_config.json): the conversation is written "
                           "in ChatML, whose turns end with ",
                           tapestry::built_in_turn_end(*opened.saved.tokenizer)));
    }
  }
  if (format) {
    answers.set_chat(*format, option_if_given(arguments, "system").value_or(""));
  }
  if (to) {
    tapestry::examples::write_log_probs(
        opened, answers, format ? &*format : nullptr,
        {.prompts = *file,
         .to = *to,
         .top_k = sampling.top_log_probs,
         .temperature = arguments["logprobs_temperature"].as<double>(),
         .most_tokens = sampling.max_context},
        chat);
    return kFinished;
  }
  if (chat && prompts.empty() && lines.empty()) {
    tapestry::examples::converse(answers, *job.world());
    return kFinished;
  }
  for (const std::string& prompt : prompts) {
    tapestry::PromptLine line;
    line.prompt = prompt;
    lines.push_back(std::move(line));
  }
  if (is_set(arguments, "stream")) {
    answers.stream(lines.front(), chat);
  } else {
    answers.print_all(lines, chat, json);
  }
  return kFinished;
}

}  // namespace

int main(int argc, char** argv) { return tapestry::run_program(argc, argv, run); }
