#include "parallel_core/training/data/data_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace data_state_test {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DataState some_state() {
  DataState state;
  state.begun = {10, 80};
  state.position = {32, 256};
  state.seq_length = 64;
  state.datasets[0] = {{0.30000000000000004, {"data/a", 1234, 56789, "0123456789abcdef"}},
                       {0.7, {"data/b \"quoted\"", 12, 34, "fedcba9876543210"}}};
  state.datasets[1] = {{std::nullopt, {"valid", 1, 2, "0000000000000001"}}};
  state.seed = 1234;
  state.tokenizer = {"sentencepiece", 512, "00000000deadbeef"};
  state.plan = {{320, 800}, {40}, {}};
  return state;
}

DataState recorded_state() {
  DataState state;
  state.position = {3, 12};
  state.seq_length = 8;
  state.recorded = {"steps", 20, "0123456789abcdef"};
  return state;
}

DataState state_of_examples() {
  DataState state;
  state.position = {3, 12};
  state.seq_length = 64;
  state.examples = {.files = {{0.25, {"a.jsonl", 1234, "0123456789abcdef"}},
                              {0.75, {"b.jsonl", 56, "fedcba9876543210"}}},
                    .packing = false,
                    .long_examples = "cut",
                    .loss = "answers",
                    .eod = 256,
                    .template_crc64 = "00000000deadbeef"};
  state.split = "9,1";
  state.seed = 7;
  state.tokenizer = {"huggingface", 512, "00000000deadbeef"};
  return state;
}

void expect_equal(const DataState& a, const DataState& b) {
  EXPECT_EQ(a.begun, b.begun);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.seq_length, b.seq_length);
  EXPECT_EQ(a.recorded, b.recorded);
  EXPECT_EQ(a.own, b.own);
  EXPECT_EQ(a.examples, b.examples);
  EXPECT_EQ(a.datasets, b.datasets);
  EXPECT_EQ(a.split, b.split);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.shuffle, b.shuffle);
  EXPECT_EQ(a.tokenizer, b.tokenizer);
  EXPECT_EQ(a.plan, b.plan);
}

// Of data that the program has made itself.
DataState own_state(const std::string& fingerprint) {
  DataState state = recorded_state();
  state.recorded.reset();
  state.own = OwnDataState{.fingerprint = fingerprint};
  return state;
}

TEST(DataState, ComesBackFromItsText) {
  DataState rows = recorded_state();
  rows.recorded->as_samples = true;
  for (const DataState& state : {some_state(), recorded_state(), rows, state_of_examples(),
                                 own_state("a \"b\""), own_state("")}) {
    const DataState read = parse_data_state(data_state_json(state), "there");
    expect_equal(read, state);
    EXPECT_EQ(read.source, "there");
  }
  EXPECT_EQ(some_state().in_run(), (data::BatchPosition{42, 336}));
}

