#include "diagnosis/profile/step_profiler.h"

#include <filesystem>
#include <sstream>
#include <utility>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/profile/analysis.h"
#include "parallel_core/config/layer_split.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

namespace {

using nlohmann::ordered_json;

// Ranks leave a barrier within some microseconds of each other, now and then a scheduler's turn
// apart: of several the median counts.
profile::ClockSamples barrier_times() {
  constexpr int kBarriers = 7;
  profile::ClockSamples times;
  for (int i = 0; i < kBarriers; ++i) {
    get_world_group().barrier();
    times.push_back(profile::now_ns());
  }
  return times;
}

profile::Detail detail_of(const TrainingConfig& t) {
  return {.modules = t.profile_framework != "None",
          .ops = t.profile_op_time && t.profile_level != "level0",
          .op_time = t.profile_op_time,
          .fetches = t.profile_data_process,
          .memory = t.profile_framework == "all" && t.profile_level != "level2",
          .with_stack = t.profile_with_stack};
}

ordered_json group_json(const ProcessGroup& group) {
  return {{"name", group.name()}, {"ranks", group.world_ranks()}};
}

// Which part of the model and the data the rank has.
ordered_json layout_json(const AllConfig& config) {
  const ModelParallelConfig& p = config.parallel_config;
  ordered_json layers = ordered_json::array();
  const auto stage = static_cast<size_t>(get_pipeline_model_parallel_rank());
  for (const auto& chunk : layer_ranges(config.model_config.num_layers, p)) {
    layers.push_back({{"first", chunk[stage].first}, {"count", chunk[stage].count}});
  }
  return {
      {"rank", get_world_group().rank()},
      {"tensor",
       {{"rank", get_tensor_model_parallel_rank()},
        {"size", get_tensor_model_parallel_world_size()}}},
      {"pipeline",
       {{"rank", get_pipeline_model_parallel_rank()},
        {"size", get_pipeline_model_parallel_world_size()}}},
      {"context",
       {{"rank", get_context_parallel_rank()}, {"size", get_context_parallel_world_size()}}},
      {"data", {{"rank", get_data_parallel_rank()}, {"size", get_data_parallel_world_size()}}},
      {"expert",
       {{"rank", get_expert_model_parallel_rank()},
        {"size", get_expert_model_parallel_world_size()}}},
      {"expert_tensor",
       {{"rank", get_expert_tensor_parallel_rank()},
        {"size", get_expert_tensor_parallel_world_size()}}},
      {"sequence_parallel", p.sequence_parallel},
      {"zero_level", zero_level(config)},
      {"micro_batches", config.dataset_config.micro_batch_num},
      {"layers_of_chunks", std::move(layers)},
      {"groups",
       {group_json(get_tensor_model_parallel_group()),
        group_json(get_pipeline_model_parallel_group()), group_json(get_context_parallel_group()),
        group_json(get_data_parallel_group()), group_json(get_expert_model_parallel_group()),
        group_json(get_expert_tensor_parallel_group())}}};
}

void label(profile::MemoryWatch& memory,
           const Tensor& tensor,
           std::string_view module,
           const std::string& what) {
  // A window's memory is others', and what was dropped has none.
  if (tensor.defined() && tensor.storage()->owns_memory() && tensor.storage()->is_open()) {
    memory.label(tensor.storage()->data(), module, what);
  }
}

// Parameters and optimizer states, which were asked for outside of ops and modules.
void label_parameters(profile::MemoryWatch& memory, TrainOneStepCell& cell) {
  RankContext aside;  // for states that have to be put together to be shown
  const RankContextGuard guard(aside);
  for (const nn::Module::NamedParameter& entry : cell.network().named_parameters()) {
    const size_t dot = entry.name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : entry.name.substr(0, dot);
    const std::string name = dot == std::string::npos ? entry.name : entry.name.substr(dot + 1);
    label(memory, *entry.parameter, module, "parameter " + name);
    for (const auto& [key, state] : cell.optimizer().own_state(entry.name)) {
      label(memory, state, module, concat(key, " of ", name));
    }
  }
}

void log_lines(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    log_info(line);
  }
}

}  // namespace

std::string profile_folder(const TrainingConfig& config) {
  return config.profile_save_path.value_or(config.output_dir + "/profile");
}

void check_profile(const TrainingConfig& config) {
  namespace fs = std::filesystem;
  if (!config.profile) {
    return;
  }
  const std::string& steered = config.profile_dynamic_profiler_config_path;
  check<IoError>(steered.empty() || fs::exists(steered),
                 "training_config.profile_dynamic_profiler_config_path: ", steered,
                 " is neither a file nor a folder; make one of them before the run");
  const std::string requests = profile::window_file(steered);
  if (!steered.empty() && fs::exists(requests)) {
    profile::WatchedText(requests).read_if_changed();  // what cannot be read is refused
  }
  const std::string folder = profile_folder(config);
  check<IoError>(!fs::exists(folder) || fs::is_directory(folder), folder,
                 ": is a file, but the run writes a folder of this name; move it away or choose "
                 "another training_config.profile_save_path");
}

StepProfiler::StepProfiler(TrainOneStepCell& cell,
                           const AllConfig& config,
                           profile::MemoryWatch* memory)
    : cell_(cell),
      config_(config),
      settings_(config.training_config),
      folder_(profile_folder(config.training_config)),
      memory_(memory) {
  const TrainingConfig& t = config.training_config;
  const int64_t done = cell.position().seen;
  if (!t.profile_dynamic_profiler_config_path.empty()) {
    requests_.emplace(profile::window_file(t.profile_dynamic_profiler_config_path));
  } else if (done >= t.profile_step_end) {
    log_warning(concat("profile: nothing is recorded: this run goes on with step ", done + 1,
                       ", after profile_step_end ", t.profile_step_end));
  } else {
    first_ = std::max(t.profile_step_start, done + 1);
    last_ = t.profile_step_end;
  }
  if (memory_ == nullptr && t.profile_memory) {
    own_memory_ = std::make_unique<profile::MemoryWatch>(
        Ref<CachingAllocator>(&RankContext::current().allocator()));
    memory_ = own_memory_.get();
  }
  if (memory_ != nullptr) {
    label_parameters(*memory_, cell);
  }
}

