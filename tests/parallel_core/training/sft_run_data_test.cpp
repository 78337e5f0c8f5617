// Rows of examples in a training step: what gradients come from.
#include "parallel_core/training/data/sft_run_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/parallel_state.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::sft_run_data_test {
namespace {

using testing::Gradients;
using ::testing::Gt;
using testing::joined;
using testing::Overrides;
using testing::small_config;
using testing::Trainer;

class SftStepTest : public ::testing::Test {
 protected:
  SftStepTest() {
    initialize_model_parallel();
    std::string lines;
    for (int i = 0; i < 12; ++i) {
      const std::string prompt(static_cast<size_t>(4 + i % 5), static_cast<char>('a' + i));
      const std::string completion(static_cast<size_t>(3 + i % 4), static_cast<char>('A' + i));
      lines += R"({"prompt": ")" + prompt + R"(", "completion": ")" + completion + "\"}\n";
    }
    path_ = dir_.write("e.jsonl", lines);
  }
  ~SftStepTest() override { destroy_model_parallel(); }

  AllConfig config(const Overrides& more = {}) const {
    return small_config(
        joined({"model_config.vocab_size=260", "model_config.seq_length=32",
                "model_config.position_embedding_type=rope", "dataset_config.tokenizer_type=byte",
                "dataset_config.sft_data_path=" + path_, "dataset_config.split=1",
                "dataset_config.batch_size=2", "dataset_config.micro_batch_num=2"},
               more));
  }
  static std::vector<data::Batch> batches(const AllConfig& config) {
    RunData run = open_data(config);
    std::vector<data::Batch> all;
    for (int64_t m = 0; m < config.dataset_config.micro_batch_num; ++m) {
      all.push_back(run.train->micro_batch({}, m, config.dataset_config.micro_batch_num,
                                           config.dataset_config.batch_size, 0, 1));
    }
    return all;
  }
  static Gradients gradients(const AllConfig& config, const std::vector<data::Batch>& batches) {
    Trainer trainer(config);
    return testing::run_step(trainer, batches);
  }

  data::TempDir dir_;
  std::string path_;
};

// Another label wherever the mask is 0, prompts, boundaries and filling: the same bits.
TEST_F(SftStepTest, NoGradientComesFromMaskedPrompts) {
  const AllConfig c = config();
  const std::vector<data::Batch> rows = batches(c);
  const Gradients expected = gradients(c, rows);
  std::vector<data::Batch> others = rows;
  int64_t changed = 0;
  for (data::Batch& batch : others) {
    for (size_t t = 0; t < batch.labels.size(); ++t) {
      if (batch.loss_mask[t] == 0) {
        batch.labels[t] = (batch.labels[t] + 17) % 256;
        ++changed;
      }
    }
  }
  EXPECT_THAT(changed, Gt(20));
  const Gradients found = gradients(c, others);
  EXPECT_EQ(found.result.loss, expected.result.loss);
  testing::expect_states_equal(found.tensors, expected.tensors);
  // That labels matter where they count.
  for (size_t t = 0; t < others[0].labels.size(); ++t) {
    if (others[0].loss_mask[t] != 0) {
      others[0].labels[t] = (others[0].labels[t] + 17) % 256;
      break;
    }
  }
  EXPECT_NE(gradients(c, others).result.loss, expected.result.loss);
}

// Learned from one document of a row alone, the tokens of the others do not matter.
TEST_F(SftStepTest, ExamplesOfARowDoNotSeeEachOther) {
  const AllConfig c = config();
  std::vector<data::Batch> rows = batches(c);
  rows.resize(1);
  data::Batch& batch = rows[0];
  ASSERT_THAT(batch.document_starts[0].size(), Gt(2U));
  const int64_t begin = batch.document_starts[0][1];
  const int64_t end = batch.document_starts[0][2];
  for (int64_t t = 0; t < std::ssize(batch.loss_mask); ++t) {
    if (t < begin || t + 1 >= end) {
      batch.loss_mask[static_cast<size_t>(t)] = 0;
    }
  }
  const Gradients expected = gradients(c, rows);
  EXPECT_THAT(expected.result.loss_tokens, Gt(0));
  std::vector<data::Batch> others = rows;
  for (int64_t t = 0; t < batch.seq; ++t) {
    if (t < begin || t >= end) {
      int64_t& token = others[0].tokens[static_cast<size_t>(t)];
      token = (token + 1) % 256;
    }
  }
  EXPECT_EQ(gradients(c, others).result.loss, expected.result.loss);
}

