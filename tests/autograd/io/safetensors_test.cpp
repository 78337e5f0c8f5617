#include "autograd/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "autograd/tensor/error.h"
#include "tests/autograd/io/io_test_util.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using test::bytes_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr char kTiny[] = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";

/// A file with this header, as it stands.
std::string file_of(const std::string& header, const std::string& data) {
  return bytes_of(static_cast<uint64_t>(header.size())) + header + data;
}

/// A file of `bytes` data bytes whose header is one tensor "a" with these members.
std::string one(const std::string& members, size_t bytes) {
  return file_of("{\"a\":{" + members + "}}", std::string(bytes, '\0'));
}

class SafetensorsTest : public ::testing::Test {
 protected:
  void expect_rejected(const std::string& content,
                       const std::string& field,
                       const std::string& reason) {
    test::put(path_, content);
    const std::string message = message_of<IoError>([&] { SafetensorsReader reader(path_); });
    EXPECT_THAT(message, HasSubstr(path_ + ": offset "));
    EXPECT_THAT(message, HasSubstr("field " + field + ":"));
    EXPECT_THAT(message, HasSubstr(reason));
  }

  SafetensorsReader open(const std::string& content) {
    test::put(path_, content);
    return SafetensorsReader(path_);
  }

  test::ScratchFolder folder_;
  std::string path_ = folder_.file("x.safetensors");
};

TEST_F(SafetensorsTest, ReadsTheSmallestExample) {
  const std::string data = bytes_of(1.5F, -2.0F, BFloat16(0.25F));
  const std::string content = file_of(std::string(kTiny) + "    ", data);
  ASSERT_EQ(content.size(), 130U);
  const SafetensorsReader reader = open(content);
  EXPECT_EQ(reader.entries().size(), 2U);
  EXPECT_THAT(reader.metadata(), IsEmpty());
  EXPECT_EQ(reader.dtype("a"), kFloat32);
  EXPECT_EQ(reader.entry("a").shape, Shape{2});
  EXPECT_EQ(reader.dtype("b"), kBFloat16);
  EXPECT_EQ(reader.entry("b").shape, Shape{});
  std::array<float, 2> a{};
  reader.read("a", a.data());
  EXPECT_THAT(a, ElementsAre(1.5F, -2.0F));
  BFloat16 b;
  reader.read("b", &b);
  EXPECT_EQ(static_cast<float>(b), 0.25F);
  // A part of a tensor.
  float second = 0;
  reader.read_bytes("a", 4, 4, &second);
  EXPECT_EQ(second, -2.0F);
}

TEST_F(SafetensorsTest, WriterIsByteExact) {
  const std::array<float, 2> a{1.5F, -2.0F};
  const BFloat16 b(0.25F);
  const std::vector<TensorView> tensors{{"b", kBFloat16, {}, &b}, {"a", kFloat32, {2}, a.data()}};
  write_safetensors(path_, tensors, {{"step", "7"}});
  std::string header = R"({"__metadata__":{"format":"pt","step":"7"},)" + std::string(kTiny + 1);
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(test::get(path_), file_of(header, bytes_of(a, b)));
  EXPECT_THAT(SafetensorsReader(path_).metadata(),
              ElementsAre(Pair("format", "pt"), Pair("step", "7")));
  EXPECT_THAT(folder_.names(), ElementsAre("x.safetensors"));
}

