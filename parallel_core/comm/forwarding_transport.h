// What stands between a communicator and its transport, and changes some of its calls.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "parallel_core/comm/transport.h"

namespace tapestry {

/// Hands every call on to `inner`.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::shared_ptr<Transfer> send(int destination,
                                 const Envelope& envelope,
                                 const void* data) override {
    return inner_->send(destination, envelope, data);
  }
  std::optional<Arrival> next_arrival() override { return inner_->next_arrival(); }
  std::shared_ptr<Transfer> fetch(const Arrival& arrival, void* data) override {
    return inner_->fetch(arrival, data);
  }
  void pause(double idle_seconds) override { inner_->pause(idle_seconds); }
  void leave() override { inner_->leave(); }

 private:
  std::unique_ptr<Transport> inner_;
};

}  // namespace tapestry
