// What the fuzzers have found, and a few thousand damaged inputs, through the same functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tensor/error.h"
#include "tests/fuzz/allocation_meter.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"

namespace tapestry::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr int kMutations = 2000;
constexpr size_t kMaxCorpusBytes = 100'000;

std::vector<Target> all_targets() {
  std::vector<Target> targets(file_targets().begin(), file_targets().end());
  targets.insert(targets.end(), checkpoint_targets().begin(), checkpoint_targets().end());
  targets.insert(targets.end(), accuracy_targets().begin(), accuracy_targets().end());
  targets.insert(targets.end(), chat_targets().begin(), chat_targets().end());
  targets.insert(targets.end(), sft_targets().begin(), sft_targets().end());
  targets.insert(targets.end(), tokenizer_targets().begin(), tokenizer_targets().end());
  targets.insert(targets.end(), gguf_targets().begin(), gguf_targets().end());
  return targets;
}

struct Input {
  std::string name;
  std::string content;
};

std::vector<Input> corpus_of(const Target& target) {
  std::vector<Input> inputs;
  for (const auto& entry : fs::directory_iterator(fs::path("tests/fuzz/corpus") / target.name)) {
    std::ifstream in(entry.path(), std::ios::binary);
    inputs.push_back({entry.path().filename().string(),
                      {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()}});
  }
  std::sort(inputs.begin(), inputs.end(),
            [](const Input& a, const Input& b) { return a.name < b.name; });
  return inputs;
}

// To be pasted into a corpus.
std::string shown_bytes(const std::string& input) {
  std::string text;
  for (const char c : input) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    text += {'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 15U]};
  }
  return text;
}

class FuzzCorpus : public ::testing::TestWithParam<Target> {
 protected:
  InputFolder folder_;
};

TEST_P(FuzzCorpus, IsSmallAndTaken) {
  const std::vector<Input> corpus = corpus_of(GetParam());
  ASSERT_GE(corpus.size(), 3U);
  size_t bytes = 0;
  for (const Input& input : corpus) {
    EXPECT_EQ(fault_of(GetParam(), folder_, input.content), "") << input.name;
    bytes += input.content.size();
  }
  EXPECT_LE(bytes, kMaxCorpusBytes);
}

// Else all of the damage would be found by the first check of a file.
TEST_P(FuzzCorpus, HoldsInputsThatAreWhole) {
  int whole = 0;
  for (const Input& input : corpus_of(GetParam())) {
    if (!input.name.starts_with("whole_")) {
      continue;
    }
    ++whole;
    folder_.clear();
    GetParam().put(folder_, input.content);
    EXPECT_NO_THROW(GetParam().read(folder_)) << input.name;
  }
  EXPECT_GE(whole, 1);
}

TEST_P(FuzzCorpus, SurvivesDamage) {
  std::vector<std::string> contents;
  for (Input& input : corpus_of(GetParam())) {
    contents.push_back(std::move(input.content));
  }
  ASSERT_FALSE(contents.empty());
  std::mt19937_64 random(20221209);
  for (int i = 0; i < kMutations; ++i) {
    std::string input = contents[static_cast<size_t>(i) % contents.size()];
    mutate(input, contents, random);
    ASSERT_EQ(fault_of(GetParam(), folder_, input), "")
        << "mutation " << i << ": printf '" << shown_bytes(input) << "'";
  }
}

INSTANTIATE_TEST_SUITE_P(All, FuzzCorpus, ::testing::ValuesIn(all_targets()), [](const auto& info) {
  return std::string(info.param.name);
});

// ---- What watches over them.

void throws_another(const InputFolder& /*folder*/) { throw std::out_of_range("at"); }
void asks_for_much(const InputFolder& /*folder*/) {
  const std::vector<char> much(size_t{1} << 40U);
  throw std::length_error(std::to_string(much.size()));
}
void names_no_file(const InputFolder& /*folder*/) { throw IoError("the file is damaged"); }
void names_the_file(const InputFolder& folder) { throw IoError(folder.file("x") + ": damaged"); }
void put_as_x(InputFolder& folder, std::string_view input) { folder.put("x", input); }

TEST(FaultOf, SeesWhatAReaderMustNotDo) {
  InputFolder folder;
  using ::testing::HasSubstr;
  EXPECT_EQ(fault_of({"", put_as_x, names_the_file}, folder, "a"), "");
  EXPECT_THAT(fault_of({"", put_as_x, throws_another}, folder, "a"), HasSubstr("must not throw"));
  EXPECT_THAT(fault_of({"", put_as_x, asks_for_much}, folder, "a"),
              HasSubstr("asks for 1099511627776 bytes"));
  EXPECT_THAT(fault_of({"", put_as_x, names_no_file}, folder, "a"), HasSubstr("does not name"));
}

TEST(AllocationMeter, CountsWhatIsHeld) {
  const AllocationMeter meter(1000);
  {
    const std::vector<char> a(400);
    const std::vector<char> b(500);
  }
  EXPECT_GE(meter.peak(), 900U);
  const std::vector<char> again(800);
  EXPECT_FALSE(meter.exceeded());
  EXPECT_THROW(std::vector<char>(300), std::bad_alloc);
  EXPECT_TRUE(meter.exceeded());
}

TEST(InputFolder, TakesABundleApart) {
  InputFolder folder;
  folder.put_bundle("=== a.json\n{}\n=== ../b\nx\n=== c\n\n=== d.bin\n\n=\n");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("a.json", "c", "d.bin"));
  EXPECT_EQ(fs::file_size(folder.file("a.json")), 2U);
  EXPECT_EQ(fs::file_size(folder.file("c")), 0U);
  EXPECT_EQ(fs::file_size(folder.file("d.bin")), 3U);  // "\n=\n"
  folder.clear();
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace tapestry::fuzz
