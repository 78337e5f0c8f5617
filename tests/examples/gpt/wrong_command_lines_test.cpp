// Wrong command lines: each message names the program, the word, what was expected and what to do.
#include <sys/wait.h>

#include "autograd/tensor/error.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct WrongLine {
  const char* name;
  const char* program;
  const char* words;
  const char* place;  // the option, or the file that it names
  const char* value;  // as it was written
  const char* expected;
  const char* remedy;
};

void PrintTo(const WrongLine& line, std::ostream* out) { *out << line.name; }

constexpr const char* kPretrain = TAPESTRY_PRETRAIN_GPT;
constexpr const char* kGenerate = TAPESTRY_GENERATE;
constexpr const char* kPreprocess = TAPESTRY_PREPROCESS_DATA;

const std::vector<WrongLine> kLines = {
    {"Nothing", kPretrain, "", "pretrain_gpt", "--config_path",
     "FILE is needed ... no pretrain_gpt.yaml", "examples/gpt/pretrain_gpt_tiny.yaml"},
    {"Dashes", kPretrain, "--config-path run.yaml", "pretrain_gpt", "'--config-path'",
     "unknown option", "did you mean --config_path?"},
    {"OneDash", kPretrain, "-config_path run.yaml", "pretrain_gpt", "'-config_path'",
     "unknown option", "did you mean --config_path?"},
    {"Abbreviation", kPretrain, "--config_pat run.yaml", "pretrain_gpt", "'--config_pat'",
     "unknown option", "did you mean --config_path?"},
    {"FileAlone", kPretrain, "run.yaml", "pretrain_gpt", "'run.yaml'", "belongs to no option",
     "write --config_path run.yaml"},
    {"NoFileBehindTheOption", kPretrain, "--config_path", "pretrain_gpt", "--config_path",
     "a value is missing", "behind it"},
    {"NoSuchFile", kPretrain, "--config_path nothing.yaml", "nothing.yaml", "nothing.yaml",
     "cannot be read", "give the path of a ... YAML"},
    {"AnotherKindOfFile", kPretrain, "--config_path run.json", "run.json", "run.json",
     "must end in ... .yaml ... .yml", "presets are ... examples/gpt/pretrain_gpt_*.yaml"},
    {"FileTwice", kPretrain, "--config_path run.yaml --config_path run.yaml", "pretrain_gpt",
     "--config_path", "given more than once", "keep one"},
    {"MegatronFlagOfTheWrongType", kPretrain, "--config_path run.yaml --lr much",
     "--lr much: optimizer_config.learning_rate", "much", "expected a number", "learning_rate"},
    {"KeyAsAnOptionInAnUnknownSection", kPretrain, "--config_path run.yaml --trainig_config.seed=1",
     "--trainig_config.seed=1", "'trainig_config'", "unknown section",
     "did you mean 'training_config'?"},
    {"FlagAndSetting", kPretrain, "--config_path run.yaml --seed 1 --set training_config.seed=2",
     "--seed 1", "training_config.seed", "is given by --set training_config.seed=2 too",
     "leave one of them out"},
    {"MisspeltKey", kPretrain, "--config_path run.yaml --gradient_acumulation_steps 2",
     "pretrain_gpt", "'--gradient_acumulation_steps'", "unknown option",
     "did you mean --gradient_accumulation_steps?"},
    {"BatchOfAllRanksAlone", kPretrain, "--config_path run.yaml --global-batch-size 8",
     "--global-batch-size 8", "8", "needs --micro-batch-size", "beside a file"},
    {"RateOfNothing", kPretrain, "--config_path run.yaml --lr 0",
     "--lr 0: optimizer_config.learning_rate", "got 0", "must be > 0", "pretrain_gpt --lr_zero N"},
    {"KeyWithoutSet", kPretrain, "--config_path run.yaml training_config.seed=1", "pretrain_gpt",
     "'training_config.seed=1'", "belongs to no option", "write --set training_config.seed=1"},
    {"SetWithoutSection", kPretrain, "--config_path run.yaml --set seed=1", "--set seed=1",
     "seed=1", "expected ... section.key=value", "write training_config.seed=1"},
    {"SetWithoutValue", kPretrain, "--config_path run.yaml --set training_config.seed",
     "--set training_config.seed", "training_config.seed", "expected ... section.key=value",
     "write training_config.seed=VALUE"},
    {"SetWithAColon", kPretrain, "--config_path run.yaml --set training_config.seed:1",
     "--set training_config.seed:1", "training_config.seed:1", "expected ... section.key=value",
     "write training_config.seed=1"},
    {"SetOfAnUnknownKey", kPretrain, "--config_path run.yaml --set training_config.sede=1",
     "--set training_config.sede=1", "'sede'", "unknown key", "did you mean 'seed'?"},
    {"SetInAnUnknownSection", kPretrain, "--config_path run.yaml --set trainig_config.seed=1",
     "--set trainig_config.seed=1", "'trainig_config'", "unknown section",
     "did you mean 'training_config'?"},
    {"SetOfTheWrongType", kPretrain, "--config_path run.yaml --set training_config.seed=1e3",
     "--set training_config.seed=1e3: training_config.seed", "1e3", "expected an integer",
     "write `seed: 1000`"},
    {"ValueOfASwitch", kPretrain, "--config_path run.yaml --dry_run=yes", "pretrain_gpt",
     "--dry_run", "takes no value", "write it alone"},
    {"HelpOnNothing", kPretrain, "--help bananas", "pretrain_gpt", "--help bananas",
     "no such section or key", "--help ... lists the sections"},
    {"HelpOnNoOption", kGenerate, "--help bananas", "generate", "--help bananas",
     "there is no such option", "--help alone lists all"},
    {"SectionOfTheModel", kPretrain, "--config_path run.yaml --model_type llama_config", "run.yaml",
     "llama_config", "is missing; it needs vocab_size",
     "--model_type ... model, the file has ... model_config"},
    {"StepsInWords", kPretrain, "--config_path run.yaml --verify_layout tp=2 --verify_steps three",
     "pretrain_gpt", "three", "'--verify_steps' is invalid", "expected an integer"},
    {"NoPrompt", kGenerate, "--checkpoint run", "generate", "--prompt", "is needed", "--help"},
    {"HotTemperature", kGenerate, "--checkpoint run --prompt a --temperature hot", "generate",
     "hot", "'--temperature' is invalid", "expected a number"},
    {"NoTokenizer", kPreprocess, "--input run.yaml --output_prefix a", "preprocess_data",
     "--tokenizer_type", "is missing", "or huggingface"},
    {"UnknownTokenizerOption", kPreprocess, "--input run.yaml --tokeniser_type byte",
     "preprocess_data", "'--tokeniser_type'", "unknown option", "did you mean --tokenizer_type?"},
};

