#include "parallel_core/dist_checkpointing/state_hash.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "nn/parameter_runs.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/slice_runs.h"
#include "parallel_core/dist_checkpointing/stored_tensors.h"
#include "parallel_core/parallel_state.h"
#include "text/util/checksum.h"

namespace tapestry {

// What this rank has of a logical tensor: numbers of its slice.
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

// The words of all ranks, one rank's after the other's.
std::vector<uint64_t> all_gather_words(ProcessGroup& group, const std::vector<uint64_t>& own) {
  if (group.size() == 1 || own.empty()) {
    return own;
  }
  const auto count = static_cast<int64_t>(own.size());
  const Tensor mine = empty({count}, kInt64);
  const Tensor all = empty({count * group.size()}, kInt64);
  std::memcpy(mine.raw(), own.data(), own.size() * sizeof(uint64_t));
  group.all_gather(all, mine);
  std::vector<uint64_t> words(static_cast<size_t>(all.numel()));
  std::memcpy(words.data(), all.raw(), words.size() * sizeof(uint64_t));
  return words;
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

// A number for which elements of its logical tensor a rank holds; never 0, which is none.
uint64_t part_of(const HashTarget& target) {
  TensorHash hash;
  absorb(hash, static_cast<uint64_t>(target.range.begin));
  absorb(hash, static_cast<uint64_t>(target.range.end));
  for (const Shape* sizes : {&target.logical.offset, &target.logical.local_shape()}) {
    for (const int64_t size : *sizes) {
      absorb(hash, static_cast<uint64_t>(size));
    }
  }
  return hash.low | 1U;
}

}  // namespace

struct StateHash::State {
  std::shared_ptr<ProcessGroup> alone = single_process_group();
  ProcessGroup* world = nullptr;
  std::vector<HashSource> sources;
  std::vector<std::string> names;      // of the whole model, sorted: a slot each
  std::vector<uint64_t> parts;         // of each rank, which part of each tensor it has
  std::vector<TensorHash> unchanging;  // of this rank's part of what is not trained
  std::vector<std::string> differing;
  bool knows_unchanging = false;

  void add(HashSource source,
           const std::vector<nn::LogicalTensor>& tensors,
           const std::string& state,
           ElementRange part) {
    for (const nn::LogicalTensor& logical : tensors) {
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
    return {{0, parameter.numel()}, 0};
  }

  void add_tensor(const nn::Module::NamedParameter& entry,
                  const optim::Optimizer& optimizer,
                  const TensorOf& tensor_of) {
    const auto [part, first] = own_part(entry, &optimizer);
    add({.values = [tensor_of, entry] { return tensor_of(entry); }, .first = first},
        logical_of(entry), "", part);
  }

  void add_parameter(const nn::Module::NamedParameter& entry,
                     const optim::Optimizer* optimizer,
                     HashedState what) {
    const nn::Parameter& parameter = *entry.parameter;
    const bool updated = optimizer != nullptr && !optimizer->is_fixed(entry.name);
    const auto [part, first] = own_part(entry, optimizer);
    const std::vector<nn::LogicalTensor> tensors = logical_of(entry);
    const auto values = [optimizer, updated, name = entry.name, values = &parameter] {
      return updated ? optimizer->own_main_param(name) : Tensor(*values);
    };
    add({.values = values, .first = first, .changes = parameter.requires_grad()}, tensors, "",
        part);
    if (!updated || what == HashedState::kWeights || optimizer->steps_done(entry.name) == 0) {
      return;
    }
    for (const optim::StateEntry& state : optimizer->state_entries(entry.name)) {
      if (state.extent == optim::StateExtent::kElement) {
        add({.values = [optimizer, name = entry.name,
                        key = state.key] { return optimizer->own_state(name).at(key); },
             .first = first},
            tensors, state.name, part);
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
    add({.values = [buffer = entry.buffer] { return buffer; }}, {logical}, "", {0, size});
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
    std::vector<uint64_t> own_parts(names.size());
    for (const HashSource& source : sources) {
      for (const HashTarget& target : source.targets) {
        own_parts[target.slot] = part_of(target);
      }
    }
    parts = all_gather_words(*world, own_parts);
  }

  // The hash of a whole tensor from those of all ranks' parts: hash_on(rank).
  template <class HashOn>
  TensorHash whole_hash(size_t slot, const HashOn& hash_on) {
    TensorHash whole;
    std::map<uint64_t, TensorHash> found;  // by part
    bool differs = false;
    for (size_t rank = 0; rank * names.size() < parts.size(); ++rank) {
      const uint64_t part = parts[rank * names.size() + slot];
      if (part == 0) {
        continue;
      }
      const TensorHash hash = hash_on(rank);
      const auto [first, is_first] = found.emplace(part, hash);
      if (is_first) {
        whole += hash;
      } else if (first->second != hash) {
        absorb(whole, hash.low);
        absorb(whole, hash.high);
        if (!std::exchange(differs, true)) {
          differing.push_back(concat(names[slot], " on rank ", rank));
        }
      }
    }
    return whole;
  }

  // Those of all tensors. Collective.
  TensorHashes bring_together(const std::vector<TensorHash>& own) {
    std::vector<uint64_t> words;
    words.reserve(2 * own.size());
    for (const TensorHash& hash : own) {
      words.insert(words.end(), {hash.low, hash.high});
    }
    words = all_gather_words(*world, words);
    differing.clear();
    TensorHashes hashes;
    for (size_t slot = 0; slot < names.size(); ++slot) {
      const TensorHash whole = whole_hash(slot, [&](size_t rank) {
        const size_t place = 2 * (rank * names.size() + slot);
        return TensorHash{.low = words[place], .high = words[place + 1]};
      });
      hashes.emplace_hint(hashes.end(), names[slot], whole);
    }
    return hashes;
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
  return state_->bring_together(sums);
}

const std::vector<std::string>& StateHash::differing_copies() const { return state_->differing; }

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
  return data::hexadecimal(both ^ (both >> 32U)).substr(8);
}

std::string hash_text(const TensorHash& hash) {
  return data::hexadecimal(hash.high) + data::hexadecimal(hash.low);
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
