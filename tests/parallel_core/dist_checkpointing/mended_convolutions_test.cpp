#include "parallel_core/dist_checkpointing/mended_convolutions.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "autograd/io/safetensors.h"
#include "autograd/io/safetensors_directory.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

// A layer's tensors: floats that count up from `first`.
struct Stored {
  std::string name;
  Shape shape;
  float first = 0;
};

std::unique_ptr<TensorSource> mended(const data::TempDir& dir, const std::vector<Stored>& stored) {
  std::vector<std::vector<float>> values;
  std::vector<TensorView> views;
  for (const Stored& one : stored) {
    values.emplace_back(static_cast<size_t>(one.shape.numel()));
    std::iota(values.back().begin(), values.back().end(), one.first);
  }
  for (size_t i = 0; i < stored.size(); ++i) {
    views.push_back({stored[i].name, kFloat32, stored[i].shape, values[i].data()});
  }
  const std::string path = dir.file("model.safetensors");
  write_safetensors(path, views);
  return mended_convolutions(std::make_unique<SafetensorsDirectory>(path));
}

std::vector<float> read_all(const TensorSource& files, const std::string& name) {
  std::vector<float> out(static_cast<size_t>(files.shape(name).numel()));
  files.read(name, out.data());
  return out;
}

const std::string kLayer = "model.layers.0.";

std::vector<Stored> projections(int64_t keys, int64_t values) {
  return {{kLayer + "linear_attn.q_proj.weight", {keys, 2}},
          {kLayer + "linear_attn.k_proj.weight", {keys, 2}},
          {kLayer + "linear_attn.v_proj.weight", {values, 2}}};
}

// 16 + 16 + 32 channels that were saved as 22, 22 and 20: numbers go on from one to the next.
TEST(MendedConvolutions, ThirdsAreCutAgainByTheProjections) {
  const data::TempDir dir;
  std::vector<Stored> stored = projections(16, 32);
  stored.push_back({kLayer + "linear_attn.q_conv1d.weight", {22, 1, 4}, 0});
  stored.push_back({kLayer + "linear_attn.k_conv1d.weight", {22, 1, 4}, 88});
  stored.push_back({kLayer + "linear_attn.v_conv1d.weight", {20, 1, 4}, 176});
  const auto files = mended(dir, stored);
  EXPECT_EQ(files->names().size(), 6U);
  int64_t number = 0;
  for (const auto& [part, rows] : {std::pair{"q", 16}, std::pair{"k", 16}, std::pair{"v", 32}}) {
    const std::string name = kLayer + "linear_attn." + part + "_conv1d.weight";
    EXPECT_EQ(files->shape(name), (Shape{rows, 1, 4}));
    for (const float value : read_all(*files, name)) {
      ASSERT_EQ(value, static_cast<float>(number++)) << name;
    }
  }
  // A piece across the border of two tensors of the file.
  std::vector<float> piece(8);
  files->read_bytes(kLayer + "linear_attn.k_conv1d.weight", 20 * sizeof(float),
                    piece.size() * sizeof(float), piece.data());
  for (size_t i = 0; i < piece.size(); ++i) {
    EXPECT_EQ(piece[i], static_cast<float>(64 + 20 + i));
  }
}

TEST(MendedConvolutions, TensorsThatFitStayAsTheyAre) {
  const data::TempDir dir;
  std::vector<Stored> stored = projections(4, 8);
  stored.push_back({kLayer + "linear_attn.q_conv1d.weight", {4, 1, 3}, 5});
  stored.push_back({kLayer + "linear_attn.k_conv1d.weight", {4, 1, 3}, 50});
  stored.push_back({kLayer + "linear_attn.v_conv1d.weight", {8, 1, 3}, 500});
  const auto files = mended(dir, stored);
  EXPECT_NE(dynamic_cast<SafetensorsDirectory*>(files.get()), nullptr);
}

// The norm behind attention, in layers that have attention alone.
TEST(MendedConvolutions, ANormHasTheNameThatIsRead) {
  const data::TempDir dir;
  std::vector<Stored> stored = projections(2, 4);
  stored.push_back({kLayer + "linear_attn.q_conv1d.weight", {2, 1, 3}});
  stored.push_back({kLayer + "linear_attn.k_conv1d.weight", {2, 1, 3}});
  stored.push_back({kLayer + "linear_attn.v_conv1d.weight", {4, 1, 3}});
  stored.push_back({kLayer + "feedforward_layer_norm.weight", {3}, 1});
  stored.push_back({"model.layers.1.self_attn.q_proj.weight", {3, 3}});
  stored.push_back({"model.layers.1.feedforward_layer_norm.weight", {3}, 7});
  const auto files = mended(dir, stored);
  EXPECT_TRUE(files->contains(kLayer + "feedforward_layer_norm.weight"));
  EXPECT_FALSE(files->contains("model.layers.1.feedforward_layer_norm.weight"));
  EXPECT_EQ(read_all(*files, "model.layers.1.post_attention_layernorm.weight"),
            (std::vector<float>{7, 8, 9}));
}

}  // namespace
}  // namespace tapestry
