#include "autograd/io/mindspore_ckpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "autograd/tensor/error.h"
#include "tests/message_of.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::mindspore_ckpt_test {
namespace {

using ::testing::ElementsAre;

// Pieces of protobuf, written as the format says and not as our writer does.
std::string field(int number, const std::string& content) {
  return std::string{static_cast<char>(number * 8 + 2), static_cast<char>(content.size())} +
         content;
}
std::string number(int value) { return {'\x08', static_cast<char>(value)}; }
std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
std::string value(const std::string& tag, const std::string& tensor) {
  return field(1, field(1, tag) + field(2, tensor));
}
std::string tensor(const std::vector<int>& dims, const std::string& type, const std::string& data) {
  std::string out;
  for (const int dim : dims) {
    out += number(dim);
  }
  return out + field(2, type) + field(3, data);
}

class MindsporeCkpt : public ::testing::Test {
 protected:
  MindsporeCkptReader open(const std::string& content) {
    dir_.write("x.ckpt", content);
    return MindsporeCkptReader(dir_.file("x.ckpt"));
  }
  void expect_refused(const std::string& content, const std::string& why) {
    dir_.write("x.ckpt", content);
    EXPECT_ERROR(MindsporeCkptReader(dir_.file("x.ckpt")), IoError, why);
    EXPECT_ERROR(MindsporeCkptReader(dir_.file("x.ckpt")), IoError, dir_.file("x.ckpt"));
  }
  static std::vector<float> read(const MindsporeCkptReader& file, const std::string& name) {
    std::vector<float> values(static_cast<size_t>(file.shape(name).numel()));
    file.read(name, values.data());
    return values;
  }
  data::TempDir dir_;
};

// A matrix and a scalar, put together by hand.
TEST_F(MindsporeCkpt, WritesAndReadsTheFormat) {
  const std::string bytes = value("w", tensor({1, 3}, "Float32", floats({1, 2, 3}))) +
                            value("n", tensor({0}, "Int32", std::string("\7\0\0\0", 4)));
  const MindsporeCkptReader file = open(bytes);
  EXPECT_THAT(file.names(), ElementsAre("n", "w"));
  EXPECT_EQ(file.shape("w"), (Shape{1, 3}));
  EXPECT_EQ(file.dtype("w"), kFloat32);
  EXPECT_THAT(read(file, "w"), ElementsAre(1, 2, 3));
  EXPECT_EQ(file.shape("n"), Shape());
  EXPECT_EQ(file.dtype("n"), kInt32);

  const std::vector<TensorInfo> tensors = {{"w", kFloat32, {1, 3}}, {"n", kInt32, {}}};
  const MindsporeCkptPlan plan = plan_mindspore_ckpt("x.ckpt", tensors);
  std::string written(plan.file_size, '\0');
  for (const auto& [begin, text] : plan.fixed) {
    written.replace(begin, text.size(), text);
  }
  written.replace(plan.ranges.at("w").front().begin, 12, floats({1, 2, 3}));
  written[plan.ranges.at("n").front().begin] = 7;
  EXPECT_EQ(written, bytes);
}

// Names and contents long enough for lengths of several bytes, parts that end within an element's
// row, every dtype, empty tensors.
TEST_F(MindsporeCkpt, PartsAreReadAsOne) {
  const std::string long_name(300, 'n');
  const std::vector<TensorInfo> tensors = {
      {"a", kFloat32, {5, 7}}, {long_name, kFloat64, {40}}, {"empty", kFloat32, {0, 3}},
      {"none", kFloat32, {0}}, {"h", kFloat16, {9}},        {"b", kBFloat16, {3}},
      {"i", kInt64, {2}},      {"c", kInt8, {17}},          {"u", kUInt8, {1}},
      {"flag", kBool, {2}},    {"one", kFloat32, {}}};
  for (const uint64_t slice : {uint64_t{1}, uint64_t{24}, uint64_t{200}, kMindsporeSliceBytes}) {
    const MindsporeCkptPlan plan = plan_mindspore_ckpt("x.ckpt", tensors, slice);
    std::string bytes(plan.file_size, '\1');
    for (const auto& [begin, text] : plan.fixed) {
      bytes.replace(begin, text.size(), text);
    }
    std::string whole(140, '\0');
    std::iota(whole.begin(), whole.end(), '\0');
    for_each_range(plan.ranges.at("a"), 0, 140, [&](uint64_t place, uint64_t at, uint64_t count) {
      bytes.replace(place, count, whole, at, count);
    });
    const MindsporeCkptReader file = open(bytes);
    ASSERT_EQ(file.names().size(), tensors.size());
    for (const TensorInfo& expected : tensors) {
      EXPECT_EQ(file.shape(expected.name), expected.shape) << expected.name;
      EXPECT_EQ(file.dtype(expected.name), expected.dtype) << expected.name;
    }
    std::string found(140, '\0');
    file.read("a", found.data());
    EXPECT_EQ(found, whole);
    std::string middle(50, '\0');
    file.read_bytes("a", 13, 50, middle.data());
    EXPECT_EQ(middle, whole.substr(13, 50));
    EXPECT_ERROR(file.read_bytes("a", 100, 41, middle.data()), IndexError, "do not lie within");
  }
}

// What other versions and programs may write.
TEST_F(MindsporeCkpt, WhatIsNotOursIsPassedOver) {
  const std::string packed =
      field(1, std::string("\2\1", 2)) + field(2, "Float32") + field(3, floats({4, 5}));
  const std::string unknown = std::string("\x48\x05", 2) + field(12, "more");
  const MindsporeCkptReader file =
      open(value("text", tensor({0}, "str", "abcd")) + value("w", packed + unknown) +
           field(1, field(1, "map") + field(3, "table")) +
           value("random_op", tensor({0}, "random_op", "seed")) +
           value("u", tensor({1}, "UInt16", "xx")));
  EXPECT_THAT(file.names(), ElementsAre("u", "w"));
  EXPECT_EQ(file.shape("w"), (Shape{2, 1}));
  EXPECT_THAT(read(file, "w"), ElementsAre(4, 5));
  EXPECT_ERROR((void)file.dtype("u"), TypeError, "UInt16");
  EXPECT_ERROR((void)file.shape("none"), ValueError, "no tensor is called \"none\"");
}

TEST_F(MindsporeCkpt, WhatIsNoSuchFileIsRefused) {
  const std::string good = value("w", tensor({2}, "Float32", floats({1, 2})));
  expect_refused("", "empty");
  expect_refused("PK\3\4 a pickle", "MindSpore checkpoint");
  for (size_t bytes = 1; bytes < good.size(); ++bytes) {
    expect_refused(good.substr(0, bytes), "truncated");
  }
  expect_refused(good + good.substr(0, 5), "truncated");
  expect_refused(value("w", tensor({3}, "Float32", floats({1, 2}))), "takes 12 bytes");
  expect_refused(value("", tensor({2}, "Float32", floats({1, 2}))), "missing or empty");
  expect_refused(good + value("v", tensor({1}, "Float32", floats({1}))) + good, "a second time");
  expect_refused(good + value("w", tensor({2}, "Int32", floats({1, 2}))), "different");
  expect_refused(value("w", tensor({2}, "Float32", floats({1, 2})) + field(3, "")), "comes twice");
  expect_refused(value("w", tensor({1, 1, 1, 1, 1, 1, 1, 1, 1}, "Float32", floats({1}))), "axes");
  // A product of sizes that no memory holds, and a negative one.
  const std::string huge = "\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f";
  expect_refused(value("w", huge + tensor({2}, "Float32", floats({1}))), "more than there can be");
  expect_refused(value("w", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" +
                                tensor({}, "Float32", floats({1}))),
                 "above 2^63 - 1");
  const MindsporeCkptReader flags = open(value("f", tensor({2}, "Bool", "\1\2")));
  char values[2];
  EXPECT_ERROR(flags.read("f", values), IoError, "neither 0 nor 1");
}

TEST_F(MindsporeCkpt, WhatCannotBeWrittenIsRefused) {
  const auto plan = [](const std::vector<TensorInfo>& tensors) {
    return plan_mindspore_ckpt("x.ckpt", tensors);
  };
  EXPECT_ERROR(plan({{"a", kFloat32, {1}}, {"a", kFloat32, {1}}}), ValueError, "two tensors");
  EXPECT_ERROR(plan({{"", kFloat32, {1}}}), ValueError, "cannot be the name");
  EXPECT_ERROR(plan({{"a", kFloat32, {-1}}}), ValueError, "not the shape");
}

}  // namespace
}  // namespace tapestry::mindspore_ckpt_test