class WrongCommandLines : public ProgramTest, public ::testing::WithParamInterface<WrongLine> {};

TEST_P(WrongCommandLines, AreExplained) {
  const WrongLine& wrong = GetParam();
  dir_.write("run.yaml", kTinyRun);
  dir_.write("run.json", "{}");
  const auto before = tree();
  EXPECT_EQ(run(wrong.program, wrong.words), 2) << said();
  for (const char* part : {wrong.place, wrong.value, wrong.expected, wrong.remedy}) {
    EXPECT_THAT(err_, Says(part)) << said();
  }
  EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << said();
  EXPECT_EQ(out_, "");
  EXPECT_EQ(tree(), before);
}

INSTANTIATE_TEST_SUITE_P(All, WrongCommandLines, ::testing::ValuesIn(kLines), [](const auto& info) {
  return std::string(info.param.name);
});

TEST(WrongCommandLinesTable, HasAllKinds) { EXPECT_GE(kLines.size(), 20U); }

TEST_F(ProgramTest, HelpIsOnePage) {
  const auto one_page = [&](const std::string& program, const std::string& words) {
    SCOPED_TRACE(program + " " + words);
    EXPECT_EQ(run(program, words), 0) << said();
    EXPECT_EQ(err_, "");
    EXPECT_NE(out_, "");
    EXPECT_LE(std::count(out_.begin(), out_.end(), '\n'), 50) << out_;
    std::istringstream lines(out_);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 100U) << line;
    }
    return out_;
  };
  for (const char* program : {TAPESTRY_PRETRAIN_GPT, TAPESTRY_GENERATE, TAPESTRY_PREPROCESS_DATA,
                              TAPESTRY_OWN_MODEL, TAPESTRY_CONFIG_DOC}) {
    const std::string page = one_page(program, "--help");
    EXPECT_EQ(one_page(program, "-h"), page);
  }
  const std::string page = one_page(TAPESTRY_PRETRAIN_GPT, "--help");
  EXPECT_THAT(page, HasSubstr("\n  optimizer_config "));
  EXPECT_THAT(page, Not(HasSubstr("weight_decay")));
}

