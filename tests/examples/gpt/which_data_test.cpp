// pretrain_gpt --which_data and --which_steps: what they print, and what they refuse. That the rows
// are the right ones is what tests/which_data compares with a reader of its own.
#include <filesystem>
#include <map>
#include <set>

#include "parallel_core/data/step_dataset.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry::which_data_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WhichDataProgramTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", kTinyRun);
  }
  int ask(const std::string& arguments) { return pretrain("--config_path run.yaml " + arguments); }
  std::vector<Json> lines() const {
    std::istringstream text(out_);
    std::vector<Json> all;
    for (std::string line; std::getline(text, line);) {
      all.push_back(Json::parse(line));
    }
    return all;
  }
};

TEST_F(WhichDataProgramTest, PrintsRowsAndWritesNothing) {
  const auto before = tree();
  ASSERT_EQ(ask("--which_data 1-3"), 0) << said();
  EXPECT_EQ(tree(), before);
  ASSERT_EQ(lines().size(), 6U);
  const std::string text = dir_.read("text.txt");
  for (const Json& line : lines()) {
    // One document, which is the file: the row's text lies in it where the line says.
    ASSERT_EQ(line["documents"].size(), 1U);
    const Json& document = line["documents"][0];
    EXPECT_EQ(document["file"], "text.txt");
    EXPECT_EQ(document["offset"], 0);
    EXPECT_EQ(document["bytes"], text.size());
    EXPECT_EQ(document["count"], 17);
    EXPECT_EQ(line["text"], text.substr(document["first"], 16));
    EXPECT_EQ(line["dataset"], "text_text_document");
  }
  EXPECT_THAT(err_, Says("note: ... 1 ... --ranks N ... asks about one of ... N"));
  const std::vector<Json> all = lines();
  ASSERT_EQ(ask("--which_data 2"), 0) << said();
  EXPECT_THAT(lines(), ElementsAre(all[2], all[3]));
  ASSERT_EQ(ask("--which_steps text_text_document:0"), 0) << said();
  EXPECT_EQ(lines().size(), 6U);
  // Two ranks of four micro-batches in all.
  ASSERT_EQ(ask("--which_data 3 --ranks 2 --set dataset_config.micro_batch_num=2"), 0) << said();
  EXPECT_EQ(lines().size(), 8U);
  EXPECT_EQ(lines().back()["dp_rank"], 1);
  EXPECT_EQ(lines().back()["micro_batch"], 1);
  EXPECT_EQ(err_.find("--ranks N asks"), std::string::npos) << err_;
}

// No model is made: one that no machine can hold is asked about.
TEST_F(WhichDataProgramTest, NeedsNoMemoryForTheModel) {
  ASSERT_EQ(ask("--which_data 1 --set model_config.hidden_size=1048576 "
                "--set model_config.ffn_hidden_size=4194304 --set model_config.num_layers=1000"),
            0)
      << said();
  EXPECT_EQ(lines().size(), 2U);
}

TEST_F(WhichDataProgramTest, RecordedStepsNameFileAndRow) {
  for (int64_t step = 1; step <= 3; ++step) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      const std::vector<int64_t> ids(16, 'a' + step);
      data::write_step(dir_.file("steps"), step, rank,
                       {.rows = 1,
                        .seq = 16,
                        .tokens = ids,
                        .labels = ids,
                        .loss_mask = std::vector<float>(16, 1.0F)});
    }
  }
  dir_.write("run.yaml",
             replaced(kTinyRun, "data_path: text_text_document", "step_data_dir: steps"));
  ASSERT_EQ(ask("--which_data 2"), 0) << said();
  EXPECT_THAT(lines(), ElementsAre(Json{{"step", 2},
                                        {"dp_rank", 0},
                                        {"micro_batch", 0},
                                        {"row", 0},
                                        {"sample", 2},
                                        {"dataset", "steps"},
                                        {"file", "steps/step_2/rank_0/tokens.npy"},
                                        {"file_row", 0},
                                        {"documents", Json::array()},
                                        {"text", nullptr}},
                                   ::testing::Truly([](const Json& line) {
                                     return line["file"] == "steps/step_2/rank_1/tokens.npy" &&
                                            line["file_row"] == 0 && line["row"] == 1;
                                   })));
  EXPECT_EQ(ask("--which_steps steps:0"), 2);
  EXPECT_THAT(err_, Says("steps holds recorded steps ... no documents"));
}

