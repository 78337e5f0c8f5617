#include "parallel_core/dist_checkpointing/state_hash.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "nn/parameter_runs.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/slice_runs.h"
#include "parallel_core/dist_checkpointing/stored_tensors.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"

namespace tapestry {

// What this rank adds to the hash of a logical tensor: numbers of its slice.
struct HashTarget {
  nn::LogicalTensor logical;
  ElementRange range;
  size_t slot = 0;
};

// A tensor of a parameter's shape, or a piece of one from its element `first` on.
struct HashSource {
  std::function<Tensor()> values;
  int64_t first = 0;
  bool changes = true;
  std::vector<HashTarget> targets = {};
};

namespace {

constexpr int64_t kHashPiece = 65536;  // elements that a thread takes at once

// Elements [begin, end) of n that this rank of a group takes, where all have all of them.
ElementRange own_share(const ProcessGroup& group, int64_t n) {
  return {n * group.rank() / group.size(), n * (group.rank() + 1) / group.size()};
}

// The logical tensors of a parameter, also of one that has not been told.
std::vector<nn::LogicalTensor> logical_of(const nn::Module::NamedParameter& entry) {
  if (!entry.parameter->logical().empty()) {
    return entry.parameter->logical();
  }
  const Shape& shape = entry.parameter->shape();
  const int64_t size = shape.numel();
  return {{.name = entry.name, .shape = shape, .view_shape = {size}, .axis = 0, .end = size}};
}

TensorHash hash_of_piece(const HashTarget& target,
                         const std::byte* memory,
                         int64_t first,
                         int bytes,
                         ElementRange piece) {
  const FileRuns runs(target.logical, {.name = target.logical.name, .shape = target.logical.shape});
  TensorHash hash;
  nn::for_each_parameter_run(
      target.logical, piece, [&](int64_t number, int64_t element, int64_t count) {
        const std::byte* run = memory + (element - first) * bytes;
        runs.for_each({number, number + count}, [&](const FileRun& whole) {
          hash += kernels::hash_elements(bytes, whole.count, run + (whole.number - number) * bytes,
                                         whole.element);
        });
      });
  return hash;
}

void add_source(const HashSource& source, std::vector<TensorHash>& sums) {
  const Tensor found = source.values();
  if (!found.defined()) {
    return;
  }
  const Tensor values = dense(found.detach());
  const auto* memory = static_cast<const std::byte*>(values.raw());
  const int bytes = static_cast<int>(size_of(values.dtype()));
  for (const HashTarget& target : source.targets) {
    const ElementRange all = target.range;
    const int64_t pieces = (all.size() + kHashPiece - 1) / kHashPiece;
    kernels::parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
      TensorHash hash;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t from = all.begin + i * kHashPiece;
        hash += hash_of_piece(target, memory, source.first, bytes,
                              {from, std::min(all.end, from + kHashPiece)});
      }
      TensorHash& sum = sums[target.slot];
      std::atomic_ref(sum.low).fetch_add(hash.low, std::memory_order_relaxed);
      std::atomic_ref(sum.high).fetch_add(hash.high, std::memory_order_relaxed);
    });
  }
}

// Sums modulo 2^64 over ranks: of 32 bits each, which float64s add without rounding.
void sum_hashes_over(ProcessGroup& group, std::vector<TensorHash>& hashes) {
  std::vector<double> words;
  words.reserve(4 * hashes.size());
  for (const TensorHash& hash : hashes) {
    for (const uint64_t half : {hash.low, hash.high}) {
      words.push_back(static_cast<double>(half & 0xFFFFFFFFU));
      words.push_back(static_cast<double>(half >> 32U));
    }
  }
  sum_over(group, words);
  const auto half = [&](size_t i) {
    return static_cast<uint64_t>(words[i]) + (static_cast<uint64_t>(words[i + 1]) << 32U);
  };
  for (size_t i = 0; i < hashes.size(); ++i) {
    hashes[i] = {.low = half(4 * i), .high = half(4 * i + 2)};
  }
}

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

void absorb(TensorHash& hash, uint64_t word) {
  hash.low = mixed(hash.low ^ word) + 0x9E3779B97F4A7C15U;
  hash.high = mixed(hash.high + std::rotl(word, 31)) ^ hash.low;
}

}  // namespace

