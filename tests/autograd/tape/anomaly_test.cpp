#include "autograd/tape/anomaly.h"

#include <cmath>
#include <limits>

#include "autograd/tape/checkpoint.h"
#include "tests/autograd/tape/tape_test_util.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Anomaly, ForwardNamesTheOp) {
  const AnomalyGuard guard;
  const Tensor x = leaf({1, -1});
  const Tensor fine = x * 2;
  EXPECT_THAT(message_of<RuntimeError>([&] { log(fine); }),
              AllOf(HasSubstr("log"), HasSubstr("forward"), HasSubstr("finite inputs")));
  EXPECT_THROW(tensor({1}) / tensor({0}), RuntimeError);  // also without a graph
}

TEST(Anomaly, BackwardNamesTheOp) {
  const Tensor x = leaf({0, 4});
  const Tensor y = sum(sqrt(x) * 3);
  const AnomalyGuard guard;
  EXPECT_THAT(message_of<RuntimeError>([&] { y.backward(); }),
              AllOf(HasSubstr("sqrt"), HasSubstr("backward")));
}

TEST(Anomaly, BackwardMayMaskInfinities) {
  const AnomalyGuard guard;
  const Tensor base = leaf({0, 2});
  const Tensor exponent = leaf({2, 3});
  sum(pow(base, exponent)).backward();  // takes log(0) on the way
  EXPECT_EQ(exponent.grad().at({0}), 0);
}

TEST(Anomaly, BackwardOfACheckpointNamesTheOpInside) {
  const AnomalyGuard guard;
  const Tensor x = leaf({0, 4});
  const auto body = [](const TensorList& in) { return sqrt(in[0]) * 3; };
  const Tensor y = sum(checkpoint(body, {x}));
  EXPECT_THAT(message_of<RuntimeError>([&] { y.backward(); }),
              AllOf(HasSubstr("sqrt"), HasSubstr("backward")));
}

TEST(Anomaly, TheFirstOpIsNamedNotItsSuccessors) {
  const AnomalyGuard guard;
  const Tensor infinite = tensor({INFINITY, 1});
  EXPECT_NO_THROW(infinite * 2);  // did not begin here
  EXPECT_NO_THROW(infinite - infinite);
}

TEST(Anomaly, NonContiguousResultsAreSeen) {
  const AnomalyGuard guard;
  const Tensor x = ones({2, 3}).t();
  EXPECT_NO_THROW(x * 2);
  EXPECT_THROW(expand(x, {3, 2}) / 0, RuntimeError);
}

TEST(Anomaly, IsOffByDefaultAndNests) {
  const Tensor x = leaf({-1});
  EXPECT_TRUE(std::isnan(log(x).item()));
  {
    const AnomalyGuard guard;
    {
      const AnomalyGuard inner(false);
      EXPECT_NO_THROW(log(x));
    }
    EXPECT_THROW(log(x), RuntimeError);
  }
  EXPECT_NO_THROW(log(x));
}

}  // namespace
}  // namespace tapestry
