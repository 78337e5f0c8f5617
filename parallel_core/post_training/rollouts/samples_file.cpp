#include "parallel_core/post_training/rollouts/samples_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <numeric>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "parallel_core/training/step/metrics.h"

namespace tapestry::post_training {

namespace {

using nlohmann::ordered_json;

std::string sample_line(int64_t step,
                        const RolloutBatch& batch,
                        const JudgedCompletion& completion,
                        size_t i) {
  ordered_json line;
  line["step"] = step;
  line["prompt"] = prompt_of(*completion.line);
  line["completion"] = completion.text;
  line["rewards"] = ordered_json::object();
  for (size_t f = 0; f < batch.rewards.size(); ++f) {
    const double reward = batch.rewards[f][i];
    line["rewards"][batch.reward_names[f]] =
        std::isnan(reward) ? ordered_json() : ordered_json(reward);
  }
  line["advantage"] = batch.advantages[i];
  line["length"] = completion.ids.size();
  line["truncated"] = static_cast<bool>(batch.truncated[i]);
  const auto log_probs = batch.old_log_probs.of(static_cast<int64_t>(i));
  line["mean_log_prob"] = std::accumulate(log_probs.begin(), log_probs.end(), 0.0) /
                          static_cast<double>(log_probs.size());
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

SamplesFile::SamplesFile(const std::string& path, int64_t last_step) : path_(path) {
  keep_steps_until(path, last_step);
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw_io_error(path_, "be written", errno);
  }
}

SamplesFile::~SamplesFile() { ::close(file_); }

void SamplesFile::sync() {
  if (::fdatasync(file_) != 0) {
    throw_io_error(path_, "be brought onto the disk", errno);
  }
}

void SamplesFile::write(int64_t step,
                        const RolloutBatch& batch,
                        std::span<const JudgedCompletion> completions) {
  std::string lines;
  for (size_t i = 0; i < completions.size(); ++i) {
    lines += sample_line(step, batch, completions[i], i);
  }
  for (size_t done = 0; done < lines.size();) {
    const ssize_t written = ::write(file_, lines.data() + done, lines.size() - done);
    if (written < 0 && errno != EINTR) {
      throw_io_error(path_, "be written", errno);
    }
    done += static_cast<size_t>(std::max<ssize_t>(written, 0));
  }
}

}  // namespace tapestry::post_training
