#include "parallel_core/sft/sft_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/document_sources.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::sft {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string prompt_line(const std::string& prompt, const std::string& completion) {
  return Json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
}

class SftDatasetTest : public ::testing::Test {
 protected:
  ExampleEncoding encoding(int64_t seq_length, LongExamples longer = LongExamples::kCut) const {
    return {.tokenizer = &bytes_,
            .eod = bytes_.eod_id(),
            .long_examples = longer,
            .max_tokens = seq_length + 1};
  }
  std::shared_ptr<const ExampleFile> file(const std::string& text,
                                          int64_t seq_length,
                                          LongExamples longer = LongExamples::kCut,
                                          const std::string& name = "e.jsonl") const {
    return std::make_shared<const ExampleFile>(dir_.write(name, text),
                                               encoding(seq_length, longer));
  }
  static SftDataset dataset(const std::vector<std::shared_ptr<const ExampleFile>>& files,
                            int64_t seq_length,
                            bool packing,
                            int64_t more_rows = 0) {
    std::vector<ExampleRange> ranges;
    for (const auto& of_range : files) {
      ranges.push_back({of_range, 0, of_range->size()});
    }
    auto order = std::make_shared<RowOrder>(
        lengths_of(ranges), std::vector<double>(),
        RowOrderOptions{.capacity = seq_length + 1, .packing = packing, .shuffle = false});
    order->add_epoch();
    const int64_t rows = order->num_rows();
    return {ranges, order, rows + more_rows, seq_length, /*pad_id=*/0};
  }

  data::TempDir dir_;
  data::ByteTokenizer bytes_;
};

TEST_F(SftDatasetTest, ARowHoldsWholeExamples) {
  const auto examples = file(prompt_line("ab", "c") + "\n" + prompt_line("", "de"), 9);
  EXPECT_EQ(examples->num_lines(), 3);
  EXPECT_EQ(examples->counts().lines, 2);
  const SftDataset rows = dataset({examples}, 9, /*packing=*/true);
  ASSERT_EQ(rows.size(), 1);
  const data::Sample row = rows.get(0);
  EXPECT_THAT(row.tokens, ElementsAre('a', 'b', 'c', 256, 'd', 'e', 256, 0, 0));
  EXPECT_THAT(row.labels, ElementsAre('b', 'c', 256, 'd', 'e', 256, 0, 0, 0));
  // b is a prompt; d begins another document; nothing follows an end.
  EXPECT_THAT(row.loss_mask, ElementsAre(0, 1, 1, 0, 1, 1, 0, 0, 0));
  EXPECT_THAT(row.position_ids, ElementsAre(0, 1, 2, 3, 0, 1, 2, 0, 1));
  EXPECT_THAT(row.document_starts, ElementsAre(0, 4, 7));
  const RowFill fill = rows.fill(0);
  EXPECT_EQ(fill.tokens, 7);
  EXPECT_EQ(fill.learned, 4);
  EXPECT_EQ(rows.tokens_per_epoch(), 7);
  EXPECT_EQ(rows.epoch(0), 0);
  EXPECT_EQ(rows.epoch(1), 1);
  const data::RowOrigin origin = rows.origin(0);
  EXPECT_EQ(origin.dataset, dir_.file("e.jsonl"));
  EXPECT_THAT(origin.documents,
              ElementsAre(data::DocumentPart{0, 0, 4}, data::DocumentPart{2, 0, 3}));
}

// The last token of a full row is a label alone.
TEST_F(SftDatasetTest, ARowHasRoomForOneLabelMore) {
  const SftDataset rows =
      dataset({file(prompt_line("ab", "c") + prompt_line("", "de"), 6)}, 6, /*packing=*/true);
  ASSERT_EQ(rows.size(), 1);
  const data::Sample row = rows.get(0);
  EXPECT_THAT(row.tokens, ElementsAre('a', 'b', 'c', 256, 'd', 'e'));
  EXPECT_THAT(row.labels, ElementsAre('b', 'c', 256, 'd', 'e', 256));
  EXPECT_THAT(row.loss_mask, ElementsAre(0, 1, 1, 0, 1, 1));
  EXPECT_THAT(row.document_starts, ElementsAre(0, 4));
  EXPECT_EQ(rows.fill(0).tokens, 6);
}

TEST_F(SftDatasetTest, RowsBehindTheLastTeachNothing) {
  const SftDataset rows = dataset({file(prompt_line("ab", "c"), 6)}, 6, true, /*more_rows=*/2);
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows.real_rows(), 1);
  const data::Sample row = rows.get(2);
  EXPECT_THAT(row.loss_mask, AllOf(SizeIs(6), Each(0)));
  EXPECT_THAT(row.tokens, AllOf(SizeIs(6), Each(0)));
  EXPECT_THAT(row.document_starts, ElementsAre(0));
  EXPECT_THAT(rows.origin(2).documents, IsEmpty());
  EXPECT_ERROR(rows.get(3), IndexError, "sample 3 of 3");
}

