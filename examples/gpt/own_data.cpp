// Trains on data of one's own: sums that the program makes up. At every evaluation it measures how
// many digits of the answers are right. docs/own_data.md explains it.
#include <algorithm>
#include <random>

#include "diagnosis/verify/train_or_verify.h"
#include "parallel_core/data/epoch_source.h"
#include "parallel_core/training/program.h"

using namespace tapestry;

// "17+58=75\n38+4=42\n...", one token a character, of which the answers count.
data::Sample sums(int64_t number, int64_t length) {
  std::mt19937_64 random(static_cast<uint64_t>(number));
  std::string text;
  std::vector<float> counts;
  while (std::ssize(text) <= length) {
    const uint64_t a = random() % 50;
    const uint64_t b = random() % 50;
    const std::string question = std::to_string(a) + "+" + std::to_string(b) + "=";
    const std::string answer = std::to_string(a + b) + "\n";
    text += question + answer;
    counts.insert(counts.end(), question.size(), 0.0F);
    counts.insert(counts.end(), answer.size(), 1.0F);
  }
  return {.tokens = {text.begin(), text.begin() + length},
          .labels = {text.begin() + 1, text.begin() + length + 1},
          .loss_mask = {counts.begin() + 1, counts.begin() + length + 1}};
}

// Samples [first, first + size), again and again.
std::unique_ptr<data::DataSource> source(const AllConfig& config, int64_t first, int64_t size) {
  const int64_t length = config.model_config.seq_length;
  return std::make_unique<data::EpochSource>(
      data::EpochSourceOptions{.size = size,
                               .seq_length = length,
                               .sample = [=](int64_t i) { return sums(first + i, length); },
                               .seed = config.training_config.seed,
                               .vocab_size = config.model_config.vocab_size});
}

OwnData own_data(const AllConfig& config, const DataRank& /*rank*/) {
  return {.train = source(config, 0, 100000),
          .validation = source(config, 100000, 1000),
          .fingerprint = "sums up to 98, version 1",
          .description = "sums of two numbers below 50"};
}

// The share of counting labels that have the largest logit.
std::vector<double> right_answers(const EvaluatedBatch& evaluated) {
  const data::Batch& batch = evaluated.batch;
  const int64_t vocabulary = evaluated.logits.size(2);
  const float* logits = evaluated.logits.data<float>();
  double right = 0;
  double all = 0;
  for (size_t i = 0; i < batch.labels.size(); ++i, logits += vocabulary) {
    const bool is_right = std::max_element(logits, logits + vocabulary) - logits == batch.labels[i];
    right += is_right ? batch.loss_mask[i] : 0;
    all += batch.loss_mask[i];
  }
  return {right, all};
}

int main(int argc, char** argv) {
  return run_program(argc, argv, [](const auto& words, const auto& job) {
    return train_or_verify(
        words, job,
        {.data = own_data, .metrics = {{.name = "right_answers", .measure = right_answers}}});
  });
}
