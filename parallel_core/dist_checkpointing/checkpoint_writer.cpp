#include "parallel_core/dist_checkpointing/checkpoint_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/crc32c.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "interop/architectures/file_place.h"
#include "interop/architectures/hf_folder.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/dist_checkpointing/peft_names.h"
#include "parallel_core/dist_checkpointing/peft_plan.h"
#include "parallel_core/dist_checkpointing/shard_files.h"
#include "parallel_core/dist_checkpointing/slice_runs.h"
#include "parallel_core/dist_checkpointing/stored_hashes.h"
#include "parallel_core/dist_checkpointing/stored_tensors.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ProcessGroup& all_ranks() {
  static const std::shared_ptr<ProcessGroup> alone = single_process_group();
  return model_parallel_is_initialized() ? get_world_group() : *alone;
}

uintmax_t free_bytes(const fs::path& folder) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return error ? 0 : space.available;
}

std::string bytes_text(uintmax_t bytes) {
  const bool small = bytes < (1U << 20U);
  char text[40];
  std::snprintf(text, sizeof(text), small ? "%.1f KiB" : "%.1f MiB",
                static_cast<double>(bytes) / (small ? 1U << 10U : 1U << 20U));
  return text;
}

// Gives a complete folder its name. What an earlier run left under that name is never missing: the
// two names are exchanged at once, or where the file system cannot do that, one after the other.
void put_in_place(const fs::path& temporary, const fs::path& folder) {
  if (!fs::exists(folder)) {
    fs::rename(temporary, folder);
    return;
  }
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  const fs::path aside = folder.string() + ".old";
  fs::remove_all(aside);
  fs::rename(folder, aside);
  fs::rename(temporary, folder);
  fs::remove_all(aside);
}

// Elements of a slice or of a whole parameter.
Tensor flat(const Tensor& values) { return dense(values.detach()).view({values.numel()}); }

// A group of ranks with the same parameters divides the writing of what it does not divide.
struct Writers {
  int rank = 0;
  int size = 1;
};
Writers writers_of(bool of_expert) {
  const ProcessGroup& group = copies_group(of_expert);
  return {.rank = group.rank(), .size = group.size()};
}

// The first of the ranks that hold a parameter, or a copy or slice of it.
bool is_first_holder(bool of_expert) {
  return copies_group(of_expert).rank() == 0 && slices_group(of_expert).rank() == 0;
}

}  // namespace

// Where every tensor of every file begins.
struct CheckpointWriter::Layout {
  struct Place {
    size_t file;
    FileRanges ranges;
  };
  std::map<std::string, Place> weights;
  std::map<std::string, Place> states;
  DType dtype = kFloat32;  // of the weights
};

CheckpointWriter::CheckpointWriter(const ParallelModel& model,
                                   const TransformerConfig& config,
                                   int64_t step,
                                   CheckpointOptions options,
                                   const optim::Optimizer* optimizer)
    : world_(all_ranks()),
      config_(config),
      adapters_(plan_adapter(config)),
      options_(std::move(options)),
      step_(step),
      has_file_names_(model.has_file_names_of_config()) {
  const std::string name = checkpoint_name(step);
  folder_ = (fs::path(options_.directory) / name).string();
  temporary_ = (fs::path(options_.directory) / concat(".", name, ".tmp")).string();
  try {
    all_or_none(world_, [&] { plan_files(model, optimizer); });
    all_or_none_on_disk(world_, [&] {
      if (is_first()) {
        make_files();
      }
    });
  } catch (...) {
    remove_temporary();
    rethrow(std::current_exception());
  }
}

CheckpointWriter::~CheckpointWriter() { remove_temporary(); }

bool CheckpointWriter::is_first() const { return world_.rank() == 0; }

FileNames CheckpointWriter::file_names() const {
  if (!has_file_names_) {
    return NameScheme::kLogical;
  }
  return {options_.ckpt_prefix.empty() ? name_scheme(config_) : NameScheme::kModules, config_};
}