// A text that becomes tokens on first use is prepared first, and its files are known.
TEST_F(WhichDataProgramTest, TextsOfTheConfigurationAreKnown) {
  dir_.write("run.yaml", replaced(kTinyRun, "data_path: text_text_document", "text: [text.txt]"));
  ASSERT_EQ(ask("--which_data 1"), 0) << said();
  ASSERT_EQ(lines().size(), 2U);
  const Json line = lines()[0];
  EXPECT_EQ(line["documents"][0]["file"], "text.txt");
  EXPECT_EQ(line["text"],
            dir_.read("text.txt").substr(line["documents"][0]["first"].get<size_t>(), 16));
  EXPECT_FALSE(fs::exists(dir_.file("output")));
  ASSERT_EQ(ask("--which_steps " + line["dataset"].get<std::string>() + ":0"), 0) << said();
  EXPECT_EQ(lines().size(), 6U);
}

// What is said is what is trained on: where the first token of a next document is not predicted, a
// step's loss counts the inputs that end no document.
TEST_F(WhichDataProgramTest, TheRunTrainsOnTheseRows) {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += std::string(static_cast<size_t>(1 + i * 13 % 17), 'a') + "\n\n";
  }
  dir_.write("many.txt", text);
  ASSERT_EQ(preprocess("--input many.txt --output_prefix many --tokenizer_type byte --append_eod "
                       "--split_documents blank_line"),
            0)
      << said();
  std::string run = replaced(kTinyRun, "data_path: text_text_document",
                             "data_path: [0.8, many_text_document, 0.2, text_text_document]\n"
                             "  eod_mask_loss: True\n  micro_batch_num: 2");
  dir_.write("run.yaml", replaced(run, "training_iters: 3", "training_iters: 9"));
  const std::string longer =
      "--set training_config.training_iters=40 --set training_config.resume_training=True";
  ASSERT_EQ(ask(""), 0) << said();
  ASSERT_EQ(ask(longer + " --which_data 1-40"), 0) << said();
  std::map<int64_t, int64_t> counted;  // by step
  for (const Json& line : lines()) {
    int64_t inputs = 16;
    int64_t label = 17;  // the place of the row's last token
    int64_t end = 0;
    for (const Json& document : line["documents"]) {
      const int64_t eod = document["bytes"].get<int64_t>() - document["first"].get<int64_t>();
      const bool has_eod = line["dataset"] == "many_text_document" && eod < document["count"];
      inputs -= has_eod && end + eod + 1 < label ? 1 : 0;
      end += document["count"].get<int64_t>();
    }
    ASSERT_EQ(end, label) << line;
    counted[line["step"]] += inputs;
  }
  ASSERT_EQ(ask(longer), 0) << said();
  std::set<int64_t> different;
  ASSERT_EQ(steps().size(), 40U);
  for (const Json& line : steps()) {
    EXPECT_EQ(line["loss_tokens"], counted[line["step"]]) << line["step"];
    different.insert(line["loss_tokens"].get<int64_t>());
  }
  EXPECT_GT(different.size(), 4U);  // a count that says which step it is
}

