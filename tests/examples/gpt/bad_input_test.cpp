// Wrong input of every kind: exit code 2, a message that names the thing, and nothing written
// besides the log. Runs are begun in this process, a few by the program; command lines are its own.
#include <functional>
#include <random>

#include "autograd/io/npy.h"
#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/step_dataset.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/program.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using data::TempDir;

struct Case {
  const char* name;
  std::vector<std::pair<std::string, std::string>> edits;  // of kTinyRun
  std::vector<std::string> overrides;                      // --set
  std::vector<std::string> fragments;                      // all in the message
  std::function<void(const TempDir&)> spoil = {};
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case& case_of(const std::vector<Case>& cases, const std::string& name) {
  return *std::find_if(cases.begin(), cases.end(), [&](const Case& c) { return c.name == name; });
}

std::string noise(size_t bytes) {
  std::mt19937 generator(5);
  std::string text(bytes, '\0');
  for (char& c : text) {
    c = static_cast<char>(generator());
  }
  return text;
}

void truncate(const TempDir& dir, const std::string& name, double share) {
  const std::string path = dir.file(name);
  fs::resize_file(path, static_cast<uintmax_t>(static_cast<double>(fs::file_size(path)) * share));
}

// Steps of 2 x 16 ids as the tiny run takes them.
data::StepRows rows(int64_t count = 2, int64_t seq = 16) {
  data::StepRows made{count, seq, {}, {}, {}};
  for (int64_t i = 0; i < count * seq; ++i) {
    made.tokens.push_back(i % 250);
    made.labels.push_back((i + 1) % 250);
    made.loss_mask.push_back(1);
  }
  return made;
}
void write_steps(const TempDir& dir, int64_t count, const data::StepRows& content = rows()) {
  for (int64_t step = 1; step <= count; ++step) {
    data::write_step(dir.file("steps"), step, 0, content);
  }
}
std::string npy_path(const TempDir& dir, const char* name) {
  return dir.file("steps/step_1/rank_0/") + name;
}
const std::vector<std::pair<std::string, std::string>> kSteps = {
    {"data_path: text_text_document", "step_data_dir: steps"}};

const std::vector<std::string> kTrained = {"training_config.load_checkpoint=trained.safetensors"};

// The tiny run's text in data/, and its weights after a step, made once by the programs.
const TempDir& prepared() {
  static const TempDir made;
  static const bool done = [] {
    made.write("data/text.txt", sample_text(60));
    made.write("data/run.yaml", kTinyRun);
    const std::string command =
        "cd '" + made.path() +
        "/data' && " TAPESTRY_PREPROCESS_DATA
        " --input text.txt --output_prefix text --tokenizer_type byte > /dev/null"
        " && " TAPESTRY_PRETRAIN_GPT
        " --config_path run.yaml --set training_config.output_dir=../trained"
        " --set training_config.training_iters=1 --set training_config.dump_weight_steps=[1]"
        " > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return true;
  }();
  EXPECT_TRUE(done);
  return made;
}

class PretrainBadInput : public ProgramTest, public ::testing::WithParamInterface<Case> {
 protected:
  PretrainBadInput() : threads_(num_threads()), folder_(fs::current_path()) {
    fs::current_path(dir_.path());
  }
  ~PretrainBadInput() override {
    close_logs();
    destroy_model_parallel();
    set_num_threads(threads_);
    fs::current_path(folder_);
  }
  void write_files(const Case& c) {
    fs::copy(prepared().file("data"), dir_.path(), fs::copy_options::recursive);
    std::string text = kTinyRun;
    for (const auto& [from, to] : c.edits) {
      text = replaced(text, from, to);
    }
    dir_.write("run.yaml", text);
    if (c.spoil) {
      c.spoil(dir_);
    }
  }

