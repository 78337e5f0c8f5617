// Says how well a model foresees texts and chooses answers, and what a reward model says of texts.
#include <boost/program_options.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/reward_file.h"
#include "parallel_core/scoring/multiple_choice.h"
#include "parallel_core/scoring/perplexity.h"
#include "parallel_core/training/program.h"
#include "text/util/file.h"

namespace {

namespace po = boost::program_options;

using Json = nlohmann::ordered_json;
using tapestry::check;
using tapestry::kFinished;
using tapestry::ValueError;

constexpr const char* kProgram = "evaluate";

po::options_description options_of_program() {
  po::options_description options(
      "Usage: evaluate --checkpoint DIR (--text FILE | --choices FILE)... [OPTION]...\n"
      "       evaluate --checkpoint DIR (--reward FILE)... [OPTION]...",
      tapestry::examples::help_columns());
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  const auto texts = [](const char* name) {
    return po::value<std::vector<std::string>>()->composing()->value_name(name);
  };
  const auto count = [](int64_t usual) {
    return po::value<int64_t>()->default_value(usual)->value_name("N");
  };
  const auto number = [] { return po::value<int64_t>()->value_name("N"); };
  options.add_options()  //
      ("checkpoint", text("DIR"),
       "a checkpoint, a run's folder (its latest is taken), a Hugging Face model or a GGUF file")  //
      ("adapter", text("DIR"), "a PEFT folder, or a checkpoint of a LoRA run")        //
      ("text", texts("FILE"), "perplexity of this text; may be given several times")  //
      ("choices", texts("FILE"),
       "questions with answers to choose from, one in each line, as JSON")  //
      ("reward", texts("FILE"),
       "what a reward model says of texts: lines of JSON with chosen and rejected, or with prompt "
       "and completion")                                                                          //
      ("context", number(), "tokens that the model sees at most; unset: all that it takes")       //
      ("stride", number(), "tokens that each window of a text adds; unset: half the context")     //
      ("details", po::bool_switch(), "log-likelihoods of every question, rewards of every line")  //
      ("dtype", text("TYPE"),
       "float32 | bfloat16 | q8_0 | q4_0; unset: that of a run's products, float32 for other "
       "models")                                                                      //
      ("tokens_per_pass", count(1024), "tokens that are computed together")           //
      ("tensor_parallel", count(1), "processes that share each layer, under mpirun")  //
      ("pipeline_parallel", count(1), "groups of layers, each with its processes")    //
      ("threads", number(), "of each process")                                        //
      ("help,h", "print this text");
  return options;
}

std::vector<std::string> options_if_given(const po::variables_map& arguments, const char* name) {
  return arguments.count(name) == 0 ? std::vector<std::string>()
                                    : arguments[name].as<std::vector<std::string>>();
}

std::string option_if_given(const po::variables_map& arguments, const char* name) {
  return arguments.count(name) == 0 ? std::string() : arguments[name].as<std::string>();
}

// 0: not given.
int64_t positive_of(const po::variables_map& arguments, const char* name) {
  if (arguments.count(name) == 0) {
    return 0;
  }
  const auto given = arguments[name].as<int64_t>();
  check<ValueError>(given > 0, "--", name, " must be positive, got ", given);
  return given;
}

Json text_result(const std::string& file, const tapestry::TextScore& score, int64_t stride) {
  return {{"text", file},
          {"tokens", score.tokens},
          {"scored_tokens", score.scored_tokens},
          {"scored_bytes", score.scored_bytes},
          {"stride", stride},
          {"windows", score.windows},
          {"log_likelihood", score.log_likelihood},
          {"perplexity_per_token", score.perplexity_per_token()},
          {"perplexity_per_byte", score.perplexity_per_byte()},
          {"bits_per_byte", score.bits_per_byte()}};
}

Json choice_result(const std::string& file,
                   const std::vector<tapestry::ChoiceQuestion>& questions,
                   const tapestry::ChoiceResult& result,
                   bool details) {
  const auto share = [&](int64_t right) {
    return static_cast<double>(right) / static_cast<double>(questions.size());
  };
  Json out = {{"choices", file},
              {"questions", questions.size()},
              {"right", result.right},
              {"right_per_byte", result.right_per_byte},
              {"accuracy", share(result.right)},
              {"accuracy_per_byte", share(result.right_per_byte)},
              {"shortened_prompts", result.shortened_prompts}};
  for (size_t i = 0; details && i < questions.size(); ++i) {
    const tapestry::ChoiceScores& scores = result.questions[i];
    out["details"].push_back({{"place", questions[i].place},
                              {"answer", questions[i].answer},
                              {"chosen", scores.chosen},
                              {"chosen_per_byte", scores.chosen_per_byte},
                              {"log_likelihoods", scores.log_likelihoods},
                              {"bytes", scores.bytes}});
  }
  return out;
}

Json reward_result(const std::string& file,
                   const tapestry::post_training::JudgedFile& judged,
                   bool details) {
  Json out = {{"reward", file}};
  if (judged.has_pairs) {
    out.update({{"pairs", judged.lines.size()},
                {"accuracy", judged.accuracy()},
                {"mean_chosen", judged.mean(0)},
                {"mean_rejected", judged.mean(1)},
                {"margin", judged.mean_lead()}});
  } else {
    out.update({{"texts", judged.lines.size()}, {"mean_reward", judged.mean()}});
  }
  out["shortened_texts"] = judged.shortened;
  for (size_t i = 0; details && i < judged.lines.size(); ++i) {
    const auto& [place, rewards] = judged.lines[i];
    Json line = {{"place", place}};
    if (judged.has_pairs) {
      line.update({{"chosen", rewards[0]}, {"rejected", rewards[1]}});
    } else {
      line["reward"] = rewards[0];
    }
    out["details"].push_back(std::move(line));
  }
  return out;
}

// The groups of parallel_state.h for as many copies of the model as there is room for.
void make_groups(const po::variables_map& arguments, const tapestry::Distributed& job) {
  tapestry::ModelParallelSizes sizes;
  sizes.tensor_model_parallel_size = static_cast<int>(positive_of(arguments, "tensor_parallel"));
  sizes.pipeline_model_parallel_size =
      static_cast<int>(positive_of(arguments, "pipeline_parallel"));
  const int ranks = sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size;
  check<ValueError>(job.world()->size() % ranks == 0,
                    "tensor_parallel x pipeline_parallel = ", ranks, " does not divide the ",
                    job.world()->size(), " processes that there are; start a multiple of ", ranks,
                    " with mpirun -n");
  tapestry::initialize_model_parallel(sizes, job.world());
}

// What a reward model says of the files.
int judge(const po::variables_map& arguments,
          const std::vector<std::string>& files,
          const tapestry::Distributed& job) {
  for (const char* other : {"text", "choices", "context", "stride"}) {
    check<ValueError>(arguments.count(other) == 0, "--", other,
                      " is for language models, --reward for reward models; leave one out");
  }
  make_groups(arguments, job);
  tapestry::post_training::RewardModel model(
      {.checkpoint = option_if_given(arguments, "checkpoint"),
       .adapter = option_if_given(arguments, "adapter"),
       .dtype = option_if_given(arguments, "dtype"),
       .tokens_per_pass = positive_of(arguments, "tokens_per_pass")});
  const bool speaks = job.world()->rank() == 0;
  for (const std::string& remark : model.remarks()) {
    if (speaks) {
      tapestry::examples::say(kProgram, remark);
    }
  }
  Json out = {{"checkpoint", model.folder()},
              {"adapter", option_if_given(arguments, "adapter")},
              {"context", model.context()},
              {"results", Json::array()}};
  for (const std::string& file : files) {
    out["results"].push_back(
        reward_result(file, judge_file(model, file), arguments["details"].as<bool>()));
  }
  if (speaks) {
    tapestry::print_result(out.dump(2) + "\n");
  }
  return kFinished;
}

int run(const std::vector<std::string>& given, const tapestry::Distributed& job) {
  std::vector<std::string> words = given;
  const po::options_description options = options_of_program();
  if (tapestry::examples::answer_help(words, options)) {
    return kFinished;
  }
  po::variables_map arguments = tapestry::examples::parse_command_line(words, options);
  po::notify(arguments);
  const std::vector<std::string> texts = options_if_given(arguments, "text");
  const std::vector<std::string> choice_files = options_if_given(arguments, "choices");
  check<ValueError>(arguments.count("checkpoint") != 0, "--checkpoint is needed; see --help");
  const std::vector<std::string> judged_files = options_if_given(arguments, "reward");
  check<ValueError>(!texts.empty() || !choice_files.empty() || !judged_files.empty(),
                    "--text, --choices or --reward is needed: there is nothing to evaluate; see "
                    "--help");
  check<ValueError>(arguments.count("stride") == 0 || !texts.empty(),
                    "--stride is one of texts; add --text or leave it out");
  check<ValueError>(!arguments["details"].as<bool>() || texts.empty() || !choice_files.empty(),
                    "--details are of questions; add --choices or leave it out");
  if (const int64_t threads = positive_of(arguments, "threads"); threads > 0) {
    tapestry::set_num_threads(static_cast<int>(threads));
  }
  if (!judged_files.empty()) {
    return judge(arguments, judged_files, job);
  }
  // Before a model is loaded, what is wrong with the files.
  std::vector<std::vector<tapestry::ChoiceQuestion>> questions;
  for (const std::string& file : choice_files) {
    questions.push_back(tapestry::read_choice_questions(file));
  }
  std::vector<std::string> contents;
  for (const std::string& file : texts) {
    contents.push_back(tapestry::data::read_file(file));
  }

  tapestry::Scorer scorer({.checkpoint = option_if_given(arguments, "checkpoint"),
                           .adapter = option_if_given(arguments, "adapter"),
                           .dtype = option_if_given(arguments, "dtype"),
                           .tensor_parallel = positive_of(arguments, "tensor_parallel"),
                           .pipeline_parallel = positive_of(arguments, "pipeline_parallel")},
                          job.world(), positive_of(arguments, "context"),
                          positive_of(arguments, "tokens_per_pass"));
  const bool speaks = job.world()->rank() == 0;
  for (const std::string& remark : scorer.opened().remarks) {
    if (speaks) {
      tapestry::examples::say(kProgram, remark);
    }
  }
  const int64_t asked = positive_of(arguments, "stride");
  const int64_t stride = asked > 0 ? asked : std::max<int64_t>(scorer.context() / 2, 1);
  Json out = {{"checkpoint", scorer.opened().folder},
              {"adapter", option_if_given(arguments, "adapter")},
              {"context", scorer.context()},
              {"results", Json::array()}};
  for (size_t i = 0; i < texts.size(); ++i) {
    out["results"].push_back(
        text_result(texts[i], score_text(scorer, contents[i], stride, texts[i]), stride));
  }
  for (size_t i = 0; i < choice_files.size(); ++i) {
    out["results"].push_back(choice_result(choice_files[i], questions[i],
                                           score_choices(scorer, questions[i]),
                                           arguments["details"].as<bool>()));
  }
  if (speaks) {
    tapestry::print_result(out.dump(2) + "\n");
  }
  return kFinished;
}

}  // namespace

int main(int argc, char** argv) { return tapestry::run_program(argc, argv, run); }
