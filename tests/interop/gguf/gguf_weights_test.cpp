#include "interop/gguf/gguf_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "interop/export/gguf_export.h"
#include "interop/export/gguf_vocabulary.h"
#include "interop/export/hf_export.h"
#include "interop/gguf/gguf_texts.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/inference/open_model.h"
#include "parallel_core/parallel_state.h"
#include "tests/golden/gguf_file.h"
#include "tests/interop/gguf/family_model.h"
#include "tests/interop/gguf/gguf_bytes.h"
#include "tests/temp_dir.h"
#include "text/chat/chat_format.h"
#include "text/tokenizers/kinds/make_tokenizer.h"

namespace tapestry {
namespace {

using ::testing::Each;
using testing::HandFile;
using testing::HandTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Bytes of any blocks whose scales are finite: float16 numbers of about 0.01.
std::string some_blocks(GgufType type, int64_t count) {
  std::string bytes(gguf_bytes(type, count), '\0');
  uint32_t state = 12345;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24U);
  }
  const GgufBlock block = gguf_block(type);
  for (size_t at = 0; at < bytes.size(); at += block.bytes) {
    const auto set_high = [&](size_t place) { bytes[at + place] = '\x21'; };
    if (type == GgufType::kQ6_K) {
      set_high(block.bytes - 1);
    } else {
      set_high(1);
      if (type == GgufType::kQ4_K) {
        set_high(3);
      }
    }
  }
  return bytes;
}

std::vector<float> values_of_blocks(GgufType type, const std::string& bytes, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  decode_gguf(type, std::as_bytes(std::span<const char>(bytes)), out);
  return out;
}

// A model whose matrices are in all types; its MLP is 256 wide.
HandFile mixed_file() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(printed_byte(static_cast<uint8_t>(byte)));
  }
  tokens.insert(tokens.end(), {"ab", "<|end|>"});
  HandFile file = testing::small_llama(tokens);
  file.set("llama.feed_forward_length", testing::u32(256));
  const auto put = [&](const std::string& name, std::vector<uint64_t> sizes, GgufType type) {
    HandTensor& tensor = file.tensor(name);
    tensor.type = static_cast<uint32_t>(type);
    tensor.bytes = some_blocks(type, static_cast<int64_t>(sizes[0] * sizes[1]));
    tensor.sizes = std::move(sizes);
  };
  put("blk.0.attn_q.weight", {32, 32}, GgufType::kQ8_0);
  put("blk.0.attn_k.weight", {32, 16}, GgufType::kQ8_0);
  put("blk.0.attn_v.weight", {32, 16}, GgufType::kQ8_0);
  put("blk.0.attn_output.weight", {32, 32}, GgufType::kQ8_0);
  put("blk.0.ffn_gate.weight", {32, 256}, GgufType::kQ4_0);
  put("blk.0.ffn_up.weight", {32, 256}, GgufType::kQ4_0);
  put("blk.0.ffn_down.weight", {256, 32}, GgufType::kQ6_K);
  return file;
}

std::string write_file(const data::TempDir& dir, const HandFile& file) {
  dir.write("x.gguf", file.bytes());
  return dir.file("x.gguf");
}

std::vector<float> whole(const GgufWeights& weights, const std::string& name) {
  std::vector<float> out(static_cast<size_t>(weights.shape(name).numel()));
  weights.read(name, out.data());
  return out;
}

// Row 2j + s of a head in the file is row s d/2 + j of the model.
std::vector<float> turned_back(const std::vector<float>& rows, int64_t d, int64_t columns) {
  std::vector<float> out(rows.size());
  for (size_t row = 0; row < rows.size() / static_cast<size_t>(columns); ++row) {
    const int64_t within = static_cast<int64_t>(row) % d;
    const int64_t to = static_cast<int64_t>(row) - within + within % 2 * (d / 2) + within / 2;
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(row) * columns, columns,
                out.begin() + to * columns);
  }
  return out;
}