TEST_F(ProgramTest, HelpOnASectionAndOnAKey) {
  for (const char* words : {"--help optimizer_config", "-h optimizer_config",
                            "--help=optimizer_config", "--config_path x -h optimizer_config"}) {
    EXPECT_EQ(pretrain(words), 0) << words << "\n" << said();
    EXPECT_THAT(out_, HasSubstr("\n  clip_grad (float, >= 0, default 0.0)\n")) << words;
    EXPECT_THAT(out_, Not(HasSubstr("num_layers"))) << words;
  }
  EXPECT_EQ(pretrain("--help clip_grad"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("\n  clip_grad (float, >= 0, default 0.0)\n"));
  EXPECT_THAT(out_, Not(HasSubstr("weight_decay")));
}

// --help WORD of every program: an option by its name, another program's name for it, a part of it.
TEST_F(ProgramTest, HelpOnOneOption) {
  struct Row {
    const char* program;
    const char* word;
    const char* shown;
    const char* left_out;
  };
  for (const Row& row : std::initializer_list<Row>{
           {TAPESTRY_PRETRAIN_GPT, "lr", "\n  learning_rate (float", "weight_decay"},
           {TAPESTRY_PRETRAIN_GPT, "max_iters", "\n  training_iters (integer", "weight_decay"},
           {TAPESTRY_PRETRAIN_GPT, "dry_run", "--dry_run ", "--replay"},
           {TAPESTRY_PRETRAIN_GPT, "find-fault", "--find_fault ", "--replay"},
           {TAPESTRY_FINETUNE_GPT, "lr", "--learning_rate ", "--epochs"},
           {TAPESTRY_FINETUNE_GPT, "num_train_epochs", "--epochs ", "--learning_rate"},
           {TAPESTRY_FINETUNE_GPT, "weight_decay", "With --set:", "--epochs"},
           {TAPESTRY_GENERATE, "max_tokens", "--max_new_tokens ", "--checkpoint"},
           {TAPESTRY_GENERATE, "temprature", "--temperature ", "--checkpoint"},
           {TAPESTRY_PREPROCESS_DATA, "vocab", "--vocab_size ", "--input"},
           {TAPESTRY_EVALUATE, "choices", "--choices ", "--text"},
           {TAPESTRY_EXPORT, "output", "--output ", "--to "},
           {TAPESTRY_ACCURACY " curves", "jump", "--jump_bound ", "--window"}}) {
    const std::string words = concat("--help ", row.word);
    EXPECT_EQ(run(row.program, words), 0) << row.program << " " << words << "\n" << said();
    EXPECT_THAT(out_, Says(row.shown)) << row.program << " " << words;
    EXPECT_THAT(out_, Not(Says(row.left_out))) << row.program << " " << words;
  }
  EXPECT_EQ(run(TAPESTRY_ACCURACY, "--help curves"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("--jump_bound "));
}

}  // namespace
}  // namespace tapestry