struct StateHash::State {
  std::shared_ptr<ProcessGroup> alone = single_process_group();
  ProcessGroup* world = nullptr;
  std::vector<HashSource> sources;
  std::vector<std::string> names;      // of the whole model, sorted: a slot each
  std::vector<TensorHash> unchanging;  // of this rank's share of what is not trained
  bool knows_unchanging = false;

  void add(HashSource source,
           const std::vector<nn::LogicalTensor>& tensors,
           const std::string& state,
           ElementRange part,
           bool of_expert) {
    for (const nn::LogicalTensor& logical : tensors) {
      if (!writes_slice(logical, of_expert)) {
        continue;  // another rank has the same
      }
      HashTarget target{.logical = logical,
                        .range = nn::range_in_part(logical, part.begin, part.size())};
      if (!state.empty()) {
        target.logical.name = state_tensor_name(logical.name, state);
      }
      if (target.range.size() > 0) {
        source.targets.push_back(std::move(target));
      }
    }
    if (!source.targets.empty()) {
      sources.push_back(std::move(source));
    }
  }

  // What this rank hashes of a parameter, and the first element that it has.
  static std::pair<ElementRange, int64_t> own_part(const nn::Module::NamedParameter& entry,
                                                   const optim::Optimizer* optimizer) {
    if (optimizer != nullptr && optimizer->updates_pieces() && !optimizer->is_fixed(entry.name)) {
      const optim::OwnPart own = optimizer->own_part(entry.name);
      return {{own.first, own.first + own.count}, own.first};
    }
    const nn::Parameter& parameter = *entry.parameter;
    return {own_share(copies_group(parameter.flags().expert), parameter.numel()), 0};
  }

  void add_tensor(const nn::Module::NamedParameter& entry,
                  const optim::Optimizer& optimizer,
                  const TensorOf& tensor_of) {
    const auto [part, first] = own_part(entry, &optimizer);
    add({.values = [tensor_of, entry] { return tensor_of(entry); }, .first = first},
        logical_of(entry), "", part, entry.parameter->flags().expert);
  }

  void add_parameter(const nn::Module::NamedParameter& entry,
                     const optim::Optimizer* optimizer,
                     HashedState what) {
    const nn::Parameter& parameter = *entry.parameter;
    const bool of_expert = parameter.flags().expert;
    const bool updated = optimizer != nullptr && !optimizer->is_fixed(entry.name);
    const auto [part, first] = own_part(entry, optimizer);
    const std::vector<nn::LogicalTensor> tensors = logical_of(entry);
    const auto values = [optimizer, updated, name = entry.name, values = &parameter] {
      return updated ? optimizer->own_main_param(name) : Tensor(*values);
    };
    add({.values = values, .first = first, .changes = parameter.requires_grad()}, tensors, "", part,
        of_expert);
    if (!updated || what == HashedState::kWeights || optimizer->steps_done(entry.name) == 0) {
      return;
    }
    for (const optim::StateEntry& state : optimizer->state_entries(entry.name)) {
      if (state.extent == optim::StateExtent::kElement) {
        add({.values = [optimizer, name = entry.name,
                        key = state.key] { return optimizer->own_state(name).at(key); },
             .first = first},
            tensors, state.name, part, of_expert);
      }
    }
  }

  void add_buffer(const nn::Module::NamedBuffer& entry) {
    const int64_t size = entry.buffer.numel();
    const nn::LogicalTensor logical = {.name = entry.logical,
                                       .shape = entry.buffer.shape(),
                                       .view_shape = {size},
                                       .axis = 0,
                                       .end = size};
    add({.values = [buffer = entry.buffer] { return buffer; }}, {logical}, "",
        own_share(copies_group(/*of_expert=*/false), size), /*of_expert=*/false);
  }

  // Gives each name a slot. Collective over the world.
  void number_names() {
    world = model_parallel_is_initialized() ? &get_world_group() : alone.get();
    std::string own;
    for (const HashSource& source : sources) {
      for (const HashTarget& target : source.targets) {
        own += target.logical.name + "\n";
      }
    }
    std::set<std::string> all;
    for (const std::string& text : all_gather_text(*world, own)) {
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = text.find('\n', begin);
        all.insert(text.substr(begin, end - begin));
        begin = end + 1;
      }
    }
    names.assign(all.begin(), all.end());
    for (HashSource& source : sources) {
      for (HashTarget& target : source.targets) {
        const auto place = std::lower_bound(names.begin(), names.end(), target.logical.name);
        target.slot = static_cast<size_t>(place - names.begin());
      }
    }
    unchanging.resize(names.size());
  }
};