std::map<std::string, double> CheckpointWriter::numbers_beside() const {
  return stored_part() == StoredPart::kAll ? fixed_numbers(file_names())
                                           : std::map<std::string, double>();
}

StoredPart CheckpointWriter::stored_part() const {
  return config_.lora.use_lora ? StoredPart::kTrained : StoredPart::kAll;
}

FilePlace CheckpointWriter::place_of(const std::string& logical, const Shape& shape) const {
  return stored_part() == StoredPart::kTrained ? peft_place(file_names(), adapters_, logical, shape)
                                               : file_place(file_names(), logical, shape);
}

std::vector<FilePlace> CheckpointWriter::further_places_of(const std::string& logical,
                                                           const Shape& shape) const {
  std::vector<FilePlace> out;
  if (stored_part() == StoredPart::kAll) {
    for (const std::string& name : further_names(file_names(), logical)) {
      out.push_back({.name = name, .shape = shape});
    }
  } else if (const std::string twin = peft_twin(config_, logical); !twin.empty()) {
    out.push_back({.name = twin, .shape = shape});
  }
  return out;
}

void CheckpointWriter::plan_files(const ParallelModel& model, const optim::Optimizer* optimizer) {
  const bool adapter = stored_part() == StoredPart::kTrained;
  check<ValueError>(!adapter || options_.ckpt_prefix.empty(),
                    "training_config.ckpt_format: ckpt: adapters are saved as PEFT has them, in "
                    "safetensors; leave this key out with lora_config.use_lora");
  const StoredTensors saved = stored_tensors(model, optimizer, stored_part());
  std::vector<TensorInfo> weights;
  std::vector<TensorInfo> states;
  std::set<std::string> known;
  for (const StoredTensor& tensor : saved.tensors) {
    const FilePlace place = place_of(tensor.name, tensor.shape);
    if (known.insert(place.name).second) {
      weights.push_back({place.name, tensor.dtype, place.shape});
    }
    for (const FilePlace& further : further_places_of(tensor.name, tensor.shape)) {
      weights.push_back({further.name, tensor.dtype, further.shape});
    }
    for (const auto& [state, stored] :
         options_.with_states ? tensor.states : std::map<std::string, StoredState>()) {
      states.push_back({state_tensor_name(tensor.name, state), stored.dtype, stored.shape});
    }
  }
  for (const StoredBuffer& buffer : saved.buffers) {
    states.push_back({buffer_tensor_name(buffer.name), buffer.dtype, buffer.shape});
  }
  // All weights have one dtype; a stage without any has nothing to say of it.
  const DType dtype = saved.tensors.empty() ? config_.params_dtype : saved.tensors.front().dtype;
  for (const auto& [name, number] : numbers_beside()) {
    weights.push_back({name, dtype, {}});
  }
  Layout layout;
  layout.dtype = dtype;
  const auto add = [&](const std::string& stem, const std::vector<TensorInfo>& tensors,
                       std::map<std::string, Layout::Place>& places) {
    const auto plan = options_.ckpt_prefix.empty() ? plan_shards : plan_ckpt;
    // PEFT has one file, whatever it takes.
    ShardFiles shards =
        plan(stem, tensors, stem == kAdapterStem ? UINT64_MAX : options_.max_shard_bytes);
    for (PlannedFile& file : shards.files) {
      for (auto& [tensor, ranges] : file.tensors) {
        places[tensor] = {.file = files_.size(), .ranges = std::move(ranges)};
      }
      file.tensors.clear();
      files_.push_back(std::move(file));
    }
    if (!shards.index.empty()) {
      texts_[shards.index_name] = shards.index;
    }
  };
  const std::string& prefix = options_.ckpt_prefix;
  add(adapter          ? kAdapterStem
      : prefix.empty() ? kWeightsStem
                       : ckpt_weights_stem(prefix),
      weights, layout.weights);
  if (!states.empty()) {
    add(prefix.empty() ? kTrainingStateStem : ckpt_states_stem(prefix), states, layout.states);
  }
  for (const PlannedFile& file : files_) {
    times_.bytes += file.size;
  }
  add_sources(model, optimizer, layout);
  if (!is_first()) {
    return;
  }
  texts_.merge(hf_files(config_, has_file_names_, dtype, options_.source));
  if (adapter) {
    texts_.erase("config.json");  // that of the base, and beside that
    texts_[kAdapterConfigFile] = options_.adapter_config.empty()
                                     ? peft_config_text(peft_config_of(config_, /*base=*/""))
                                     : options_.adapter_config;
    if (!options_.base_model.empty()) {
      texts_[kBaseModelFile] = options_.base_model;
    }
  }
  texts_["config.yaml"] = options_.resolved_config;
  if (!options_.hashes.empty()) {
    texts_[kHashesFile] = options_.hashes;
  }
  if (!options_.training_state.empty()) {
    texts_[kTrainingStateFile] =
        training_state_text(options_.training_state, step_, saved, optimizer);
  }
}

