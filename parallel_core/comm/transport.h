// How bytes get from one rank to another: the only part of communication that differs between
// ranks that are threads and ranks that are processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "parallel_core/comm/label.h"

namespace tapestry {

/// Sent ahead of a message's data, so that the receiver learns what comes before it has to name a
/// place for it. Data of at most kInlineBytes travel with it.
struct Envelope {
  static constexpr int64_t kInlineBytes = 3584;

  enum class Kind : uint8_t { kData, kControl };
  Kind kind = Kind::kData;
  uint8_t control = 0;  ///< what a control message says, see watch.h
  int32_t source = 0;   ///< rank in the world
  int32_t part = 0;     ///< which of the messages of one collective between these two ranks
  Label label;
  int64_t bytes = 0;
  int64_t tag = 0;     ///< the transport's own
  int64_t due_ns = 0;  ///< when it may be seen, see delayed_transport.h
};

/// A transfer that is under way.
class Transfer {
 public:
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  virtual ~Transfer() = default;
  virtual bool done() = 0;
};

/// An envelope that has come, and the way to its data.
struct Arrival {
  Envelope envelope;
  std::vector<std::byte> inline_data;
  const void* remote_data = nullptr;          ///< of a thread rank: the sender's memory
  std::shared_ptr<Transfer> remote_transfer;  ///< of a thread rank: what the sender waits for
};

/// One rank's end. Used by one thread at a time. Envelopes from one rank arrive in the order in
/// which they were sent.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sends envelope.bytes of data, which must stay as they are until the transfer is done. Null if
  /// it is done already.
  virtual std::shared_ptr<Transfer> send(int destination,
                                         const Envelope& envelope,
                                         const void* data) = 0;
  /// The next envelope that has come.
  virtual std::optional<Arrival> next_arrival() = 0;
  /// Brings the data of an arrival that are not inline to `data`. Null if they are there already.
  virtual std::shared_ptr<Transfer> fetch(const Arrival& arrival, void* data) = 0;
  /// Called when there was nothing to do for that long: gives the processor away or sleeps until
  /// something may have happened.
  virtual void pause(double idle_seconds) = 0;
  /// The rank's thread ends: it makes no call any more, though others may still send to it.
  virtual void leave() {}
};

}  // namespace tapestry
