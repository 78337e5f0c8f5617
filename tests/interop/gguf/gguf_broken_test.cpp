// Broken and hostile files: each ends in a message that names what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "interop/export/gguf_tokenizer.h"
#include "interop/export/gguf_vocabulary.h"
#include "interop/gguf/gguf_texts.h"
#include "interop/gguf/gguf_weights.h"
#include "tests/interop/gguf/gguf_bytes.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/huggingface/huggingface_tokenizer.h"

namespace tapestry {
namespace {

using testing::HandFile;
using testing::HandTensor;
using ::testing::HasSubstr;
using testing::raw;

std::vector<std::string> small_tokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(printed_byte(static_cast<uint8_t>(byte)));
  }
  tokens.insert(tokens.end(), {"ab", "<|end|>"});
  return tokens;
}

HandFile small_file() { return testing::small_llama(small_tokens()); }

// What a program would do with the file.
std::string message_of_file(const std::string& bytes) {
  const data::TempDir dir;
  dir.write("x.gguf", bytes);
  const std::string path = dir.file("x.gguf");
  try {
    gguf_folder(path);
    const GgufWeights weights(path);
    for (const std::string& name : weights.names()) {
      std::vector<char> values(static_cast<size_t>(weights.shape(name).numel() * 4));
      weights.read(name, values.data());
    }
    const data::HuggingFaceTokenizer tokenizer(path);
    return "";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path));
    return error.what();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path));
    return error.what();
  }
}

struct Broken {
  const char* name;
  std::function<void(HandFile&)> change;
  std::vector<std::string> says;
  // In place of the file's bytes.
  std::function<std::string(const HandFile&)> bytes = {};
};

void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.name; }

constexpr uint64_t kHuge = uint64_t{1} << 63U;

std::string nested(int depth) {
  std::string out = raw<uint32_t>(9);
  for (int i = 0; i < depth; ++i) {
    out += raw<uint32_t>(9) + raw<uint64_t>(1);
  }
  return out + raw<uint32_t>(4) + raw<uint64_t>(0);
}

std::string cut(const HandFile& file, size_t bytes) { return file.bytes().substr(0, bytes); }

// Cuts behind the last place of a text.
std::string cut_behind(const HandFile& file, const std::string& text, int more) {
  const std::string bytes = file.bytes();
  return bytes.substr(0, bytes.rfind(text) + text.size() + static_cast<size_t>(more));
}

void replace(HandFile& file, const char* key, const std::string& value) { file.set(key, value); }

HandTensor& resized(HandFile& file,
                    const std::string& name,
                    std::vector<uint64_t> sizes,
                    uint32_t type,
                    size_t bytes) {
  HandTensor& tensor = file.tensor(name);
  tensor.sizes = std::move(sizes);
  tensor.type = type;
  tensor.bytes = std::string(bytes, '\0');
  return tensor;
}

std::vector<std::string> tokens_with(size_t id, const std::string& text) {
  std::vector<std::string> tokens = small_tokens();
  tokens.at(id) = text;
  return tokens;
}