void CheckpointWriter::add_sources(const ParallelModel& model,
                                   const optim::Optimizer* optimizer,
                                   const Layout& layout) {
  int next = 0;  // who writes what all data-parallel ranks have
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const nn::Parameter& parameter = *entry.parameter;
    if (!is_stored(parameter, stored_part())) {
      continue;
    }
    const bool of_expert = parameter.flags().expert;
    const Writers writers = writers_of(of_expert);
    optim::Optimizer::OwnPart part{.shape = parameter.shape(), .count = parameter.numel()};
    if (optimizer != nullptr) {
      part = optimizer->own_part(entry.name);
    }
    if (optimizer == nullptr || !optimizer->updates_pieces()) {  // whole on every one of them
      const int writer = options_.remove_redundancy ? next++ % writers.size : 0;
      if (writers.rank != writer) {
        continue;
      }
    }
    const auto add = [&](std::function<Tensor()> values, const auto& target_of) {
      Source source{.values = std::move(values), .first = part.first, .copy = {}, .targets = {}};
      for (const nn::LogicalTensor& logical : parameter.logical()) {
        if (writes_slice(logical, of_expert)) {
          target_of(logical, source.targets);
        }
      }
      if (!source.targets.empty() && part.count > 0) {
        sources_.push_back(std::move(source));
      }
    };
    add(
        [optimizer, name = entry.name, values = &parameter] {
          return optimizer == nullptr ? Tensor(*values) : optimizer->own_main_param(name);
        },
        [&](const nn::LogicalTensor& logical, std::vector<Target>& targets) {
          const auto add_target = [&](FilePlace place) {
            const Layout::Place& at = layout.weights.at(place.name);
            targets.push_back({.logical = &logical,
                               .place = std::move(place),
                               .file = at.file,
                               .ranges = at.ranges,
                               .only_finite = !options_.allow_nonfinite});
          };
          add_target(place_of(logical.name, logical.shape));
          for (const FilePlace& further : further_places_of(logical.name, logical.shape)) {
            add_target(further);
          }
        });
    if (optimizer == nullptr || !options_.with_states || optimizer->steps_done(entry.name) == 0) {
      continue;
    }
    for (const optim::Optimizer::StateEntry& state : optimizer->state_entries(entry.name)) {
      if (state.extent != optim::StateExtent::kElement) {
        continue;  // add_whole_sources
      }
      add([optimizer, name = entry.name,
           key = state.key] { return optimizer->own_state(name).at(key); },
          [&](const nn::LogicalTensor& logical, std::vector<Target>& targets) {
            const std::string name = state_tensor_name(logical.name, state.name);
            const Layout::Place& at = layout.states.at(name);
            targets.push_back({.logical = &logical,
                               .place = {.name = name, .shape = logical.shape},
                               .file = at.file,
                               .ranges = at.ranges});
          });
    }
  }
  add_whole_sources(model, optimizer, layout);
}

