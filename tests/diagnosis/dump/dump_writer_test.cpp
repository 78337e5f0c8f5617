#include "diagnosis/dump/dump_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "autograd/io/json.h"
#include "autograd/io/tensor_io.h"
#include "diagnosis/dump/dump_reader.h"
#include "tests/diagnosis/dump/dump_testing.h"
#include "tests/message_of.h"

namespace tapestry::dump {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

DumpedTensor matmul_output(const Tensor& value, int64_t task_id = 0) {
  return {.op_type = "MatMul",
          .op_name = "layers.0.attention.q",
          .task_id = task_id,
          .timestamp = 1623124369613540,
          .value = value,
          .module = "model.layers.0.attention",
          .pass = "forward",
          .source = "matmul.cpp:7"};
}

/// The names of the op of each row that iteration 0 has.
std::vector<std::string> ops_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const StoredTensor& stored : DumpReader(folder).tensors(0)) {
    names.push_back(stored.row.op_name + (stored.row.input ? " in" : " out"));
  }
  return names;
}

TEST(DumpWriter, FoldersAndNamesAreTheGuides) {
  const std::string folder = fresh_folder();
  DumpWriter writer(
      config_in(folder, R"(, "net_name": "GPT", "iteration": "3", "saved_data": "full")",
                R"("save_kernel_args": true)"),
      /*rank=*/5,
      /*local_rank=*/1);
  EXPECT_FALSE(writer.begin_iteration(0));
  EXPECT_FALSE(writer.active());
  writer.write(matmul_output(numbered({2, 3})));  // of an iteration that nobody wants
  ASSERT_TRUE(writer.begin_iteration(3));
  writer.write(matmul_output(numbered({2, 3})));
  writer.write_attributes("MatMul", "layers.0.attention.q", {{"transpose_b", true}});
  writer.end_iteration();
  const std::string rank = folder + "/rank_5";
  EXPECT_THAT(names_in(rank), ElementsAre(".dump_metadata", "GPT", "execution_order"));
  EXPECT_THAT(names_in(rank + "/GPT/0"), ElementsAre("3"));
  const std::string file =
      "MatMul.layers.0.attention.q.0.0.1623124369613540.output.0.DefaultFormat.float32.npy";
  EXPECT_THAT(names_in(rank + "/GPT/0/3"),
              UnorderedElementsAre("MatMul.layers.0.attention.q.json", file, "statistic.csv"));
  EXPECT_EQ(text_of(rank + "/GPT/0/3/statistic.csv"),
            "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
            "Max Value,Min Value,L2Norm Value,"
            "Module,Pass,Micro Batch,Samples,Global Shape,Begin,State,Source,File\n"
            "MatMul,layers.0.attention.q,0,0,1623124369613540,output,0,24,float32,\"(2,3)\","
            "1.25,0,1.8540496217739157,"
            "model.layers.0.attention,forward,0,,\"(2,3)\",\"(0,0)\",whole,matmul.cpp:7," +
                file + "\n");
  EXPECT_EQ(text_of(rank + "/execution_order/ms_execution_order_graph_0.csv"),
            "NodeExecutionOrder-FullNameWithScope\nlayers.0.attention.q\n");
  EXPECT_EQ(text_of(rank + "/execution_order/ms_global_execution_order_graph_0.csv"), "3\n");
  EXPECT_EQ(text_of(rank + "/.dump_metadata/data_dump.json"), text_of(folder + "/dump.json"));
  EXPECT_EQ(nlohmann::json::parse(text_of(rank + "/GPT/0/3/MatMul.layers.0.attention.q.json")),
            nlohmann::json({{"transpose_b", true}}));
  EXPECT_EQ(load_npy(rank + "/GPT/0/3/" + file).to_vector<float>(),
            numbered({2, 3}).to_vector<float>());
}