StateHash::StateHash(const nn::Module& model, const optim::Optimizer* optimizer, HashedState what)
    : state_(std::make_unique<State>()) {
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!entry.parameter->flags().shared) {
      state_->add_parameter(entry, optimizer, what);
    }
  }
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    if (!entry.logical.empty()) {
      state_->add_buffer(entry);
    }
  }
  state_->number_names();
}

StateHash::StateHash(const nn::Module& model, const optim::Optimizer& optimizer, TensorOf tensor_of)
    : state_(std::make_unique<State>()) {
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!entry.parameter->flags().shared && entry.parameter->requires_grad()) {
      state_->add_tensor(entry, optimizer, tensor_of);
    }
  }
  state_->number_names();
}

StateHash::~StateHash() = default;

TensorHashes StateHash::operator()() {
  if (!std::exchange(state_->knows_unchanging, true)) {
    for (const HashSource& source : state_->sources) {
      if (!source.changes) {
        add_source(source, state_->unchanging);
      }
    }
  }
  std::vector<TensorHash> sums = state_->unchanging;
  for (const HashSource& source : state_->sources) {
    if (source.changes) {
      add_source(source, sums);
    }
  }
  sum_hashes_over(*state_->world, sums);
  TensorHashes hashes;
  for (size_t i = 0; i < sums.size(); ++i) {
    hashes.emplace_hint(hashes.end(), state_->names[i], sums[i]);
  }
  return hashes;
}

TensorHash whole_tensor_hash(const Tensor& tensor) {
  const Tensor values = dense(tensor.detach());
  return kernels::hash_elements(static_cast<int>(size_of(values.dtype())), values.numel(),
                                values.raw(), 0);
}

TensorHash combined_hash(const TensorHashes& hashes, std::span<const double> numbers) {
  TensorHash combined;
  for (const auto& [name, hash] : hashes) {
    uint64_t letters = 0xCBF29CE484222325U;  // FNV-1a
    for (const char letter : name) {
      letters = (letters ^ static_cast<unsigned char>(letter)) * 0x100000001B3U;
    }
    absorb(combined, letters);
    absorb(combined, hash.low);
    absorb(combined, hash.high);
  }
  for (const double number : numbers) {
    const double any_nan = std::numeric_limits<double>::quiet_NaN();
    absorb(combined, std::bit_cast<uint64_t>(std::isnan(number) ? any_nan : number));
  }
  return combined;
}

TensorHash step_hash(const TensorHashes& weights,
                     const TensorHashes& gradients,
                     double loss,
                     double grad_norm) {
  return combined_hash(
      {{"gradients", combined_hash(gradients)}, {"weights", combined_hash(weights)}},
      std::array{loss, grad_norm});
}

std::string short_hash(const TensorHash& hash) {
  const uint64_t both = hash.low ^ std::rotl(hash.high, 17);
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", static_cast<unsigned>(both ^ (both >> 32U)));
  return text;
}

std::string hash_text(const TensorHash& hash) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high),
                static_cast<unsigned long long>(hash.low));
  return text;
}

TensorHash hash_of_text(std::string_view text) {
  constexpr size_t kDigits = 16;
  TensorHash hash;
  bool is_hash = text.size() == 2 * kDigits;
  const auto read = [&](size_t from, uint64_t& half) {
    const char* begin = text.data() + from;
    const auto parsed = std::from_chars(begin, begin + kDigits, half, 16);
    is_hash = parsed.ec == std::errc{} && parsed.ptr == begin + kDigits;
  };
  for (const size_t from : {size_t{0}, kDigits}) {
    if (is_hash) {
      read(from, from == 0 ? hash.high : hash.low);
    }
  }
  check<ValueError>(is_hash, "'", text, "' is no hash, which has 32 hexadecimal digits");
  return hash;
}

}  // namespace tapestry