TEST_F(SafetensorsTest, RoundTripsEveryDtypeAndRank) {
  const std::vector<Shape> shapes{Shape{}, Shape{5}, Shape{2, 3}, Shape{0, 4},
                                  Shape{1, 2, 1, 3, 1, 1, 1, 1}};
  std::array<unsigned char, 48> bits{};
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<unsigned char>(37 * i + 11);
  }
  std::array<unsigned char, 6> bools{1, 0, 0, 1, 1, 0};
  std::vector<TensorView> tensors;
  for (int type = 0; type < kNumDTypes; ++type) {
    const auto dtype = static_cast<DType>(type);
    for (const Shape& shape : shapes) {
      tensors.push_back({concat(name_of(dtype), shape), dtype, shape,
                         dtype == kBool ? bools.data() : bits.data()});
    }
  }
  write_safetensors(path_, tensors, {});
  const SafetensorsReader reader(path_);
  ASSERT_EQ(reader.entries().size(), tensors.size());
  for (const TensorView& tensor : tensors) {
    const SafetensorsEntry& entry = reader.entry(tensor.name);
    EXPECT_EQ(reader.dtype(tensor.name), tensor.dtype);
    EXPECT_EQ(entry.shape, tensor.shape);
    EXPECT_EQ(entry.begin % static_cast<uint64_t>(size_of(tensor.dtype)), 0U) << tensor.name;
    std::vector<char> got(entry.end - entry.begin);
    reader.read(tensor.name, got.data());
    EXPECT_EQ(got.size(), static_cast<size_t>(tensor.shape.numel() * size_of(tensor.dtype)));
    EXPECT_TRUE(test::same_bytes(got.data(), tensor.data, got.size())) << tensor.name;
  }
}

TEST_F(SafetensorsTest, NamesAreAnyText) {
  const int32_t x = 3;
  const std::string name = "../\"weird\"\n\xc3\xa9 name";
  write_safetensors(path_, std::vector<TensorView>{{name, kInt32, {}, &x}, {"", kInt32, {}, &x}});
  const SafetensorsReader reader(path_);
  int32_t got = 0;
  reader.read(name, &got);
  EXPECT_EQ(got, 3);
  EXPECT_TRUE(reader.contains(""));
}

TEST_F(SafetensorsTest, EmptyFilesAndForeignOrder) {
  EXPECT_THAT(open(file_of("{}", "")).entries(), IsEmpty());
  write_safetensors(path_, {});
  EXPECT_THAT(SafetensorsReader(path_).entries(), IsEmpty());
  // Any order of keys and members, spaces, empty tensors between others.
  const SafetensorsReader reader =
      open(file_of(R"({ "z" : {"data_offsets":[4,8], "shape":[1], "dtype":"I32"},
                   "e": {"shape":[0,7],"data_offsets":[4,4],"dtype":"F64"},
                   "a": {"shape":[4],"data_offsets":[0,4],"dtype":"BOOL"} }   )",
                   bytes_of<uint8_t, uint8_t, uint8_t, uint8_t, int32_t>(1, 0, 1, 1, -9)));
  int32_t z = 0;
  reader.read("z", &z);
  EXPECT_EQ(z, -9);
}

TEST_F(SafetensorsTest, KnowsForeignDtypesButDoesNotReadThem) {
  const SafetensorsReader reader =
      open(file_of(R"({"u":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
                   R"("q":{"dtype":"F4","shape":[2,2],"data_offsets":[3,5]},)"
                   R"("s":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[5,8]}})",
                   "abcdefgh"));
  char raw[3];
  EXPECT_THAT(message_of<TypeError>([&] { reader.read("u", raw); }),
              AllOf(HasSubstr(path_), HasSubstr("\"u\" has dtype F8_E4M3"), HasSubstr("BF16")));
  reader.read_bytes("u", 0, 3, raw);
  EXPECT_EQ(std::string(raw, 3), "abc");
}

TEST_F(SafetensorsTest, RejectsSizes) {
  const std::string good = file_of(std::string(kTiny) + "    ", std::string(10, '\0'));
  expect_rejected("", "header length", "truncated");
  expect_rejected(good.substr(0, 7), "header length", "truncated");
  expect_rejected(bytes_of(uint64_t{100'000'001}) + good.substr(8), "header length",
                  "above the limit");
  expect_rejected(bytes_of(~uint64_t{0}) + good.substr(8), "header length", "above the limit");
  expect_rejected(bytes_of(uint64_t{123}) + good.substr(8), "header length", "does not fit");
  expect_rejected(good.substr(0, 119), "header length", "does not fit");
  expect_rejected(good.substr(0, 129), "data", "truncated");
  expect_rejected(good + "x", "data", "after the last tensor");
  expect_rejected(file_of("{}", "x"), "data", "after the last tensor");
}