TEST(DumpWriter, SixteenBitValues) {
  const std::string folder = fresh_folder();
  DumpWriter writer(config_in(folder, R"(, "saved_data": "full")"), 0, 0);
  writer.begin_iteration(0);
  writer.write(matmul_output(numbered({3}).to(kBFloat16), 0));
  writer.write(matmul_output(numbered({3}).to(kFloat16), 1));
  DumpedTensor widened = matmul_output(numbered({3}), 2);
  widened.original_dtype = kBFloat16;
  writer.write(widened);
  writer.end_iteration();
  const auto tensors = DumpReader(folder).tensors(0);
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors[0].row.data_type, "bfloat16");
  EXPECT_EQ(tensors[0].row.data_size, 6);
  EXPECT_THAT(tensors[0].row.file, HasSubstr(".bfloat16.npy"));
  EXPECT_EQ(tensors[0].value().dtype(), kFloat32);
  EXPECT_THAT(tensors[0].value().to_vector<float>(), ElementsAre(0, 0.25, 0.5));
  EXPECT_EQ(tensors[1].value().dtype(), kFloat16);
  EXPECT_EQ(tensors[2].row.data_type, "bfloat16");
  EXPECT_EQ(tensors[2].row.data_size, 6);
}

TEST(DumpWriter, WhatIsSavedIsWhatWasAskedFor) {
  for (const std::string saved : {"tensor", "statistic", "full"}) {
    const std::string folder = fresh_folder(saved);
    DumpWriter writer(config_in(folder, ", \"saved_data\": \"" + saved + "\""), 0, 0);
    writer.begin_iteration(0);
    writer.write(matmul_output(numbered({2})));
    writer.end_iteration();
    const auto names = names_in(folder + "/rank_0/Net/0/0");
    EXPECT_EQ(names.size(), saved == "statistic" ? 1U : 2U) << saved;
    EXPECT_EQ(names.back(), saved == "tensor" ? "tensors.csv" : "statistic.csv");
    const auto tensors = DumpReader(folder).tensors(0);
    ASSERT_EQ(tensors.size(), 1U);
    EXPECT_EQ(tensors[0].has_value(), saved != "statistic");
    EXPECT_EQ(tensors[0].row.has.has(Statistic::kMax), saved != "tensor");
  }
}

TEST(DumpWriter, ChosenStatisticsAreTheColumns) {
  const std::string folder = fresh_folder();
  DumpWriter writer(
      config_in(folder,
                R"(, "saved_data": "statistic", "statistic_category": ["bits", "md5", "avg"])"),
      0, 0);
  writer.begin_iteration(0);
  writer.write(matmul_output(tensor({1, 3})));
  writer.end_iteration();
  const std::string text = text_of(folder + "/rank_0/Net/0/0/statistic.csv");
  EXPECT_THAT(text, HasSubstr("Shape,Avg Value,MD5,Bits,Module"));
  EXPECT_THAT(text, HasSubstr(",(2),2,"));
  EXPECT_THAT(text, HasSubstr(",2,model.layers.0.attention,forward"));
}

TEST(DumpWriter, OnlyTheWantedSideOpAndDevice) {
  const auto written = [](const std::string& common, int64_t local_rank) {
    const std::string folder = fresh_folder("wanted");
    DumpWriter writer(config_in(folder, common), 0, local_rank);
    if (!writer.begin_iteration(0)) {
      return std::vector<std::string>{"nothing begins"};
    }
    DumpedTensor input = matmul_output(numbered({2}));
    input.input = true;
    writer.write(input);
    writer.write(matmul_output(numbered({2})));
    DumpedTensor other = matmul_output(numbered({2}), 1);
    other.op_type = "Add";
    other.op_name = "layers.0.output";
    writer.write(other);
    writer.end_iteration();
    return ops_in(folder);
  };
  EXPECT_THAT(written("", 0), ElementsAre("layers.0.attention.q in", "layers.0.attention.q out",
                                          "layers.0.output out"));
  EXPECT_THAT(written(R"(, "input_output": 1)", 0), ElementsAre("layers.0.attention.q in"));
  EXPECT_THAT(written(R"(, "input_output": 2, "dump_mode": 1, "kernels": ["add"])", 0),
              ElementsAre("layers.0.output out"));
  EXPECT_THAT(written(R"(, "support_device": [0, 1])", 2), ElementsAre("nothing begins"));
}