std::vector<Broken> broken_files() {
  const auto nothing = [](HandFile&) {};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  return {
      // The header.
      {"Empty", nothing, {"magic", "no GGUF file"}, [](auto&) { return std::string(); }},
      {"ThreeBytes", nothing, {"magic"}, [](auto& f) { return cut(f, 3); }},
      {"Magic", [](auto& f) { f.magic = "GGML"; }, {"magic", "GGML"}},
      {"MagicIsNoText", [](auto& f) { f.magic = "\xff\xfeGG"; }, {"magic"}},
      {"VersionCut", nothing, {"version"}, [](auto& f) { return cut(f, 6); }},
      {"Version1", [](auto& f) { f.version = 1; }, {"version", "is 1"}},
      {"Version4", [](auto& f) { f.version = 4; }, {"version", "is 4"}},
      {"BigEndian", [](auto& f) { f.version = 0x03000000; }, {"big-endian"}},
      {"CountsCut", nothing, {"tensor count"}, [](auto& f) { return cut(f, 12); }},
      {"MetadataCountCut", nothing, {"metadata count"}, [](auto& f) { return cut(f, 20); }},
      {"TensorCount2To63",
       [](auto& f) { f.more_tensors = std::numeric_limits<int64_t>::min(); },
       {"tensor count", "9223372036854775820", "do not fit"}},
      {"MetadataCount2To63",
       [](auto& f) { f.more_entries = std::numeric_limits<int64_t>::min(); },
       {"metadata count", "do not fit"}},
      {"OneTensorMore", [](auto& f) { f.more_tensors = 1; }, {"tensor name"}},
      {"TwoTensorsLess", [](auto& f) { f.more_tensors = -2; }, {"output_norm.weight", "missing"}},
      {"OneEntryMore", [](auto& f) { f.more_entries = 1; }, {"tensor name", "do not fit"}},
      // Metadata.
      {"KeyCut",
       nothing,
       {"metadata key"},
       [](auto& f) { return cut_behind(f, "ggml.add_bos_token", -9); }},
      {"KeyLength2To63",
       nothing,
       {"metadata key", "9223372036854775808"},
       [](auto& f) {
         std::string bytes = f.bytes();
         return bytes.replace(24, 8, raw(kHuge));
       }},
      {"KeyIsNotUtf8",
       [](auto& f) { f.set("general.\xff", testing::u32(1)); },
       {"metadata key", "not UTF-8"}},
      {"KeyIsEmpty", [](auto& f) { f.set("", testing::u32(1)); }, {"metadata key", "empty"}},
      {"KeyTwice",
       [](auto& f) { f.metadata.push_back(f.metadata.front()); },
       {"general.architecture", "twice"}},
      {"ValueCut",
       nothing,
       {"tokenizer.ggml.add_bos_token"},
       [](auto& f) { return cut_behind(f, "add_bos_token", 4); }},
      {"ValueTypeCut",
       nothing,
       {"tokenizer.ggml.add_bos_token"},
       [](auto& f) { return cut_behind(f, "add_bos_token", 2); }},
      {"ValueTypeUnknown",
       [](auto& f) { replace(f, "general.name", raw<uint32_t>(13) + raw(7)); },
       {"general.name", "type 13"}},
      {"TextLongerThanTheFile",
       [](auto& f) { replace(f, "general.name", raw<uint32_t>(8) + raw<uint64_t>(1U << 30U)); },
       {"general.name", "1073741824"}},
      {"TextIsNotUtf8",
       [](auto& f) { replace(f, "general.name", testing::text("a\xc3(")); },
       {"general.name", "not UTF-8"}},
      {"BooleanIs2",
       [](auto& f) { replace(f, "tokenizer.ggml.add_bos_token", testing::boolean(2)); },
       {"add_bos_token", "is 2"}},
      {"ArrayCount2To63",
       [](auto& f) {
         replace(f, "general.tags", raw<uint32_t>(9) + raw<uint32_t>(4) + raw(kHuge));
       },
       {"general.tags", "do not fit"}},
      {"ArrayBytesOverflow",
       [](auto& f) {
         replace(f, "general.tags",
                 raw<uint32_t>(9) + raw<uint32_t>(12) + raw((uint64_t{1} << 61U) + 1));
       },
       {"general.tags", "do not fit"}},
      {"ArrayOfTextsIsLong",
       [](auto& f) {
         replace(f, "general.tags", raw<uint32_t>(9) + raw<uint32_t>(8) + raw<uint64_t>(1U << 24U));
       },
       {"general.tags", "texts do not fit"}},
      {"ArrayOfTexts0xFF",
       [](auto& f) { replace(f, "general.tags", testing::texts({"\xff"})); },
       {"general.tags", "not UTF-8"}},
      {"ArrayTypeUnknown",
       [](auto& f) {
         replace(f, "general.tags", raw<uint32_t>(9) + raw<uint32_t>(99) + raw<uint64_t>(0));
       },
       {"general.tags", "type 99"}},
      {"ArraysTooDeep",
       [](auto& f) { replace(f, "general.tags", nested(8)); },
       {"general.tags", "deeper"}},
      {"ArraysVeryDeep",
       [](auto& f) { replace(f, "general.tags", nested(100000)); },
       {"general.tags", "deeper"}},
      {"ArrayOfBooleans",
       [](auto& f) {
         replace(f, "general.tags", testing::numbers<uint8_t>(7, {1, 3}));
       },
       {"general.tags", "is 3"}},
      {"Alignment0",
       [](auto& f) { f.set("general.alignment", testing::u32(0)); },
       {"general.alignment", "is 0"}},
      {"Alignment48",
       [](auto& f) { f.set("general.alignment", testing::u32(48)); },
       {"general.alignment", "is 48", "power of two"}},
      {"AlignmentIsText",
       [](auto& f) { f.set("general.alignment", testing::text("32")); },
       {"general.alignment", "string"}},
      {"Alignment2To31",
       [](auto& f) { f.set("general.alignment", testing::u32(1U << 31U)); },
       {"multiple of the alignment"}},
      {"SplitFile",
       [](auto& f) { f.set("split.count", raw<uint32_t>(2) + raw<uint16_t>(3)); },
       {"split.count", "3"}},
      // The table of tensors.
      {"NameCut", nothing, {"tensor name"}, [](auto& f) { return cut_behind(f, "output.wei", 0); }},
      {"NameLength2To63",
       nothing,
       {"tensor name"},
       [](auto& f) {
         std::string bytes = f.bytes();
         return bytes.replace(bytes.find("token_embd.weight") - 8, 8, raw(kHuge));
       }},
      {"NameIsLong",
       [](auto& f) { f.tensors[0].name = std::string(65, 'x'); },
       {"tensor name", "65", "64"}},
      {"NameIsEmpty", [](auto& f) { f.tensors[0].name = ""; }, {"tensor name", "empty"}},
      {"NameIsNotUtf8",
       [](auto& f) { f.tensors[0].name = "\xed\xa0\x80"; },
       {"tensor name", "not UTF-8"}},
      {"NameTwice",
       [](auto& f) { f.tensors[3].name = f.tensors[4].name; },
       {"blk.0.attn_v.weight", "twice"}},
      {"AxesCut",
       nothing,
       {"output.weight"},
       [](auto& f) { return cut_behind(f, "output.weight", 2); }},
      {"SizesCut",
       nothing,
       {"output.weight"},
       [](auto& f) { return cut_behind(f, "output.weight", 9); }},
      {"NoAxes", [](auto& f) { f.tensors[1].sizes = {}; }, {"attn_norm.weight", "0 axes"}},
      {"FiveAxes",
       [](auto& f) {
         f.tensors[1].sizes = {2, 2, 2, 2, 2};
       },
       {"attn_norm.weight", "5 axes"}},
      {"Axes2To31",
       nothing,
       {"token_embd.weight", "2147483648 axes"},
       [](auto& f) {
         std::string bytes = f.bytes();
         return bytes.replace(bytes.find("token_embd.weight") + 17, 4, raw(uint32_t{1} << 31U));
       }},
      {"SizeIs0", [](auto& f) { f.tensors[1].sizes = {0}; }, {"attn_norm.weight", "size 0"}},
      {"SizesOverflow",
       [](auto& f) {
         f.tensors[1].sizes = {uint64_t{1} << 33U, uint64_t{1} << 33U};
       },
       {"attn_norm.weight", "too large"}},
      {"SizesWrapToTheRightOnes",
       [](auto& f) {
         f.tensors[1].sizes = {32, (uint64_t{1} << 59U) + 1};
       },
       {"attn_norm.weight", "too large"}},
      {"SizeIs2To63",
       [](auto& f) { f.tensors[1].sizes = {kHuge}; },
       {"attn_norm.weight", "too large"}},
      {"TypeUnknown", [](auto& f) { f.tensors[2].type = 77; }, {"attn_q.weight", "type 77"}},
      {"TypeNotRead", [](auto& f) { f.tensors[2].type = 13; }, {"attn_q.weight", "Q5_K (13)"}},
      {"PartOfABlock",
       [](auto& f) {
         resized(f, "blk.0.attn_k.weight", {16, 32}, 8, 17 * 32);
       },
       {"attn_k.weight", "rows of 16", "32", "Q8_0"}},
      {"PartOfASuperBlock",
       [](auto& f) { f.tensors[2].type = 12; },
       {"attn_q.weight", "rows of 32", "256", "Q4_K"}},
      {"OffsetUnaligned",
       [](auto& f) { f.tensors[2].shift = 4; },
       {"attn_q.weight", "multiple of the alignment 32"}},
      {"OffsetBehindTheFile",
       [](auto& f) { f.tensors[2].shift = 1 << 30U; },
       {"attn_q.weight", "end behind the file"}},
      {"OffsetOverflows",
       [](auto& f) { f.tensors[1].shift = -(int64_t{1} << 40U); },
       {"attn_norm.weight", "end behind the file"}},
      {"Overlap",
       [](auto& f) { f.tensors[2].shift = -32; },
       {"attn_q.weight", "inside the tensor blk.0.attn_norm.weight"}},
      {"DataCut",
       nothing,
       {"output.weight", "end behind the file"},
       [](auto& f) { return cut(f, f.bytes().size() - 100); }},
      {"NoData", nothing, {"end behind the file"}, [](auto& f) { return f.header(); }},
      // What the model is.
      {"NoArchitecture",
       [](auto& f) { f.erase("general.architecture"); },
       {"general.architecture", "missing"}},
      {"ArchitectureIsANumber",
       [](auto& f) { f.set("general.architecture", testing::u32(1)); },
       {"general.architecture", "u32 1", "string"}},
      {"ArchitectureUnknown",
       [](auto& f) { f.set("general.architecture", testing::text("mamba")); },
       {"general.architecture", "mamba", "llama"}},
      {"IsAnAdapter",
       [](auto& f) { f.set("general.type", testing::text("adapter")); },
       {"general.type", "adapter"}},
      {"NoBlockCount",
       [](auto& f) { f.erase("llama.block_count"); },
       {"llama.block_count", "missing"}},
      {"NoContextLength",
       [](auto& f) { f.erase("llama.context_length"); },
       {"llama.context_length", "missing"}},
      {"NoEpsilon",
       [](auto& f) { f.erase("llama.attention.layer_norm_rms_epsilon"); },
       {"layer_norm_rms_epsilon", "missing"}},
      {"NoHeads",
       [](auto& f) { f.erase("llama.attention.head_count"); },
       {"llama.attention.head_count", "missing"}},
      {"BlockCountIsText",
       [](auto& f) { f.set("llama.block_count", testing::text("1")); },
       {"llama.block_count", "string", "integer"}},
      {"BlockCountIsNegative",
       [](auto& f) { f.set("llama.block_count", testing::i32(-1)); },
       {"llama.block_count", "i32 -1"}},
      {"BlockCount2To32",
       [](auto& f) { f.set("llama.block_count", testing::u32(~0U)); },
       {"llama.block_count", "4294967295"}},
      {"BlockCount2To63",
       [](auto& f) { f.set("llama.block_count", testing::u64(kHuge)); },
       {"llama.block_count"}},
      {"BlockCountIsTwo",
       [](auto& f) { f.set("llama.block_count", testing::u32(2)); },
       {"blk.1.attn_norm.weight", "missing"}},
      {"ExpertsWithoutTensors",
       [](auto& f) { f.set("llama.expert_count", testing::u32(1U << 30U)); },
       {"llama.expert_count", "1073741824"}},
      {"HeadsAre0",
       [](auto& f) { f.set("llama.attention.head_count", testing::u32(0)); },
       {"llama.attention.head_count", "is 0"}},
      {"HeadsDoNotDivide",
       [](auto& f) { f.set("llama.attention.head_count", testing::u32(3)); },
       {"llama.attention.head_count", "llama.embedding_length"}},
      {"WidthIsAnother",
       [](auto& f) {
         f.set("llama.embedding_length", testing::u32(64));
         f.set("llama.rope.dimension_count", testing::u32(32));
       },
       {"token_embd.weight", "[258, 32]", "[258, 64]"}},
      {"WidthIs2To32",
       [](auto& f) { f.set("llama.embedding_length", testing::u32(~0U)); },
       {"embedding_length"}},
      {"EpsilonIsNan",
       [=](auto& f) { f.set("llama.attention.layer_norm_rms_epsilon", testing::f32(nan)); },
       {"layer_norm_rms_epsilon", "nan"}},
      {"BaseIsInfinite",
       [=](auto& f) { f.set("llama.rope.freq_base", testing::f32(inf)); },
       {"rope.freq_base", "inf"}},
      {"BaseIsNegative",
       [](auto& f) { f.set("llama.rope.freq_base", testing::f32(-3)); },
       {"rope.freq_base", "-3"}},
      {"UnknownKey",
       [](auto& f) { f.set("llama.attention.magic", testing::u32(7)); },
       {"llama.attention.magic", "7", "nothing is known"}},
      {"WindowIsNotKnown",
       [](auto& f) { f.set("llama.attention.sliding_window", testing::u32(16)); },
       {"llama.attention.sliding_window", "16"}},
      {"ScalingIsNotKnown",
       [](auto& f) { f.set("llama.rope.scaling.type", testing::text("odd")); },
       {"llama.rope.scaling.type", "odd"}},
      {"LongropeWithoutFactors",
       [](auto& f) { f.set("llama.rope.scaling.type", testing::text("longrope")); },
       {"rope_factors_long.weight", "missing"}},
      {"HalfOfAHeadIsTurned",
       [](auto& f) { f.set("llama.rope.dimension_count", testing::u32(8)); },
       {"rotary_percent"}},
      {"HeadsOfKeysByLayer",
       [](auto& f) {
         f.set("llama.attention.head_count_kv", testing::numbers<int32_t>(5, {1, 2}));
       },
       {"head_count_kv", "[1, 2]"}},
      {"TensorMissing",
       [](auto& f) { f.tensors.erase(f.tensors.begin() + 9); },
       {"blk.0.ffn_down.weight", "missing"}},
      {"TensorUnknown",
       [](auto& f) {
         f.tensors.push_back({"blk.0.odd.weight", {4}, 0, testing::floats(4)});
       },
       {"blk.0.odd.weight", "none of this name"}},
      {"TensorOfAnotherShape",
       [](auto& f) {
         resized(f, "blk.0.ffn_up.weight", {32, 32}, 0, 4096);
       },
       {"blk.0.ffn_up.weight", "[32, 32]", "[64, 32]"}},
      {"DivisorsAreNoScaling",
       [](auto& f) {
         f.tensors.push_back({"rope_freqs.weight", {8}, 0, testing::floats(8, 1)});
       },
       {"rope_freqs.weight"}},
      {"DivisorsOfAnotherLength",
       [](auto& f) {
         f.tensors.push_back({"rope_freqs.weight", {3}, 0, raw(1.0F) + raw(2.0F) + raw(4.0F)});
       },
       {"rope_freqs.weight", "3"}},
      // The tokenizer.
      {"NoTokenizer",
       [](auto& f) { f.erase("tokenizer.ggml.model"); },
       {"tokenizer.ggml.model", "missing"}},
      {"TokenizerUnknown",
       [](auto& f) { f.set("tokenizer.ggml.model", testing::text("t5")); },
       {"tokenizer.ggml.model", "t5"}},
      {"NoPre", [](auto& f) { f.erase("tokenizer.ggml.pre"); }, {"tokenizer.ggml.pre", "missing"}},
      {"PreUnknown",
       [](auto& f) { f.set("tokenizer.ggml.pre", testing::text("odd")); },
       {"tokenizer.ggml.pre", "odd", "qwen2"}},
      {"NoTokens",
       [](auto& f) { f.erase("tokenizer.ggml.tokens"); },
       {"tokenizer.ggml.tokens", "missing"}},
      {"TokensAreNumbers",
       [](auto& f) {
         f.set("tokenizer.ggml.tokens", testing::numbers<int32_t>(5, {1, 2}));
       },
       {"tokenizer.ggml.tokens", "array of i32"}},
      {"TokensTooFew",
       [](auto& f) {
         f.set("tokenizer.ggml.tokens", testing::texts({"a", "b", "ab"}));
         f.set("tokenizer.ggml.token_type", testing::numbers<int32_t>(5, {1, 1, 1}));
         f.erase("tokenizer.ggml.eos_token_id");
       },
       {"tokenizer.ggml.tokens", "3 tokens", "258"}},
      {"TokenTwice",
       [](auto& f) { f.set("tokenizer.ggml.tokens", testing::texts(tokens_with(7, "ab"))); },
       {"tokenizer.ggml.tokens", "\"ab\"", "twice", "7"}},
      {"TokenIsEmpty",
       [](auto& f) { f.set("tokenizer.ggml.tokens", testing::texts(tokens_with(7, ""))); },
       {"tokenizer.ggml.tokens", "token 7"}},
      {"TypesTooFew",
       [](auto& f) { f.set("tokenizer.ggml.token_type", testing::numbers<int32_t>(5, {1})); },
       {"tokenizer.ggml.token_type", "1 entries", "258"}},
      {"TypeOfTokenIs9",
       [](auto& f) {
         f.set("tokenizer.ggml.token_type",
               testing::numbers<int32_t>(5, std::vector<int32_t>(258, 9)));
       },
       {"tokenizer.ggml.token_type", "token 0", "type 9"}},
      {"TypesAreFloats",
       [](auto& f) {
         f.set("tokenizer.ggml.token_type", testing::numbers<float>(6, std::vector<float>(258, 1)));
       },
       {"tokenizer.ggml.token_type", "array of f32"}},
      {"NoMerges",
       [](auto& f) { f.erase("tokenizer.ggml.merges"); },
       {"tokenizer.ggml.merges", "missing"}},
      {"MergeIsOneToken",
       [](auto& f) { f.set("tokenizer.ggml.merges", testing::texts({"ab"})); },
       {"tokenizer.ggml.merges", "number 0", "\"ab\""}},
      {"MergeIsThreeTokens",
       [](auto& f) { f.set("tokenizer.ggml.merges", testing::texts({"a b c"})); },
       {"tokenizer.ggml.merges", "\"a b c\""}},
      {"MergeOfNoTokens",
       [](auto& f) { f.set("tokenizer.ggml.merges", testing::texts({"a zz"})); },
       {"tokenizer.ggml.merges", "no token \"zz\""}},
      {"MergeMakesNoToken",
       [](auto& f) { f.set("tokenizer.ggml.merges", testing::texts({"b a"})); },
       {"tokenizer.ggml.merges", "no token \"ba\""}},
      {"EndIsBeyondTheTokens",
       [](auto& f) { f.set("tokenizer.ggml.eos_token_id", testing::u32(999)); },
       {"tokenizer.ggml.eos_token_id", "999", "258"}},
      {"EndIsText",
       [](auto& f) { f.set("tokenizer.ggml.eos_token_id", testing::text("x")); },
       {"tokenizer.ggml.eos_token_id", "string"}},
      {"BeginningIsNotNamed",
       [](auto& f) { f.set("tokenizer.ggml.add_bos_token", testing::boolean(1)); },
       {"tokenizer.ggml.bos_token_id", "missing"}},
      {"FlagIsANumber",
       [](auto& f) { f.set("tokenizer.ggml.add_bos_token", testing::u32(1)); },
       {"tokenizer.ggml.add_bos_token", "u32 1", "bool"}},
      {"TemplateIsANumber",
       [](auto& f) { f.set("tokenizer.chat_template", testing::u32(1)); },
       {"tokenizer.chat_template", "string"}},
      {"PiecesWithoutScores",
       [](auto& f) {
         f.set("tokenizer.ggml.model", testing::text("llama"));
         f.erase("tokenizer.ggml.pre");
       },
       {"tokenizer.ggml.scores", "missing"}},
      {"ScoresTooFew",
       [](auto& f) {
         f.set("tokenizer.ggml.model", testing::text("llama"));
         f.erase("tokenizer.ggml.pre");
         f.set("tokenizer.ggml.scores", testing::numbers<float>(6, {0}));
       },
       {"tokenizer.ggml.scores", "1 entries", "258"}},
      {"ScoreIsNan",
       [=](auto& f) {
         f.set("tokenizer.ggml.model", testing::text("llama"));
         f.erase("tokenizer.ggml.pre");
         f.set("tokenizer.ggml.scores", testing::numbers<float>(6, std::vector<float>(258, nan)));
       },
       {"tokenizer.ggml.scores", "element 0", "nan"}},
      {"PiecesWithoutBytes",
       [](auto& f) {
         f.set("tokenizer.ggml.model", testing::text("llama"));
         f.erase("tokenizer.ggml.pre");
         f.set("tokenizer.ggml.unknown_token_id", testing::u32(0));
         f.set("tokenizer.ggml.scores", testing::numbers<float>(6, std::vector<float>(258, 0)));
       },
       {"tokenizer.ggml.token_type", "0 tokens are bytes"}},
      {"CharacterMap",
       [](auto& f) {
         f.set("tokenizer.ggml.precompiled_charsmap", testing::numbers<uint8_t>(0, {1}));
       },
       {"precompiled_charsmap"}},
  };
}