// Each is a change of a file, as a JSON merge patch, and what is said of it.
TEST(DataState, ADamagedTextIsRefusedByItsMember) {
  struct Case {
    const char* patch;
    const char* said;
  };
  const Case cases[] = {
      {R"({"format_version": 2})", "format_version: is 2, this release reads 1"},
      {R"({"format_version": null})", "format_version: is missing"},
      {R"({"format_version": "1"})", "format_version: is \"1\", expected an integer from 1"},
      {R"({"begun": null})", "begun: is missing"},
      {R"({"begun": 3})", "begun: is number, expected an object"},
      {R"({"begun": {"step": -1}})", "begun.step: is -1, expected an integer from 0"},
      {R"({"position": {"sample": 1.5}})", "position.sample: is 1.5, expected an integer"},
      {R"({"position": {"sample": 9007199254740993}})", "position.sample: is 9007199254740993"},
      {R"({"position": {"sample": 18446744073709551615}})",
       "position.sample: is 18446744073709551"},
      {R"({"position": {"sample": 1e300}})", "position.sample: is 1e+300"},
      {R"({"position": {"epoch": 1}})", "position.epoch: is not known"},
      {R"({"position": [1, 2]})", "position: is array, expected an object"},
      {R"({"seq_length": 0})", "seq_length: is 0, expected an integer from 1"},
      {R"({"train": {"datasets": {}}})", "train.datasets"},
      {R"({"train": {"datasets": 7}})", "train.datasets: is 7, expected a list"},
      {R"({"train": {"datasets": [7]}})", "train.datasets[0]: is number, expected an object"},
      {R"({"train": {"datasets": []}})", "train: has no data set"},
      {R"({"train": {"datasets": [{"prefix": "x"}]}})", "train.datasets[0].idx_bytes: is missing"},
      {R"({"train": {"samples": []}})", "train: ... no number of samples"},
      {R"({"train": {"samples": [5, 5]}})", "train.samples[1]: is 5, expected an integer from 6"},
      {R"({"train": {"samples": [0]}})", "train.samples[0]: is 0, expected an integer from 1"},
      {R"({"train": {"samples": ["1"]}})", "train.samples[0]: is \"1\""},
      {R"({"valid": null})", "valid: is missing"},
      {R"({"split": 969})", "split: is 969, expected a text"},
      {R"({"seed": true})", "seed: is true, expected an integer"},
      {R"({"shuffle": 1})", "shuffle: is 1, expected true or false"},
      {R"({"tokenizer": {"crc64": "xyz"}})",
       "tokenizer.crc64: is \"xyz\", expected 16 hexadecimal"},
      {R"({"tokenizer": {"type": ["a"]}})", "tokenizer.type: is [\"a\"], expected a text"},
      {R"({"more": 1})", "more: is not known"},
      {R"({"recorded_steps": {"directory": "d", "steps": 2, "crc64": "0123456789abcdef"}})",
       "train: is not known"},
      {R"({"recorded_steps": {"directory": "d", "steps": 0, "crc64": "0123456789abcdef"}})",
       "recorded_steps.steps: is 0"},
      {R"({"own": {"fingerprint": 3}})", "own.fingerprint: is 3, expected a text"},
      {R"({"own": {"fingerprint": "a", "more": 3}})", "own.more: is not known"},
  };
  for (const Case& c : cases) {
    Json json = Json::parse(data_state_json(some_state()));
    json.merge_patch(Json::parse(c.patch));
    EXPECT_ERROR(parse_data_state(json.dump(), "FILE"), IoError, c.said) << c.patch;
    EXPECT_ERROR(parse_data_state(json.dump(), "FILE"), IoError, "FILE: ") << c.patch;
  }
  for (const char* text :
       {"", "{", "null", "[]", "3", "\"x\"", "\xff", "{\"format_version\": 1}"}) {
    EXPECT_ERROR(parse_data_state(text, "FILE"), IoError, "FILE: ") << text;
  }
  const std::string deep(100'000, '[');
  EXPECT_ERROR(parse_data_state(deep, "FILE"), IoError, "is not JSON");
}

TEST(DataState, ADamagedStateOfExamplesIsRefusedByItsMember) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"examples": {"files": []}})", "examples: has no file"},
      {R"({"examples": {"files": [{"path": "a"}]}})", "examples.files[0].bytes: is missing"},
      {R"({"examples": {"packing": 1}})", "examples.packing: is 1, expected true or false"},
      {R"({"examples": {"eod": -2}})", "examples.eod: is -2, expected an integer from -1"},
      {R"({"examples": {"chat_template_crc64": "x"}})", "examples.chat_template_crc64: is"},
      {R"({"examples": {"more": 1}})", "examples.more: is not known"},
      {R"({"train": {"datasets": [], "samples": []}})", "train: is not known"},
  };
  for (const auto& [patch, said] : cases) {
    Json json = Json::parse(data_state_json(state_of_examples()));
    json.merge_patch(Json::parse(patch));
    EXPECT_ERROR(parse_data_state(json.dump(), "FILE"), IoError, said) << patch;
  }
}

// No beginning of a file is taken for one, and no byte of it can be anything without an answer.
TEST(DataState, EveryTornOrAlteredTextGetsAnAnswer) {
  const std::string whole = data_state_json(some_state());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse_data_state(whole.substr(0, size), "FILE"), IoError) << size;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\0', '"', '9', '\xff'}) {
      std::string altered = whole;
      altered[at] = byte;
      try {
        parse_data_state(altered, "FILE");
      } catch (const IoError& error) {
        EXPECT_THAT(error.what(), HasSubstr("FILE: "));
      }
    }
  }
}

TEST(DataDifferences, NameBothValues) {
  const DataState then = some_state();
  EXPECT_THAT(data_differences(then, then), IsEmpty());
  DataState now = then;
  now.seq_length = 128;
  now.seed = 5;
  now.shuffle = false;
  now.split = "9,1";
  now.tokenizer.vocab_size = 600;
  EXPECT_THAT(
      data_differences(now, then),
      ElementsAre(
          "model_config.seq_length is 128; it was 64",
          "dataset_config.split is 9,1; it was none: each part has its own data sets",
          "training_config.seed is 5; it was 1234", "dataset_config.shuffle is False; it was True",
          AllOf(HasSubstr("tokenizer of 600 ids"), HasSubstr("it was the"), HasSubstr("512 ids"))));
}