TEST_F(SafetensorsTest, RejectsHeadersThatAreNotJson) {
  expect_rejected(file_of("", ""), "header", "does not begin with '{'");
  expect_rejected(file_of(" {}", ""), "header", "does not begin with '{'");
  expect_rejected(file_of("[]", ""), "header", "does not begin with '{'");
  expect_rejected(file_of("\xef\xbb\xbf{}", ""), "header", "does not begin with '{'");
  expect_rejected(file_of("{", ""), "header", "not valid JSON");
  expect_rejected(file_of("{}}", ""), "header", "not valid JSON");
  expect_rejected(file_of("{,}", ""), "header", "not valid JSON");
  expect_rejected(file_of("{/* */}", ""), "header", "not valid JSON");
  expect_rejected(file_of("{'a':1}", ""), "header", "not valid JSON");
  expect_rejected(file_of(std::string("{}\0junk", 7), ""), "header", "a zero byte");
  const auto metadata = [](const std::string& text) {
    return file_of("{\"__metadata__\":{\"k\":\"" + text + "\"}}", "");
  };
  EXPECT_THAT(open(metadata("\xc3\xa9")).metadata(), ElementsAre(Pair("k", "\xc3\xa9")));
  expect_rejected(metadata("\xff"), "header", "not valid JSON");
  expect_rejected(metadata("\xc3"), "header", "not valid JSON");
  expect_rejected(metadata("\xc0\xaf"), "header", "not valid JSON");      // overlong
  expect_rejected(metadata("\xed\xa0\x80"), "header", "not valid JSON");  // surrogate
  expect_rejected(metadata("\\ud800"), "header", "not valid JSON");
  expect_rejected(metadata("\n"), "header", "not valid JSON");  // raw control character
}

TEST_F(SafetensorsTest, RejectsDuplicateKeys) {
  const std::string entry = R"({"dtype":"I32","shape":[0],"data_offsets":[0,0]})";
  expect_rejected(file_of("{\"a\":" + entry + ",\"a\":" + entry + "}", ""), "\"a\"", "twice");
  // The same name, spelt with an escape.
  expect_rejected(file_of("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}", ""), "\"a\"", "twice");
  expect_rejected(one(R"("dtype":"I32","dtype":"I32","shape":[0],"data_offsets":[0,0])", 0),
                  R"("a"."dtype")", "twice");
  expect_rejected(file_of(R"({"__metadata__":{},"__metadata__":{}})", ""), "\"__metadata__\"",
                  "twice");
  expect_rejected(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", ""), R"("__metadata__"."k")",
                  "twice");
}

TEST_F(SafetensorsTest, RejectsMembers) {
  expect_rejected(one(R"("shape":[0],"data_offsets":[0,0])", 0), "\"a\"", "'dtype' is missing");
  expect_rejected(one(R"("dtype":"I32","data_offsets":[0,0])", 0), "\"a\"", "'shape' is missing");
  expect_rejected(one(R"("dtype":"I32","shape":[0])", 0), "\"a\"", "'data_offsets' is missing");
  expect_rejected(one(R"("dtype":"I32","shape":[0],"data_offsets":[0,0],"x":1)", 0), R"("a"."x")",
                  "unknown key");
  expect_rejected(one(R"("dtype":"F33","shape":[0],"data_offsets":[0,0])", 0), "\"a\"",
                  "unknown dtype \"F33\"");
  expect_rejected(one(R"("dtype":5,"shape":[0],"data_offsets":[0,0])", 0), R"("a"."dtype")",
                  "expected a string, found the number 5");
  expect_rejected(one(R"("dtype":["F32"],"shape":[0],"data_offsets":[0,0])", 0), R"("a"."dtype")",
                  "expected a string, found an array");
  expect_rejected(file_of(R"({"a":1})", ""), "\"a\"", "expected an object, found the number 1");
  expect_rejected(file_of(R"({"a":[]})", ""), "\"a\"", "expected an object, found an array");
  expect_rejected(file_of(R"({"a":null})", ""), "\"a\"", "expected an object, found null");
  expect_rejected(file_of(R"({"__metadata__":[]})", ""), "\"__metadata__\"", "expected an object");
  expect_rejected(file_of(R"({"__metadata__":{"k":1}})", ""), R"("__metadata__"."k")",
                  "expected a string, found the number 1");
  expect_rejected(file_of(R"({"__metadata__":{"k":{}}})", ""), R"("__metadata__"."k")",
                  "expected a string, found an object");
  expect_rejected(file_of(R"({"__metadata__":{"k":true}})", ""), R"("__metadata__"."k")",
                  "expected a string, found true or false");
  // Depth: rejected at the fourth level, long before the closing brackets.
  expect_rejected(file_of(R"({"a":{"shape":)" + std::string(1'000'000, '['), ""), R"("a"."shape")",
                  "found an array");
}

