#include "autograd/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 0, 1, 2, ... of a shape.
Tensor counting(const Shape& shape, DType dtype = kFloat32) {
  return arange(shape.numel(), dtype).reshape(shape);
}

TEST(Tensor, HandlesShareTheTensor) {
  const Tensor undefined;
  EXPECT_FALSE(undefined.defined());
  EXPECT_EQ(std::string(describe(undefined)), "undefined");
  const Tensor a = counting({2, 3});
  const Tensor b = a;  // NOLINT(performance-unnecessary-copy-initialization): the copy is the test
  EXPECT_TRUE(a.is_same(b));
  EXPECT_FALSE(a.is_same(alias(a)));
  b.data<float>()[4] = 40;
  EXPECT_EQ(a.at({1, 1}), 40);
  EXPECT_EQ(std::string(describe(a)), "float32 [2, 3]");
}

TEST(Tensor, MethodsOfAnUndefinedOneNameThemselves) {
  const Tensor none;
  const auto refuses = [](const std::string& name, const std::function<void()>& call) {
    EXPECT_THAT(message_of<RuntimeError>(call), HasSubstr(name + ": the tensor is undefined"));
  };
  refuses("shape", [&] { none.shape(); });
  refuses("strides", [&] { none.strides(); });
  refuses("dtype", [&] { none.dtype(); });
  refuses("dim", [&] { none.dim(); });
  refuses("numel", [&] { none.numel(); });
  refuses("is_contiguous", [&] { none.is_contiguous(); });
  refuses("offset", [&] { none.offset(); });
  refuses("storage", [&] { none.storage(); });
  refuses("raw", [&] { none.raw(); });
  refuses("requires_grad", [&] { none.requires_grad(); });
  refuses("version", [&] { none.version(); });
  refuses("bump_version", [&] { none.bump_version(); });
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { none.data<float>(); }, [&] { none.item(); }, [&] { none.at({0}); },
           [&] { none.to_vector<float>(); }, [&] { none.size(0); }, [&] { alias(none); }}) {
    EXPECT_THROW(call(), RuntimeError);
  }
  EXPECT_EQ(none.impl(), nullptr);
  EXPECT_TRUE(none.is_same(Tensor()));
}

TEST(Tensor, ItemsOfIntegersAreExact) {
  const int64_t big = (int64_t{1} << 53) + 1;
  const Tensor x = tensor(std::vector<int64_t>{big, -big}, {2});
  EXPECT_EQ(static_cast<int64_t>(x.at({0})), big);
  EXPECT_EQ(x.at({1}), -big);
  EXPECT_NE(x.at({0}), big - 1);
  EXPECT_GT(x.at({0}), big - 1);
  EXPECT_LT(x.at({1}), 1 - big);
  EXPECT_NE(x.at({0}), tensor(std::vector<int64_t>{big - 1}, {}).item());
  EXPECT_EQ(scalar(big, kInt64).item(), big);
  EXPECT_EQ(full({2}, -big, kInt64).at({1}), -big);
  EXPECT_EQ(arange(big, big + 3).to_vector<int64_t>(),
            (std::vector<int64_t>{big, big + 1, big + 2}));
  EXPECT_EQ(arange(big, big - 4, -3).to_vector<int64_t>(), (std::vector<int64_t>{big, big - 3}));
  const double real = tensor({1.5F}).item();
  EXPECT_EQ(real, 1.5);
  EXPECT_EQ(static_cast<int64_t>(tensor({1.5F}).item()), 1);
  EXPECT_EQ(concat(x.at({0}), " ", tensor({1.5F}).item()), "9007199254740993 1.5");
  EXPECT_THROW(full({}, std::numeric_limits<uint64_t>::max(), kInt64), ValueError);
}

TEST(Tensor, Sizes) {
  const Tensor x = counting({2, 3, 4});
  EXPECT_EQ(x.dim(), 3);
  EXPECT_EQ(x.numel(), 24);
  EXPECT_EQ(x.size(1), 3);
  EXPECT_EQ(x.size(-1), 4);
  EXPECT_EQ(x.strides(), (Strides{12, 4, 1}));
  EXPECT_THAT(message_of<IndexError>([&] { (void)x.size(3); }), HasSubstr("size: axis 3"));
  EXPECT_THROW((void)scalar(1).size(0), IndexError);
}

