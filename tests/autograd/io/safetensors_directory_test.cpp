#include "autograd/io/safetensors_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/autograd/io/io_test_util.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kShard1[] = "model-00001-of-00002.safetensors";
constexpr char kShard2[] = "model-00002-of-00002.safetensors";

class SafetensorsDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_safetensors(folder_.file(kShard1),
                      std::vector<TensorView>{{"a", kInt32, {}, &one_}, {"x", kInt32, {}, &one_}});
    write_safetensors(folder_.file(kShard2), std::vector<TensorView>{{"b", kInt32, {}, &two_}},
                      {{"step", "3"}});
  }

  void put_index(const std::string& text) {
    test::put(folder_.file("model.safetensors.index.json"), text);
  }
  void put_map(const std::string& map, const std::string& metadata = "{}") {
    put_index("{\"metadata\": " + metadata + ", \"weight_map\": {" + map + "}}");
  }
  static std::string pair(const std::string& name, const std::string& file) {
    return "\"" + name + "\": \"" + file + "\"";
  }
  void expect_rejected(const std::string& reason) {
    EXPECT_THAT(message_of<IoError>([&] { SafetensorsDirectory directory(folder_.path()); }),
                AllOf(HasSubstr(folder_.path()), HasSubstr(reason)));
  }

  int32_t one_ = 1;
  int32_t two_ = 2;
  test::ScratchFolder folder_;
};

TEST_F(SafetensorsDirectoryTest, ReadsShards) {
  put_map(pair("a", kShard1) + "," + pair("x", kShard1) + "," + pair("b", kShard2),
          R"({"total_size": 12, "parameters": 3})");
  for (const std::string& path : {folder_.path(), folder_.file("model.safetensors.index.json")}) {
    const SafetensorsDirectory directory(path);
    EXPECT_THAT(directory.names(), ElementsAre("a", "b", "x"));
    EXPECT_THAT(directory.warnings(), IsEmpty());
    EXPECT_EQ(directory.metadata().at("step"), "3");
    EXPECT_EQ(directory.dtype("b"), kInt32);
    EXPECT_EQ(directory.entry("b").shape, Shape{});
    int32_t b = 0;
    directory.read("b", &b);
    EXPECT_EQ(b, 2);
    EXPECT_THAT(message_of<ValueError>([&] { directory.read("c", &b); }), HasSubstr("\"c\""));
  }
}

TEST_F(SafetensorsDirectoryTest, OneFileGoesBeforeTheIndex) {
  put_index("not even JSON");
  write_safetensors(folder_.file("model.safetensors"),
                    std::vector<TensorView>{{"b", kInt32, {}, &one_}});
  for (const std::string& path : {folder_.path(), folder_.file("model.safetensors")}) {
    const SafetensorsDirectory directory(path);
    EXPECT_THAT(directory.names(), ElementsAre("b"));
    int32_t b = 0;
    directory.read_bytes("b", 0, 4, &b);
    EXPECT_EQ(b, 1);
  }
}

TEST_F(SafetensorsDirectoryTest, WarnsOfHarmlessOddities) {
  put_map(pair("a", kShard1) + "," + pair("b", kShard2), R"({"total_size": 99})");
  const SafetensorsDirectory directory(folder_.path());
  EXPECT_THAT(directory.names(), ElementsAre("a", "b"));
  EXPECT_THAT(directory.warnings(),
              ElementsAre(AllOf(HasSubstr(kShard1), HasSubstr("1 tensors")),
                          HasSubstr("total_size is 99, the tensors take 8 bytes")));
}

TEST_F(SafetensorsDirectoryTest, RejectsBadIndexes) {
  expect_rejected("holds neither model.safetensors nor model.safetensors.index.json");
  put_index("");
  expect_rejected("not valid JSON");
  put_index("{\"weight_map\": {}");
  expect_rejected("not valid JSON");
  put_index(std::string("{\"weight_map\": {}}\0x", 20));
  expect_rejected("a zero byte");
  put_index("{\"metadata\": {}}");
  expect_rejected("field weight_map");
  put_index("[]");
  expect_rejected("field weight_map");
  put_index("{\"weight_map\": [1]}");
  expect_rejected("field weight_map");
  put_index("{\"weight_map\": " + std::string(100'000, '['));
  expect_rejected("nested more than");
  put_map(pair("a", kShard1) + "," + pair("a", kShard2));
  expect_rejected("the key appears twice");
  put_map("\"a\": 1");
  expect_rejected("weight_map.\"a\": 1 is not");
}

TEST_F(SafetensorsDirectoryTest, ShardsStayInTheFolder) {
  for (const char* name : {"../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "",
                           "a\\\\b", "a\\u0000b"}) {
    put_map(pair("a", name));
    expect_rejected("in the same folder");
  }
}

TEST_F(SafetensorsDirectoryTest, RejectsBadShards) {
  put_map(pair("a", "none.safetensors"));
  expect_rejected("none.safetensors: cannot be read");
  put_map(pair("a", kShard1) + "," + pair("q", kShard2));
  expect_rejected("no tensor is called \"q\"");
  test::put(folder_.file(kShard2), "junk");
  put_map(pair("a", kShard1) + "," + pair("b", kShard2));
  expect_rejected(std::string(kShard2) + ": offset 0");
}

}  // namespace
}  // namespace tapestry
