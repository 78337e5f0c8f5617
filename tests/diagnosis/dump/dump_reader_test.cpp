#include "diagnosis/dump/dump_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "autograd/io/tensor_io.h"
#include "tests/diagnosis/dump/dump_testing.h"
#include "tests/message_of.h"

namespace tapestry::dump {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

DumpedTensor example() {
  return {.op_type = "Value",
          .op_name = "layers.0.attention.q",
          .task_id = 3,
          .timestamp = 11,
          .input = true,
          .slot = 2,
          .value = numbered({2, 2, 3}).to(kBFloat16),
          .module = "a.b",
          .pass = "backward",
          .micro_batch = 1,
          .samples = {4, 5, 6, 9},
          .sample_axis = 1,
          .global_shape = Shape{2, 4, 9},
          .ranges = {{{0, 2}}, {{2, 4}}, {{0, 1}, {4, 5}, {8, 9}}},
          .state = TensorState::kSlice,
          .source = "attention.cpp:12"};
}

/// A dump of the example, and the folder of its iteration.
std::string example_dump(const std::string& folder) {
  DumpWriter writer(config_in(folder, R"(, "saved_data": "full")"), 2, 0);
  writer.begin_iteration(7);
  writer.write(example());
  writer.end_iteration();
  return folder + "/rank_2/Net/0/7";
}

TEST(DumpReader, EveryFieldComesBack) {
  const std::string folder = fresh_folder();
  example_dump(folder);
  const DumpReader reader(folder);
  EXPECT_THAT(reader.iterations(), ElementsAre(7));
  EXPECT_THAT(reader.ranks(), ElementsAre(2));
  const auto tensors = reader.tensors(7);
  ASSERT_EQ(tensors.size(), 1U);
  const DumpRow& row = tensors[0].row;
  const DumpedTensor wrote = example();
  EXPECT_EQ(tensors[0].rank, 2);
  EXPECT_EQ(row.op_type, wrote.op_type);
  EXPECT_EQ(row.op_name, wrote.op_name);
  EXPECT_EQ(row.task_id, 3);
  EXPECT_EQ(row.timestamp, 11);
  EXPECT_TRUE(row.input);
  EXPECT_EQ(row.slot, 2);
  EXPECT_EQ(row.data_size, 24);
  EXPECT_EQ(row.data_type, "bfloat16");
  EXPECT_EQ(row.shape, (Shape{2, 2, 3}));
  EXPECT_EQ(row.statistics.max, 2.75);
  EXPECT_EQ(row.statistics.count, 12);
  EXPECT_EQ(row.module, "a.b");
  EXPECT_EQ(row.pass, "backward");
  EXPECT_EQ(row.micro_batch, 1);
  EXPECT_EQ(row.samples, wrote.samples);
  EXPECT_EQ(row.sample_axis, 1);
  EXPECT_EQ(row.global_shape, *wrote.global_shape);
  EXPECT_EQ(row.ranges, wrote.ranges);
  EXPECT_EQ(row.state, TensorState::kSlice);
  EXPECT_EQ(row.source, "attention.cpp:12");
  EXPECT_EQ(tensors[0].value().to_vector<float>(), numbered({12}).to_vector<float>());
}

TEST(DumpReader, ATableAsMindSporeWritesIt) {
  const std::string folder = fresh_folder();
  const std::string iteration = folder + "/rank_0/Net/2/0";
  fs::create_directories(iteration);
  write_text(iteration + "/statistic.csv",
             "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
             "Max Value,Min Value,L2Norm Value\n"
             "MatMul,Default/MatMul-op1,0,0,5,output,0,24,float32,\"(2, 3)\",1,-1,2\n"
             "MatMul,Gradients/Default/MatMul-op1,1,0,6,input,0,4,float32,\"(1,)\",1,-1,nan\n");
  const auto tensors = DumpReader(folder).tensors(0);
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].row.shape, (Shape{2, 3}));
  EXPECT_EQ(tensors[0].row.global_shape, (Shape{2, 3}));
  EXPECT_EQ(tensors[0].row.pass, "forward");
  EXPECT_EQ(tensors[0].row.state, TensorState::kWhole);
  EXPECT_FALSE(tensors[0].has_value());
  EXPECT_EQ(tensors[1].row.pass, "backward");
  EXPECT_EQ(tensors[1].row.shape, Shape{1});
  EXPECT_TRUE(std::isnan(tensors[1].row.statistics.l2norm));
}

TEST(DumpReader, FoldersThatAreNone) {
  EXPECT_THAT(message_of<IoError>([] { const DumpReader reader("/no/such"); }),
              HasSubstr("/no/such: is no folder"));
  const std::string folder = fresh_folder();
  fs::create_directories(folder + "/rank_x/Net/0/0");
  fs::create_directories(folder + "/rank_0/Net/0/.3.unfinished");
  EXPECT_THAT(message_of<IoError>([&] { const DumpReader reader(folder); }),
              AllOf(HasSubstr("holds no iteration"), HasSubstr(".3.unfinished was cut short")));
  const std::string whole = fresh_folder("whole");
  example_dump(whole);
  EXPECT_THAT(message_of<ValueError>([&] { DumpReader(whole).tensors(8); }),
              HasSubstr("has no iteration 8"));
}

