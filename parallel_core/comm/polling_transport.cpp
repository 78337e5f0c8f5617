#include "parallel_core/comm/polling_transport.h"

#include <sched.h>

#include <chrono>
#include <thread>
#include <utility>

#include "parallel_core/comm/forwarding_transport.h"

namespace tapestry {

namespace {

class PollingTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  void pause(double idle_seconds) override { rest_between_looks(idle_seconds); }
};

}  // namespace

void rest_between_looks(double idle_seconds) {
  constexpr double kBusy = 2e-3;
  constexpr auto kRest = std::chrono::microseconds(50);
  if (idle_seconds < kBusy) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(kRest);
  }
}

std::unique_ptr<Transport> make_polling_transport(std::unique_ptr<Transport> inner) {
  return std::make_unique<PollingTransport>(std::move(inner));
}

CommunicationOptions waiting_like_processes() {
  CommunicationOptions options;
  options.wrap_transport = make_polling_transport;
  return options;
}

}  // namespace tapestry