TEST(GgufWeights, RowsAndBlocksComeInTheModelsOrder) {
  const data::TempDir dir;
  HandFile file = mixed_file();
  HandTensor& down = file.tensor("blk.0.ffn_down.weight");
  for (const GgufType type : {GgufType::kQ6_K, GgufType::kQ4_K}) {
    down.type = static_cast<uint32_t>(type);
    down.bytes = some_blocks(type, 256 * 32);
    const GgufWeights weights(write_file(dir, file));
    EXPECT_EQ(whole(weights, "layers.0.feed_forward.w_down.weight"),
              values_of_blocks(type, down.bytes, 256 * 32));
    EXPECT_EQ(weights.dtype("layers.0.feed_forward.w_down.weight"), kFloat32);
  }
  const GgufWeights weights(dir.file("x.gguf"));
  EXPECT_EQ(whole(weights, "layers.0.feed_forward.w_up.weight"),
            values_of_blocks(GgufType::kQ4_0, file.tensor("blk.0.ffn_up.weight").bytes, 32 * 256));
  const std::vector<float> q = turned_back(
      values_of_blocks(GgufType::kQ8_0, file.tensor("blk.0.attn_q.weight").bytes, 32 * 32), 16, 32);
  const std::string wq = "layers.0.attention.wq.weight";
  EXPECT_EQ(whole(weights, wq), q);
  std::string blocks(gguf_bytes(GgufType::kQ8_0, 32 * 32), '\0');
  weights.read_blocks(wq, 0, 32 * 32, reinterpret_cast<std::byte*>(blocks.data()));
  EXPECT_EQ(values_of_blocks(GgufType::kQ8_0, blocks, 32 * 32), q);
  EXPECT_THROW(weights.read_blocks(wq, 16, 32, nullptr), RuntimeError);
  EXPECT_THROW(weights.read_blocks("tok_embeddings.weight", 0, 32, nullptr), RuntimeError);
  // Parts, whichever bytes they begin and end with.
  for (const auto& [offset, bytes] :
       {std::pair{0, 4}, {2, 3}, {127, 130}, {1000, 3000}, {4095, 1}, {0, 0}}) {
    std::vector<char> part(static_cast<size_t>(bytes));
    weights.read_bytes(wq, static_cast<uint64_t>(offset), part.size(), part.data());
    EXPECT_TRUE(std::memcmp(part.data(), reinterpret_cast<const char*>(q.data()) + offset,
                            part.size()) == 0)
        << offset;
  }
  char none = 0;
  EXPECT_THROW(weights.read_bytes(wq, 4096, 1, &none), IndexError);
  EXPECT_THROW(weights.read_bytes("odd", 0, 1, &none), ValueError);
}

