// The program of MindFormers' tutorial on dynamic graphs, statement by statement.
// docs/from_mindformers.md shows it beside the calls of the Python package.
#include <iostream>

#include "parallel_core/parallel_core.h"
#include "parallel_core/training/program.h"

using namespace tapestry;

class TutorialGPT final : public TransformerModel {
 public:
  explicit TutorialGPT(const AllConfig& config)
      : TransformerModel(config),
        language_model_(register_module<TransformerLanguageModel>("language_model", config)),
        parallel_lm_logits_(register_module<ParallelLMLogits>("parallel_lm_logits", config)),
        loss_(register_module<VocabParallelCrossEntropy>("loss", config)) {}
  std::string type_name() const override { return "TutorialGPT"; }

  ModelOutput forward(const ModelInput& in) override {
    const Tensor hidden = language_model_.forward({.ids = in.tokens,
                                                   .hidden = in.hidden,
                                                   .position_ids = in.position_ids,
                                                   .mask = in.attention_mask,
                                                   .document_starts = in.document_starts,
                                                   .chunk = in.chunk});
    if (!stage().is_last(in.chunk)) {
      return {.hidden = hidden};
    }
    const bool has_labels = in.labels.defined();
    const Tensor logits =
        parallel_lm_logits_.forward(hidden, language_model_.output_weight(), has_labels);
    if (!has_labels) {
      return {.logits = logits};
    }
    return mean_loss(loss_.forward(logits.to(kFloat32), in_layout(in.labels)), in);
  }

 private:
  TransformerLanguageModel& language_model_;
  ParallelLMLogits& parallel_lm_logits_;
  VocabParallelCrossEntropy& loss_;
};

std::unique_ptr<ParallelModel> model_provider(const AllConfig& config) {
  return std::make_unique<TutorialGPT>(config);
}

bool decay_filter(const std::string& name) {
  return name.find("norm") == std::string::npos && name.find("bias") == std::string::npos;
}

std::vector<optim::ParamGroup> set_weight_decay(const nn::Module& model, double weight_decay) {
  optim::ParamGroup decay{.weight_decay = weight_decay};
  optim::ParamGroup other{.weight_decay = 0.0};
  for (const auto& [name, parameter] : model.named_parameters()) {
    (decay_filter(name) ? decay : other).params.push_back(*parameter);
  }
  return {decay, other};
}

int main(int argc, char** argv) {
  return run_program(argc, argv, [](const auto& words, const Distributed& job) {
    const AllConfig config = init_configs_from_args(words);
    initialize_ranks(config, job.world());
    std::cout << layout_line(config.parallel_config, get_data_parallel_world_size()) << "\n";

    const RunData data = open_data(config, *job.world());
    const auto network = get_model(model_provider, config);
    const auto groups = set_weight_decay(*network, config.optimizer_config.weight_decay);
    const auto data_parallel = get_data_parallel(config, *network);
    const auto optimizer = get_optimizer(config, *network, groups, data_parallel.get());
    for (const optim::ParamGroup& group : optimizer->param_groups()) {
      std::cout << group.params.size() << " parameters, weight decay " << group.weight_decay
                << ", learning rate " << group.lr << "\n";
    }

    TrainOneStepCell train_one_step_cell(*network, *optimizer, nullptr, config,
                                         data_parallel.get());
    const TrainSummary summary = train(train_one_step_cell, *data.train, config, {});
    std::cout.precision(17);
    std::cout << "loss " << summary.first_loss << " -> " << summary.last_loss << "\n";
    return kFinished;
  });
}
