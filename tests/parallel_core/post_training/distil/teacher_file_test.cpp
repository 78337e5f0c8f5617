// Files of a teacher's log-probabilities: round trips, what is refused and in which words, and what
// a student gets of them.
#include "parallel_core/post_training/distil/teacher_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/inference/top_log_probs.h"
#include "parallel_core/post_training/distil/teacher.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"

namespace tapestry::post_training {
namespace teacher_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kVocabulary = 11;

SequenceSet three_texts() {
  SequenceSet set;
  set.add(std::vector<int32_t>{1, 2}, std::vector<int32_t>{3, 4, 5});
  set.add(std::vector<int32_t>{}, std::vector<int32_t>{6, 7});  // the first has no position
  set.add(std::vector<int32_t>{8, 9, 10}, std::vector<int32_t>{0});
  return set;
}
constexpr int64_t kPositions = 3 + 1 + 1;

TeacherFileHeader header_of(int64_t k) {
  return {.model = "models/teacher",
          .tokenizer = {"huggingface", 10, "0123456789abcdef"},
          .vocab_size = kVocabulary,
          .top_k = k,
          .temperature = 1.5};
}

// Made-up values: row r has the tokens r, r + 1, .. and log-probabilities that fall from -0.5.
struct Values {
  TopLogProbs top;
  Tensor own;

  explicit Values(int64_t k)
      : top{.ids = empty({kPositions, k}, kInt32), .log_probs = empty({kPositions, k}, kFloat32)},
        own(empty({kPositions}, kFloat32)) {
    for (int64_t r = 0; r < kPositions; ++r) {
      for (int64_t j = 0; j < k; ++j) {
        top.ids.data<int32_t>()[r * k + j] = static_cast<int32_t>((r + j) % kVocabulary);
        top.log_probs.data<float>()[r * k + j] =
            -0.5F - static_cast<float>(j) - static_cast<float>(r) / 8;
      }
      own.data<float>()[r] = -3 - static_cast<float>(r);
    }
  }
};

class TeacherFiles : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "teacher.safetensors") const {
    return folder_.file(name);
  }

  std::string written(const Values& values, int64_t k) const {
    const SequenceSet set = three_texts();
    TeacherFileWriter writer(path(), header_of(k), set);
    // In an order of its own: what comes later does not move what is there.
    writer.write(2, values.top, values.own, 4);
    writer.write(0, values.top, values.own, 0);
    writer.write(1, values.top, values.own, 3);
    writer.finish();
    return path();
  }

  std::string error_of(const std::string& file) const {
    return message_of<IoError>([&] { TeacherFile{file}; });
  }

  // The same file with other metadata.
  std::string with_metadata(const std::string& key, const std::string& value) const {
    const SafetensorsReader reader(written(Values(2), 2));
    std::map<std::string, std::string> metadata = reader.metadata();
    metadata[key] = value;
    std::vector<std::vector<char>> memory;
    std::vector<TensorView> tensors;
    for (const auto& [name, entry] : reader.entries()) {
      memory.emplace_back(entry.end - entry.begin);
      reader.read(name, memory.back().data());
    }
    size_t i = 0;
    for (const auto& [name, entry] : reader.entries()) {
      tensors.push_back({name, *entry.dtype, entry.shape, memory[i++].data()});
    }
    write_safetensors(path("other.safetensors"), tensors, metadata);
    return path("other.safetensors");
  }

 private:
  data::TempDir folder_;
};

TEST_F(TeacherFiles, GoThereAndBack) {
  const Values values(3);
  const TeacherFile file(written(values, 3));
  EXPECT_EQ(file.header().model, "models/teacher");
  EXPECT_EQ(file.header().tokenizer, header_of(3).tokenizer);
  EXPECT_EQ(file.header().vocab_size, kVocabulary);
  EXPECT_EQ(file.header().top_k, 3);
  EXPECT_EQ(file.header().temperature, 1.5);
  EXPECT_EQ(file.texts()->checksum(), three_texts().checksum());
  EXPECT_EQ(file.positions(0), 3);
  EXPECT_EQ(file.positions(1), 1);
  EXPECT_EQ(file.positions(2), 1);
  std::vector<int32_t> ids(4);
  std::vector<float> log_probs(4);
  std::vector<float> own(2);
  file.read(0, 1, 2, 2, ids.data(), log_probs.data(), own.data());  // the two best of three
  EXPECT_THAT(ids, ElementsAre(1, 2, 2, 3));
  EXPECT_THAT(log_probs, ElementsAre(-0.625F, -1.625F, -0.75F, -1.75F));
  EXPECT_THAT(own, ElementsAre(-4, -5));
  file.read(2, 0, 1, 1, ids.data(), log_probs.data(), own.data());
  EXPECT_EQ(ids[0], 4);
  EXPECT_EQ(own[0], -7);
}

