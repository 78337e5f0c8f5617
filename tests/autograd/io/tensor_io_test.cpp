#include "autograd/io/tensor_io.h"

#include "autograd/io/safetensors.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/io/io_test_util.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void expect_same(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.dtype(), b.dtype());
  EXPECT_EQ(a.shape(), b.shape());
  EXPECT_EQ(a.to_vector<double>(), b.to_vector<double>());
  EXPECT_TRUE(a.is_contiguous());
}

TEST(TensorIo, NpyRoundTrip) {
  const test::ScratchFolder folder;
  const Tensor x = arange(0, 6, 1, kFloat64).reshape({2, 3});
  for (const DType dtype : {kBool, kInt32, kInt64, kFloat16, kFloat32, kFloat64}) {
    save_npy(folder.file("x.npy"), x.to(dtype));
    expect_same(load_npy(folder.file("x.npy")), x.to(dtype));
  }
  for (const Tensor& y : {x.t(), slice(x, 1, 0, 3, 2), x.select(0, 1), scalar(3), empty({0, 4})}) {
    save_npy(folder.file("y.npy"), y);
    expect_same(load_npy(folder.file("y.npy")), y);
  }
}

TEST(TensorIo, NpyErrors) {
  const test::ScratchFolder folder;
  EXPECT_THROW(save_npy(folder.file("x.npy"), Tensor()), ValueError);
  EXPECT_THROW(save_npy(folder.file("x.npy"), ones({2}, kBFloat16)), TypeError);
  EXPECT_THROW(load_npy(folder.file("none.npy")), IoError);
}

TEST(TensorIo, SafetensorsRoundTrip) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("x.safetensors");
  const Tensor x = arange(0, 6, 1, kFloat32).reshape({2, 3});
  const NamedTensorMap tensors = {{"plain", x},
                                  {"transposed", x.t()},
                                  {"step", slice(x, 1, 0, 3, 2)},
                                  {"scalar", scalar(2.5, kFloat64)},
                                  {"empty", empty({0, 3})},
                                  {"bfloat16", x.to(kBFloat16)},
                                  {"flags", x.to(kBool)},
                                  {"ids", x.to(kInt64)}};
  save_safetensors(path, tensors, {{"made_by", "a test"}});
  const NamedTensorMap read = load_safetensors(path);
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    expect_same(read.at(name), tensor);
    expect_same(load_safetensor(path, name), tensor);
  }
  EXPECT_EQ(SafetensorsReader(path).metadata().at("made_by"), "a test");
}

TEST(TensorIo, SafetensorsErrors) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("x.safetensors");
  try {
    save_safetensors(path, {{"weight", Tensor()}});
    FAIL() << "nothing was thrown";
  } catch (const ValueError& e) {
    EXPECT_THAT(e.what(), HasSubstr("'weight'"));
  }
  save_safetensors(path, {{"weight", ones({2})}});
  EXPECT_THROW(load_safetensor(path, "bias"), ValueError);
  EXPECT_THROW(load_safetensors(folder.file("none.safetensors")), IoError);
}

}  // namespace
}  // namespace tapestry