TEST(GgufWeights, MatricesOf8And4BitsStayAsTheyLie) {
  const data::TempDir dir;
  const HandFile file = mixed_file();
  const std::string path = write_file(dir, file);
  const OpenModel opened = open_model({.checkpoint = path});
  EXPECT_THAT(opened.remarks,
              ::testing::Contains(AllOf(HasSubstr("4 tensors of Q8_0 stay in blocks"),
                                        HasSubstr("2 tensors of Q4_0 stay in blocks"),
                                        HasSubstr("1 tensor of Q6_K are widened"))));
  const GgufWeights weights(path);
  int64_t quantized = 0;
  for (const auto& entry : opened.model->named_parameters()) {
    const nn::Parameter& parameter = *entry.parameter;
    const auto has = [&](const char* part) { return entry.name.find(part) != std::string::npos; };
    const bool is_first = has("mlp.mapping");
    EXPECT_EQ(parameter.is_quantized(), (has("attention") && !has("norm")) || is_first)
        << entry.name;
    if (!parameter.is_quantized()) {
      continue;
    }
    ++quantized;
    EXPECT_EQ(parameter.quantized().format(), is_first ? BlockFormat::kQ4_0 : BlockFormat::kQ8_0);
    // The very numbers of the file, although no rounding of ours would give such blocks.
    const std::vector<float> held = dequantize(parameter.quantized()).to_vector<float>();
    std::vector<float> of_file;
    if (parameter.logical().size() == 1) {
      of_file = whole(weights, parameter.logical().front().name);
      EXPECT_EQ(held, of_file) << entry.name;
    } else {
      for (const nn::LogicalTensor& logical : parameter.logical()) {
        const std::vector<float> part = whole(weights, logical.name);
        of_file.insert(of_file.end(), part.begin(), part.end());
      }
      // Rows of queries, keys and values come in groups: as numbers without their order.
      std::vector<float> sorted = held;
      std::sort(sorted.begin(), sorted.end());
      std::sort(of_file.begin(), of_file.end());
      EXPECT_EQ(sorted, of_file) << entry.name;
    }
  }
  EXPECT_EQ(quantized, 3);
  const OpenModel widened = open_model({.checkpoint = path, .dtype = "float32"});
  for (const auto& entry : widened.model->named_parameters()) {
    EXPECT_FALSE(entry.parameter->is_quantized()) << entry.name;
  }
  // Both compute the same, but for the order of sums.
  data::Batch batch;
  batch.batch = 1;
  batch.seq = 16;
  for (int32_t i = 0; i < 16; ++i) {
    batch.tokens.push_back(i * 13 % 250);
  }
  const NoGradGuard guard;
  const auto kept = pipeline_logits(*opened.model, batch).to_vector<float>();
  const auto wide = pipeline_logits(*widened.model, batch).to_vector<float>();
  for (size_t i = 0; i < kept.size(); ++i) {
    ASSERT_NEAR(kept[i], wide[i], 1e-5 * std::max(1.0, std::abs(static_cast<double>(wide[i]))));
  }
}

// Each rank copies the blocks of its own rows, or of its own columns.
TEST(GgufWeights, BlocksAreDividedAmongRanks) {
  const data::TempDir dir;
  nlohmann::json config = testing::config_for_gguf("llama");
  config["num_key_value_heads"] = 2;
  config["intermediate_size"] = 128;
  testing::make_folder_for_gguf(config, dir.file("hf"));
  const std::string path = dir.file("m.gguf");
  export_gguf(open_export_source(dir.file("hf")), path, {.type = GgufType::kQ8_0});
  run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
    const OpenModel kept = open_model({.checkpoint = path, .tensor_parallel = 2}, world);
    const OpenModel wide =
        open_model({.checkpoint = path, .dtype = "float32", .tensor_parallel = 2}, world);
    const auto all = wide.model->named_parameters();
    size_t index = 0;
    int64_t quantized = 0;
    for (const auto& entry : kept.model->named_parameters()) {
      const nn::Parameter& other = *all.at(index++).parameter;
      if (entry.parameter->is_quantized()) {
        ++quantized;
        EXPECT_EQ(dequantize(entry.parameter->quantized()).to_vector<float>(),
                  other.to_vector<float>())
            << entry.name;
      }
    }
    EXPECT_EQ(quantized, 3 * 4 + 1);
    destroy_model_parallel();
  });
}

TEST(GgufWeights, FileOfTheSameTypeComesOutByteForByte) {
  const data::TempDir dir;
  const std::string path = write_file(dir, mixed_file());
  const std::string again = dir.file("again.gguf");
  export_gguf(open_export_source(path), again, {.type = GgufType::kQ8_0});
  const testing::GgufFile in = testing::read_gguf_file(again);
  for (const auto& tensor : mixed_file().tensors) {
    if (tensor.type == static_cast<uint32_t>(GgufType::kQ8_0)) {
      EXPECT_TRUE(in.tensors.at(tensor.name).bytes == tensor.bytes) << tensor.name;
    }
  }
  EXPECT_EQ(in.metadata.at("general.name").text(), "small");
}