TEST(GgufBroken, TheFileThatTheyAreMadeOfIsSound) {
  EXPECT_EQ(message_of_file(small_file().bytes()), "");
  EXPECT_GE(broken_files().size(), 60U);
}

class GgufBroken : public ::testing::TestWithParam<Broken> {};

TEST_P(GgufBroken, EndsInAMessageThatNamesIt) {
  HandFile file = small_file();
  GetParam().change(file);
  const std::string message =
      message_of_file(GetParam().bytes ? GetParam().bytes(file) : file.bytes());
  ASSERT_NE(message, "") << "the file is taken";
  for (const std::string& text : GetParam().says) {
    EXPECT_THAT(message, HasSubstr(text));
  }
}

INSTANTIATE_TEST_SUITE_P(Files,
                         GgufBroken,
                         ::testing::ValuesIn(broken_files()),
                         [](const auto& info) { return std::string(info.param.name); });

// Wherever a file ends, it is refused.
TEST(GgufBroken, EveryBeginningOfAFileIsRefused) {
  const HandFile file = small_file();
  const std::string header = file.header();
  for (size_t bytes = 0; bytes < header.size(); bytes += bytes < 400 ? 1 : 61) {
    EXPECT_NE(message_of_file(header.substr(0, bytes)), "") << bytes;
  }
}

}  // namespace
}  // namespace tapestry