TEST(DataDifferences, DataSetsAreKnownByTheirContent) {
  const DataState then = some_state();
  DataState now = then;
  now.datasets[0][0].files.prefix = "/moved/to/a";
  now.datasets[1].clear();  // validation is not compared
  EXPECT_THAT(data_differences(now, then), IsEmpty());
  now.datasets[0][0].files.bin_bytes += 2;
  EXPECT_THAT(data_differences(now, then),
              ElementsAre(AllOf(HasSubstr("a data set is /moved/to/a (.idx 1234 bytes, .bin 56791"),
                                HasSubstr("it was data/a (.idx 1234 bytes, .bin 56789"))));
  now = then;
  now.datasets[0][1].weight = 0.5;
  EXPECT_THAT(data_differences(now, then),
              ElementsAre(AllOf(HasSubstr("0.5 data/b"), HasSubstr("0.7 data/b"))));
  now.datasets[0].pop_back();
  EXPECT_THAT(data_differences(now, then), ElementsAre(HasSubstr("they were 0.3 data/a, 0.7")));
}

TEST(DataDifferences, SplitsAreReadAndUnknownTokenizersCompareByType) {
  DataState then = some_state();
  then.split = "969,30,1";
  DataState now = then;
  now.split = "969 / 30 / 1";
  EXPECT_THAT(data_differences(now, then), IsEmpty());
  now.tokenizer = {"sentencepiece", 0, ""};
  EXPECT_THAT(data_differences(now, then), IsEmpty());
  now.tokenizer = {"byte", 0, ""};
  EXPECT_THAT(data_differences(now, then), ElementsAre(HasSubstr("byte tokenizer; it was the")));
}

TEST(DataDifferences, ExamplesAreKnownByTheirContent) {
  const DataState then = state_of_examples();
  DataState now = then;
  now.examples->files[0].file.path = "/moved/to/a.jsonl";
  EXPECT_THAT(data_differences(now, then), IsEmpty());
  now.examples->files[0].file.bytes = 5;
  now.examples->packing = true;
  now.examples->template_crc64 = "";
  EXPECT_THAT(data_differences(now, then),
              ElementsAre(AllOf(HasSubstr("sft_data_path is 0.25 /moved/to/a.jsonl (5 bytes"),
                                HasSubstr("it was 0.25 a.jsonl (1234 bytes")),
                          "dataset_config.sft_packing is True; it was False",
                          AllOf(HasSubstr("the chat template is none; it was one with checksum"),
                                HasSubstr("deadbeef"))));
  EXPECT_THAT(data_differences(some_state(), then),
              ElementsAre(AllOf(HasSubstr("the data are data sets: "),
                                HasSubstr("they were examples: 0.25 a.jsonl"))));
}

TEST(DataDifferences, RecordedStepsMayGrow) {
  const DataState then = recorded_state();
  DataState now = then;
  now.recorded->steps = 30;
  now.recorded->directory = "elsewhere";
  EXPECT_THAT(data_differences(now, then), IsEmpty());
  now.recorded->steps = 10;
  EXPECT_THAT(data_differences(now, then),
              ElementsAre(AllOf(HasSubstr("elsewhere with 10 steps"), HasSubstr("steps with 20"))));
  now = then;
  now.recorded->crc64 = "1111111111111111";
  EXPECT_THAT(data_differences(now, then),
              ElementsAre(AllOf(HasSubstr("1111111111111111"), HasSubstr("0123456789abcdef"))));
  now = then;
  now.recorded->as_samples = true;
  EXPECT_THAT(data_differences(now, then),
              ElementsAre(HasSubstr("step_data_as_samples is True; it was False")));
  EXPECT_THAT(data_differences(own_state("a"), then),
              ElementsAre(AllOf(HasSubstr("the program's own, 'a'"), HasSubstr("steps"))));
  EXPECT_THAT(data_differences(own_state("a"), own_state("b")),
              ElementsAre(HasSubstr("is a; it was b")));
  EXPECT_THAT(data_differences(own_state("a"), own_state("a")), IsEmpty());
  EXPECT_THAT(data_differences(own_state(""), own_state("b")), IsEmpty());
  EXPECT_THAT(
      data_differences(some_state(), then),
      ElementsAre(AllOf(HasSubstr("data sets: 0.3 data/a"), HasSubstr("step_data_dir steps"))));
}

}  // namespace
}  // namespace data_state_test
}  // namespace tapestry