std::vector<std::string> some_texts() {
  return {"",
          "a",
          " the cat sat",
          "Hello,  world!\n\n  It's 12345 o'clock\t.",
          "na\xc3\xafve \xe2\x82\xac 5 \xf0\x9f\x98\x80 \xe4\xb8\xad\xe6\x96\x87",
          "ends with spaces   ",
          "a<s>b</s> <unk> <|endoftext|>"};
}

TEST(GgufTokenizerIn, GivesTheIdsOfTheFolder) {
  for (const char* name : {"llama", "gpt2"}) {
    SCOPED_TRACE(name);
    const data::TempDir dir;
    const std::string folder = std::string("tests/data/golden_gguf/") + name + "/hf";
    const std::string file = dir.file("m.gguf");
    export_gguf(open_export_source(folder), file, {});
    const SavedModel theirs = open_saved_model(folder);
    const SavedModel ours = open_saved_model(file);
    EXPECT_EQ(ours.eod_id, theirs.eod_id);
    EXPECT_EQ(ours.start, theirs.start);
    for (const std::string& text : some_texts()) {
      const std::vector<int32_t> ids = theirs.tokenizer->encode(text);
      EXPECT_EQ(ours.tokenizer->encode(text), ids) << text;
      EXPECT_EQ(ours.tokenizer->decode(ids), theirs.tokenizer->decode(ids)) << text;
    }
    // And out again.
    const std::string again = dir.file("again.gguf");
    export_gguf(open_export_source(file), again, {.name = "hf"});
    const auto first = testing::read_gguf_file(file).metadata;
    const auto second = testing::read_gguf_file(again).metadata;
    for (const auto& [key, value] : first) {
      if (key.starts_with("tokenizer.")) {
        EXPECT_TRUE(second.contains(key) && second.at(key) == value) << key;
      }
    }
  }
}

TEST(GgufTokenizerIn, BytesAndTemplatesAndEndsAreThere) {
  const data::TempDir dir;
  HandFile file = mixed_file();
  file.set("tokenizer.chat_template", testing::text("{{ messages[0]['content'] }}"));
  file.set("tokenizer.ggml.eot_token_id", testing::u32(256));
  file.set("tokenizer.ggml.bos_token_id", testing::u32(257));
  file.set("tokenizer.ggml.add_bos_token", testing::boolean(1));
  const std::string path = write_file(dir, file);
  const SavedModel saved = open_saved_model(path);
  EXPECT_EQ(saved.tokenizer->encode("ab<|end|>\n"), (std::vector<int32_t>{256, 257, 10}));
  EXPECT_EQ(saved.start, std::vector<int32_t>{257});
  EXPECT_EQ(saved.eod_id, 257);
  const auto format = chat::read_chat_format(path);
  ASSERT_TRUE(format.has_value());
  EXPECT_EQ(format->chat_template->source(), "{{ messages[0]['content'] }}");
  const OpenModel opened = open_model({.checkpoint = path});
  EXPECT_EQ(opened.stop_ids, (std::vector<int32_t>{257, 256}));
}

TEST(PackedFolder, PathsLeadIntoFilesThatStandForFolders) {
  const data::TempDir dir;
  const std::string path = write_file(dir, mixed_file());
  EXPECT_TRUE(folder_exists(path));
  EXPECT_TRUE(folder_exists(dir.path()));
  EXPECT_TRUE(path_exists(path + "/config.json"));
  EXPECT_FALSE(path_exists(path + "/config.yaml"));
  EXPECT_FALSE(path_exists(dir.file("none.gguf") + "/config.json"));
  EXPECT_THROW(read_file(path + "/config.yaml"), IoError);
  EXPECT_THAT(read_file(path + "/config.json"), HasSubstr("\"model_type\": \"llama\""));
  // Another file under the name is another folder.
  HandFile other = mixed_file();
  other.set("llama.context_length", testing::u32(48));
  dir.write("y.gguf", other.bytes());
  std::filesystem::rename(dir.file("y.gguf"), path);
  EXPECT_THAT(read_file(path + "/config.json"), HasSubstr("\"max_position_embeddings\": 48"));
}

}  // namespace
}  // namespace tapestry