// Standard output has nothing but the lines: what there is to say of a checkpoint is a note.
TEST_F(WhichDataProgramTest, RemarksGoToStandardError) {
  const std::string watched =
      "--set monitor_config.monitor_on=True "
      "--set monitor_config.use_checkpoint_health_monitor=True "
      "--set monitor_config.embedding_local_norm_threshold=1e-30 ";
  ASSERT_EQ(ask(watched), 0) << said();
  ASSERT_EQ(ask(watched + "--set training_config.resume_training=step_00000003 --which_data 2-3"),
            0)
      << said();
  EXPECT_EQ(lines().size(), 4U);
  EXPECT_THAT(err_, Says("note: ... ./output/checkpoint/step_00000003 ... for, but is unhealthy"));
  EXPECT_THAT(err_, Says("note: ... run goes on after step ... 3"));
}

// The samples of a run with another batch are not those of its earlier steps.
TEST_F(WhichDataProgramTest, StepsWithAnotherBatchAreNotGuessed) {
  ASSERT_EQ(ask(""), 0) << said();
  const std::string longer =
      "--set training_config.training_iters=5 --set training_config.resume_training=True ";
  ASSERT_EQ(ask(longer + "--which_data 1-5"), 0) << said();
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 10U);
  const std::string other = longer + "--set dataset_config.batch_size=4 ";
  ASSERT_EQ(ask(other + "--which_data 4-5"), 0) << said();
  ASSERT_EQ(lines().size(), 8U);
  EXPECT_EQ(lines()[0]["sample"], 6);
  EXPECT_EQ(lines()[0]["documents"], all[6]["documents"]);
  EXPECT_EQ(ask(other + "--which_data 3-4"), 2) << said();
  EXPECT_THAT(err_, Says("--which_data 3-4: ... steps 4 to 5; ... other data"));
  EXPECT_THAT(err_, HasSubstr("step_00000003"));
  // Steps that are asked for are those of samples that are known.
  ASSERT_EQ(ask(other + "--which_steps text_text_document:0"), 0) << said();
  EXPECT_EQ(lines()[0]["step"], 4);
  EXPECT_EQ(lines().size(), 8U);
}

TEST_F(WhichDataProgramTest, WrongQuestionsAreExplained) {
  struct Case {
    const char* words;
    const char* message;
  };
  const Case cases[] = {
      {"--which_data 4", "--which_data 4: the run has steps 1 to 3"},
      {"--which_data 0", "--which_data is '0'; expected a step"},
      {"--which_data 2-1", "--which_data is '2-1'; expected"},
      {"--which_data", "a value is missing"},
      {"--which_steps text_text_document", "expected ... PREFIX:DOCUMENT,"},
      {"--which_steps other:0", "there is text_text_document (1 document)"},
      {"--which_steps text_text_document:1", "has documents 0 to 0, not 1"},
      {"--which_data 1 --which_steps text_text_document:0", "exclude each other"},
      {"--ranks 2", "--ranks ... belongs to ... --which_data STEP ... --which_steps"},
      {"--which_data 1 --ranks 0", "a job of 0 ranks"},
      {"--which_data 1 --ranks two", "'--ranks' is invalid"},
      {"--which_data 1 --dry_run", "--which_data and --dry_run exclude each other"},
      {"--which_steps a:0 --overwrite", "--which_steps and --overwrite exclude each other"},
      {"--which_data 1 --run_cmd text", "--which_data and --run_cmd exclude each other"},
      {"--which_data 1 --dump dump.json", "--which_data and --dump exclude each other"},
      {"--which_data 1 --evaluate output", "--which_data and --evaluate exclude each other"},
      {"--which_data 1 --plot output", "--config_path means nothing to --plot"},
  };
  const auto before = tree();
  for (const Case& c : cases) {
    EXPECT_EQ(ask(c.words), 2) << c.words << "\n" << said();
    EXPECT_THAT(err_, Says(c.message)) << c.words;
    EXPECT_EQ(out_, "") << c.words;
  }
  EXPECT_EQ(tree(), before);
  dir_.write("text_text_document.sources.npy", "torn");
  EXPECT_EQ(ask("--which_data 1"), 2);
  EXPECT_THAT(err_, HasSubstr("text_text_document.sources.npy"));
}

}  // namespace
}  // namespace tapestry::which_data_test
