#include "interop/gguf/gguf_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "tests/golden/gguf_file.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

TEST(GgufWriter, FilesAreReadBack) {
  const data::TempDir folder;
  GgufMetadata metadata;
  metadata.add("a.number", uint32_t{7});
  metadata.add("a.float", 0.5F);
  metadata.add("a.flag", true);
  metadata.add("a.text", "größe");
  metadata.add("a.texts", std::vector<std::string>{"x", "", "Ġthe"});
  metadata.add("a.ids", std::vector<int32_t>{3, -1});
  metadata.add("a.scores", std::vector<float>{-1.5F});
  GgufWriter writer(folder.file("f.gguf"), metadata,
                    {{"first", {3, 32}, GgufType::kQ8_0},
                     {"second", {5}, GgufType::kF32},
                     {"third", {2, 3}, GgufType::kBF16}});
  std::vector<float> first(96);
  for (size_t i = 0; i < first.size(); ++i) {
    first[i] = static_cast<float>(i);
  }
  writer.write(std::span(first).first(32));
  writer.write(std::span(first).subspan(32));
  writer.write(std::vector<float>{1, 2});
  writer.write(std::vector<float>{3, 4, 5});
  writer.write(std::vector<float>{1, 2, 3, 4, 5, 6});
  writer.commit();

  const testing::GgufFile file = testing::read_gguf_file(folder.file("f.gguf"));
  EXPECT_EQ(file.metadata.at("a.number").as<uint32_t>(), 7U);
  EXPECT_EQ(file.metadata.at("a.number").type, 4U);
  EXPECT_EQ(file.metadata.at("a.float").as<float>(), 0.5F);
  EXPECT_EQ(file.metadata.at("a.flag").as<uint8_t>(), 1);
  EXPECT_EQ(file.metadata.at("a.text").text(), "größe");
  EXPECT_THAT(file.metadata.at("a.texts").texts(), ::testing::ElementsAre("x", "", "Ġthe"));
  EXPECT_THAT(file.metadata.at("a.ids").list<int32_t>(), ::testing::ElementsAre(3, -1));
  EXPECT_THAT(file.metadata.at("a.scores").list<float>(), ::testing::ElementsAre(-1.5F));
  EXPECT_THAT(file.tensors.at("first").dimensions, ::testing::ElementsAre(32U, 3U));
  EXPECT_EQ(file.tensors.at("first").bytes.size(), 102U);
  const std::string& second = file.tensors.at("second").bytes;
  EXPECT_EQ(std::memcmp(second.data(), std::vector<float>{1, 2, 3, 4, 5}.data(), 20), 0);
  EXPECT_EQ(file.tensors.at("third").type, 30U);
  EXPECT_EQ(std::filesystem::file_size(folder.file("f.gguf")) % 32, 0U);
}

TEST(GgufWriter, WhatAFileCannotHoldIsRefusedAndLeavesNothing) {
  const data::TempDir folder;
  const std::string path = folder.file("f.gguf");
  const auto refused = [&](const std::vector<GgufTensorInfo>& tensors) {
    return message_of<ValueError>([&] { GgufWriter(path, {}, tensors); });
  };
  EXPECT_THAT(refused({{"a", {2}}, {"a", {2}}}), HasSubstr("tensor a comes twice"));
  EXPECT_THAT(refused({{std::string(64, 'x'), {2}}}), HasSubstr("has 64 bytes, expected 1 .. 63"));
  EXPECT_THAT(refused({{"", {2}}}), HasSubstr("has 0 bytes"));
  EXPECT_THAT(refused({{"a", {1, 1, 1, 1, 1}}}), HasSubstr("has 5 axes, expected 1 .. 4"));
  EXPECT_THAT(refused({{"a", {0}}}), HasSubstr("a size is 0"));
  EXPECT_THAT(refused({{"a", {2, 48}, GgufType::kQ8_0}}), HasSubstr("rows of 48 values"));

  GgufMetadata metadata;
  metadata.add("key", true);
  EXPECT_THAT(message_of<ValueError>([&] { metadata.add("key", false); }),
              HasSubstr("key is given"));
  EXPECT_THAT(message_of<ValueError>([&] { metadata.add("text", "\xff"); }),
              HasSubstr("is not UTF-8"));
  {
    GgufWriter writer(path, metadata, {{"blk.0.w", {2, 2}, GgufType::kF16}});
    const std::string text = message_of<ValueError>([&] {
      writer.write(std::vector<float>{1, 70000});
    });
    EXPECT_THAT(text, HasSubstr("tensor blk.0.w: F16 cannot hold 70000"));
    EXPECT_THAT(text, HasSubstr("BF16 or F32"));
    EXPECT_THROW(writer.commit(), RuntimeError);
    EXPECT_THROW(writer.write(std::vector<float>(5, 1.0F)), RuntimeError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace tapestry