TEST_F(SafetensorsTest, RejectsNumbers) {
  const auto shape = [](const std::string& numbers) {
    return one("\"dtype\":\"BOOL\",\"shape\":[" + numbers + "],\"data_offsets\":[0,1]", 1);
  };
  EXPECT_EQ(open(shape("1")).entries().size(), 1U);
  expect_rejected(shape("-1"), R"("a"."shape")", "negative number -1");
  expect_rejected(shape("-0"), R"("a"."shape")", "negative number");
  expect_rejected(shape("1.0"), R"("a"."shape")", "the number 1.0");
  expect_rejected(shape("1e0"), R"("a"."shape")", "the number 1e0");
  expect_rejected(shape("9223372036854775808"), R"("a"."shape")", "above 2^63 - 1");
  expect_rejected(shape("18446744073709551616"), R"("a"."shape")", "18446744073709551616");
  expect_rejected(shape("\"1\""), R"("a"."shape")", "found a string");
  expect_rejected(shape("[1]"), R"("a"."shape")", "found an array");
  expect_rejected(shape("01"), "header", "not valid JSON");
  expect_rejected(shape("1,1,1,1,1,1,1,1,1"), R"("a"."shape")", "more than 8 axes");
  // Products that overflow, whether or not a zero follows.
  expect_rejected(shape("4294967296,4294967296"), "\"a\"", "does not fit into memory");
  expect_rejected(shape("4611686018427387904,4,0"), "\"a\"", "does not fit into memory");
  expect_rejected(shape("2305843009213693952"), "\"a\"", "does not fit into memory");  // in bits
  // Sub-byte elements that end inside a byte.
  expect_rejected(one(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", 2), "\"a\"",
                  "whole bytes");
}

TEST_F(SafetensorsTest, RejectsOffsets) {
  const auto offsets = [](const std::string& numbers, size_t bytes = 4) {
    return one("\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[" + numbers + "]", bytes);
  };
  expect_rejected(offsets("0"), "\"a\"", "data_offsets has 1 numbers");
  expect_rejected(offsets(""), "\"a\"", "data_offsets has 0 numbers");
  expect_rejected(offsets("0,4,8"), R"("a"."data_offsets")", "more than 2 numbers");
  expect_rejected(offsets("4,0"), "\"a\"", "end before they begin");
  expect_rejected(offsets("0,3"), "\"a\"", "data_offsets hold 3");
  expect_rejected(offsets("0,8", 8), "\"a\"", "data_offsets hold 8");
  expect_rejected(offsets("-4,0"), R"("a"."data_offsets")", "negative number");
  expect_rejected(offsets("0,4", 3), "data", "truncated");
  expect_rejected(offsets("4,8", 8), R"("a".data_offsets)", "hole");
  expect_rejected(offsets("9223372036854775803,9223372036854775807", 4), R"("a".data_offsets)",
                  "hole");
  const auto two = [](const std::string& a, const std::string& b, size_t bytes) {
    return file_of("{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":" + a +
                       "},\"b\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":" + b + "}}",
                   std::string(bytes, '\0'));
  };
  EXPECT_EQ(open(two("[4,8]", "[0,4]", 8)).entries().size(), 2U);
  expect_rejected(two("[0,4]", "[2,6]", 6), R"("b".data_offsets)", "overlaps");
  expect_rejected(two("[0,4]", "[0,4]", 4), R"("b".data_offsets)", "overlaps");
  expect_rejected(two("[0,4]", "[5,9]", 9), R"("b".data_offsets)", "hole");
}