 private:
  int threads_;
  fs::path folder_;
};

TEST_P(PretrainBadInput, IsRefusedSaysWhyAndWritesNothing) {
  const Case& c = GetParam();
  write_files(c);
  const auto before = tree();
  try {
    tapestry::pretrain(init_configs_from_yaml("run.yaml", {.overrides = c.overrides}));
    ADD_FAILURE() << "the run was made";
  } catch (const std::exception& error) {
    EXPECT_EQ(exit_code_of(error), kBadInput);
    for (const std::string& fragment : c.fragments) {
      EXPECT_THAT(failure_message(error), Says(fragment));
    }
  }
  EXPECT_EQ(tree(), before);
}

// The same of some, from end to end.
class PretrainProgram : public PretrainBadInput {};

TEST_P(PretrainProgram, ExitsWithTwoSaysWhyAndWritesNothing) {
  const Case& c = GetParam();
  write_files(c);
  std::string arguments = "--config_path run.yaml";
  for (const std::string& override : c.overrides) {
    arguments += " --set " + override;
  }
  const auto before = tree();
  EXPECT_EQ(pretrain(arguments), 2) << said();
  for (const std::string& fragment : c.fragments) {
    EXPECT_THAT(err_, Says(fragment)) << said();
  }
  EXPECT_EQ(tree(), before);
}

TEST_F(ProgramTest, TheTinyRunItselfIsGood) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("run.yaml", kTinyRun);
  EXPECT_EQ(pretrain("--config_path run.yaml"), 0) << said();
  write_steps(dir_, 3);
  dir_.write("steps.yaml", replaced(kTinyRun, kSteps[0].first, kSteps[0].second));
  EXPECT_EQ(pretrain("--config_path steps.yaml --overwrite"), 0) << said();
}

TEST_F(ProgramTest, WrongCommandLinesOfATraining) {
  dir_.write("run.yaml", kTinyRun);
  const auto before = tree();
  for (const auto& [arguments, fragment] : std::vector<std::pair<std::string, std::string>>{
           {"--config_path none.yaml", "--config_path ... more than once"},
           {"--model_type llama_config", "run.yaml ... llama_config is missing"},
           {"--chatty", "unknown option '--chatty' ... --help"},
           {"--verbose", "--verbose ... --dry_run"},
           {"another.yaml", "write --config_path another.yaml"}}) {
    EXPECT_EQ(pretrain("--config_path run.yaml " + arguments), 2) << said();
    EXPECT_THAT(err_, Says(fragment)) << said();
    EXPECT_EQ(tree(), before);
  }
}

const std::vector<Case> kConfiguration = {
    {"MissingFile",
     {},
     {},
     {"run.yaml: cannot be read"},
     [](const TempDir& d) { fs::remove(d.file("run.yaml")); }},
    {"NotYaml",
     {},
     {},
     {"run.yaml:", "not valid YAML"},
     [](const TempDir& d) { d.write("run.yaml", "a: [1, 2\nb: {"); }},
    {"BinaryFile",
     {},
     {},
     {"run.yaml:1:2: ... UTF-8"},
     [](const TempDir& d) { d.write("run.yaml", noise(300)); }},
    {"EmptyFile",
     {},
     {},
     {"run.yaml: is empty"},
     [](const TempDir& d) { d.write("run.yaml", ""); }},
    {"FolderAsFile",
     {},
     {},
     {"run.yaml: ... a folder"},
     [](const TempDir& d) {
       fs::remove(d.file("run.yaml"));
       fs::create_directory(d.file("run.yaml"));
     }},
    {"UnknownKey",
     {{"hidden_size: 16", "hiden_size: 16"}},
     {},
     {"run.yaml:13:3: unknown key 'hiden_size' in model_config; did you mean 'hidden_size'?"}},
    {"UnknownSection",
     {{"optimizer_config:", "optimiser_config:"}},
     {},
     {"run.yaml:17:1: unknown section 'optimiser_config'; did you mean 'optimizer_config'?"}},
    {"WrongType",
     {{"num_layers: 1", "num_layers: one"}},
     {},
     {"run.yaml:12:15: model_config.num_layers: expected an integer, got the string 'one'"}},
    {"BadValue",
     {{"batch_size: 2", "batch_size: 0"}},
     {},
     {"run.yaml:8:15 ... batch_size ... got 0"}},
    {"BadSplit", {{"90,10,0", "90,many"}}, {}, {"run.yaml:9:10", "'many' is no share"}},
    {"ImpossibleCombination",
     {{"num_attention_heads: 2", "num_attention_heads: 3"}},
     {},
     {"num_attention_heads", "3", "hidden_size 16"}},
    {"MissingKey", {{"  vocab_size: 260\n", ""}}, {}, {"run.yaml:10:1", "vocab_size is required"}},
    {"DuplicateKey",
     {{"  seed: 7\n", "  seed: 7\n  seed: 8\n"}},
     {},
     {"run.yaml:4:3", "given twice"}},
    {"SetUnknownKey",
     {},
     {"model_config.hiden_size=3"},
     {"--set model_config.hiden_size=3", "'hidden_size'"}},
    {"SetWithoutValue",
     {},
     {"model_config.hidden_size"},
     {"--set model_config.hidden_size: expected section.key=value"}},
    {"SetBadValue",
     {},
     {"optimizer_config.learning_rate=fast"},
     {"--set optimizer_config.learning_rate=fast", "expected a number"}},
    {"TensorParallel",
     {},
     {"parallel_config.tensor_model_parallel_size=2"},
     {"tensor_model_parallel_size 2 ... need 2 ranks", "mpirun -n 2"}},
    {"DataParallel",
     {},
     {"parallel_config.data_parallel_size=2"},
     {"parallel_config.data_parallel_size ... is ... 2", "leave 1 for data parallelism",
      "mpirun -n 2"}},
    {"ResumeFromNothing",
     {},
     {"training_config.resume_training=step_00000007"},
     {"resume_training", "there is no checkpoint step_00000007", "it holds none"}},
    {"NothingToDo", {{"  training_iters: 3\n", ""}}, {}, {"run.yaml:1:1: ... training_iters is 0"}},
};
INSTANTIATE_TEST_SUITE_P(Configuration,
                         PretrainBadInput,
                         ::testing::ValuesIn(kConfiguration),
                         [](const auto& info) { return info.param.name; });