TEST(DumpWriter, LongAndStrangeNames) {
  const std::string folder = fresh_folder();
  DumpWriter writer(config_in(folder), 0, 0);
  writer.begin_iteration(0);
  DumpedTensor first = matmul_output(numbered({1}));
  first.op_name = "Gradients/" + std::string(300, 'a') + "1";
  DumpedTensor second = first;
  second.op_name.back() = '2';
  DumpedTensor strange = first;
  strange.op_name = "a b,\"c\"\n../d";
  for (const DumpedTensor& tensor : {first, second, strange}) {
    writer.write(tensor);
  }
  writer.end_iteration();
  const auto tensors = DumpReader(folder).tensors(0);
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors[0].row.op_name, first.op_name);
  EXPECT_EQ(tensors[0].row.file.size(), 255U);
  EXPECT_NE(tensors[0].row.file, tensors[1].row.file);
  EXPECT_EQ(tensors[2].row.op_name, strange.op_name);
  for (const StoredTensor& stored : tensors) {
    EXPECT_EQ(stored.value().numel(), 1);
  }
}

TEST(DumpWriter, SamplesKeepTheFirstElements) {
  const std::string folder = fresh_folder();
  DumpWriter writer(
      config_in(folder, R"(, "saved_data": "full")", R"("sample_mode": 1, "sample_num": 4)"), 0, 0);
  writer.begin_iteration(0);
  writer.write(matmul_output(numbered({2, 3}), 0));
  writer.write(matmul_output(numbered({3}), 1));
  writer.end_iteration();
  const auto tensors = DumpReader(folder).tensors(0);
  EXPECT_THAT(tensors[0].value().to_vector<float>(), ElementsAre(0, 0.25, 0.5, 0.75));
  EXPECT_EQ(tensors[0].row.statistics.max, 1.25);  // of all
  EXPECT_EQ(tensors[0].row.shape, (Shape{2, 3}));
  EXPECT_EQ(tensors[1].value().numel(), 3);
}

TEST(DumpWriter, StridedValues) {
  const std::string folder = fresh_folder();
  DumpWriter writer(config_in(folder), 0, 0);
  writer.begin_iteration(0);
  writer.write(matmul_output(alias(numbered({2, 3}), {3, 2}, {1, 3}, 0)));
  writer.end_iteration();
  EXPECT_THAT(DumpReader(folder).tensors(0)[0].value().to_vector<float>(),
              ElementsAre(0, 0.75, 0.25, 1, 0.5, 1.25));
}

TEST(DumpWriter, AnIterationThatWasCutShortSaysSo) {
  const std::string folder = fresh_folder();
  {
    DumpWriter writer(config_in(folder), 0, 0);
    writer.begin_iteration(0);
    writer.write(matmul_output(numbered({2}), 0));
    writer.end_iteration();
    writer.begin_iteration(1);
    writer.write(matmul_output(numbered({2}), 0));
    // All that was written is there, in order, without anybody ending the iteration.
    EXPECT_THAT(names_in(folder + "/rank_0/Net/0/.1.unfinished"), testing::SizeIs(2));
    EXPECT_THAT(text_of(folder + "/rank_0/Net/0/.1.unfinished/tensors.csv"),
                HasSubstr("\nMatMul,layers.0.attention.q,0,"));
  }
  const DumpReader reader(folder);
  EXPECT_THAT(reader.iterations(), ElementsAre(0));
  EXPECT_THAT(reader.unfinished(), ElementsAre(HasSubstr(".1.unfinished")));
}