// What every rank of a stage has whole that holds a part of a parameter: the first of them writes
// it.
void CheckpointWriter::add_whole_sources(const ParallelModel& model,
                                         const optim::Optimizer* optimizer,
                                         const Layout& layout) {
  const auto add_to = [&](const std::map<std::string, Layout::Place>& places, FilePlace place,
                          std::function<Tensor()> values) {
    const Layout::Place& at = places.at(place.name);
    sources_.push_back({.values = std::move(values),
                        .first = 0,
                        .copy = {},
                        .targets = {{.logical = nullptr,
                                     .place = std::move(place),
                                     .file = at.file,
                                     .ranges = at.ranges}}});
  };
  const auto add = [&](const std::string& name, const Shape& shape,
                       std::function<Tensor()> values) {
    add_to(layout.states, {.name = name, .shape = shape}, std::move(values));
  };
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const bool has_states = optimizer != nullptr && options_.with_states &&
                            is_stored(*entry.parameter, stored_part()) &&
                            is_first_holder(entry.parameter->flags().expert) &&
                            !entry.parameter->logical().empty() &&
                            optimizer->steps_done(entry.name) > 0;
    for (const auto& state : has_states ? optimizer->state_entries(entry.name)
                                        : std::vector<optim::Optimizer::StateEntry>()) {
      if (state.extent != optim::StateExtent::kElement && state.shape.numel() > 0) {
        const nn::LogicalTensor& logical = entry.parameter->logical()[state.logical];
        add(state_tensor_name(logical.name, state.name), state.shape,
            [optimizer, name = entry.name, key = state.key] {
              return optimizer->own_state(name).at(key);
            });
      }
    }
  }
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    if (entry.buffer.numel() == 0 || !is_first_holder(/*of_expert=*/false)) {
      continue;
    }
    const auto values = [buffer = entry.buffer] { return buffer; };
    if (entry.logical.empty()) {
      add(buffer_tensor_name(entry.name), entry.buffer.shape(), values);
    } else if (stored_part() == StoredPart::kAll) {
      add_to(layout.weights, file_place(file_names(), entry.logical, entry.buffer.shape()), values);
    }
  }
  if (is_first()) {
    for (const auto& [name, number] : numbers_beside()) {
      add_to(layout.weights, {.name = name, .shape = {}},
             [number = number, dtype = layout.dtype] { return full({}, number, dtype); });
    }
  }
}

void CheckpointWriter::make_files() {
  fs::create_directories(options_.directory);
  fs::remove_all(temporary_);
  uint64_t bytes = times_.bytes;
  for (const auto& [name, text] : texts_) {
    bytes += text.size();
  }
  // Where the answer is 0 the file system cannot tell; making the files will.
  const uintmax_t available = free_bytes(options_.directory);
  check<StorageError>(available == 0 || available > bytes, temporary_, ": there is no room for ",
                      bytes, " bytes");
  fs::create_directory(temporary_);
  for (const PlannedFile& file : files_) {
    create_range_file((fs::path(temporary_) / file.name).string(), file.size);
  }
}

void CheckpointWriter::snapshot() {
  const auto start = Clock::now();
  try {
    const NoGradGuard guard;
    for (Source& source : sources_) {
      const Tensor values = flat(source.values());
      source.copy = empty(values.shape(), values.dtype());
      copy_values(values, source.copy);
      source.values = nullptr;
    }
  } catch (...) {
    failure_ = std::current_exception();
  }
  times_.snapshot_seconds = seconds_since(start);
}