const std::vector<Case> kTextData = {
    {"MissingIndex",
     {},
     {},
     {"text_text_document.idx: ... No such file"},
     [](const TempDir& d) { fs::remove(d.file("text_text_document.idx")); }},
    {"MissingTokens",
     {},
     {},
     {"text_text_document.bin: ... No such file"},
     [](const TempDir& d) { fs::remove(d.file("text_text_document.bin")); }},
    {"EmptyIndex",
     {},
     {},
     {"text_text_document.idx: ... 0 bytes ... truncated"},
     [](const TempDir& d) { d.write("text_text_document.idx", ""); }},
    {"TruncatedIndexHeader",
     {},
     {},
     {"text_text_document.idx: ... 20 bytes ... header ... truncated"},
     [](const TempDir& d) { fs::resize_file(d.file("text_text_document.idx"), 20); }},
    {"TruncatedIndex",
     {},
     {},
     {"text_text_document.idx: ... 49 bytes ... truncated"},
     [](const TempDir& d) { truncate(d, "text_text_document.idx", 0.8); }},
    {"IndexOfAnotherKind",
     {},
     {},
     {"text_text_document.idx: offset 0, magic"},
     [](const TempDir& d) { d.write("text_text_document.idx", noise(200)); }},
    {"TruncatedTokens",
     {},
     {},
     {"text_text_document.bin, ... 2297 ... truncated"},
     [](const TempDir& d) { truncate(d, "text_text_document.bin", 0.5); }},
    {"TokensOutOfRange",
     {},
     {},
     {"text_text_document.bin: ... id 65535 ... vocabulary of 260"},
     [](const TempDir& d) {
       const std::string bytes = d.read("text_text_document.bin");
       d.write("text_text_document.bin", std::string(bytes.size(), '\xff'));
     }},
    {"NoPrefixOfABlend",
     {{"data_path: text_text_document", "data_path: [0.5, text_text_document, 0.5, none]"}},
     {},
     {"none.bin: ... No such file"}},
    {"TooFewTokensToValidate",
     {{"seq_length: 16", "seq_length: 2000"}},
     {"training_config.eval_interval=1"},
     {"text_text_document", "valid part", "90,10,0", "one sample needs 2001",
      "model_config.seq_length 1000", "training_config.eval_interval ... null"}},
    {"DataPathOfAText",
     {{"text_text_document", "text.txt"}},
     {},
     {"text.txt.bin", "text.txt is a file", "dataset_config.text"}},
    {"DataPathWithoutItsEnding",
     {{"text_text_document", "text"}},
     {},
     {"text.bin", "did you mean text_text_document?"}},
    {"DataPathOfTheIndex",
     {{"text_text_document", "text_text_document.idx"}},
     {},
     {"text_text_document.idx.bin", "is given without \".idx\""}},
    {"BlendWithoutAWeight",
     {{"data_path: text_text_document", "data_path: [text_text_document, 0.3, more]"}},
     {},
     {"run.yaml:6:14", "before each prefix"}},
    {"TextThatIsCompressed",
     {{"data_path: text_text_document", "text: text.txt.gz"}},
     {},
     {"text.txt.gz: is compressed by gzip", "gunzip -k text.txt.gz"},
     [](const TempDir& d) { d.write("text.txt.gz", "\x1F\x8B\x08"); }},
    {"TextOfAnotherEncoding",
     {{"data_path: text_text_document", "text: text.txt"}},
     {},
     {"text.txt: is UTF-16", "iconv -f UTF-16 -t UTF-8 text.txt"},
     [](const TempDir& d) {
       d.write("text.txt", std::string("\xFF\xFE"
                                       "a\0",
                                       4));
     }},
    {"BytesAsSentencePiece",
     {{"tokenizer_type: byte", "tokenizer_type: sentencepiece"}},
     {},
     {"text_text_document: was made with the byte tokenizer of 257 ids",
      "dataset_config.tokenizer_type is sentencepiece; set it to byte"}},
    {"DamagedRecord",
     {},
     {},
     {"text_text_document.tokenizer.json: ... not the record"},
     [](const TempDir& d) { d.write("text_text_document.tokenizer.json", "{"); }},
    {"NothingToTrainOn", {{"90,10,0", "0,100,0"}}, {}, {"split", "0,100,0", "training"}},
    {"NothingToValidate",
     {{"90,10,0", "100,0,0"}},
     {"training_config.eval_interval=1"},
     {"eval_interval", "100,0,0", "validation"}},
    {"DataOfALargerVocabulary",
     {{"vocab_size: 260", "vocab_size: 100"}},
     {},
     {"vocab_size is 100", "text_text_document", "257"}},
    {"TokenizerLargerThanVocabulary",
     {{"vocab_size: 260", "vocab_size: 100"}},
     {},
     {"vocab_size is 100", "257"},
     [](const TempDir& d) { fs::remove(d.file("text_text_document.tokenizer.json")); }},
    {"MissingTokenizer",
     {{"byte", "sentencepiece\n  tokenizer_model: none.model"}},
     {},
     {"none.model: ... No such file"},
     [](const TempDir& d) { fs::remove(d.file("text_text_document.tokenizer.json")); }},
    {"EmptyTokenizer",
     {{"byte", "sentencepiece\n  tokenizer_model: odd.model"}},
     {},
     {"odd.model: is empty"},
     [](const TempDir& d) {
       d.write("odd.model", "");
       fs::remove(d.file("text_text_document.tokenizer.json"));
     }},
    {"RandomTokenizer",
     {{"byte", "sentencepiece\n  tokenizer_model: odd.model"}},
     {},
     {"odd.model: ... not a SentencePiece model"},
     [](const TempDir& d) {
       d.write("odd.model", noise(5000));
       fs::remove(d.file("text_text_document.tokenizer.json"));
     }},
    {"TextAsTokenizer",
     {{"byte", "sentencepiece\n  tokenizer_model: text.txt"}},
     {},
     {"text.txt: ... not a SentencePiece model"},
     [](const TempDir& d) { fs::remove(d.file("text_text_document.tokenizer.json")); }},
};
INSTANTIATE_TEST_SUITE_P(TextData,
                         PretrainBadInput,
                         ::testing::ValuesIn(kTextData),
                         [](const auto& info) { return info.param.name; });