TEST(DumpWriter, ASecondRunReplacesTheFirstsIterations) {
  const std::string folder = fresh_folder();
  for (const int64_t size : {2, 5}) {
    DumpWriter writer(config_in(folder), 0, 0);
    writer.begin_iteration(0);
    writer.write(matmul_output(numbered({size})));
    writer.end_iteration();
  }
  const auto tensors = DumpReader(folder).tensors(0);
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].row.shape, Shape{5});
  EXPECT_THAT(names_in(folder + "/rank_0/Net/0/0"), testing::SizeIs(2));
}

TEST(DumpWriter, NothingThatIsNoDumpIsRemoved) {
  const std::string folder = fresh_folder();
  fs::create_directories(folder + "/rank_0/Net/0/0");
  write_text(folder + "/rank_0/Net/0/0/thesis.txt", "years of work");
  DumpWriter writer(config_in(folder), 0, 0);
  EXPECT_THAT(message_of<IoError>([&] { writer.begin_iteration(0); }),
              HasSubstr("is there and is no dump"));
  EXPECT_EQ(text_of(folder + "/rank_0/Net/0/0/thesis.txt"), "years of work");
  EXPECT_FALSE(writer.active());
}

TEST(DumpWriter, MisuseAndContradictions) {
  const std::string folder = fresh_folder();
  DumpWriter writer(config_in(folder), 0, 0);
  writer.begin_iteration(0);
  EXPECT_THAT(message_of<RuntimeError>([&] { writer.begin_iteration(1); }),
              HasSubstr("begins inside another"));
  const auto error = [&](const auto& change) {
    DumpedTensor tensor = matmul_output(numbered({2, 4}));
    change(tensor);
    return message_of<ValueError>([&] { writer.write(tensor); });
  };
  EXPECT_THAT(error([](DumpedTensor& t) { t.value = Tensor(); }), HasSubstr("has no value"));
  EXPECT_THAT(error([](DumpedTensor& t) {
                t.global_shape = Shape{4, 4};
              }),
              HasSubstr("is whole but [2, 4] where the whole is [4, 4]"));
  EXPECT_THAT(error([](DumpedTensor& t) {
                t.state = TensorState::kSlice;
                t.global_shape = Shape{4, 4};
                t.ranges = {{{3, 5}}, {{0, 4}}};
              }),
              HasSubstr("has indices 3 to 5 along axis 0, and the whole 0 to 4"));
  EXPECT_THAT(error([](DumpedTensor& t) {
                t.state = TensorState::kSlice;
                t.ranges = {{{0, 1}}, {{0, 4}}};
              }),
              HasSubstr("has 2 elements along axis 0, and ranges of 1"));
  EXPECT_THAT(error([](DumpedTensor& t) {
                t.samples = {0, 1, 2};
              }),
              HasSubstr("are not 3 samples of equal length"));
  EXPECT_THAT(error([](DumpedTensor& t) {
                t.samples = {0};
                t.sample_axis = 2;
              }),
              HasSubstr("has samples along axis 2 and only 2 axes"));
}

TEST(DumpWriter, AFolderThatCannotBeMade) {
  const std::string folder = fresh_folder();
  write_text(folder + "/rank_0", "a file");
  EXPECT_THAT(message_of<IoError>([&] { const DumpWriter writer(config_in(folder), 0, 0); }),
              HasSubstr("rank_0"));
}

/// An op's input and output in a dump of overflowing ops.
void write_op(DumpWriter& writer, const std::string& name, int64_t task, const Tensor& out) {
  DumpedTensor tensor = matmul_output(numbered({2}), task);
  tensor.op_name = name;
  tensor.input = true;
  tensor.value = numbered({2}).clone();
  writer.write(tensor);
  tensor.value.data<float>()[0] = 77;  // as a backward pass overwrites what it was given
  tensor.input = false;
  tensor.value = out;
  writer.write(tensor);
}

const std::string kOnlyOverflow = R"(, "op_debug_mode": 3, "saved_data": "full")";

