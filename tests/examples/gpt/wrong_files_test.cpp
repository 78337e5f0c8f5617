// Wrong configuration files, as people write them: each message names the place, the thing, the
// value, what was expected and what to do.
#include <map>

#include "parallel_core/config/config.h"
#include "parallel_core/training/program.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

struct WrongFile {
  const char* name;
  std::vector<std::pair<std::string, std::string>> edits;  // of kTinyRun
  const char* place;                                       // "3:9", line and column
  const char* thing;                                       // the path of the key, or the section
  const char* value;                                       // as it was written
  const char* expected;
  const char* remedy;
};

void PrintTo(const WrongFile& file, std::ostream* out) { *out << file.name; }

const std::vector<WrongFile> kSyntax = {
    {"TabIndents",
     {{"  seed: 7", "\tseed: 7"}},
     "3:1",
     "training_config.seed",
     "3 |  seed: 7",
     "tab indents this line ... YAML",
     "each tab by two spaces"},
    {"TabBehindSpaces",
     {{"  seed: 7", "  \tseed: 7"}},
     "3:3",
     "training_config.seed",
     "3 |    seed: 7",
     "YAML takes spaces alone",
     "each tab by two spaces"},
    {"NoBreakSpaceIndents",
     {{"  seed: 7", "\u00a0\u00a0seed: 7"}},
     "3:1",
     "training_config",
     "seed: 7",
     "no ordinary space",
     "replace it by spaces"},
    {"NoColon",
     {{"  seed: 7", "  seed 7"}},
     "3:3",
     "training_config.seed",
     "seed 7",
     "colon is missing after ... `seed`",
     "write `seed: 7`"},
    {"NoColonBehindASection",
     {{"model_config:", "model_config"}},
     "10:1",
     "model_config",
     "10 | model_config",
     "colon is missing after ... `model_config`",
     "write `model_config:`"},
    {"NoSpaceBehindTheColon",
     {{"  seed: 7", "  seed:7"}},
     "3:3",
     "training_config.seed",
     "seed:7",
     "space is missing after ... `seed:`",
     "write `seed: 7`"},
    {"NoSpaceInASectionOfOneKey",
     {{"learning_rate: 1e-3", "learning_rate:1e-3"}},
     "18:3",
     "optimizer_config",
     "'learning_rate:1e-3'",
     "space is missing after ... `learning_rate:`",
     "write `learning_rate: 1e-3`"},
    {"EqualsSign",
     {{"  seed: 7", "  seed = 7"}},
     "3:3",
     "training_config.seed",
     "seed = 7",
     "`=` sets nothing in YAML",
     "write `seed: 7`"},
    {"FullWidthColon",
     {{"  seed: 7", "  seed\uff1a7"}},
     "3:3",
     "training_config.seed",
     "seed\uff1a7",
     "a full-width one",
     "write `seed: 7`"},
    {"IndentedTooFar",
     {{"  seed: 7", "    seed: 7"}},
     "3:5",
     "training_config",
     "indented by 4 spaces",
     "further than `training_iters` ... its value already",
     "begin both in one column"},
    {"IndentedTooLittle",
     {{"  seed: 7", " seed: 7"}},
     "3:2",
     "training_config.seed",
     "indented by 1 space",
     "as no line above it",
     "that it belongs to"},
    {"KeyAtTheLeftEdge",
     {{"  num_threads: 1", "num_threads: 1"}},
     "4:1",
     "unknown section",
     "'num_threads'",
     "this key belongs in training_config",
     "indent ... below `training_config:`"},
    {"SectionInASection",
     {{"optimizer_config:\n", "  optimizer_config:\n  "}},
     "17:3",
     "in model_config",
     "'optimizer_config'",
     "section of its own",
     "line at the left edge"},
    {"DoubleQuoteOpen",
     {{"data_path: text", "data_path: \"text"}},
     "6:14",
     "dataset_config.data_path",
     "\"text_text_document",
     "the quote \" is not closed",
     "where the text ends"},
    {"SingleQuoteOpen",
     {{"tokenizer_type: byte", "tokenizer_type: 'byte"}},
     "7:19",
     "dataset_config.tokenizer_type",
     "'byte",
     "the quote ' is not closed",
     "leave out the quotes"},
    {"BracketOpen",
     {{"learning_rate: 1e-3\n", "betas: [0.9, 0.95\n  eps: 1e-8\n"}},
     "18:10",
     "optimizer_config.betas",
     "[0.9, 0.95",
     "is not closed",
     "add the ]"},
    {"BracketClosedAlone",
     {{"learning_rate: 1e-3", "betas: 0.9, 0.95]"}},
     "18:10",
     "optimizer_config.betas",
     "'0.9, 0.95]'",
     "expected a number",
     "write `betas: [0.9, 0.95]`"},
    {"TwoKeysOnALine",
     {{"  seed: 7\n  num_threads: 1", "  seed: 7 num_threads: 1"}},
     "3:3",
     "training_config.seed",
     "seed: 7 num_threads: 1",
     "two colons on one line",
     "on a line of its own"},
    {"DashesBeforeKeys",
     {{"  learning_rate: 1e-3", "  - learning_rate: 1e-3"}},
     "18:3",
     "optimizer_config",
     "a list",
     "mapping of keys",
     "leave out the dashes"},
    {"ValueOnALineOfItsOwn",
     {{"  seed: 7\n", "  seed: 7\n    0 and more\n"}},
     "3:9",
     "training_config.seed",
     "'7 0 and more'",
     "expected an integer",
     "read as part of it"},
    {"Latin1",
     {{"  seed: 7", "  output_dir: caf\xe9"}},
     "3:18",
     "run.yaml",
     "the byte 0xe9",
     "no UTF-8; ... Latin-1 ... 'é'",
     "iconv -f LATIN1 -t UTF-8 run.yaml"},
    {"Utf16",
     {{"training_config:\n", "\xff\xfet\n"}},
     "1:1",
     "run.yaml",
     "UTF-16",
     "expected UTF-8",
     "iconv -f UTF-16 -t UTF-8 run.yaml"},
    {"KeyTwice",
     {{"  seed: 7\n", "  seed: 7\n  seed: 8\n"}},
     "4:3",
     "the key 'seed'",
     "as '7'",
     "given twice, first at run.yaml:3:3",
     "keep one"},
    {"TwoDocuments",
     {{"model_config:", "---\nmodel_config:"}},
     "",
     "run.yaml",
     "2 YAML documents",
     "expected one",
     "remove the lines `---`"},
    {"UnknownAnchor",
     {{"seed: 7", "seed: *common"}},
     "3:9",
     "training_config.seed",
     "`*common`",
     "anchor, &common, ... further up",
     "if the text is meant"},
    {"MergeOfANumber",
     {{"seed: 7", "<<: 7"}},
     "3:3",
     "<<",
     "got '7'",
     "list of mappings",
     "write a merge such as ... `<<: *defaults`"},
    {"TemplateNotFilledIn",
     {{"seed: 7", "seed: {{ seed }}"}},
     "3:9",
     "training_config.seed",
     "{{ seed }}",
     "is not filled in",
     "write the value itself"},
    {"ReservedCharacter",
     {{"data_path: text", "data_path: @text"}},
     "6:14",
     "dataset_config.data_path",
     "@text_text_document",
     "no value begins with @ in YAML",
     "into double quotes"},
};