/// The error for a table with one field of the example replaced.
std::string error_with(const std::string& from, const std::string& to) {
  const std::string folder = fresh_folder();
  const std::string table = example_dump(folder) + "/statistic.csv";
  std::string text = text_of(table);
  const size_t at = text.find(from, text.find('\n'));
  EXPECT_NE(at, std::string::npos) << from;
  write_text(table, text.replace(at, from.size(), to));
  return message_of<IoError>([&] { DumpReader(folder).tensors(7); });
}

TEST(DumpReader, FieldsThatSayNothing) {
  EXPECT_THAT(error_with(",input,", ",in,"),
              AllOf(HasSubstr("statistic.csv: line 2: IO: 'in'"), HasSubstr("neither")));
  EXPECT_THAT(error_with(",3,0,11,", ",x,0,11,"), HasSubstr("Task ID: 'x' is no integer"));
  EXPECT_THAT(error_with("\"(2,2,3)\"", "\"(2,2,-3)\""), HasSubstr("is no shape"));
  EXPECT_THAT(error_with("\"(2,2,3)\"", "[2]"), HasSubstr("is no shape"));
  EXPECT_THAT(error_with("\"(2,2,3)\"", "\"(1,1,1,1,1,1,1,1,1,1)\""), HasSubstr("is no shape"));
  EXPECT_THAT(error_with("\"(2,2,3)\"", "\"(2,2,4)\""), HasSubstr("elements along axis 2"));
  EXPECT_THAT(error_with("\"(2,4,9)\"", "\"(2,4,9000000000000000000)\""), HasSubstr("line 2"));
  EXPECT_THAT(error_with("2.75", "big"), HasSubstr("Max Value: 'big' is no number"));
  EXPECT_THAT(error_with("4-6 9@1", "4-6 9@x"), HasSubstr("names no axis"));
  EXPECT_THAT(error_with("4-6 9@1", "6-4 9@1"), HasSubstr("is no list of samples"));
  EXPECT_THAT(error_with("4-6 9@1", "0-4000000000000@1"), HasSubstr("is no list of samples"));
  EXPECT_THAT(error_with("4-6 9@1", "4-6@1"), HasSubstr("3 samples of equal length"));
  EXPECT_THAT(error_with("\"(0,2,0+4+8)\"", "\"(0,2)\""), HasSubstr("is no place"));
  EXPECT_THAT(error_with("\"(0,2,0+4+8)\"", "\"(0,3,0+4+8)\""), HasSubstr("along axis 1"));
  EXPECT_THAT(error_with("\"(0,2,0+4+8)\"", "\"(0,2,0:9223372036854775807+1)\""),
              HasSubstr("is no place"));
  EXPECT_THAT(error_with(",slice,", ",slices,"), HasSubstr("is none of whole, slice"));
  EXPECT_THAT(error_with(",slice,", ",whole,"), HasSubstr("is whole but"));
}

TEST(DumpReader, FilesThatAreNotWhatTheTableSays) {
  const std::string folder = fresh_folder();
  const std::string iteration = example_dump(folder);
  const StoredTensor stored = DumpReader(folder).tensors(7).front();
  const std::string file = iteration + "/" + stored.row.file;
  save_npy(file, numbered({3, 2, 2}));
  EXPECT_THAT(message_of<IoError>([&] { stored.value(); }),
              AllOf(HasSubstr(stored.row.file), HasSubstr("has the shape [3, 2, 2]")));
  save_npy(file, numbered({2, 2, 3}).to(kFloat64));
  EXPECT_THAT(message_of<IoError>([&] { stored.value(); }), HasSubstr("has the dtype float64"));
  write_text(file, "no array");
  EXPECT_THAT(message_of<IoError>([&] { stored.value(); }), HasSubstr(stored.row.file));
  fs::remove(file);
  EXPECT_THAT(message_of<IoError>([&] { stored.value(); }), HasSubstr(stored.row.file));
  StoredTensor elsewhere = stored;
  elsewhere.row.file = "../../../secret.npy";
  EXPECT_THAT(message_of<IoError>([&] { elsewhere.value(); }), HasSubstr("is no name of a file"));
}

TEST(DumpReader, WhateverATableHoldsIsReadOrRefused) {
  const std::string folder = fresh_folder();
  const std::string table = example_dump(folder) + "/statistic.csv";
  const std::string good = text_of(table);
  std::mt19937 random(7);  // NOLINT: the same every time
  int read = 0;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (int change = static_cast<int>(random() % 4U); change >= 0; --change) {
      const size_t at = random() % text.size();
      constexpr std::string_view kLetters = "0123456789(),\"+-:@\n x.e";
      switch (random() % 3U) {
        case 0:
          text[at] = kLetters[random() % kLetters.size()];
          break;
        case 1:
          text.erase(at, random() % 9U);
          break;
        default:
          text.insert(at, 1, kLetters[random() % kLetters.size()]);
      }
      text += text.empty() ? "x" : "";
    }
    write_text(table, text);
    try {
      for (const StoredTensor& stored : DumpReader(folder).tensors(7)) {
        if (stored.has_value()) {
          stored.value();
        }
      }
      ++read;
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), HasSubstr(folder));
      ++refused;
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace tapestry::dump
