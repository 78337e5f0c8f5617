// Writes what a saved model makes of rows of tokens, for comparison with another program's:
//
//   print_logits FOLDER OUT LENGTH ID...
//
// FOLDER is a checkpoint or a Hugging Face model, the ids are rows of LENGTH tokens. OUT gets the
// logits, [rows, LENGTH, vocab_size] in row-major order, one number a line.
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/checkpoints/saved_model.h"
#include "parallel_core/training/step/forward_step.h"
#include "parallel_core/training/step/get_model.h"

namespace {

void write_logits(const std::vector<std::string>& words) {
  tapestry::check<tapestry::ValueError>(words.size() > 3,
                                        "expected: print_logits FOLDER OUT LENGTH ID...");
  const tapestry::AllConfig config = tapestry::open_saved_model(words[0]).config;
  const auto model = tapestry::get_model(config);
  tapestry::load_weights(*model, config.model_config, words[0]);
  model->eval();
  tapestry::data::Batch batch;
  batch.seq = std::stoll(words[2]);
  for (size_t i = 3; i < words.size(); ++i) {
    batch.tokens.push_back(std::stoll(words[i]));
  }
  batch.batch = static_cast<int64_t>(batch.tokens.size()) / batch.seq;
  std::ofstream out(words[1]);
  char line[40];
  for (const float value : tapestry::pipeline_logits(*model, batch).to_vector<float>()) {
    std::snprintf(line, sizeof(line), "%.9g\n", static_cast<double>(value));
    out << line;
  }
  out.flush();
  tapestry::check<tapestry::IoError>(out.good(), words[1], ": cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    write_logits({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "print_logits: %s\n", error.what());
    return 1;
  }
  return 0;
}