const std::vector<WrongFile> kValues = {
    {"NoneForAnInteger",
     {{"num_threads: 1", "num_threads: None"}},
     "4:16",
     "training_config.num_threads",
     "'None'",
     "expected an integer",
     "None ... null"},
    {"NoneForAText",
     {{"data_path: text_text_document", "data_path: None"}},
     "6:14",
     "dataset_config.data_path",
     "'None'",
     "expected",
     "None ... null ... \"None\""},
    {"Underscores",
     {{"training_iters: 3", "training_iters: 1_000"}},
     "2:19",
     "training_config.training_iters",
     "'1_000'",
     "expected an integer",
     "write `training_iters: 1000`: integers are decimal"},
    {"Hexadecimal",
     {{"vocab_size: 260", "vocab_size: 0x104"}},
     "11:15",
     "model_config.vocab_size",
     "'0x104'",
     "expected an integer",
     "write `vocab_size: 260`"},
    {"ExponentForAnInteger",
     {{"training_iters: 3", "training_iters: 1e3"}},
     "2:19",
     "training_config.training_iters",
     "1e3",
     "expected an integer",
     "write `training_iters: 1000`"},
    {"CommaOfThousands",
     {{"training_iters: 3", "training_iters: 1,000"}},
     "2:19",
     "training_config.training_iters",
     "'1,000'",
     "expected an integer",
     "write `training_iters: 1000`"},
    {"LeadingZero",
     {{"seed: 7", "seed: 007"}},
     "3:9",
     "training_config.seed",
     "007",
     "without leading zeros",
     "write `seed: 7`"},
    {"Power",
     {{"hidden_size: 16\n", "hidden_size: 2**4\n"}},
     "13:16",
     "model_config.hidden_size",
     "'2**4'",
     "expected an integer",
     "write `hidden_size: 16`"},
    {"FractionForAnInteger",
     {{"num_layers: 1", "num_layers: 1.5"}},
     "12:15",
     "model_config.num_layers",
     "the number 1.5",
     "expected an integer",
     "for example `num_layers: 12`"},
    {"WordForAnInteger",
     {{"num_layers: 1", "num_layers: one"}},
     "12:15",
     "model_config.num_layers",
     "'one'",
     "expected an integer",
     "allowed: integer in [1, 2147483647]; for example `num_layers: 12`"},
    {"QuotedNumber",
     {{"batch_size: 2", "batch_size: \"2\""}},
     "8:15",
     "dataset_config.batch_size",
     "the string \"2\"",
     "expected an integer",
     "remove the quotes: `batch_size: 2`"},
    {"CommaForAPoint",
     {{"1e-3", "0,001"}},
     "18:18",
     "optimizer_config.learning_rate",
     "'0,001'",
     "expected a number",
     "write `learning_rate: 0.001`"},
    {"CommaAtTheEnd",
     {{"seed: 7", "seed: 7,"}},
     "3:9",
     "training_config.seed",
     "'7,'",
     "expected an integer",
     "remove the `,` at the end"},
    {"NumberForABoolean",
     {{"seed: 7", "bf16: 1"}},
     "3:9",
     "training_config.bf16",
     "the number 1",
     "expected a boolean ... (True ... False)",
     "write `bf16: True`"},
    {"MisspelledBoolean",
     {{"seed: 7", "bf16: Ture"}},
     "3:9",
     "training_config.bf16",
     "'Ture'",
     "expected a boolean",
     "write `bf16: True`"},
    {"TupleForAList",
     {{"learning_rate: 1e-3", "betas: (0.9, 0.95)"}},
     "18:10",
     "optimizer_config.betas",
     "'(0.9, 0.95)'",
     "expected a number",
     "write `betas: [0.9, 0.95]`"},
    {"TypographicQuotes",
     {{"data_path: text_text_document", "data_path: \u201ctext_text_document\u201d"}},
     "6:14",
     "dataset_config.data_path",
     "\u201ctext_text_document\u201d",
     "straight quotes",
     "list of strings"},
    {"OutOfRange",
     {{"seq_length: 16\n", "seq_length: 16\n  hidden_dropout: 1.5\n"}},
     "17:19",
     "model_config.hidden_dropout",
     "got 1.5",
     "must be in [0, 1]",
     "default: 0.0"},
    {"OtherLettersOfAChoice",
     {{"learning_rate: 1e-3", "optimizer_type: adamw"}},
     "18:19",
     "optimizer_config.optimizer_type",
     "'adamw'",
     "expected one of AdamW, Adam, SGD",
     "the nearest is 'AdamW'"},
    {"ShortNameOfADType",
     {{"seq_length: 16\n", "seq_length: 16\n  compute_dtype: bf16\n"}},
     "17:18",
     "model_config.compute_dtype",
     "'bf16'",
     "expected one of ... float16, bfloat16, float32",
     "write `compute_dtype: bfloat16`"},
    {"ZeroLevelAsANumber",
     {{"optimizer_config:", "parallel_config:\n  zero_level: 3\noptimizer_config:"}},
     "18:15",
     "parallel_config.zero_level",
     "the number 3",
     "expected one of z1, z2, z3",
     "write `zero_level: z3`"},
    {"HeadsDoNotDivideTheWidth",
     {{"num_attention_heads: 2", "num_attention_heads: 3"}},
     "15:24",
     "model_config.num_attention_heads",
     "3",
     "divide hidden_size 16",
     "one of them or set ... kv_channels"},
};