const std::vector<Case> kStepData = {
    {"NoFolder", kSteps, {}, {"steps: ... No such file"}},
    {"NoSteps",
     kSteps,
     {},
     {"steps", "step_N"},
     [](const TempDir& d) { fs::create_directory(d.file("steps")); }},
    {"Gap",
     kSteps,
     {},
     {"step_2 is missing"},
     [](const TempDir& d) {
       write_steps(d, 3);
       fs::remove_all(d.file("steps/step_2"));
     }},
    {"NoRanks",
     kSteps,
     {},
     {"step_1", "rank_0 is missing"},
     [](const TempDir& d) {
       write_steps(d, 3);
       fs::remove_all(d.file("steps/step_1/rank_0"));
     }},
    {"NoLabels",
     kSteps,
     {},
     {"labels.npy is missing"},
     [](const TempDir& d) {
       write_steps(d, 3);
       fs::remove(npy_path(d, "labels.npy"));
     }},
    {"TruncatedArray",
     kSteps,
     {},
     {"step_1/rank_0/tokens.npy: ... [2, 16] ... truncated"},
     [](const TempDir& d) {
       write_steps(d, 3);
       truncate(d, "steps/step_1/rank_0/tokens.npy", 0.9);
     }},
    {"ArrayIsNoise",
     kSteps,
     {},
     {"step_1/rank_0/loss_mask.npy: ... magic"},
     [](const TempDir& d) {
       write_steps(d, 3);
       d.write("steps/step_1/rank_0/loss_mask.npy", noise(300));
     }},
    {"LabelsOfAnotherShape",
     kSteps,
     {},
     {"labels.npy", "[1, 16]", "[2, 16]"},
     [](const TempDir& d) {
       write_steps(d, 3);
       write_npy(npy_path(d, "labels.npy"), kInt32, {1, 16}, std::vector<int32_t>(16).data());
     }},
    {"FloatingTokens",
     kSteps,
     {},
     {"tokens.npy", "float32", "expected integers"},
     [](const TempDir& d) {
       write_steps(d, 3);
       write_npy(npy_path(d, "tokens.npy"), kFloat32, {2, 16}, std::vector<float>(32).data());
     }},
    {"RowsForAnotherBatch",
     kSteps,
     {},
     {"step_1", "3 rows", "needs 2"},
     [](const TempDir& d) { write_steps(d, 3, rows(3)); }},
    {"AnotherSequenceLength",
     kSteps,
     {},
     {"rows have 8 tokens", "seq_length is 16"},
     [](const TempDir& d) { write_steps(d, 3, rows(2, 8)); }},
    {"TokenOutOfRange",
     kSteps,
     {},
     {"tokens.npy", "row 1, position 4", "id 260", "vocabulary of 260"},
     [](const TempDir& d) {
       data::StepRows bad = rows();
       bad.tokens[20] = 260;
       write_steps(d, 3, bad);
     }},
    {"NegativeLabel",
     kSteps,
     {},
     {"labels.npy: row 0, position 3 ... id -100"},
     [](const TempDir& d) {
       data::StepRows bad = rows();
       bad.labels[3] = -100;
       write_steps(d, 3, bad);
     }},
    {"MaskIsNaN",
     kSteps,
     {},
     {"loss_mask.npy: value 3 is nan"},
     [](const TempDir& d) {
       data::StepRows bad = rows();
       bad.loss_mask[3] = std::nanf("");
       write_steps(d, 3, bad);
     }},
};
INSTANTIATE_TEST_SUITE_P(StepData,
                         PretrainBadInput,
                         ::testing::ValuesIn(kStepData),
                         [](const auto& info) { return info.param.name; });

