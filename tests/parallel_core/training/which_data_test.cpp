#include "parallel_core/training/which_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/parallel_state.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace which_data_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::joined;
using testing::Overrides;
using ::testing::SizeIs;
using Json = nlohmann::json;

TEST(WhichDataQuestions, AreReadOrRefused) {
  EXPECT_EQ(parse_step_range("12"), (StepRange{12, 12}));
  EXPECT_EQ(parse_step_range("3-20"), (StepRange{3, 20}));
  EXPECT_EQ(parse_step_range("4-4"), (StepRange{4, 4}));
  for (const char* wrong : {"", "0", "-1", "1-", "-", "a", "1-2-3", "5-4", "1.5", " 1", "0-3",
                            "99999999999999999999"}) {
    SCOPED_TRACE(wrong);
    EXPECT_ERROR(parse_step_range(wrong), ValueError, "a step, such as ... 12,");
  }
  EXPECT_EQ(parse_document_id("a/b:3"), (DocumentId{"a/b", 3}));
  EXPECT_EQ(parse_document_id("c:/d:0"), (DocumentId{"c:/d", 0}));
  for (const char* wrong : {"", "a", "a:", ":3", "a:-1", "a:b", "a:1.5"}) {
    SCOPED_TRACE(wrong);
    EXPECT_ERROR(parse_document_id(wrong), ValueError, "expected PREFIX:DOCUMENT");
  }
}

// Runs of samples of 8 tokens, two to a micro-batch.
class WhichDataTest : public ::testing::Test {
 protected:
  WhichDataTest() { initialize_model_parallel(); }
  ~WhichDataTest() override { destroy_model_parallel(); }

  std::string store(const std::string& name, int32_t documents) const {
    data::IndexedDatasetWriter writer(dir_.file(name), data::TokenType::kUInt16);
    int32_t next = 0;
    for (int32_t d = 0; d < documents; ++d) {
      std::vector<int32_t> tokens(static_cast<size_t>(5 + (d * 7) % 21));
      for (int32_t& token : tokens) {
        token = 'a' + next++ % 26;
      }
      writer.add_tokens(tokens);
      writer.end_sequence();
      writer.end_document();
    }
    writer.finish();
    return dir_.file(name);
  }
  AllConfig config(const Overrides& overrides) const {
    return testing::small_config(joined(
        {"model_config.vocab_size=300", "dataset_config.tokenizer_type=byte",
         "dataset_config.batch_size=2", "dataset_config.micro_batch_num=3",
         "dataset_config.data_path=" + store("d", 50), "dataset_config.split=8,1,1",
         "training_config.training_iters=20", "training_config.output_dir=" + dir_.file("output")},
        overrides));
  }
  static std::vector<Json> rows(WhichData& data, StepRange range) {
    std::vector<Json> lines;
    data.rows(range, [&](const std::string& line) { lines.push_back(Json::parse(line)); });
    return lines;
  }
  static std::vector<Json> rows_with(WhichData& data, const DocumentId& id) {
    std::vector<Json> lines;
    data.rows_with(id, [&](const std::string& line) { lines.push_back(Json::parse(line)); });
    return lines;
  }
  data::TempDir dir_;
};

// Whatever the layout, a step of as many samples has the same ones; who gets which is as the ranks
// of a job draw them.
TEST_F(WhichDataTest, RowsAreThoseThatTheRanksDraw) {
  const AllConfig of_two =
      config({"dataset_config.micro_batch_num=3", "parallel_config.tensor_model_parallel_size=2"});
  WhichData data(of_two, 4);
  EXPECT_EQ(data.steps(), (StepRange{1, 20}));
  const std::vector<Json> lines = rows(data, {3, 4});
  ASSERT_THAT(lines, SizeIs(24));
  const RunData run = open_data(config({"dataset_config.micro_batch_num=6"}));
  size_t at = 0;
  for (int64_t step = 3; step <= 4; ++step) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      for (int64_t micro = 0; micro < 3; ++micro) {
        const data::Batch batch =
            run.train->micro_batch({step - 1, (step - 1) * 12}, micro, 3, 2, rank, 2);
        for (int64_t row = 0; row < 2; ++row) {
          const Json& line = lines[at++];
          EXPECT_EQ(line["step"], step);
          EXPECT_EQ(line["dp_rank"], rank);
          EXPECT_EQ(line["micro_batch"], micro);
          EXPECT_EQ(line["row"], row);
          EXPECT_EQ(line["sample"], batch.sample_ids[static_cast<size_t>(row)]);
          EXPECT_EQ(line["dataset"], dir_.file("d"));
          const auto first = batch.tokens.begin() + row * batch.seq;
          EXPECT_EQ(line["text"], std::string(first, first + batch.seq));
          const data::RowOrigin origin = batch.origin(row);
          ASSERT_EQ(line["documents"].size(), origin.documents.size());
          for (size_t i = 0; i < origin.documents.size(); ++i) {
            EXPECT_EQ(line["documents"][i], (Json{{"id", origin.documents[i].document},
                                                  {"first", origin.documents[i].first},
                                                  {"count", origin.documents[i].count},
                                                  {"file", nullptr},
                                                  {"offset", nullptr},
                                                  {"bytes", nullptr}}));
          }
        }
      }
    }
  }
  EXPECT_THAT(data.remarks(),
              ElementsAre(Says("record of its tokenizer"), Says("come from are not known")));
}

