#include "parallel_core/comm/delayed_transport.h"

#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/thread_ranks.h"
#include "tests/parallel_core/comm/collectives_suite.h"

namespace tapestry {
namespace {

// Keeps what is sent, and brings what a test puts there.
struct Post {
  std::vector<Envelope> sent;
  std::deque<Envelope> coming;
};

class PostTransport final : public Transport {
 public:
  explicit PostTransport(Post& post) : post_(post) {}
  int rank() const override { return 0; }
  int size() const override { return 3; }
  std::shared_ptr<Transfer> send(int /*destination*/,
                                 const Envelope& envelope,
                                 const void* /*data*/) override {
    post_.sent.push_back(envelope);
    return nullptr;
  }
  std::optional<Arrival> next_arrival() override {
    if (post_.coming.empty()) {
      return std::nullopt;
    }
    Arrival arrival;
    arrival.envelope = post_.coming.front();
    post_.coming.pop_front();
    return arrival;
  }
  std::shared_ptr<Transfer> fetch(const Arrival& /*arrival*/, void* /*data*/) override {
    return nullptr;
  }
  void pause(double /*idle_seconds*/) override {}

 private:
  Post& post_;
};

constexpr double kDelay = 20e-3;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

TEST(DelayedTransport, ALinkCarriesOneMessageAtATime) {
  Post post;
  const auto transport = make_delayed_transport(std::make_unique<PostTransport>(post), 3600);
  Envelope control;
  control.kind = Envelope::Kind::kControl;
  transport->send(1, Envelope(), nullptr);
  transport->send(1, Envelope(), nullptr);
  transport->send(1, control, nullptr);
  transport->send(2, Envelope(), nullptr);
  ASSERT_EQ(post.sent.size(), 4U);
  constexpr int64_t kHourNs = 3'600'000'000'000;
  EXPECT_GE(post.sent[0].due_ns, kHourNs);
  EXPECT_EQ(post.sent[1].due_ns, post.sent[0].due_ns + kHourNs);
  EXPECT_EQ(post.sent[2].due_ns, post.sent[1].due_ns);  // behind them, but no slower
  EXPECT_GE(post.sent[3].due_ns, post.sent[0].due_ns);  // a link of its own
  EXPECT_LT(post.sent[3].due_ns, post.sent[1].due_ns);
}

TEST(DelayedTransport, HoldsBackWhatIsNotDueAndWhatIsBehindIt) {
  Post post;
  const auto transport = make_delayed_transport(std::make_unique<PostTransport>(post), kDelay);
  const auto coming = [&](int source, int part, int64_t due) {
    Envelope envelope;
    envelope.source = source;
    envelope.part = part;
    envelope.due_ns = due;
    post.coming.push_back(envelope);
  };
  coming(1, 10, 0);
  coming(1, 11, kNever);
  coming(1, 12, 0);
  coming(2, 20, 0);
  std::vector<int> parts;
  while (const std::optional<Arrival> arrival = transport->next_arrival()) {
    parts.push_back(arrival->envelope.part);
  }
  EXPECT_EQ(parts, (std::vector<int>{10, 20}));
}

TEST(DelayedTransport, ChangesNothingButTime) {
  const CommunicationOptions slow = {.wrap_transport = [](std::unique_ptr<Transport> inner) {
    return make_delayed_transport(std::move(inner), 1e-5);
  }};
  run_thread_ranks(
      3, [](const std::shared_ptr<ProcessGroup>& world) { testing::check_collectives(*world); },
      slow);
  EXPECT_THROW(make_delayed_transport(nullptr, -1), ValueError);
}

}  // namespace
}  // namespace tapestry