const std::vector<WrongFile> kNames = {
    {"Misspelled",
     {{"hidden_size: 16\n", "hiden_size: 16\n"}},
     "13:3",
     "in model_config",
     "'hiden_size'",
     "did you mean 'hidden_size'?",
     "pretrain_gpt --help model_config lists the keys"},
    {"InTheWrongSection",
     {{"seq_length: 16\n", "seq_length: 16\n  log_interval: 5\n"}},
     "17:3",
     "in model_config",
     "'log_interval'",
     "unknown key",
     "it belongs in training_config"},
    {"NanoGptLayers",
     {{"num_layers: 1", "n_layer: 1"}},
     "12:3",
     "in model_config",
     "'n_layer'",
     "unknown key",
     "here it is model_config.num_layers"},
    {"NanoGptWidth",
     {{"hidden_size: 16\n", "n_embd: 16\n"}},
     "13:3",
     "in model_config",
     "'n_embd'",
     "unknown key",
     "here it is model_config.hidden_size"},
    {"NanoGptBlock",
     {{"seq_length: 16", "block_size: 16"}},
     "16:3",
     "in model_config",
     "'block_size'",
     "unknown key",
     "here it is model_config.seq_length"},
    {"NanoGptDropout",
     {{"seq_length: 16\n", "seq_length: 16\n  dropout: 0.1\n"}},
     "17:3",
     "in model_config",
     "'dropout'",
     "unknown key",
     "here it is model_config.hidden_dropout and model_config.attention_dropout"},
    {"ShortLearningRate",
     {{"learning_rate", "lr"}},
     "18:3",
     "in optimizer_config",
     "'lr'",
     "unknown key",
     "here it is optimizer_config.learning_rate"},
    {"HuggingFaceLayers",
     {{"num_layers", "num_hidden_layers"}},
     "12:3",
     "in model_config",
     "'num_hidden_layers'",
     "unknown key",
     "here it is model_config.num_layers"},
    {"HuggingFaceKeyValueHeads",
     {{"seq_length: 16\n", "seq_length: 16\n  num_key_value_heads: 1\n"}},
     "17:3",
     "in model_config",
     "'num_key_value_heads'",
     "unknown key",
     "here it is ... model_config.num_query_groups (with group_query_attention: True)"},
    {"HuggingFaceTiedWords",
     {{"seq_length: 16\n", "seq_length: 16\n  tie_word_embeddings: True\n"}},
     "17:3",
     "in model_config",
     "'tie_word_embeddings'",
     "unknown key",
     "model_config.untie_embeddings_and_output_weights (with the opposite value)"},
    {"HuggingFaceTrainer",
     {{"batch_size: 2", "per_device_train_batch_size: 2"}},
     "8:3",
     "in dataset_config",
     "'per_device_train_batch_size'",
     "unknown key",
     "here it is dataset_config.batch_size"},
    {"WorldSize",
     {{"optimizer_config:", "parallel_config:\n  world_size: 2\noptimizer_config:"}},
     "18:3",
     "in parallel_config",
     "'world_size'",
     "those that are started",
     "RANKS=N pretrain_gpt.sh ... or mpirun ... -n N"},
    {"RunnerConfig",
     {{"optimizer_config:",
       "runner_config:\n  epochs: 2\n  metric: loss\n  sink_mode: True\noptimizer_config:"}},
     "17:1",
     "run.yaml:19:3: runner_config.metric",
     "'runner_config' ... MindFormers' static",
     "its keys here:",
     "here it is training_config.eval_metric"},
    {"LrSchedule",
     {{"optimizer_config:",
       "lr_schedule:\n  type: CosineWithWarmUpLR\n  warmup_steps: 5\noptimizer_config:"}},
     "17:1",
     "lr_schedule.warmup_steps",
     "'lr_schedule'",
     "static configurations",
     "here it is optimizer_config.lr_warmup_iters"},
    {"MonitorFormat",
     {{"optimizer_config:",
       "monitor_config:\n  monitor_on: True\n  local_norm_format: [log, csv]\n"
       "optimizer_config:"}},
     "19:22",
     "monitor_config.local_norm_format",
     "'csv'",
     "unexpected",
     "tensorboard or both"},
    {"StaticLayout",
     {{"optimizer_config:", "parallel_config:\n  vocab_emb_dp: True\noptimizer_config:"}},
     "18:3",
     "in parallel_config",
     "'vocab_emb_dp'",
     "unknown key",
     "tensor-parallel ranks always share the token table; leave it out"},
    {"RequiredKeyMissing",
     {{"  vocab_size: 260\n", ""}},
     "10:1",
     "model_config.vocab_size",
     "is required (integer)",
     "Rows of the token table",
     "Add it, for example `vocab_size: 50304`"},
    {"UnknownSection",
     {{"optimizer_config:", "optimiser_config:"}},
     "17:1",
     "unknown section",
     "'optimiser_config'",
     "did you mean 'optimizer_config'?",
     "only merge keys ... (<<) ... x-"},
};

