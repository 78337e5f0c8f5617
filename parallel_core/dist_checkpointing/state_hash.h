// Hashes of what a model and its optimizer hold, which no layout changes.
//
// The hash of a logical tensor (unfused, whole) is a sum over its elements
// (kernels/element_hash.h), to which each rank adds what it has. What several ranks hold copies of
// is hashed by each of them and counts once; copies that differ are told, and change the hash.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/kernels/exact/element_hash.h"
#include "nn/module.h"
#include "optim/optimizer.h"

namespace tapestry {

/// 128 bits.
using TensorHash = kernels::ElementHash;

/// By logical name; states of the optimizer as NAME.STATE (state_tensor_name).
using TensorHashes = std::map<std::string, TensorHash>;

/// 32 hexadecimal digits, high half first; and the other way round: ValueError for anything else.
std::string hash_text(const TensorHash& hash);
TensorHash hash_of_text(std::string_view text);

/// One hash of them all, with their names, and of further numbers, bit by bit; NaNs are all alike.
TensorHash combined_hash(const TensorHashes& hashes, std::span<const double> numbers = {});

/// The hash of a step: of the weights after it, the gradients that it was made with, before
/// clipping (none where they were not finite), its loss and the norm of its gradients.
TensorHash step_hash(const TensorHashes& weights,
                     const TensorHashes& gradients,
                     double loss,
                     double grad_norm);

/// 32 bits of a hash, as 8 hexadecimal digits: enough to say which of two tensors differ.
std::string short_hash(const TensorHash& hash);

/// What is hashed.
enum class HashedState : uint8_t {
  kWeights,           ///< parameters and buffers with a logical name
  kWeightsAndStates,  ///< and the states of the optimizer's that there are when that is asked for
};

/// Hashes of all logical tensors of a model, again and again while it is trained. Of a 16-bit
/// parameter with an optimizer: of its float32 master, as checkpoints hold it.
class StateHash {
 public:
  /// The names of all stages and experts are brought together: collective over the world. Both
  /// arguments outlive the object; without an optimizer the parameters themselves are hashed.
  StateHash(const nn::Module& model,
            const optim::Optimizer* optimizer,
            HashedState what = HashedState::kWeights);
  /// Of other tensors in place of the trained parameters, of which this rank has what it updates of
  /// the parameter, flat or not: gradients. An undefined one has the hash 0.
  using TensorOf = std::function<Tensor(const nn::Module::NamedParameter&)>;
  StateHash(const nn::Module& model, const optim::Optimizer& optimizer, TensorOf tensor_of);
  StateHash(const StateHash&) = delete;
  StateHash& operator=(const StateHash&) = delete;
  ~StateHash();

  /// Of all tensors, on every rank. Parameters that are not trained are hashed by the first call
  /// alone. Collective over the world.
  TensorHashes operator()();
  /// What the last call has found of copies with other bits: "NAME on rank 3", of each tensor one;
  /// the same on every rank.
  const std::vector<std::string>& differing_copies() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Of tensors that are whole on this rank, for comparisons: the same hashes as a StateHash's. In
/// the dtype that they have here.
TensorHash whole_tensor_hash(const Tensor& tensor);

}  // namespace tapestry
