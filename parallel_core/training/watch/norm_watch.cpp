#include "parallel_core/training/watch/norm_watch.h"

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/config/yaml/value.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

std::string norm_text(double norm) {
  if (!std::isfinite(norm)) {
    return std::isnan(norm) ? "[nan]" : "[inf]";
  }
  std::array<char, 40> digits = {};
  const auto end = std::to_chars(digits.begin(), digits.end(), static_cast<float>(norm)).ptr;
  std::string text(digits.begin(), end);
  if (text.find('.') == std::string::npos) {
    text.insert(std::min(text.find('e'), text.size()), ".");
  }
  return concat("[", text, "]");
}

void SkipWatch::after(FinishedStep& step) {
  if (!step.result.skipped) {
    return;
  }
  const std::string threshold = config::number_text(step.result.norm_threshold);
  const int64_t count = cell_.norm_spikes()->count();
  step.lines.push_back(concat("opt_global_step: ", cell_.position().applied,
                              ", skip_data_grad_norm_threshold: ", threshold,
                              ", is_skip: [ True]"));
  const std::string norm =
      concat("Current global norm ", norm_text(step.result.grad_norm), " of step ",
             step.record.step, " has been ", count, " consecutive times greater than threshold");
  if (count < config_.monitor_config.global_norm_spike_count_threshold) {
    step.lines.push_back(concat(norm, ": ", threshold));
  } else {
    step.failure = concat(norm, " ", threshold, ", stop training...");
  }
}

namespace {

// {"300": [3.3], "600": [4.1, "nan"]}; nothing for a file that is not there.
std::map<int64_t, std::vector<double>> read_abnormal_norms(const std::string& path) {
  std::map<int64_t, std::vector<double>> record;
  if (!std::filesystem::exists(path)) {
    return record;
  }
  const auto json = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  check<IoError>(json.is_object(), path, ": is not an object of steps and their norms");
  for (const auto& [step, norms] : json.items()) {
    int64_t number = 0;
    const char* end = step.data() + step.size();
    const auto parsed = std::from_chars(step.data(), end, number);
    check<IoError>(parsed.ec == std::errc() && parsed.ptr == end && norms.is_array(), path, ": \"",
                   step, "\" is no step with a list of norms");
    for (const auto& norm : norms) {
      check<IoError>(norm.is_number() || norm.is_string(), path, ": the norms of step ", step,
                     " are not all numbers");
      record[number].push_back(norm.is_number() ? norm.get<double>()
                                                : std::numeric_limits<double>::quiet_NaN());
    }
  }
  return record;
}

}  // namespace

AbnormalNormWatch::AbnormalNormWatch(const AllConfig& config)
    : path_(config.training_config.output_dir + "/abnormal_global_norm.json") {
  all_or_none(get_world_group(), [&] {
    if (RankContext::current().rank() == 0) {
      record_ = read_abnormal_norms(path_);
    }
  });
}

void AbnormalNormWatch::write() const {
  std::string text;
  for (const auto& [step, norms] : record_) {
    text += concat(text.empty() ? "{" : ", ", "\"", step, "\": [");
    for (size_t i = 0; i < norms.size(); ++i) {
      text += i == 0 ? "" : ", ";
      text += std::isfinite(norms[i]) ? config::number_text(norms[i]) : "\"nan\"";
    }
    text += "]";
  }
  write_file_atomically(path_, text + "}\n");
}

void AbnormalNormWatch::after(FinishedStep& step) {
  const double norm = step.result.grad_norm;
  if (!step.result.norm_is_spike) {
    return;
  }
  const std::string threshold = config::number_text(step.result.norm_threshold);
  const Tensor known = zeros({1}, kInt32);
  all_or_none(get_world_group(), [&] {
    if (RankContext::current().rank() == 0) {
      std::vector<double>& norms = record_[step.record.step];
      known.data<int32_t>()[0] = norms.empty() ? 0 : 1;
      norms.push_back(norm);
      write();
    }
  });
  get_world_group().broadcast(known, 0);
  if (known.item() != 0) {
    step.lines.push_back(concat("The global norm ", norm_text(norm), " of step ", step.record.step,
                                " is still greater or equal than threshold ", threshold,
                                ", continue training."));
  } else {
    step.failure = concat("Current global norm ", norm_text(norm),
                          " is greater equal than threshold ", threshold, ", stop training...");
  }
}

}  // namespace tapestry