std::vector<WrongFile> all_files() {
  std::vector<WrongFile> all;
  for (const auto* group : {&kSyntax, &kValues, &kNames}) {
    all.insert(all.end(), group->begin(), group->end());
  }
  return all;
}

// The first finding at the place: its line and the indented ones below it.
std::string finding_at(const std::string& text, const std::string& place) {
  const size_t start = text.find(place);
  if (start == std::string::npos) {
    return {};
  }
  size_t end = text.find('\n', start);
  while (end != std::string::npos && text.compare(end, 5, "\n    ") == 0) {
    end = text.find('\n', end + 1);
  }
  return text.substr(start, end - start);
}

std::string text_of(const WrongFile& wrong) {
  std::string text = kTinyRun;
  for (const auto& [from, to] : wrong.edits) {
    text = replaced(text, from, to);
  }
  return text;
}

void expect_explained(const WrongFile& wrong, const std::string& message) {
  const std::string place = "run.yaml:" + std::string(wrong.place);
  const std::string finding = finding_at(message, place);
  ASSERT_NE(finding, "") << "nothing at " << place << "\n" << message;
  for (const char* part : {wrong.thing, wrong.value, wrong.expected, wrong.remedy}) {
    ASSERT_NE(std::string(part), "");
    EXPECT_THAT(finding, Says(part)) << message;
  }
}