TEST_F(SafetensorsTest, EveryTruncationIsRejected) {
  const std::string good = file_of(std::string(kTiny) + "    ", std::string(10, '\0'));
  for (size_t n = 0; n < good.size(); ++n) {
    test::put(path_, good.substr(0, n));
    EXPECT_THROW(SafetensorsReader reader(path_), IoError) << n;
  }
}

TEST_F(SafetensorsTest, ReadErrors) {
  const SafetensorsReader reader =
      open(one(R"("dtype":"BOOL","shape":[3],"data_offsets":[0,3])", 0) + std::string("\1\0\7", 3));
  std::array<char, 8> out{};
  EXPECT_THAT(message_of<IoError>([&] { reader.read("a", out.data()); }),
              AllOf(HasSubstr("field \"a\""), HasSubstr("a bool is 7")));
  EXPECT_THAT(message_of<ValueError>([&] { reader.read("b", out.data()); }),
              AllOf(HasSubstr(path_), HasSubstr("no tensor is called \"b\"")));
  EXPECT_THAT(message_of<IndexError>([&] { reader.read_bytes("a", 2, 2, out.data()); }),
              HasSubstr("2 bytes at 2 do not lie within its 3 bytes"));
  EXPECT_THROW(reader.read_bytes("a", ~uint64_t{0}, 2, out.data()), IndexError);
  // The file shrinks while it is open.
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 2);
  EXPECT_THAT(message_of<IoError>([&] { reader.read("a", out.data()); }),
              HasSubstr("truncated while"));
  EXPECT_THAT(message_of<IoError>([&] { SafetensorsReader missing(folder_.file("none")); }),
              HasSubstr("No such file"));
}

TEST_F(SafetensorsTest, WriterRefusesWhatCannotBeRead) {
  const float x = 1;
  const auto refused = [&](const std::vector<TensorView>& tensors, const std::string& reason,
                           const std::map<std::string, std::string>& metadata = {}) {
    const std::string message =
        message_of<ValueError>([&] { write_safetensors(path_, tensors, metadata); });
    EXPECT_THAT(message, AllOf(HasSubstr("write_safetensors"), HasSubstr(reason)));
    EXPECT_THAT(folder_.names(), IsEmpty());
  };
  refused({{"a", kFloat32, {}, &x}, {"a", kFloat32, {}, &x}}, "two tensors are called \"a\"");
  refused({{"a", kFloat32, {}, &x}, {"a", kBFloat16, {}, &x}}, "two tensors are called \"a\"");
  refused({{"__metadata__", kFloat32, {}, &x}}, "cannot be the name");
  refused({{"a", kFloat32, {-1}, &x}}, "[-1] is not the shape");
  refused({{"a", kFloat32, {int64_t{1} << 62, 4}, &x}}, "is not the shape");
  refused({{"a", kFloat32, {}, nullptr}}, "has no data");
  refused({{"\xff", kFloat32, {}, &x}}, "not UTF-8");
  refused({}, "not UTF-8", {{"k", "\xff"}});
  EXPECT_THAT(message_of<IoError>([&] { write_safetensors(folder_.file("no/x"), {}); }),
              HasSubstr("No such file"));
}

TEST_F(SafetensorsTest, AFormatOfTheCallerIsKept) {
  write_safetensors(path_, {}, {{"format", "np"}});
  EXPECT_THAT(SafetensorsReader(path_).metadata(), ElementsAre(Pair("format", "np")));
}

}  // namespace
}  // namespace tapestry