TEST(Tensor, Contiguity) {
  const Tensor x = counting({2, 3});
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_FALSE(x.t().is_contiguous());
  EXPECT_TRUE(x.t().contiguous().is_contiguous());
  EXPECT_TRUE(x.contiguous().is_same(x));
  EXPECT_TRUE(counting({3, 1}).t().is_contiguous());  // axes of size 1 do not matter
  EXPECT_TRUE(empty({0, 3}).t().is_contiguous());     // nor do those of nothing
  EXPECT_TRUE(alias(counting({8}), {2, 0, 3}, {3, 3, 2}, 0).is_contiguous());
  EXPECT_FALSE(counting({1, 3}).expand({2, 3}).is_contiguous());
  EXPECT_TRUE(x.slice(0, 1, 2).is_contiguous());
  EXPECT_FALSE(x.slice(1, 0, 2).is_contiguous());
}

TEST(Tensor, DataIsTyped) {
  const Tensor x = counting({2});
  EXPECT_NE(x.data<float>(), nullptr);
  EXPECT_THAT(message_of<TypeError>([&] { (void)x.data<double>(); }),
              HasSubstr("float32 [2], not float64"));
}

TEST(Tensor, Item) {
  EXPECT_EQ(scalar(2.5).item(), 2.5);
  EXPECT_EQ(full({1, 1}, 7, kInt32).item(), 7);
  EXPECT_EQ(full({1}, 1, kBool).item(), 1);
  EXPECT_EQ(counting({2, 3}).select(0, 1).select(0, 2).item(), 5);  // with an offset
  EXPECT_THAT(message_of<ValueError>([] { (void)counting({2}).item(); }), HasSubstr("[2]"));
  EXPECT_THROW((void)empty({0}).item(), ValueError);
}

TEST(Tensor, At) {
  const Tensor x = counting({2, 3});
  EXPECT_EQ(x.at({1, 2}), 5);
  EXPECT_EQ(x.at({-1, -3}), 3);
  EXPECT_EQ(x.t().at({2, 1}), 5);
  EXPECT_EQ(scalar(4).at({}), 4);
  EXPECT_THAT(message_of<IndexError>([&] { (void)x.at({2, 0}); }), HasSubstr("index 2"));
  EXPECT_THROW((void)x.at({0, -4}), IndexError);
  EXPECT_THAT(message_of<ValueError>([&] { (void)x.at({1}); }), HasSubstr("1 indices"));
}