class WrongFiles : public ::testing::TestWithParam<WrongFile> {};

TEST_P(WrongFiles, AreExplained) {
  try {
    init_configs_from_text(text_of(GetParam()), "run.yaml");
    ADD_FAILURE() << "the file was taken";
  } catch (const std::exception& error) {
    EXPECT_EQ(exit_code_of(error), kBadInput);
    expect_explained(GetParam(), error.what());
  }
}

INSTANTIATE_TEST_SUITE_P(All, WrongFiles, ::testing::ValuesIn(all_files()), [](const auto& info) {
  return std::string(info.param.name);
});

// The same from end to end, of some: the message is all that the program says, and nothing is left.
TEST_F(ProgramTest, AWrongFileEndsTheProgram) {
  for (const WrongFile& wrong : {kSyntax.front(), kSyntax.back(), all_files().back()}) {
    SCOPED_TRACE(wrong.name);
    dir_.write("run.yaml", text_of(wrong));
    const auto before = tree();
    EXPECT_EQ(pretrain("--config_path run.yaml"), 2) << said();
    expect_explained(wrong, err_);
    EXPECT_EQ(out_, "");
    EXPECT_EQ(tree(), before);
  }
}

TEST(WrongFilesTable, HasAllKinds) { EXPECT_GE(all_files().size(), 53U); }

class RightFiles : public ProgramTest {
 protected:
  void runs(const std::string& text) {
    dir_.write("run.yaml", text);
    EXPECT_EQ(pretrain("--config_path run.yaml"), 0) << said();
    std::filesystem::remove_all(dir_.file("output"));
  }
};

TEST_F(RightFiles, WindowsLineEndsAndAByteOrderMark) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  std::string text = "\xef\xbb\xbf";
  for (const char* c = kTinyRun; *c != 0; ++c) {
    text += *c == '\n' ? "\r\n" : std::string(1, *c);
  }
  runs(text);
}

TEST_F(RightFiles, MergeKeys) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  const std::string text = replaced(kTinyRun, "  vocab_size: 260\n  num_layers: 1\n",
                                    "  <<: [*small, *shape]\n  num_layers: 1\n");
  runs("x-small: &small\n  vocab_size: 260\n  num_layers: 5\nx-shape: &shape {num_layers: 6}\n" +
       text);
}

TEST_F(RightFiles, AnEvaluationBeyondTheRunIsANote) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("run.yaml", replaced(kTinyRun, "seed: 7", "eval_interval: 100"));
  pretrain("--config_path run.yaml --dry_run");
  for (const char* part :
       {"run.yaml:3:18: training_config.eval_interval: is 100", "beyond the run of 3 steps",
        "never evaluated", "set it to at most 3, or to null"}) {
    EXPECT_THAT(out_, Says(part)) << said();
  }
}

TEST_F(RightFiles, BetasOfSgdAreANote) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  runs(replaced(
      kTinyRun, "  learning_rate: 1e-3\n",
      "  learning_rate: 1e-3\n  optimizer_type: SGD\n  betas: [0.9, 0.95]\n  eps: 1e-6\n"));
  EXPECT_THAT(out_, HasSubstr("run.yaml:20:10: optimizer_config.betas: has no effect"));
  EXPECT_THAT(out_, HasSubstr("run.yaml:21:8: optimizer_config.eps: has no effect"));
}

}  // namespace
}  // namespace tapestry
