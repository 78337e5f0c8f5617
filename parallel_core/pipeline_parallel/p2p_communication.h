// Messages between the stages of a pipeline.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/pipeline_parallel/pipeline_order.h"

namespace tapestry {

/// What is sent from stage to stage: hidden states forward, their gradients back, both of one
/// shape.
struct PipelineMessages {
  std::function<Shape(int64_t micro_batch)> shape;
  DType dtype = kFloat32;
  /// Receive one message ahead of the pass that needs it, so that it comes while the rank computes.
  bool overlap = true;
};

/// Carries the messages of one step for the calling rank of a pipeline.
///
/// Every message has a known place in its sender's order of passes, so a rank receives in exactly
/// that order, whatever mixture of forward and backward messages two ranks exchange (with two
/// stages and interleaving both neighbours are the same rank). Sending never waits: a sent tensor
/// is let go when a later message of the receiver shows that it has arrived.
class P2PCommunication {
 public:
  /// The group's ranks are the pipeline's, in order. ValueError if it has another size than the
  /// pipeline.
  P2PCommunication(ProcessGroup& group, const PipelineShape& shape, PipelineMessages messages);

  /// What a pass of this rank needs from its neighbour: the previous stage's hidden states for a
  /// forward pass, their gradient from the next stage for a backward pass; undefined where there is
  /// no such stage. Waits for it.
  Tensor receive(const PipelinePass& pass);

  /// Starts sending what a pass of this rank made to the stage that needs it; does nothing if there
  /// is none. ValueError if `value` has another shape or dtype than the messages.
  void send(const PipelinePass& pass, const Tensor& value);

  /// Waits until everything that was sent has arrived.
  void finish();

  /// Seconds that receive() and finish() have waited.
  double waiting_seconds() const { return waiting_seconds_; }

 private:
  struct Incoming {
    PipelinePass needed_by;
    size_t sent_at = 0;  // place of the pass that makes it in the sender's order
    Tensor tensor;
    WorkHandle work;
  };
  struct Outgoing {
    size_t needed_at = 0;  // place of the pass that needs it in the receiver's order
    WorkHandle work;
  };
  struct Peer {
    std::vector<size_t> places;      // of each pass in the peer's order, by index_of
    std::vector<Incoming> incoming;  // in the order in which the peer sends
    size_t posted = 0;
    std::vector<Outgoing> outgoing;
  };
  struct Target {
    int rank = -1;  // none
    PipelinePass pass;
  };

  size_t index_of(const PipelinePass& pass) const;
  Target target_of(int rank, const PipelinePass& pass) const;
  void plan_peer(int rank);
  void post(int rank, Peer& peer, size_t count);
  void wait(Work& work);

  ProcessGroup& group_;
  PipelineShape shape_;
  PipelineMessages messages_;
  std::map<int, Peer> peers_;
  struct Source {
    int rank = -1;  // none
    size_t message = 0;
  };
  std::vector<Source> sources_;  // of each own pass, by index_of
  double waiting_seconds_ = 0;
};

}  // namespace tapestry