TEST_F(WhichDataTest, DocumentsAreFoundInTheRowsThatNameThem) {
  WhichData data(config({}), 2);
  const std::vector<Json> all = rows(data, data.steps());
  size_t found = 0;
  for (int64_t d = 0; d < 50; ++d) {
    std::vector<Json> expected;
    for (Json line : all) {
      Json own = Json::array();
      for (const Json& document : line["documents"]) {
        if (document["id"] == d) {
          own.push_back(document);
        }
      }
      if (!own.empty()) {
        line["documents"] = own;
        line.erase("text");
        expected.push_back(line);
      }
    }
    std::sort(expected.begin(), expected.end(),
              [](const Json& a, const Json& b) { return a["sample"] < b["sample"]; });
    // However the prefix is written.
    EXPECT_EQ(rows_with(data, {dir_.path() + "/./d", d}), expected) << d;
    found += expected.empty() ? 0 : 1;
  }
  EXPECT_EQ(found, 40U);  // those of the training part
  EXPECT_THAT(data.remarks().back(), HasSubstr("files that its documents"));
  EXPECT_THAT(
      data.remarks(),
      ::testing::Contains(HasSubstr("no row of steps 1 to 20 has tokens of document 49 of")));
}

TEST_F(WhichDataTest, WhatIsAskedInVainIsExplained) {
  WhichData data(config({}), 1);
  EXPECT_ERROR(rows(data, {21, 21}), ValueError, "--which_data 21: the run has steps 1 to 20");
  EXPECT_ERROR(rows(data, {15, 30}), ValueError, "--which_data 15-30: the run has steps 1 to 20");
  EXPECT_ERROR(rows_with(data, {"e", 0}), ValueError,
               "does not train on a data set e; there is " + dir_.file("d") + " (50 documents)");
  EXPECT_ERROR(rows_with(data, {dir_.file("d"), 50}), ValueError, "has documents 0 to 49, not 50");
  EXPECT_ERROR(WhichData(config({"parallel_config.tensor_model_parallel_size=2"}), 3), ValueError,
               "3 ... parallel_config (tensor ... x pipeline x ... context) ... 2,");
  EXPECT_ERROR(WhichData(config({}), 0), ValueError, "a job of 0 ranks");
}

// Where epochs end the run, the last step is the one that reads the last sample of them.
TEST_F(WhichDataTest, EpochsEndTheSteps) {
  for (const char* ranks : {"1", "2"}) {
    const int64_t dp = ranks[0] - '0';
    const AllConfig by_epochs =
        config({"training_config.training_iters=0", "training_config.epochs=3"});
    WhichData data(by_epochs, dp);
    AllConfig alone = by_epochs;
    alone.dataset_config.micro_batch_num *= dp;
    const RunData run = open_data(alone);
    const int64_t batch = 6 * dp;
    int64_t last = 0;
    while (run.train->epoch(last * batch) < 3) {
      ++last;
    }
    EXPECT_EQ(data.steps(), (StepRange{1, last}));
    EXPECT_GT(last, 5);
    EXPECT_THAT(rows(data, {last, last}), SizeIs(static_cast<size_t>(batch)));
    EXPECT_ERROR(rows(data, {last + 1, last + 1}), ValueError, "the run has steps 1 to ");
  }
  // Both ends: the earlier one counts.
  EXPECT_EQ(WhichData(config({"training_config.epochs=300"}), 1).steps().last, 20);
  EXPECT_EQ(WhichData(config({"training_config.training_iters=0", "training_config.epochs=null",
                              "dataset_config.train_samples=31"}),
                      1)
                .steps()
                .last,
            5);
}

}  // namespace
}  // namespace which_data_test
}  // namespace tapestry