const std::vector<Case> kOutput = {
    {"FileInPlaceOfFolder",
     {},
     {},
     {"output_dir './output' ... Not a directory"},
     [](const TempDir& d) { d.write("output", "mine"); }},
    {"FolderBelowAFile",
     {},
     {"training_config.output_dir=text.txt/run"},
     {"output_dir 'text.txt/run' ... Not a directory"}},
    {"MetricsIsAFolder",
     {},
     {},
     {"output/metrics.jsonl", "is a folder"},
     [](const TempDir& d) { fs::create_directories(d.file("output/metrics.jsonl")); }},
    {"ConfigurationIsAFolder",
     {},
     {},
     {"output/config.yaml", "is a folder"},
     [](const TempDir& d) { fs::create_directories(d.file("output/config.yaml")); }},
    {"CheckpointIsAFile",
     {},
     {"training_config.save_interval=1"},
     {"output/checkpoint", "is a file"},
     [](const TempDir& d) { d.write("output/checkpoint", "mine"); }},
    {"LogIsAFile",
     {},
     {},
     {"output_dir './output' ... logs ... Not a directory"},
     [](const TempDir& d) { d.write("output/log", "mine"); }},
};
INSTANTIATE_TEST_SUITE_P(Output,
                         PretrainBadInput,
                         ::testing::ValuesIn(kOutput),
                         [](const auto& info) { return info.param.name; });

// The weights of the tiny model with one change.
void write_weights(const TempDir& dir, const std::function<void(LogicalState&)>& change) {
  LogicalState state = read_weights(prepared().file("trained/weights_step_1.safetensors"));
  change(state);
  write_state(dir.file("trained.safetensors"), state);
}