TEST_F(SftStepTest, TheMeanIsOverTheTokensOfAStep) {
  const AllConfig by_four =
      config({"dataset_config.sft_packing=False", "dataset_config.batch_size=4",
              "dataset_config.micro_batch_num=1"});
  const AllConfig by_one =
      config({"dataset_config.sft_packing=False", "dataset_config.batch_size=1",
              "dataset_config.micro_batch_num=4"});
  const Gradients whole = gradients(by_four, batches(by_four));
  const Gradients parts = gradients(by_one, batches(by_one));
  EXPECT_EQ(whole.result.loss_tokens, parts.result.loss_tokens);
  EXPECT_NEAR(whole.result.loss, parts.result.loss, 1e-6 * whole.result.loss);
  testing::expect_states_close(parts.tensors, whole.tensors, 1e-4);
}

// A row is what it is, however long the run and however many ranks share it out.
TEST_F(SftStepTest, RowsDoNotDependOnTheLengthOfTheRun) {
  const AllConfig shorter = config();
  const AllConfig longer = config({"training_config.training_iters=300"});
  RunData a = open_data(shorter);
  RunData b = open_data(longer);
  for (int64_t step = 0; step < 20; ++step) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      const data::Batch of_two = b.train->micro_batch({step, step * 4}, 0, 1, 2, rank, 2);
      const data::Batch of_one = a.train->micro_batch({step, step * 4}, rank, 2, 2, 0, 1);
      EXPECT_EQ(of_two.tokens, of_one.tokens);
      EXPECT_EQ(of_two.sample_ids, of_one.sample_ids);
    }
  }
  EXPECT_EQ(a.train->size_in_samples(), 80);
  EXPECT_THAT(b.train->epoch(1199), Gt(100));
}

// Each example is read once, whatever the batch: rows are made up to whole batches.
TEST_F(SftStepTest, EvaluationReadsEachExampleOnce) {
  for (const char* rows : {"1", "3", "5"}) {
    RunData run = open_data(
        config({"dataset_config.sft_valid_data_path=" + path_, "dataset_config.split=969,30,1",
                "training_config.eval_interval=5", std::string("dataset_config.batch_size=") + rows,
                "dataset_config.micro_batch_num=1"}));
    ASSERT_NE(run.validation, nullptr);
    EXPECT_EQ(run.test, nullptr);
    const int64_t size = run.validation->size_in_samples();
    EXPECT_EQ(size % std::stoll(rows), 0);
    double learned = 0;
    for (int64_t k = 0; k < size; ++k) {
      for (const float mask : run.validation->micro_batch({k, k}, 0, 1, 1, 0, 1).loss_mask) {
        learned += mask;
      }
    }
    double expected = 0;
    for (int i = 0; i < 12; ++i) {
      expected += 3 + i % 4 + 1;
    }
    EXPECT_EQ(learned, expected);
  }
}

class ConversationsTest : public ::testing::Test {
 protected:
  ConversationsTest() {
    initialize_model_parallel();
    path_ = dir_.write("e/a.jsonl", R"({"instruction": "q", "output": "a"})"
                                    "\n");
  }
  ~ConversationsTest() override { destroy_model_parallel(); }

  AllConfig config(const Overrides& more = {}) const {
    return small_config(
        joined({"model_config.vocab_size=260", "model_config.seq_length=64",
                "model_config.position_embedding_type=rope", "dataset_config.tokenizer_type=byte",
                "dataset_config.sft_data_path=" + path_, "dataset_config.split=1"},
               more));
  }
  // What is in the first row, and of that what is learned.
  static std::pair<std::string, std::string> row(RunData& run) {
    const data::Batch batch = run.train->micro_batch({}, 0, 1, 1, 0, 1);
    std::string text;
    std::string learned;
    for (size_t t = 0; t < batch.tokens.size(); ++t) {
      text += batch.tokens[t] < 256 ? static_cast<char>(batch.tokens[t]) : '$';
      if (batch.loss_mask[t] != 0) {
        learned += batch.labels[t] < 256 ? static_cast<char>(batch.labels[t]) : '$';
      }
    }
    return {text.substr(0, text.find('$')), learned};
  }
  std::string template_file(const std::string& source) const {
    return "dataset_config.chat_template=" + dir_.write("t.jinja", source);
  }