TEST_F(TeacherFiles, AppearWholeOrNotAtAll) {
  const SequenceSet set = three_texts();
  const Values values(2);
  {
    TeacherFileWriter writer(path(), header_of(2), set);
    writer.write(0, values.top, values.own, 0);
    EXPECT_THAT(message_of<ValueError>([&] { writer.finish(); }),
                HasSubstr("text 1 was not written"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(std::filesystem::path(path()).parent_path()));
  EXPECT_THAT(
      message_of<ValueError>([&] { TeacherFileWriter(path("no/file"), header_of(2), set); }),
      HasSubstr("there is no folder"));
}

TEST_F(TeacherFiles, SayWhatIsWrong) {
  const std::string file = written(Values(2), 2);
  EXPECT_THAT(error_of(path("missing")), HasSubstr("missing"));
  std::ofstream(path("text")) << "no tensors";
  EXPECT_NE(error_of(path("text")), "");
  const auto size = std::filesystem::file_size(file);
  std::filesystem::copy_file(file, path("cut"));
  std::filesystem::resize_file(path("cut"), size - 4);
  EXPECT_THAT(error_of(path("cut")), HasSubstr("cut"));
  const std::vector<float> other = {1};
  const std::vector<TensorView> tensors = {{"weight", kFloat32, {1}, other.data()}};
  write_safetensors(path("weights"), tensors);
  EXPECT_THAT(error_of(path("weights")),
              HasSubstr("is no file of a teacher's log-probabilities, as generate --logprobs K"));
  EXPECT_THAT(error_of(with_metadata("version", "2")), HasSubstr("has version 2"));
  EXPECT_THAT(error_of(with_metadata("kind", "weights")), HasSubstr("kind 'weights'"));
  EXPECT_THAT(error_of(with_metadata("top_k", "3")), HasSubstr("top_ids is I32"));
  EXPECT_THAT(error_of(with_metadata("top_k", "many")), HasSubstr("top_k is 'many'"));
  EXPECT_THAT(error_of(with_metadata("top_k", "12")), HasSubstr("exceeds the vocabulary's 11"));
  EXPECT_THAT(error_of(with_metadata("temperature", "0")), HasSubstr("temperature is '0'"));
  EXPECT_THAT(error_of(with_metadata("texts_checksum", "0")), HasSubstr("has been changed"));
  EXPECT_THAT(message_of<IndexError>([&] { TeacherFile{with_metadata("vocab_size", "9")}; }),
              HasSubstr("text 2 has the id 9, outside of the vocabulary of 9"));
}

TEST_F(TeacherFiles, RefuseOtherStudents) {
  const TeacherFile file(written(Values(2), 2));
  const data::TokenizerIdentity same = header_of(2).tokenizer;
  EXPECT_NO_THROW(check_teacher_file(file, same, kVocabulary));
  EXPECT_NO_THROW(check_teacher_file(file, {}, kVocabulary));
  EXPECT_THAT(message_of<ValueError>([&] { check_teacher_file(file, same, 12); }),
              HasSubstr("has a vocabulary of 11 tokens, the student of 12"));
  EXPECT_THAT(
      message_of<ValueError>([&] {
        check_teacher_file(file, {"byte", 10, ""}, kVocabulary);
      }),
      ::testing::AllOf(HasSubstr("huggingface tokenizer of 10 ids (crc64 0123456789abcdef)"),
                       HasSubstr("byte tokenizer")));
}

TEST_F(TeacherFiles, RefuseRowsThatCannotBe) {
  const auto error = [&](const std::function<void(Values&)>& spoil) {
    Values values(2);
    spoil(values);
    const TeacherFile file(written(values, 2));
    std::vector<int32_t> ids(6);
    std::vector<float> log_probs(6);
    std::vector<float> own(3);
    try {
      file.read(0, 0, 3, 2, ids.data(), log_probs.data(), own.data());
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(error([](Values&) {}), "");
  EXPECT_THAT(error([](Values& v) { v.top.ids.data<int32_t>()[2] = 11; }),
              HasSubstr("text 0, position 1: has the id 11, outside of the vocabulary of 11"));
  EXPECT_THAT(error([](Values& v) { v.top.ids.data<int32_t>()[3] = 1; }),
              HasSubstr("text 0, position 1: has the id 1 twice"));
  EXPECT_THAT(error([](Values& v) { v.top.log_probs.data<float>()[4] = 0.5F; }),
              HasSubstr("text 0, position 2: 0.5 is no log-probability"));
  EXPECT_THAT(error([](Values& v) { v.top.log_probs.data<float>()[1] = -0.25F; }),
              HasSubstr("not in their order"));
  EXPECT_THAT(
      error([](Values& v) { v.own.data<float>()[0] = std::numeric_limits<float>::quiet_NaN(); }),
      HasSubstr("is no log-probability"));
}

// -- what a student gets
// ------------------------------------------------------------------------------

TEST_F(TeacherFiles, GiveThePositionsOfPackedRows) {
  const auto file = std::make_shared<const TeacherFile>(written(Values(2), 2));
  const std::vector<int64_t> numbers = {2, 0, 1};
  const std::vector<data::Batch> batches = {
      pack_sequences(*file->texts(), numbers, {.seq_length = 11})};
  const data::Batch& batch = batches.front();
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < std::ssize(batch.loss_mask); ++i) {
    if (batch.loss_mask[static_cast<size_t>(i)] > 0) {
      positions.push_back(i);
    }
  }
  ASSERT_EQ(std::ssize(positions), kPositions);
  FileTeacher teacher(file, 0.0);
  teacher.begin_step(batches);
  const auto top = std::get<TopLogProbs>(teacher.target(0, positions));
  ASSERT_EQ(top.ids.shape(), (Shape{kPositions, 2}));
  // The label of each position says whose it is: rows are 3 4 5 | 7 | 0.
  const std::map<int64_t, int32_t> first_id = {{3, 0}, {4, 1}, {5, 2}, {7, 3}, {0, 4}};
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t label = batch.labels[static_cast<size_t>(positions[i])];
    EXPECT_EQ(top.ids.data<int32_t>()[2 * i], first_id.at(label)) << label;
  }
}

TEST_F(TeacherFiles, OfOneTokenAddTheTextsOwn) {
  Values values(1);
  values.top.ids.data<int32_t>()[1] = 4;  // of the second position, whose token is 4
  const auto file = std::make_shared<const TeacherFile>(written(values, 1));
  const std::vector<int64_t> numbers = {0};
  const std::vector<data::Batch> batches = {
      pack_sequences(*file->texts(), numbers, {.seq_length = 5})};
  const std::vector<int64_t> positions = {1, 2, 3};
  const auto target = [&](double beta) {
    FileTeacher teacher(file, beta);
    teacher.begin_step(batches);
    return std::get<TopLogProbs>(teacher.target(0, positions));
  };
  EXPECT_EQ(target(0).ids.shape(), (Shape{3, 1}));
  const TopLogProbs reverse = target(1);
  EXPECT_THAT(reverse.ids.to_vector<int32_t>(), ElementsAre(3, 4, 5));
  EXPECT_THAT(reverse.log_probs.to_vector<float>(), ElementsAre(-3, -4, -5));
  const TopLogProbs between = target(0.5);
  EXPECT_THAT(between.ids.to_vector<int32_t>(), ElementsAre(0, 3, 4, 4, 2, 5));
  EXPECT_THAT(between.log_probs.to_vector<float>(),
              ElementsAre(-0.5F, -3, -0.625F, -std::numeric_limits<float>::infinity(), -0.75F, -5));
}

// -- the likeliest
// --------------------------------------------------------------------------------------

TEST(TopLogProbs, AreTheBestInOrderHoweverMany) {
  constexpr int64_t kColumns = 97;
  std::vector<float> logits;
  for (int64_t i = 0; i < 3 * kColumns; ++i) {
    logits.push_back(static_cast<float>(i * 37 % 50) / 8);  // with equal ones
  }
  const Tensor rows = tensor(logits, {3, kColumns});
  const HeadRows head = {.count = 3, .logits = [rows](int64_t begin, int64_t end) {
                           return rows.slice(0, begin, end);
                         }};
  const std::vector<int64_t> labels = {5, 0, 96};
  for (const int64_t k : {int64_t{1}, int64_t{4}, int64_t{40}, kColumns}) {
    const ScoredTop found =
        top_log_probs(head, tensor(labels, {3}),
                      {.k = k, .temperature = 2, .vocabulary = kColumns, .chunk_rows = 2}, {});
    for (int64_t r = 0; r < 3; ++r) {
      const float* row = logits.data() + r * kColumns;
      double total = 0;
      for (int64_t i = 0; i < kColumns; ++i) {
        total += std::exp(row[i] / 2.0);
      }
      std::vector<int32_t> order(kColumns);
      for (int32_t i = 0; i < kColumns; ++i) {
        order[static_cast<size_t>(i)] = i;
      }
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return row[a] > row[b]; });
      for (int64_t j = 0; j < k; ++j) {
        const int32_t id = order[static_cast<size_t>(j)];
        EXPECT_EQ(found.top.ids.data<int32_t>()[r * k + j], id) << k << " " << j;
        EXPECT_NEAR(found.top.log_probs.data<float>()[r * k + j], row[id] / 2.0 - std::log(total),
                    1e-5);
      }
      const auto label = static_cast<size_t>(labels[static_cast<size_t>(r)]);
      EXPECT_NEAR(found.log_probs.data<float>()[r], row[label] / 2.0 - std::log(total), 1e-5);
    }
  }
  EXPECT_THAT(message_of<ValueError>([&] {
                top_log_probs(head, tensor(labels, {3}), {.k = 98, .vocabulary = kColumns}, {});
              }),
              HasSubstr("expected a number from 1 to the vocabulary's 97, got 98"));
}

}  // namespace
}  // namespace teacher_file_test
}  // namespace tapestry::post_training