const std::vector<Case> kWeights = {
    {"Missing", {}, kTrained, {"trained.safetensors", "no such file"}},
    {"Empty",
     {},
     kTrained,
     {"trained.safetensors: ... header length ... ends at 0"},
     [](const TempDir& d) { d.write("trained.safetensors", ""); }},
    {"Noise",
     {},
     kTrained,
     {"trained.safetensors: ... header length ... above"},
     [](const TempDir& d) { d.write("trained.safetensors", noise(4000)); }},
    {"Truncated",
     {},
     kTrained,
     {"trained.safetensors: ... data ... truncated"},
     [](const TempDir& d) {
       write_weights(d, [](LogicalState&) {});
       truncate(d, "trained.safetensors", 0.9);
     }},
    {"WrongShape",
     {},
     kTrained,
     {"trained.safetensors", "tok_embeddings.weight", "[2, 3]", "[260, 16]"},
     [](const TempDir& d) {
       write_weights(d, [](LogicalState& s) { s.at("tok_embeddings.weight") = zeros({2, 3}); });
     }},
    {"WrongName",
     {},
     kTrained,
     {"trained.safetensors", "final_norm.weight", "last_norm.weight"},
     [](const TempDir& d) {
       write_weights(d, [](LogicalState& s) {
         s["last_norm.weight"] = s.at("final_norm.weight");
         s.erase("final_norm.weight");
       });
     }},
    {"FolderWithoutWeights",
     {},
     {"training_config.load_checkpoint=empty"},
     {"empty: ... neither model.safetensors"},
     [](const TempDir& d) { fs::create_directory(d.file("empty")); }},
    {"MissingShard",
     {},
     {"training_config.load_checkpoint=sharded"},
     {"sharded/a.safetensors: ... No such file"},
     [](const TempDir& d) {
       d.write("sharded/model.safetensors.index.json",
               R"({"weight_map": {"tok_embeddings.weight": "a.safetensors"}})");
     }},
};
INSTANTIATE_TEST_SUITE_P(Weights,
                         PretrainBadInput,
                         ::testing::ValuesIn(kWeights),
                         [](const auto& info) { return info.param.name; });

// A configuration that is no file and one that is wrong, data, and a place for the results.
INSTANTIATE_TEST_SUITE_P(Some,
                         PretrainProgram,
                         ::testing::Values(case_of(kConfiguration, "MissingFile"),
                                           case_of(kConfiguration, "UnknownKey"),
                                           case_of(kConfiguration, "SetBadValue"),
                                           case_of(kTextData, "TruncatedTokens"),
                                           case_of(kOutput, "MetricsIsAFolder"),
                                           case_of(kWeights, "Missing")),
                         [](const auto& info) { return info.param.name; });

TEST_F(ProgramTest, AModelThatCannotFitIsRefusedBeforeItIsAllocated) {
  const std::string preset = TAPESTRY_SOURCE_DIR "/examples/gpt/pretrain_gpt_70B.yaml";
  const auto before = tree();
  // A run that allocated would be killed by this limit or take minutes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::string limit = "timeout 20 ";  // a sanitizer reserves more than any such limit
#else
  const std::string limit = "ulimit -v 8000000; timeout 20 ";
#endif
  EXPECT_EQ(run(limit + TAPESTRY_PRETRAIN_GPT,
                "--config_path " + preset + " --set model_config.compute_dtype=float32"),
            2)
      << said();
  for (const char* named :
       {"parameters (", "gradients: ", "optimizer state: ", "activations", "logits", "workspace",
        "total: ", "are available", "What would help", "pretrain_gpt_tiny.yaml"}) {
    EXPECT_THAT(err_, Says(named));
  }
  EXPECT_EQ(tree(), before);
  EXPECT_EQ(pretrain("--dry_run --config_path " + preset), 2);
  EXPECT_EQ(tree(), before);
}

class GenerateBadInput : public ProgramTest {
 protected:
  // A checkpoint in run/checkpoint/step_00000001.
  void train() {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", kTinyRun);
    ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.output_dir=run --set "
                       "training_config.training_iters=1 --set training_config.save_interval=1"),
              0)
        << said();
  }
  void expect_bad(const std::string& arguments, const std::string& fragment) {
    SCOPED_TRACE(arguments);
    const auto before = tree();
    EXPECT_EQ(generate(arguments), 2) << said();
    EXPECT_THAT(err_, Says(fragment));
    EXPECT_EQ(out_, "");
    EXPECT_EQ(tree(), before);
  }
};