TEST_F(SftDatasetTest, UnpackedRowsHoldTheSameTargets) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines +=
        prompt_line(std::string(static_cast<size_t>(i % 7), 'p'),
                    std::string(static_cast<size_t>(i % 5 + 1), static_cast<char>('a' + i % 26)));
  }
  const auto examples = file(lines, 20);
  std::map<std::string, int64_t> targets[2];
  for (const bool packing : {false, true}) {
    const SftDataset rows = dataset({examples}, 20, packing);
    for (int64_t k = 0; k < rows.size(); ++k) {
      const data::Sample row = rows.get(k);
      for (size_t t = 0; t < row.tokens.size(); ++t) {
        if (row.loss_mask[t] != 0) {
          ++targets[packing ? 1 : 0]
                   [concat(row.position_ids[t], " ", row.tokens[t], " ", row.labels[t])];
        }
      }
    }
  }
  EXPECT_EQ(targets[0], targets[1]);
}

TEST_F(SftDatasetTest, WhatIsTooLongIsCutOrDropped) {
  const std::string lines =
      prompt_line("0123456789", "answer") + prompt_line("01", "23456789") + prompt_line("0", "1");
  const auto cut = file(lines, 7);
  ExampleCounts expected{.lines = 3, .examples = 2, .cut = 1, .without_answer = 1};
  expected.tokens = 8 + 3;
  expected.cut_tokens = 3;
  expected.learned = 6 + 2;
  expected.plain = 3;
  EXPECT_EQ(cut->counts(), expected);
  EXPECT_THAT(cut->ids(0), ElementsAre('0', '1', '2', '3', '4', '5', '6', '7'));
  EXPECT_EQ(cut->line(0), 1);
  const auto dropped = file(lines, 7, LongExamples::kDrop);
  EXPECT_EQ(dropped->counts().dropped_long, 2);
  EXPECT_EQ(dropped->size(), 1);
  EXPECT_EQ(dropped->line(0), 2);
  // Lines are divided, not what is left of them.
  EXPECT_EQ(cut->examples_of(0, 2), (std::pair<int64_t, int64_t>{0, 1}));
  EXPECT_EQ(cut->examples_of(2, 3), (std::pair<int64_t, int64_t>{1, 2}));
}

TEST_F(SftDatasetTest, LinesAndThreadsChangeNothing) {
  std::string lines = "\xEF\xBB\xBF";
  for (int i = 0; i < 500; ++i) {
    lines +=
        prompt_line("q" + std::to_string(i), std::to_string(i * i)) + (i % 3 == 0 ? " \r\n" : "");
  }
  const auto by_one = file(lines, 30);
  const int threads = num_threads();
  set_num_threads(4);
  const auto by_four = file(lines, 30);
  set_num_threads(threads);
  ASSERT_EQ(by_one->size(), 500);
  EXPECT_EQ(by_one->counts(), by_four->counts());
  EXPECT_EQ(by_one->file(), by_four->file());
  for (int64_t i = 0; i < 500; ++i) {
    EXPECT_THAT(by_one->ids(i), ElementsAreArray(by_four->ids(i)));
    EXPECT_EQ(by_one->line(i), by_four->line(i));
  }
  // The first of several bad lines is named.
  lines += "{}\n" + prompt_line("a", "b") + "[]\n";
  EXPECT_ERROR(file(lines, 30), ValueError, concat("e.jsonl:", 500 + 167 + 1, ": has none of"));
}

TEST_F(SftDatasetTest, DocumentsAreLinesOfTheirFiles) {
  const auto first = file(prompt_line("ab", "c") + "\n" + prompt_line("", "de"), 9);
  const auto second = file(prompt_line("f", "g"), 9, LongExamples::kCut, "f.jsonl");
  const SftDataset rows = dataset({first, second}, 9, /*packing=*/true);
  ASSERT_EQ(rows.size(), 1);
  const std::string a = dir_.file("e.jsonl");
  const std::string b = dir_.file("f.jsonl");
  EXPECT_EQ(rows.documents(), (std::map<std::string, int64_t>{{a, 3}, {b, 1}}));
  EXPECT_THAT(rows.samples_with(a, 2), ElementsAre(0));
  EXPECT_THAT(rows.samples_with(a, 1), IsEmpty());  // blank
  EXPECT_THAT(rows.samples_with(b, 0), ElementsAre(0));
  EXPECT_THAT(rows.samples_with("elsewhere", 0), IsEmpty());
  EXPECT_ERROR(rows.samples_with(b, 1), IndexError, "line 1 of 1");
  data::DocumentFinder finder;
  const Json places = data::documents_json(rows.origin(0), finder);
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places[1]["file"], a);
  EXPECT_EQ(places[1]["offset"], prompt_line("ab", "c").size() + 1);
  EXPECT_EQ(places[1]["bytes"], prompt_line("", "de").size() - 1);
  EXPECT_EQ(places[2]["file"], b);
  EXPECT_EQ(places[2]["id"], 0);
}

TEST_F(SftDatasetTest, FilesThatAreNoText) {
  dir_.write("e.gz", "\x1F\x8B\x08");
  EXPECT_ERROR(ExampleFile(dir_.file("e.gz"), encoding(9)), ValueError, "gunzip -k");
  EXPECT_ERROR(ExampleFile(dir_.file("none.jsonl"), encoding(9)), IoError, "none.jsonl");
  const auto empty = file(" \n\n", 9);
  EXPECT_EQ(empty->size(), 0);
  EXPECT_EQ(empty->num_lines(), 2);
  EXPECT_ERROR(file(R"({"messages": [{"role": "user", "content": "x"}]})", 9), ValueError,
               "e.jsonl:1: has \"messages\", but there is no chat template");
}

}  // namespace
}  // namespace tapestry::sft
