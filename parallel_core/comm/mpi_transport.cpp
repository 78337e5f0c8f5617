#include "parallel_core/comm/mpi_transport.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/polling_transport.h"

namespace tapestry {

namespace {

constexpr int kEnvelopeTag = 0;
constexpr int kFirstDataTag = 1;
constexpr int64_t kLargestMessage = int64_t{1} << 30U;  // MPI counts bytes in an int
constexpr size_t kPostedReceives = 32;

void call(int result, const char* what) {
  if (result != MPI_SUCCESS) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(result, text.data(), &length);
    throw CommError(concat(what, ": ", std::string(text.data(), static_cast<size_t>(length))));
  }
}

struct Packet {
  Envelope envelope;
  std::array<std::byte, Envelope::kInlineBytes> data;
};
static_assert(std::is_trivially_copyable_v<Packet>);

size_t packet_size(const Envelope& envelope) {
  const int64_t carried = envelope.bytes <= Envelope::kInlineBytes ? envelope.bytes : 0;
  return offsetof(Packet, data) + static_cast<size_t>(carried);
}

// Any number of requests, done together. A packet that is being sent is kept.
class MpiTransfer final : public Transfer {
 public:
  std::vector<MPI_Request>& requests() { return requests_; }
  bool done() override {
    if (!requests_.empty()) {
      int all = 0;
      call(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all,
                       MPI_STATUSES_IGNORE),
           "MPI_Testall");
      if (all == 0) {
        return false;
      }
      requests_.clear();
    }
    return true;
  }

 private:
  std::vector<MPI_Request> requests_;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    call(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    call(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    call(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    call(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    void* limit = nullptr;
    int found = 0;
    call(MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&limit), &found),
         "MPI_Comm_get_attr");
    if (found != 0) {
      last_tag_ = *static_cast<int*>(limit);
    }
    next_tag_.assign(static_cast<size_t>(size_), kFirstDataTag);
    incoming_.resize(kPostedReceives);
    for (Incoming& slot : incoming_) {
      post(slot);
    }
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;
  ~MpiTransport() override {
    for (Incoming& slot : incoming_) {
      MPI_Cancel(&slot.request);
      MPI_Wait(&slot.request, MPI_STATUS_IGNORE);
    }
    for (Outgoing& packet : outgoing_) {
      MPI_Wait(&packet.request, MPI_STATUS_IGNORE);
    }
    MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::shared_ptr<Transfer> send(int destination,
                                 const Envelope& envelope,
                                 const void* data) override {
    Outgoing& outgoing = free_packet();
    outgoing.packet->envelope = envelope;
    const bool separate = envelope.bytes > Envelope::kInlineBytes;
    const int tag = separate ? take_tag(destination) : kEnvelopeTag;
    outgoing.packet->envelope.tag = tag;
    if (!separate && envelope.bytes > 0) {
      std::memcpy(outgoing.packet->data.data(), data, static_cast<size_t>(envelope.bytes));
    }
    call(MPI_Isend(outgoing.packet.get(), static_cast<int>(packet_size(envelope)), MPI_BYTE,
                   destination, kEnvelopeTag, comm_, &outgoing.request),
         "MPI_Isend");
    if (!separate) {
      return nullptr;
    }
    auto transfer = std::make_shared<MpiTransfer>();
    for (int64_t at = 0; at < envelope.bytes; at += kLargestMessage) {
      const auto count = static_cast<int>(std::min(kLargestMessage, envelope.bytes - at));
      transfer->requests().emplace_back();
      call(MPI_Isend(static_cast<const std::byte*>(data) + at, count, MPI_BYTE, destination, tag,
                     comm_, &transfer->requests().back()),
           "MPI_Isend");
    }
    return transfer;
  }

  // The receives complete in the order in which they were posted, as all match every envelope.
  std::optional<Arrival> next_arrival() override {
    Incoming& slot = incoming_[next_incoming_];
    int arrived = 0;
    call(MPI_Test(&slot.request, &arrived, MPI_STATUS_IGNORE), "MPI_Test");
    if (arrived == 0) {
      return std::nullopt;
    }
    Arrival arrival;
    arrival.envelope = slot.packet->envelope;
    if (arrival.envelope.bytes <= Envelope::kInlineBytes) {
      const auto* data = slot.packet->data.data();
      arrival.inline_data.assign(data, data + arrival.envelope.bytes);
    }
    post(slot);
    next_incoming_ = (next_incoming_ + 1) % incoming_.size();
    return arrival;
  }

  std::shared_ptr<Transfer> fetch(const Arrival& arrival, void* data) override {
    const Envelope& envelope = arrival.envelope;
    auto transfer = std::make_shared<MpiTransfer>();
    for (int64_t at = 0; at < envelope.bytes; at += kLargestMessage) {
      const auto count = static_cast<int>(std::min(kLargestMessage, envelope.bytes - at));
      transfer->requests().emplace_back();
      call(MPI_Irecv(static_cast<std::byte*>(data) + at, count, MPI_BYTE, envelope.source,
                     static_cast<int>(envelope.tag), comm_, &transfer->requests().back()),
           "MPI_Irecv");
    }
    return transfer;
  }

  void pause(double idle_seconds) override { rest_between_looks(idle_seconds); }

 private:
  struct Incoming {
    std::unique_ptr<Packet> packet;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Outgoing {
    std::unique_ptr<Packet> packet;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void post(Incoming& slot) {
    if (slot.packet == nullptr) {
      slot.packet = std::make_unique<Packet>();
    }
    call(MPI_Irecv(slot.packet.get(), sizeof(Packet), MPI_BYTE, MPI_ANY_SOURCE, kEnvelopeTag, comm_,
                   &slot.request),
         "MPI_Irecv");
  }

  // Packets leave in about the order of sending, so the oldest is looked at first.
  Outgoing& free_packet() {
    if (!outgoing_.empty()) {
      int sent = 0;
      call(MPI_Test(&outgoing_.front().request, &sent, MPI_STATUS_IGNORE), "MPI_Test");
      if (sent != 0) {
        outgoing_.push_back(std::move(outgoing_.front()));
        outgoing_.pop_front();
        return outgoing_.back();
      }
    }
    outgoing_.emplace_back();
    outgoing_.back().packet = std::make_unique<Packet>();
    return outgoing_.back();
  }

  int take_tag(int destination) {
    int& next = next_tag_[static_cast<size_t>(destination)];
    const int tag = next;
    next = tag == last_tag_ ? kFirstDataTag : tag + 1;
    return tag;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int last_tag_ = 32767;  // what the standard guarantees
  std::vector<int> next_tag_;
  std::vector<Incoming> incoming_;
  size_t next_incoming_ = 0;
  std::deque<Outgoing> outgoing_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport() { return std::make_unique<MpiTransport>(); }

}  // namespace tapestry