TEST_F(GenerateBadInput, Options) {
  ASSERT_NO_FATAL_FAILURE(train());
  const std::string good = "--checkpoint run --prompt And ";
  ASSERT_EQ(generate(good), 0) << said();
  expect_bad("", "--checkpoint is needed");
  expect_bad("--checkpoint run", "--prompt is needed");
  expect_bad("--checkpoint run --prompt ''", "--prompt is empty");
  expect_bad("--checkpoint none --prompt And", "none: ... no such file or folder");
  expect_bad("--checkpoint text.txt --prompt And", "text.txt");
  expect_bad("--checkpoint run/log --prompt And", "run/log: holds neither");
  expect_bad(good + "--max_new_tokens -1", "max_new_tokens ... not be negative, got ... -1");
  expect_bad(good + "--max_new_tokens many", "max_new_tokens");
  expect_bad(good + "--temperature -0.5", "not be negative, got ... -0.5");
  expect_bad(good + "--temperature nan", "temperature");
  expect_bad(good + "--top_k -2", "top_k ... not be negative, got ... -2");
  expect_bad(good + "--top_p 0", "top_p ... must lie in ... (0, 1], ... 0");
  expect_bad(good + "--top_p 1.5", "top_p ... must lie in ... (0, 1], ... 1.5");
  expect_bad(good + "--seed -1", "--seed ... not be negative, got ... -1");
  expect_bad(good + "--temp 0.5", "temp");
  expect_bad(good + "more", "--help");
  expect_bad(good + "--tokens 3", "tokens");
}

TEST_F(GenerateBadInput, Checkpoints) {
  ASSERT_NO_FATAL_FAILURE(train());
  const std::string folder = "run/checkpoint/step_00000001/";
  const std::string weights = dir_.read(folder + "model.safetensors");
  const std::string config = dir_.read(folder + "config.yaml");
  const std::string arguments = "--checkpoint run --prompt And";

  dir_.write(folder + "model.safetensors", weights.substr(0, weights.size() / 2));
  expect_bad(arguments, "model.safetensors");
  dir_.write(folder + "model.safetensors", noise(500));
  expect_bad(arguments, "model.safetensors");
  dir_.write(folder + "model.safetensors", weights);

  dir_.write(folder + "config.yaml", replaced(config, "hidden_size: 16 ", "hidden_size: 32 "));
  expect_bad(arguments, "hidden_size is 32, but n_embd of");
  const std::string described = dir_.read(folder + "config.json");
  fs::remove(dir_.file(folder + "config.json"));
  expect_bad(arguments, "[260, 32]");
  dir_.write(folder + "config.json", described);
  dir_.write(folder + "config.yaml", "model_config: [");
  expect_bad(arguments, "config.yaml");
  dir_.write(folder + "config.yaml",
             replaced(config, "tokenizer_type: byte", "tokenizer_type: sentencepiece"));
  expect_bad(arguments, "tokenizer.model: is missing");
  dir_.write(folder + "tokenizer.model", noise(800));
  expect_bad(arguments, "tokenizer.model");
  dir_.write(folder + "tokenizer.model", "");
  expect_bad(arguments, "tokenizer.model");
  fs::remove(dir_.file(folder + "config.yaml"));
  fs::remove(dir_.file(folder + "config.json"));
  expect_bad(arguments, "has neither config.yaml");
}

TEST_F(ProgramTest, TextWithoutTokens) {
  dir_.write("empty.txt", "");
  dir_.write("lines.jsonl", "\n\n");
  dir_.write("noise.model", noise(2000));
  dir_.write("text.txt", "some text");
  const auto before = tree();
  for (const auto& [arguments, fragment] : std::vector<std::pair<std::string, std::string>>{
           {"--input empty.txt --tokenizer_type byte", "empty.txt"},
           {"--input lines.jsonl --tokenizer_type byte", "lines.jsonl"},
           {"--input empty.txt --tokenizer_type sentencepiece --train_tokenizer --vocab_size 300",
            "empty.txt"},
           {"--input text.txt --tokenizer_type sentencepiece --tokenizer_model noise.model",
            "noise.model"},
           {"--input . --tokenizer_type byte", "."}}) {
    EXPECT_EQ(preprocess(arguments + " --output_prefix out"), 2) << arguments << "\n" << said();
    EXPECT_THAT(err_, Says(fragment));
    EXPECT_EQ(tree(), before) << arguments;
  }
}

}  // namespace
}  // namespace tapestry