void CheckpointWriter::write() noexcept {
  if (failure_) {
    return;
  }
  try {
    const NoGradGuard guard;
    write_parts();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void CheckpointWriter::write_source(const Source& source, std::vector<RangeFile>& files) {
  const Part part{.values = source.copy.defined() ? source.copy : flat(source.values()),
                  .first = source.first};
  for (const Target& target : source.targets) {
    RangeFile& file = files[target.file];
    if (target.logical == nullptr) {
      write_ranges(target.ranges, 0, part.values.raw(),
                   static_cast<size_t>(part.values.numel() * size_of(part.values.dtype())), file);
    } else {
      write_part(*target.logical, target.place, part, target.only_finite, target.ranges, file);
    }
  }
}

void CheckpointWriter::write_parts() {
  auto start = Clock::now();
  std::vector<RangeFile> files;
  for (const PlannedFile& file : files_) {
    files.emplace_back((fs::path(temporary_) / file.name).string());
    if (is_first()) {
      for (const auto& [begin, text] : file.fixed) {
        files.back().write_at(begin, text.data(), text.size());
      }
    }
  }
  for (const Source& source : sources_) {
    write_source(source, files);
  }
  for (RangeFile& file : files) {
    file.sync();
    times_.own_bytes += file.written_bytes();
    checksum_parts_.push_back(file.checksum_part());
  }
  times_.write_seconds = seconds_since(start);
  start = Clock::now();
  for (RangeFile& file : files) {
    file.verify();
  }
  times_.verify_seconds = seconds_since(start);
}

void CheckpointWriter::complete_folder(const std::vector<uint32_t>& checksums) {
  Manifest manifest{.step = step_, .files = {}};
  for (size_t i = 0; i < files_.size(); ++i) {
    manifest.files[files_[i].name] = {.bytes = files_[i].size, .crc32c = checksums[i]};
  }
  for (const auto& [name, text] : texts_) {
    write_file_atomically((fs::path(temporary_) / name).string(), text);
    manifest.files[name] = {.bytes = text.size(), .crc32c = crc32c(text.data(), text.size())};
  }
  write_file_atomically((fs::path(temporary_) / kManifestFile).string(), manifest_text(manifest));
  sync_directory(temporary_);
  put_in_place(temporary_, folder_);
  sync_directory(options_.directory);
  // Each file was read back; that the folder under the name is this one is left to see.
  const std::string there = fs::exists(folder_)
                                ? fault_of_checkpoint(folder_, /*checksums=*/false)
                                : concat(folder_, ": the finished folder has not got its name");
  if (!there.empty()) {
    throw StorageError(concat(there, "; the file system or its driver is at fault"));
  }
  const std::optional<Manifest> found = read_manifest(folder_);
  if (!found || manifest_text(*found) != manifest_text(manifest)) {
    throw StorageError(concat(folder_, ": is not the folder that was given this name; the file ",
                              "system or its driver is at fault"));
  }
}

std::string CheckpointWriter::finish() {
  try {
    throw_if_any_failed(world_, failure_);
    std::vector<uint32_t> checksums = checksum_parts_;
    xor_over(world_, checksums);
    all_or_none_on_disk(world_, [&] {
      if (is_first()) {
        complete_folder(checksums);
      }
    });
  } catch (...) {
    remove_temporary();
    rethrow(std::current_exception());
  }
  remove_temporary();  // what had the name before
  sources_.clear();
  return folder_;
}

void CheckpointWriter::remove_temporary() noexcept {
  if (is_first()) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
}

void CheckpointWriter::rethrow(const std::exception_ptr& failure) const {
  const auto prefix = [&] {
    const std::string last = latest_checkpoint_in(options_.directory);
    return concat("checkpoint ", folder_, " was not written, ",
                  last.empty() ? std::string("and there is no earlier one")
                               : concat("the last one is ", last),
                  ": ");
  };
  try {
    try {
      std::rethrow_exception(failure);
    } catch (const fs::filesystem_error& error) {
      throw_io_error(error.path1().string(), "be made, moved or removed", error.code().value());
    }
  } catch (const StorageError& error) {
    throw StorageError(concat(prefix(), error.what(), "; it takes ", bytes_text(times_.bytes), ", ",
                              bytes_text(free_bytes(options_.directory)), " are free"));
  } catch (const IoError& error) {
    throw IoError(concat(prefix(), error.what()));
  } catch (const RuntimeError& error) {
    throw RuntimeError(concat(prefix(), error.what()));
  }
}

}  // namespace tapestry
