#include "parallel_core/pipeline_parallel/p2p_communication.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

P2PCommunication::P2PCommunication(ProcessGroup& group,
                                   const PipelineShape& shape,
                                   PipelineMessages messages)
    : group_(group), shape_(shape), messages_(std::move(messages)) {
  check<ValueError>(group.size() == shape.stages, "pipeline: the group ", group.name(), " has ",
                    group.size(), " ranks, the pipeline ", shape.stages, " stages");
  sources_.resize(static_cast<size_t>(2 * shape_.chunks * shape_.micro_batches));
  if (shape_.stages > 1) {
    const int rank = group_.rank();
    plan_peer((rank + 1) % shape_.stages);
    plan_peer((rank + shape_.stages - 1) % shape_.stages);
  }
}

size_t P2PCommunication::index_of(const PipelinePass& pass) const {
  const int64_t row = pass.chunk + (pass.backward ? shape_.chunks : 0);
  return static_cast<size_t>(row * shape_.micro_batches + pass.micro_batch);
}

// Who needs the result of a pass of `rank`.
P2PCommunication::Target P2PCommunication::target_of(int rank, const PipelinePass& pass) const {
  const int stage = pass.chunk * shape_.stages + rank + (pass.backward ? -1 : 1);
  if (stage < 0 || stage >= shape_.stages * shape_.chunks) {
    return {};
  }
  return {stage % shape_.stages, {pass.backward, stage / shape_.stages, pass.micro_batch}};
}

void P2PCommunication::plan_peer(int rank) {
  const auto [entry, added] = peers_.try_emplace(rank);
  if (!added) {  // both neighbours are one rank
    return;
  }
  Peer& peer = entry->second;
  peer.places.resize(sources_.size());
  const std::vector<PipelinePass> order = pipeline_order(shape_, rank);
  for (size_t place = 0; place < order.size(); ++place) {
    peer.places[index_of(order[place])] = place;
    const Target target = target_of(rank, order[place]);
    if (target.rank == group_.rank()) {
      sources_[index_of(target.pass)] = {rank, peer.incoming.size()};
      peer.incoming.push_back({.needed_by = target.pass, .sent_at = place});
    }
  }
}

// Starts receiving the first `count` messages of a peer.
void P2PCommunication::post(int rank, Peer& peer, size_t count) {
  for (; peer.posted < std::min(count, peer.incoming.size()); ++peer.posted) {
    Incoming& message = peer.incoming[peer.posted];
    message.tensor = empty(messages_.shape(message.needed_by.micro_batch), messages_.dtype);
    message.work = group_.receive_async(message.tensor, rank);
  }
}

void P2PCommunication::wait(Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work.wait();
  waiting_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Tensor P2PCommunication::receive(const PipelinePass& pass) {
  const Source source = sources_[index_of(pass)];
  if (source.rank < 0) {
    return {};
  }
  Peer& peer = peers_.at(source.rank);
  post(source.rank, peer, source.message + (messages_.overlap ? 2 : 1));
  Incoming& message = peer.incoming[source.message];
  wait(*message.work);
  message.work.reset();
  std::erase_if(peer.outgoing, [&](const Outgoing& sent) {
    // The peer has used what its earlier passes needed: this does not wait.
    const bool arrived = sent.needed_at <= message.sent_at;
    if (arrived) {
      sent.work->wait();
    }
    return arrived;
  });
  return std::exchange(message.tensor, {});
}

void P2PCommunication::send(const PipelinePass& pass, const Tensor& value) {
  const Target target = target_of(group_.rank(), pass);
  if (target.rank < 0) {
    return;
  }
  const Shape shape = messages_.shape(pass.micro_batch);
  check<ValueError>(value.defined() && value.shape() == shape && value.dtype() == messages_.dtype,
                    "pipeline: a stage made ", describe(value), " for the next one, which expects ",
                    name_of(messages_.dtype), " ", shape);
  Peer& peer = peers_.at(target.rank);
  peer.outgoing.push_back({.needed_at = peer.places[index_of(target.pass)],
                           .work = group_.send_async(dense(value.detach()), target.rank)});
}

void P2PCommunication::finish() {
  for (auto& [rank, peer] : peers_) {
    for (const Outgoing& sent : peer.outgoing) {
      wait(*sent.work);
    }
    peer.outgoing.clear();
  }
}

}  // namespace tapestry
