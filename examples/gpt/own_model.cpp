// Trains a model of one's own: its feed-forward block, its loss and its parameter groups on the
// library's attention. docs/own_model.md explains it.
#include "autograd/ops/ops.h"
#include "diagnosis/verify/train_or_verify.h"
#include "parallel_core/training/program.h"

using namespace tapestry;

// y = x + attention(norm(x)); y + down(relu(gate(n))^2 * up(n)) with n = norm(y).
struct Block final : nn::Module {
  Block(const std::string& name, int64_t number, const AllConfig& config)
      : h(config.model_config.hidden_size),
        f(config.model_config.ffn_hidden_size),
        norm1(static_cast<ParallelNorm&>(add_child("norm1", get_norm(config, name + "norm1")))),
        norm2(static_cast<ParallelNorm&>(add_child("norm2", get_norm(config, name + "norm2")))),
        attention(register_module<ParallelAttention>("attention", config, number)),
        gate(register_module<ColumnParallelLinear>("gate", name + "gate", h, f, config)),
        up(register_module<ColumnParallelLinear>("up", name + "up", h, f, config)),
        down(register_module<RowParallelLinear>("down", name + "down", f, h, config)) {}
  std::string type_name() const override { return "Block"; }
  Tensor forward(const Tensor& x, const AttentionContext& context) {
    const OutputAndBias seen = attention.forward(norm1(x), context);
    const Tensor y = x + add_bias(seen.output, seen.bias);
    const Tensor n = norm2(y);
    return y + down.forward(square(relu(gate.forward(n).output)) * up.forward(n).output).output;
  }
  int64_t h, f;
  ParallelNorm &norm1, &norm2;
  ParallelAttention& attention;
  ColumnParallelLinear &gate, &up;
  RowParallelLinear& down;
};

class OwnModel final : public TransformerModel {
 public:
  explicit OwnModel(const AllConfig& config)
      : TransformerModel(config), v_(config.model_config.vocab_size), rotary_(config) {
    const int64_t h = config.model_config.hidden_size;
    if (stage().pre_process()) {
      table_ = &register_module<VocabParallelEmbedding>("table", "table", v_, h, config);
    }
    chunks_ = make_layers([&](int64_t i) {
      const std::string n = std::to_string(i);
      return &register_module<Block>("block" + n, "layers." + n + ".", i + 1, config);
    });
    if (stage().post_process()) {
      norm_ = static_cast<ParallelNorm*>(&add_child("norm", get_norm(config, "norm")));
      head_ = &register_module<ColumnParallelLinear>("head", "head", h, v_, config);
    }
  }
  std::string type_name() const override { return "OwnModel"; }
  ModelOutput forward(const ModelInput& in) override {
    const bool first = stage().is_first(in.chunk);
    Tensor x = first ? table_->forward(in_layout(in.tokens)).to(hidden_dtype()) : in.hidden;
    for (Block* block : chunks_[in.chunk]) {
      x = block->forward(x, attention_context(in, &rotary_));
    }
    if (!stage().is_last(in.chunk)) {
      return {.hidden = x};
    }
    const Tensor logits = head_->forward((*norm_)(x)).output;
    if (!in.labels.defined()) {
      return {.logits = gather_vocabulary(logits, v_, tensor_layout())};
    }
    // Label smoothing, and z-loss, which keeps the logits from drifting.
    const VocabParallelCrossEntropy cross_entropy(v_, tensor_layout());
    const Tensor z = vocab_parallel_logsumexp(logits, v_, tensor_layout());
    return mean_loss(cross_entropy.forward(logits, in_layout(in.labels), 0.1) + 1e-3 * square(z),
                     in);
  }

 private:
  int64_t v_;
  RotaryEmbedding rotary_;
  VocabParallelEmbedding* table_ = nullptr;
  std::vector<std::vector<Block*>> chunks_;
  ParallelNorm* norm_ = nullptr;
  ColumnParallelLinear* head_ = nullptr;
};

// Matrices; gains and biases, without decay; table and head, at half the rate.
std::vector<optim::ParamGroup> param_groups(const nn::Module& model) {
  std::vector<optim::ParamGroup> groups(3);
  groups[1].wd_mult = 0;
  groups[2].lr_mult = 0.5;
  for (const auto& [name, p] : model.named_parameters()) {
    const bool wide = name.starts_with("table") || name.starts_with("head");
    groups[wide ? 2 : p->flags().decay ? 0 : 1].params.push_back(*p);
  }
  return groups;
}

int main(int argc, char** argv) {
  const auto model = [](const AllConfig& config) { return std::make_unique<OwnModel>(config); };
  return run_program(argc, argv, [&](const auto& words, const auto& job) {
    return train_or_verify(words, job, {.model = model, .param_groups = param_groups});
  });
}