  data::TempDir dir_;
  std::string path_;
};

TEST_F(ConversationsTest, AreChatMlWhereThereIsNoTemplate) {
  RunData run = open_data(config());
  const auto [text, learned] = row(run);
  EXPECT_EQ(text, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n");
  EXPECT_EQ(learned, "a<|im_end|>\n");
  EXPECT_THAT(run.remarks, ::testing::Contains(::testing::HasSubstr("are written in ChatML")));
  EXPECT_FALSE(run.opened.examples->template_crc64.empty());
  // Without conversations there is nothing that a template writes.
  dir_.write("e/a.jsonl", "{\"text\": \"x\"}\n");
  EXPECT_TRUE(open_data(config()).opened.examples->template_crc64.empty());
}

TEST_F(ConversationsTest, ATemplateIsToldOneDay) {
  const std::string asking = template_file(
      "{% for m in messages %}{{ strftime_now('%Y-%m-%d') }} {{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}{{ strftime_now('%Y-%m-%d') }} {% endif %}");
  RunData given = open_data(config({asking, "dataset_config.chat_date=2024-02-29"}));
  EXPECT_EQ(row(given).first, "2024-02-29 q;2024-02-29 a;");
  EXPECT_EQ(given.opened.examples->chat_date, "2024-02-29");
  // The day of the first start, which a checkpoint keeps.
  RunData first = open_examples(config({asking}), DataUse::kTraining, nullptr, "2025-12-31");
  EXPECT_EQ(row(first).first, "2025-12-31 q;2025-12-31 a;");
  EXPECT_THAT(first.remarks, ::testing::Contains(::testing::HasSubstr("is told 2025-12-31")));
  const DataState kept =
      parse_data_state(data_state_json(first.state({.step = 1, .first_sample = 1})), "s");
  RunData resumed = open_examples(config({asking}), DataUse::kTraining, &kept, "2026-01-01");
  EXPECT_EQ(row(resumed).first, "2025-12-31 q;2025-12-31 a;");
  EXPECT_ERROR(open_examples(config({asking, "dataset_config.chat_date=2026-01-01"}),
                             DataUse::kTraining, &kept, "2026-01-01"),
               ValueError, "dataset_config.chat_date is 2026-01-01; it was 2025-12-31");
  // Who asks whether there is a day has another, unless one is given.
  const std::string careful = template_file(
      "{% for m in messages %}{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}"
      "none{% endif %} {{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}{% if strftime_now is defined %}{{ strftime_now('%d') }}"
      "{% else %}none{% endif %} {% endif %}");
  RunData none = open_data(config({careful}));
  EXPECT_EQ(row(none).first, "none q;none a;");
  EXPECT_TRUE(none.opened.examples->chat_date.empty());
  RunData told = open_data(config({careful, "dataset_config.chat_date=2024-02-28"}));
  EXPECT_EQ(row(told).first, "28 q;28 a;");
  EXPECT_ERROR(config({careful, "dataset_config.chat_date=2023-02-29"}), ValueError, "is no day");
}

TEST_F(ConversationsTest, FilesAreFoldersAndPatternsAndBadLinesAreLeftOut) {
  dir_.write("e/b.jsonl", "{\"text\": \"x\"}\n{\n{\"text\": \"y\"}\n");
  const std::string folder = "dataset_config.sft_data_path=" + dir_.file("e");
  EXPECT_ERROR(open_data(config({folder})), ValueError, "b.jsonl:2: is not valid JSON");
  const RunData run = open_data(config({folder, "dataset_config.skip_bad_lines=True"}));
  ASSERT_EQ(run.opened.examples->files.size(), 2U);
  EXPECT_EQ(run.opened.examples->files[0].file.path, dir_.file("e/a.jsonl"));
  EXPECT_THAT(run.description, ::testing::HasSubstr("3 examples"));
  EXPECT_THAT(run.remarks, ::testing::Contains(::testing::HasSubstr(
                               "1 bad line is left out: " + dir_.file("e/b.jsonl") + ":2: ")));
  EXPECT_ERROR(open_data(config({"dataset_config.sft_data_path=[0.5, " + dir_.file("e") + "]"})),
               ValueError, "belongs to one file");
}

}  // namespace
}  // namespace tapestry::sft_run_data_test