StepProfiler::~StepProfiler() = default;

// The first rank reads, all hear of it.
void StepProfiler::read_request(int64_t step) {
  ProcessGroup& world = get_world_group();
  std::string own;
  try {
    own = world.rank() == 0 ? requests_->read_if_changed() : std::string();
  } catch (const IoError& error) {
    log_warning(concat("profile: no request is read: ", error.what()));
  }
  const std::string text = all_gather_text(world, own).front();
  if (text.empty()) {
    return;
  }
  const TrainingConfig& t = config_.training_config;
  try {
    const profile::WindowRequest request = profile::read_window_request(
        text, profile::window_file(t.profile_dynamic_profiler_config_path));
    check<ValueError>(request.last >= step, "stop_step ", request.last,
                      " lies before the next step ", step);
    settings_ = t;
    settings_.profile_level = request.level.value_or(t.profile_level);
    settings_.profile_memory = request.memory.value_or(t.profile_memory);
    settings_.profile_with_stack = request.with_stack.value_or(t.profile_with_stack);
    settings_.profile_communication = request.communication.value_or(t.profile_communication);
    settings_.profile_parallel_strategy =
        request.parallel_strategy.value_or(t.profile_parallel_strategy);
    settings_.profile_data_process = request.data_process.value_or(t.profile_data_process);
    settings_.profile_data_simplification =
        request.data_simplification.value_or(t.profile_data_simplification);
    first_ = std::max(request.first, step);
    last_ = request.last;
    folder_ = concat(profile_folder(t), "/steps_", first_, "_to_", last_);
  } catch (const ValueError& error) {
    log_warning(concat("profile: the request is not followed: ", error.what()));
  }
}

void StepProfiler::start(int64_t step) {
  if (settings_.profile_memory && memory_ == nullptr) {  // asked for by a file
    own_memory_ = std::make_unique<profile::MemoryWatch>(
        Ref<CachingAllocator>(&RankContext::current().allocator()));
    RankContext::current().allocator().reset_peak();
    memory_ = own_memory_.get();
  }
  if (!peak_) {
    get_world_group().barrier();  // nobody trains meanwhile
    peak_ = profile::measure_peak(config_.model_config.compute_dtype);
  }
  log_detail(concat("profile: steps ", step, " to ", last_, ", ", settings_.profile_level));
  recorder_.emplace(detail_of(settings_));
  if (settings_.profile_level == "level2") {
    if (memory_ == nullptr) {
      own_memory_ = std::make_unique<profile::MemoryWatch>(
          Ref<CachingAllocator>(&RankContext::current().allocator()));
      memory_ = own_memory_.get();
    }
    memory_->start_points();
  }
  started_ = barrier_times();
  scope_.emplace(*recorder_);
}

void StepProfiler::before(int64_t step) {
  if (requests_ && !recorder_) {
    read_request(step);
  }
  if (step == first_) {
    start(step);
  }
  if (recorder_) {
    recorder_->start_step(step);
  }
}

void StepProfiler::after(FinishedStep& step) {
  if (memory_ != nullptr && !states_are_labelled_) {
    label_parameters(*memory_, cell_);  // the first step has made the optimizer's states
    states_are_labelled_ = true;
  }
  if (recorder_ && (step.record.step >= last_ || step.is_last || step.stops)) {
    stop();
  }
}

void StepProfiler::end() {
  if (recorder_) {
    stop();
  }
}

void StepProfiler::stop() {
  scope_.reset();
  profile::RankProfile profile = {.rank = get_world_group().rank(),
                                  .ranks = get_world_group().size(),
                                  .recording = recorder_->take(),
                                  .start = std::move(started_),
                                  .end = barrier_times(),
                                  .peak = *peak_,
                                  .op_time = settings_.profile_op_time,
                                  .communication = settings_.profile_communication,
                                  .data = settings_.profile_data_process};
  recorder_.reset();
  first_ = 0;
  if (settings_.profile_level == "level2") {
    profile.recording.memory = memory_->take_points();
  }
  if (settings_.profile_memory) {
    label_parameters(*memory_, cell_);  // some may have come since
    profile.memory = memory_->at_peak();
  }
  if (settings_.profile_parallel_strategy) {
    profile.layout = layout_json(config_);
  }
  write(std::move(profile));
}

void StepProfiler::write(profile::RankProfile profile) {
  ProcessGroup& world = get_world_group();
  std::string text;
  try {
    all_or_none_on_disk(world, [&] { profile::write_rank_files(profile, folder_); });
    if (settings_.profile_offline_analyse) {
      log_info(concat("profile of steps ", profile.recording.first_step, " to ",
                      profile.recording.last_step, ": pretrain_gpt --analyse_profile ", folder_,
                      " puts it together"));
      return;
    }
    all_or_none_on_disk(world, [&] {
      if (world.rank() == 0) {
        text = profile::analyse(folder_);
        if (settings_.profile_data_simplification) {
          profile::remove_rank_files(folder_, world.size());
        }
      }
    });
  } catch (const IoError& error) {
    log_error(concat("THE PROFILE COULD NOT BE WRITTEN: ", error.what()));
    return;
  }
  log_lines(text);
}

}  // namespace tapestry