TEST(Tensor, ToVectorFollowsTheStrides) {
  const Tensor x = counting({2, 3});
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(x.t().to_vector<int64_t>(), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(x.slice(1, 0, 3, 2).to_vector<int32_t>(), ElementsAre(0, 2, 3, 5));
  EXPECT_THAT(counting({1, 2}).expand({3, 2}).to_vector<double>(), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(x.to_vector<bool>(), ElementsAre(false, true, true, true, true, true));
  EXPECT_THAT(scalar(3).to_vector<double>(), ElementsAre(3));
  EXPECT_TRUE(empty({2, 0}).to_vector<float>().empty());
  for (const DType dtype : {kFloat16, kBFloat16, kFloat64, kInt32, kInt64}) {
    EXPECT_THAT(counting({3}, dtype).to_vector<double>(), ElementsAre(0, 1, 2)) << name_of(dtype);
  }
}

TEST(Tensor, ViewsShareStorageAndVersion) {
  const Tensor x = counting({2, 3, 4});
  const TensorList views = {x.view({6, 4}),           x.reshape({24}), x.permute({2, 0, 1}),
                            x.transpose(0, 1),        x.t(),           x.expand({2, 2, 3, 4}),
                            x.slice(1, 1, 3),         x.select(0, 1),  x.unsqueeze(0),
                            x.unsqueeze(0).squeeze(), x.detach(),      split(x, 2, 2)[1]};
  for (size_t i = 0; i < views.size(); ++i) {
    EXPECT_TRUE(views[i].storage() == x.storage()) << i;
  }
  views[2].bump_version();
  EXPECT_EQ(x.version(), 1U);
  EXPECT_EQ(views[6].version(), 1U);
  for (const Tensor& copy : {x.clone(), x.t().contiguous(), x.t().reshape({24}), x.to(kFloat64)}) {
    EXPECT_FALSE(copy.storage() == x.storage());
    EXPECT_EQ(copy.version(), 0U);
  }
  EXPECT_TRUE(x.to(kFloat32).is_same(x));
}

TEST(Tensor, ViewsShowTheRightElements) {
  const Tensor x = counting({2, 3, 4});
  EXPECT_EQ(x.permute({2, 0, 1}).at({3, 1, 2}), x.at({1, 2, 3}));
  EXPECT_EQ(x.transpose(0, -1).at({3, 2, 1}), x.at({1, 2, 3}));
  EXPECT_EQ(x.t().at({1, 3, 2}), x.at({1, 2, 3}));
  EXPECT_EQ(x.select(1, -1).at({1, 3}), x.at({1, 2, 3}));
  EXPECT_EQ(x.slice(2, 1, -1, 2).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(x.slice(2, 1, 100, 2).at({1, 2, 1}), x.at({1, 2, 3}));
  EXPECT_EQ(x.slice(2, -100, 2).shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(x.slice(0, 5, 9).shape(), (Shape{0, 3, 4}));
  EXPECT_EQ(x.unsqueeze(-1).shape(), (Shape{2, 3, 4, 1}));
  EXPECT_EQ(x.view({4, -1}).shape(), (Shape{4, 6}));
  EXPECT_EQ(counting({1, 3, 1}).squeeze().shape(), Shape{3});
  EXPECT_EQ(counting({1, 3, 1}).squeeze(0).shape(), (Shape{3, 1}));
  EXPECT_EQ(counting({1, 3, 1}).squeeze(1).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(x.expand({5, -1, -1, 4}).strides()[0], 0);
  // A slice of a slice of a transpose.
  EXPECT_EQ(x.t().slice(1, 1, 4).slice(1, 1, 3).at({1, 1, 2}), x.at({1, 2, 3}));
}

TEST(Tensor, ViewOfStridedMemory) {
  const Tensor x = counting({2, 3, 4});
  // Joined axes lie together although the tensor is not contiguous.
  EXPECT_EQ(x.slice(0, 0, 2).permute({1, 2, 0}).view({12, 2}).at({5, 1}), x.at({1, 1, 1}));
  EXPECT_EQ(x.slice(1, 0, 2).view({2, 8}).at({1, 7}), x.at({1, 1, 3}));
  EXPECT_EQ(x.slice(2, 0, 2).view({6, 2}).at({5, 1}), x.at({1, 2, 1}));
  EXPECT_EQ(x.slice(2, 0, 4, 2).view({6, 2, 1}).at({5, 1, 0}), x.at({1, 2, 2}));
  EXPECT_EQ(counting({1, 3}).expand({2, 3}).view({2, 3, 1}).strides()[0], 0);
  EXPECT_THAT(message_of<ValueError>([&] { (void)x.t().view({24}); }), HasSubstr("reshape()"));
  EXPECT_THROW((void)x.slice(2, 0, 3).view({18}), ValueError);
  EXPECT_THROW((void)counting({1, 3}).expand({2, 3}).view({6}), ValueError);
  // reshape gives the same values by copying.
  EXPECT_EQ(x.t().reshape({24}).to_vector<float>(), x.t().to_vector<float>());
}

TEST(Tensor, RequiresGrad) {
  const Tensor x = counting({2});
  EXPECT_FALSE(x.requires_grad());
  EXPECT_TRUE(x.is_leaf());
  x.set_requires_grad();
  EXPECT_TRUE(x.requires_grad());
  EXPECT_FALSE(x.grad().defined());
  x.set_requires_grad(false);
  EXPECT_FALSE(x.requires_grad());
  EXPECT_THAT(message_of<TypeError>([] { counting({2}, kInt64).set_requires_grad(); }),
              HasSubstr("int64 [2]"));
}

}  // namespace
}  // namespace tapestry