TEST(DumpWriter, OverflowDumpsHaveInputsAndOutputsOfTheOpsThatOverflow) {
  const std::string folder = fresh_folder();
  DumpWriter writer(config_in(folder, kOnlyOverflow), 0, 0);
  writer.begin_iteration(0);
  write_op(writer, "fine", 0, numbered({2}));
  write_op(writer, "infinite", 1, tensor({1, INFINITY}));
  write_op(writer, "fine again", 2, numbered({2}));
  write_op(writer, "not a number", 3, tensor({std::nanf("")}));
  writer.end_iteration();
  EXPECT_THAT(ops_in(folder),
              ElementsAre("infinite in", "infinite out", "not a number in", "not a number out"));
  EXPECT_THAT(DumpReader(folder).tensors(0)[0].value().to_vector<float>(), ElementsAre(0, 0.25));
}

TEST(DumpWriter, OverflowInsideAModule) {
  const std::string folder = fresh_folder();
  DumpWriter writer(config_in(folder, kOnlyOverflow), 0, 0);
  writer.begin_iteration(0);
  DumpedTensor module = matmul_output(numbered({2}), 0);
  module.op_type = "Module";
  module.op_name = "mlp";
  module.input = true;
  writer.write(module);
  write_op(writer, "gate", 1, tensor({INFINITY}));
  write_op(writer, "up", 2, numbered({2}));
  module.input = false;
  module.value = tensor({INFINITY});
  writer.write(module);
  writer.end_iteration();
  EXPECT_THAT(ops_in(folder), ElementsAre("gate in", "gate out", "mlp in", "mlp out"));
}

TEST(DumpWriter, OverflowDumpsEndAfterTheirNumber) {
  const std::string folder = fresh_folder();
  DumpWriter writer(config_in(folder, kOnlyOverflow + R"(, "overflow_number": 2)"), 0, 0);
  writer.begin_iteration(0);
  for (int64_t task = 0; task < 4; ++task) {
    write_op(writer, "op" + std::to_string(task), task, tensor({INFINITY}));
  }
  writer.end_iteration();
  EXPECT_THAT(ops_in(folder), ElementsAre("op0 in", "op0 out", "op1 in", "op1 out"));
  EXPECT_FALSE(writer.begin_iteration(1));
}

TEST(DumpWriter, OverflowIsJudgedByOutputsAlsoWhereOnlyInputsAreSaved) {
  const std::string folder = fresh_folder();
  DumpWriter writer(config_in(folder, kOnlyOverflow + R"(, "input_output": 1)"), 0, 0);
  EXPECT_TRUE(writer.wants("MatMul", "a", /*input=*/false));
  writer.begin_iteration(0);
  write_op(writer, "infinite", 1, tensor({INFINITY}));
  write_op(writer, "fine", 2, tensor({1}));
  writer.end_iteration();
  EXPECT_THAT(ops_in(folder), ElementsAre("infinite in"));
}

TEST(DumpWriter, TheOrderOfExecutionIsThatOfTheTasks) {
  const std::string folder = fresh_folder();
  DumpWriter writer(config_in(folder), 0, 0);
  for (const int64_t iteration : {0, 1}) {
    writer.begin_iteration(iteration);
    for (const int64_t task : {2, 0, 1}) {
      DumpedTensor tensor = matmul_output(numbered({1}), task);
      tensor.op_name = "op" + std::to_string(task + iteration);
      writer.write(tensor);
    }
    writer.end_iteration();
  }
  const std::string order = folder + "/rank_0/execution_order/";
  EXPECT_EQ(text_of(order + "ms_execution_order_graph_0.csv"),
            "NodeExecutionOrder-FullNameWithScope\nop1\nop2\nop3\n");
  EXPECT_EQ(text_of(order + "ms_global_execution_order_graph_0.csv"), "0\n1\n");
}

}  // namespace
}  // namespace tapestry::dump
