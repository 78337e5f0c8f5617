#include "tests/parallel_core/transformer/plain_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tests/parallel_core/transformer/plain_mixers.h"
#include "tests/parallel_core/transformer/plain_streams.h"

namespace tapestry::testing {

namespace {

class PlainModel {
 public:
  PlainModel(const TransformerConfig& config, const State& weights, const data::Batch& batch)
      : c_(config), batch_(batch), b_(batch.batch), s_(batch.seq) {
    for (const auto& [name, tensor] : weights) {
      weights_[name] = tensor.to(kFloat64).clone().detach();
      weights_[name].set_requires_grad();
    }
  }

  PlainResult run() {
    Tensor x = rows_of("tok_embeddings.weight", batch_.tokens) * c_.embedding_multiplier;
    if (c_.position_embedding_type == "learned_absolute") {
      std::vector<int64_t> positions = batch_.position_ids;
      for (int64_t i = 0; positions.size() < batch_.tokens.size(); ++i) {
        positions.push_back(i % s_);
      }
      x = x + rows_of("pos_embeddings.weight", positions);
    }
    if (c_.per_layer_embedding_size > 0) {
      embed_in_layers(rows_of("tok_embeddings.weight", batch_.tokens) * c_.embedding_multiplier);
    }
    if (c_.embedding_norm) {
      x = norm(x, "embedding_norm");
    }
    x = entered(x);
    for (layer_ = 0; layer_ < c_.num_layers; ++layer_) {
      x = run_layer(x, "layers." + std::to_string(layer_) + ".");
    }
    x = left(x);
    if (c_.use_final_norm) {
      x = norm(x, "final_norm");
    }
    PlainResult out;
    out.logits = head(x);
    const Tensor mask = tensor(batch_.loss_mask, {b_, s_}).to(kFloat64);
    const Tensor loss = mean_loss(out.logits, batch_.labels, mask);
    Tensor objective = loss;
    for (int64_t depth = 1; depth <= c_.mtp_num_layers; ++depth) {
      const Tensor further = loss_ahead(depth, x) * c_.mtp_loss_scaling_factor /
                             static_cast<double>(c_.mtp_num_layers);
      out.ahead.push_back(further.item());
      objective = objective + further;
    }
    objective.backward();
    out.loss = loss.item();
    for (const auto& [name, tensor] : weights_) {
      if (name.ends_with("layer_scalar")) {  // which is not trained
        continue;
      }
      out.gradients[name] = tensor.grad().defined() ? tensor.grad() : zeros_like(tensor);
    }
    return out;
  }

 private:
  // A table's rows, chosen by multiplication with rows of the unit matrix.
  Tensor rows_of(const std::string& name, const std::vector<int64_t>& ids) const {
    const Tensor& table = weights_.at(name);
    Tensor choice = zeros({b_, s_, table.size(0)}, kFloat64);
    for (size_t i = 0; i < ids.size(); ++i) {
      choice.data<double>()[static_cast<int64_t>(i) * table.size(0) + ids[i]] = 1;
    }
    return matmul(choice, table);
  }
  // One tensor [B, S, p] for each layer, of x0 and the table.
  void embed_in_layers(const Tensor& x0) {
    const int64_t size = c_.per_layer_embedding_size;
    const Tensor table = rows_of("per_layer_embeddings.weight", batch_.tokens);
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      const Tensor rows = weights_.at("per_layer_model_projection.weight")
                              .slice(0, layer * size, (layer + 1) * size);
      const Tensor projected =
          matmul(x0, rows.t()) / std::sqrt(static_cast<double>(c_.hidden_size));
      const Tensor own =
          table.slice(2, layer * size, (layer + 1) * size) * std::sqrt(static_cast<double>(size));
      in_layers_.push_back((norm(projected, "per_layer_projection_norm") + own) /
                           std::numbers::sqrt2);
    }
  }

  Tensor one_hot(const std::vector<int64_t>& labels) const {
    Tensor out = zeros({b_, s_, c_.vocab_size}, kFloat64);
    for (size_t i = 0; i < labels.size(); ++i) {
      out.data<double>()[static_cast<int64_t>(i) * c_.vocab_size + labels[i]] = 1;
    }
    return out;
  }

  Tensor head(const Tensor& x) const {
    const bool untied = c_.untie_embeddings_and_output_weights;
    return capped(matmul(x, weights_.at(untied ? "lm_head.weight" : "tok_embeddings.weight").t()) *
                      c_.logit_multiplier,
                  c_.logit_softcap);
  }

  // 0 where nothing counts.
  Tensor mean_loss(const Tensor& logits,
                   const std::vector<int64_t>& labels,
                   const Tensor& mask) const {
    const Tensor top = amax(logits.detach(), {-1}, true);
    const Tensor log_sum = log(tapestry::sum(exp(logits - top), {-1}, true)) + top;  // [B, S, 1]
    const Tensor losses = tapestry::sum((log_sum - logits) * one_hot(labels), {-1});
    const double count = tapestry::sum(mask).item();
    return tapestry::sum(losses * mask) / (count > 0 ? count : 1.0);
  }

  // Of token i + depth + 1 at position i; x becomes the hidden states of this depth.
  Tensor loss_ahead(int64_t depth, Tensor& x) {
    std::vector<int64_t> tokens;
    std::vector<int64_t> labels;
    Tensor mask = zeros({b_, s_}, kFloat64);
    for (int64_t at = 0; at < b_ * s_; ++at) {
      const int64_t i = at % s_;
      const bool inside = i + depth < s_;
      const auto there = static_cast<size_t>(inside ? at + depth : at);
      const auto end_of_row = static_cast<size_t>(at - i + s_ - 1);
      tokens.push_back(inside            ? batch_.tokens[there]
                       : i + depth == s_ ? batch_.labels[end_of_row]
                                         : 0);
      labels.push_back(inside ? batch_.labels[there] : 0);
      bool counts = inside;
      if (!batch_.document_starts.empty()) {
        for (const int64_t start : batch_.document_starts[static_cast<size_t>(at / s_)]) {
          counts = counts && (start <= i || start > i + depth + 1);
        }
      }
      mask.data<double>()[at] = counts ? batch_.loss_mask[there] : 0;
    }
    layer_ = c_.num_layers + depth - 1;
    const std::string name = "layers." + std::to_string(layer_) + ".";
    const Tensor embedded = rows_of("tok_embeddings.weight", tokens) * c_.embedding_multiplier;
    const Tensor both = cat({norm(embedded, name + "mtp.enorm"), norm(x, name + "mtp.hnorm")}, -1);
    x = norm(left(run_layer(entered(linear_layer(both, name + "mtp.eh_proj", false)), name)),
             name + "mtp.final_norm");
    return mean_loss(head(x), labels, mask);
  }

  static Tensor capped(const Tensor& x, double cap) { return cap == 0 ? x : tanh(x / cap) * cap; }

  Tensor normed(const Tensor& x, double epsilon) const {
    const Tensor centred = c_.normalization == "RMSNorm" ? x : x - mean(x, {-1}, true);
    return centred / sqrt(mean(centred * centred, {-1}, true) + epsilon);
  }

  Tensor norm(const Tensor& x, const std::string& name, double epsilon = -1) const {
    Tensor out = normed(x, epsilon > 0 ? epsilon : c_.norm_epsilon);
    if (c_.norm_has_gain) {
      const Tensor& weight = weights_.at(name + ".weight");
      out = out * (c_.layernorm_zero_centered_gamma ? weight + 1.0 : weight);
    }
    return c_.normalization == "LayerNorm" && c_.norm_has_bias ? out + weights_.at(name + ".bias")
                                                               : out;
  }

  // Of queries or keys [B, n, S, D].
  Tensor head_norm(const Tensor& x, const std::string& name) const {
    if (c_.qk_layernorm_scope == "head") {
      return norm(x, name);
    }
    const int64_t heads = x.size(1);
    const int64_t dim = x.size(3);
    if (c_.qk_layernorm_scope == "each_head") {
      TensorList parts;
      for (int64_t head = 0; head < heads; ++head) {
        parts.push_back(normed(x.slice(1, head, head + 1), c_.norm_epsilon) *
                        weights_.at(name + "." + std::to_string(head) + ".weight"));
      }
      return cat(parts, 1);
    }
    const Tensor joined = x.permute({0, 2, 1, 3}).reshape({b_, s_, heads * dim});
    return (normed(joined, c_.norm_epsilon) * weights_.at(name + ".weight"))
        .reshape({b_, s_, heads, dim})
        .permute({0, 2, 1, 3});
  }

  Tensor linear_layer(const Tensor& x, const std::string& name, bool has_bias) const {
    const Tensor y = matmul(x, weights_.at(name + ".weight").t());
    return has_bias ? y + weights_.at(name + ".bias") : y;
  }

  Tensor activate(const Tensor& x, const std::string& name, const char* other = nullptr) const {
    const std::string act = other != nullptr ? other : c_.hidden_act;
    if (act == "xielu") {
      const auto softplus_of = [&](const char* number) {
        return log(exp(weights_.at(name + number + ".weight")) + 1.0);
      };
      const Tensor is_positive = gt(x, 0).to(kFloat64);
      const Tensor below = clamp(x, -1e30, -1e-6);
      return is_positive * x * x * softplus_of("alpha_p") +
             (is_positive * -1.0 + 1.0) * (exp(below) - 1.0 - x) * (softplus_of("alpha_n") + 0.5) +
             x * 0.5;
    }
    if (act == "gelu") {
      return x * (erf(x / std::numbers::sqrt2) + 1.0) * 0.5;
    }
    if (act == "fast_gelu") {
      const double scale = std::sqrt(2.0 / std::numbers::pi);
      return x * 0.5 * (tanh((x + x * x * x * 0.044715) * scale) + 1.0);
    }
    if (act == "silu") {
      return x / (exp(neg(x)) + 1.0);
    }
    const Tensor positive = x * gt(x, 0).to(kFloat64);
    EXPECT_TRUE(act == "relu" || act == "squared_relu") << act;
    return act == "relu" ? positive : positive * positive;
  }

  // Of pair m of so many channels, by wavelengths, as Llama 3.1 describes it.
  double frequency(int64_t m, int64_t rotated) const {
    const RotaryConfig& c = c_.rotary_config;
    const bool slides = has_window(c_, layer_) && c.sliding_rotary_base;
    const double f = std::pow(slides ? *c.sliding_rotary_base : c.rotary_base,
                              -2.0 * static_cast<double>(m) / static_cast<double>(rotated));
    if (slides) {
      return f;
    }
    if (c.rope_type == "proportional") {
      return 2 * (m + 1) <= static_cast<int64_t>(static_cast<double>(rotated) * c.rotary_percent)
                 ? f
                 : 0;
    }
    const double wavelength = 2 * std::numbers::pi / f;
    const auto length = static_cast<double>(c.original_max_position_embeddings);
    if (c.rope_type != "llama3" || wavelength < length / c.high_freq_factor) {
      return f;
    }
    if (wavelength > length / c.low_freq_factor) {
      return f / c.rope_scaling_factor;
    }
    const double smooth =
        (length / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
    return (1 - smooth) * f / c.rope_scaling_factor + smooth * f;
  }

  // x [B, n, S, D]; positions count from 0 in every row unless the batch has some.
  Tensor rotate(const Tensor& x) const {
    const int64_t dim = x.size(3);
    const int64_t rotated =
        c_.multi_latent_attention || c_.rotary_config.rope_type == "proportional"
            ? dim
            : static_cast<int64_t>(static_cast<double>(dim) * c_.rotary_config.rotary_percent);
    const int64_t half = rotated / 2;
    Tensor cosine = zeros({b_, 1, s_, half}, kFloat64);
    Tensor sine = zeros({b_, 1, s_, half}, kFloat64);
    for (int64_t i = 0; i < b_ * s_; ++i) {
      const int64_t id =
          batch_.position_ids.empty() ? i % s_ : batch_.position_ids[static_cast<size_t>(i)];
      for (int64_t m = 0; m < half; ++m) {
        const double position =
            static_cast<double>(id) / c_.rotary_config.seq_len_interpolation_factor.value_or(1.0);
        const double angle =
            position * frequency(m, rotated) * (c_.rotary_config.rotary_backward ? -1.0 : 1.0);
        cosine.data<double>()[i * half + m] = std::cos(angle);
        sine.data<double>()[i * half + m] = std::sin(angle);
      }
    }
    const bool interleaved = c_.rotary_config.rotary_interleaved;
    const Tensor first = interleaved ? x.slice(3, 0, rotated, 2) : x.slice(3, 0, half);
    const Tensor second = interleaved ? x.slice(3, 1, rotated, 2) : x.slice(3, half, rotated);
    const Tensor a = first * cosine - second * sine;
    const Tensor b = second * cosine + first * sine;
    const Tensor turned =
        interleaved ? stack({a, b}, -1).reshape({b_, x.size(1), s_, rotated}) : cat({a, b}, 3);
    return rotated == dim ? turned : cat({turned, x.slice(3, rotated, dim)}, 3);
  }

  bool sees(int64_t row, int64_t query, int64_t key) const {
    const bool mask_alone =
        c_.encoder_attn_mask_type == "padding" && !batch_.attention_mask.empty();
    if ((key > query && !mask_alone) ||
        (has_window(c_, layer_) && key < query - (*c_.window_size)[0])) {
      return false;
    }
    if (!batch_.attention_mask.empty() &&
        batch_.attention_mask[static_cast<size_t>((row * s_ + query) * s_ + key)] != 0) {
      return false;
    }
    if (!batch_.document_starts.empty()) {
      for (const int64_t start : batch_.document_starts[static_cast<size_t>(row)]) {
        if (key < start && start <= query) {
          return false;
        }
      }
    }
    return true;
  }

  // Key minus query.
  Tensor distances() const {
    return arange(s_, kFloat64).unsqueeze(0) - arange(s_, kFloat64).unsqueeze(1);
  }
  // ALiBi's, for a power of two of heads.
  double slope(int64_t head) const {
    return c_.position_embedding_type != "alibi"
               ? 0
               : std::pow(2.0, -8.0 * static_cast<double>(head + 1) /
                                   static_cast<double>(c_.num_attention_heads));
  }

  // The factor of each token's queries.
  Tensor temperatures() const {
    Tensor out = full({1, 1, s_, 1}, 1, kFloat64);
    for (int64_t i = 0; i < s_; ++i) {
      const int64_t lengths = i / c_.rotary_config.original_max_position_embeddings;
      out.data<double>()[i] =
          1 + c_.query_temperature_beta * std::log(1.0 + static_cast<double>(lengths));
    }
    return out;
  }

  // Scores, softmax and sums of values, head by head.
  Tensor attend(const Tensor& q,
                const Tensor& k,
                const Tensor& v,
                const std::string& name,
                const Tensor& gates) const {
    const int64_t heads = q.size(1);
    const int64_t per_group = heads / k.size(1);
    const double scale = c_.attention_scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
    Tensor hidden = full({b_, 1, s_, s_}, 0, kFloat64);
    for (int64_t i = 0; i < hidden.numel(); ++i) {
      const bool visible = sees(i / (s_ * s_), i / s_ % s_, i % s_);
      hidden.data<double>()[i] = visible ? 0 : -1e30;
    }
    TensorList contexts;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t group = head / per_group;
      Tensor scores =
          capped(matmul(q.slice(1, head, head + 1), k.slice(1, group, group + 1).t()) * scale,
                 c_.attention_softcap) +
          distances() * slope(head) + hidden;
      if (c_.attention_sinks) {  // one more key, whose value is 0
        const Tensor sink = weights_.at(name + "sinks.weight").slice(0, head, head + 1);
        scores = cat({scores, sink.reshape({1, 1, 1, 1}).expand({b_, 1, s_, 1})}, 3);
      }
      const Tensor weights = exp(scores - amax(scores.detach(), {-1}, true));
      const Tensor shares = (weights / tapestry::sum(weights, {-1}, true)).slice(3, 0, s_);
      contexts.push_back(matmul(shares, v.slice(1, group, group + 1)).squeeze(1));
    }
    return linear_layer(cat(contexts, -1) * gates, name + "wo", c_.out_proj_has_bias);
  }

  Tensor mix(const Tensor& x, const std::string& name) {
    if (mixer_kind(c_, layer_) == MixerKind::kAttention) {
      return attention(x, name + "attention.");
    }
    TensorList rows;
    for (int64_t row = 0; row < b_; ++row) {
      const std::vector<int64_t> starts = batch_.document_starts.empty()
                                              ? std::vector<int64_t>()
                                              : batch_.document_starts[static_cast<size_t>(row)];
      rows.push_back(plain_mixer(c_, layer_, x.select(0, row), weights_, starts));
    }
    return stack(rows, 0);
  }

  Tensor attention(const Tensor& x, const std::string& name) {
    if (c_.multi_latent_attention) {
      return latent_attention(x, name);
    }
    const bool full = c_.layer_types &&
                      (*c_.layer_types)[static_cast<size_t>(std::min(layer_, c_.num_layers - 1))] ==
                          "full_attention";
    const int64_t dim = full ? c_.full_attention_kv_channels.value_or(c_.kv_channels.value())
                             : c_.kv_channels.value();
    const int64_t groups = full ? c_.full_attention_num_query_groups.value_or(c_.num_query_groups)
                                : c_.num_query_groups;
    const bool shares = layer_ >= c_.num_layers - c_.num_kv_shared_layers &&
                        layer_ < c_.num_layers && c_.num_kv_shared_layers > 0;
    const auto project = [&](const char* which, int64_t n) {
      return linear_layer(x, name + which, c_.qkv_has_bias)
          .reshape({b_, s_, n, dim})
          .permute({0, 2, 1, 3});
    };
    const Tensor one = tapestry::full({1}, 1, kFloat64);
    const Tensor gates = c_.attention_output_gate
                             ? one / (exp(neg(linear_layer(x, name + "wg", c_.qkv_has_bias))) + 1.0)
                             : one;
    Tensor q = project("wq", c_.num_attention_heads);
    if (shares) {
      if (c_.qk_layernorm) {
        q = head_norm(q, name + "q_norm");
      }
      const auto& [k, v] = last_keys_.at(full);
      return attend(has_rotation(c_, layer_) ? rotate(q) : q, k, v, name, gates);
    }
    Tensor k = project("wk", groups);
    Tensor v = full && c_.full_attention_value_is_key ? k : project("wv", groups);
    if (c_.v_layernorm) {
      v = v / sqrt(mean(v * v, {-1}, true) + c_.norm_epsilon);
    }
    const auto norm_heads = [&] {
      if (c_.qk_layernorm) {
        q = head_norm(q, name + "q_norm");
        k = head_norm(k, name + "k_norm");
      }
    };
    if (!c_.qk_layernorm_after_rotary) {
      norm_heads();
    }
    if (c_.clip_qkv) {
      for (Tensor* const t : {&q, &k, &v}) {
        *t = clamp(*t, -*c_.clip_qkv, *c_.clip_qkv);
      }
    }
    if (has_rotation(c_, layer_)) {
      q = rotate(q) * temperatures();
      k = rotate(k);
    }
    if (c_.qk_layernorm_after_rotary) {
      norm_heads();
    }
    last_keys_[full] = {k, v};
    return attend(q, k, v, name, gates);
  }

  // With keys and values of every head written out.
  Tensor latent_attention(const Tensor& x, const std::string& name) const {
    const int64_t heads = c_.num_attention_heads;
    const int64_t plain = c_.qk_head_dim;
    const int64_t rotated = c_.qk_pos_emb_head_dim;
    const auto split = [&](const Tensor& t, int64_t n) {
      return t.reshape({b_, s_, n, t.size(2) / n}).permute({0, 2, 1, 3});
    };
    constexpr double kEpsilon = 1e-6;
    const Tensor queries = c_.q_lora_rank
                               ? linear_layer(norm(linear_layer(x, name + "wq_a", c_.qkv_has_bias),
                                                   name + "q_a_norm", kEpsilon),
                                              name + "wq_b", false)
                               : linear_layer(x, name + "wq", false);
    const Tensor q = split(queries, heads);
    const Tensor both = linear_layer(x, name + "wkv_a", c_.qkv_has_bias);
    const int64_t rank = c_.kv_lora_rank;
    const Tensor shared = rotate(split(both.slice(2, rank, rank + rotated), 1));
    const Tensor kv = split(linear_layer(norm(both.slice(2, 0, rank), name + "kv_a_norm", kEpsilon),
                                         name + "wkv_b", false),
                            heads);
    return attend(cat({q.slice(3, 0, plain), rotate(q.slice(3, plain, plain + rotated))}, 3),
                  cat({kv.slice(3, 0, plain), shared.expand({b_, heads, s_, rotated})}, 3),
                  kv.slice(3, plain, plain + c_.v_head_dim), name, full({1}, 1, kFloat64));
  }

  Tensor feed_forward(const Tensor& x, const std::string& name) const {
    const Tensor up = linear_layer(x, name + "w_up", c_.mlp_has_bias);
    Tensor inner;
    if (!has_gated_mlp(c_)) {
      inner = activate(up, name);
    } else {
      const Tensor gate = linear_layer(x, name + "w_gate", c_.mlp_has_bias);
      if (c_.hidden_act == "swiglu") {
        inner = gate / (exp(neg(gate)) + 1.0) * up;
      } else if (c_.hidden_act == "clamped_swiglu") {
        const double limit = c_.swiglu_limit;
        const Tensor low = clamp(gate, -1e30, limit);
        inner = low / (exp(low * -c_.swiglu_alpha) + 1.0) * (clamp(up, -limit, limit) + 1.0);
      } else {
        inner = activate(gate, name) * up;
      }
    }
    return linear_layer(inner, name + "w_down", c_.mlp_has_bias);
  }

  // Every expert on every token, times its gate or 0.
  Tensor experts(const Tensor& x, const Tensor& read, const std::string& name) const {
    const Tensor scaled = read / sqrt(mean(read * read, {-1}, true) + c_.norm_epsilon) *
                          weights_.at(name + "router.scale.weight") /
                          std::sqrt(static_cast<double>(c_.hidden_size));
    const Tensor logits = matmul(scaled, weights_.at(name + "router.weight").t());
    const Tensor scores = exp(logits - amax(logits.detach(), {-1}, true));
    const int64_t count = c_.moe.num_experts;
    const Tensor chosen = zeros({b_, s_, count}, kFloat64);
    for (int64_t token = 0; token < b_ * s_; ++token) {
      const double* row = dense(logits.detach()).data<double>() + token * count;
      for (int64_t e = 0; e < count; ++e) {
        const auto better = std::count_if(row, row + count, [&](double z) { return z > row[e]; });
        chosen.data<double>()[token * count + e] = better < c_.moe.moe_router_topk ? 1 : 0;
      }
    }
    const Tensor kept = scores * chosen;
    const Tensor gates = kept / tapestry::sum(kept, {-1}, true) *
                         weights_.at(name + "router.per_expert_scale.weight");
    Tensor out = zeros({b_, s_, c_.hidden_size}, kFloat64);
    for (int64_t e = 0; e < count; ++e) {
      out = out +
            feed_forward(x, name + "experts." + std::to_string(e) + ".") * gates.slice(2, e, e + 1);
    }
    return out;
  }

  // What layers read and give, one stream or several.
  Tensor entered(const Tensor& x) const {
    return c_.hyper_connections.enabled ? plain_streams(c_, x) : x;
  }
  Tensor left(const Tensor& x) const {
    return c_.hyper_connections.enabled ? plain_mean(c_, x) : x;
  }

  Tensor run_in_streams(const Tensor& x, const std::string& name) {
    const auto block = [&](const Tensor& in, const char* before, const char* after,
                           const std::function<Tensor(const Tensor&)>& inside) {
      const Tensor made = inside(norms_inputs(c_, layer_) ? norm(in, name + before) : in);
      return (norms_outputs(c_, layer_) ? norm(made, name + after) : made) * c_.residual_multiplier;
    };
    const std::string connection = name + "hyper_connection.";
    const Tensor between =
        plain_connection(c_, x, weights_, connection + "attention", [&](const Tensor& in) {
          return block(in, "attention_norm", "attention_post_norm",
                       [&](const Tensor& t) { return mix(t, name); });
        });
    return plain_connection(
        c_, between, weights_, connection + "feed_forward", [&](const Tensor& in) {
          return block(in, "ffn_norm", "ffn_post_norm",
                       [&](const Tensor& t) { return feed_forward(t, name + "feed_forward."); });
        });
  }

  Tensor run_layer(const Tensor& x, const std::string& name) {
    if (c_.hyper_connections.enabled) {
      return run_in_streams(x, name);
    }
    const bool from_norm = c_.apply_residual_connection_post_norm;
    const auto before = [&](const Tensor& t, const char* which) {
      return norms_inputs(c_, layer_) ? norm(t, name + which) : t;
    };
    const auto after = [&](const Tensor& t, const char* which) {
      return (norms_outputs(c_, layer_) ? norm(t, name + which) : t) * c_.residual_multiplier;
    };
    const Tensor normed = before(x, "attention_norm");
    const Tensor attended = after(mix(normed, name), "attention_post_norm");
    const Tensor middle = (from_norm ? normed : x) + attended;
    const Tensor middle_normed = shares_norm(c_, layer_)           ? normed
                                 : has_parallel_blocks(c_, layer_) ? before(x, "ffn_norm")
                                                                   : before(middle, "ffn_norm");
    Tensor block = feed_forward(middle_normed, name + "feed_forward.");
    if (c_.moe.num_experts > 1) {
      EXPECT_TRUE(c_.moe.moe_beside_dense);
      block = norm(block, name + "dense_post_norm") +
              norm(experts(norm(middle, name + "moe_norm"), middle, name + "moe."),
                   name + "moe_post_norm");
    }
    Tensor out = (from_norm ? middle_normed : middle) + after(block, "ffn_post_norm");
    if (c_.per_layer_embedding_size > 0) {
      const Tensor gate =
          activate(linear_layer(out, name + "per_layer_gate", false), name, "fast_gelu");
      out = out + norm(linear_layer(gate * in_layers_[static_cast<size_t>(layer_)],
                                    name + "per_layer_projection", false),
                       name + "per_layer_norm");
    }
    const auto scalar = weights_.find(name + "layer_scalar");
    return scalar == weights_.end() ? out : out * scalar->second;
  }

  int64_t layer_ = 0;
  TensorList in_layers_;                                 // per-layer embeddings
  std::map<bool, std::pair<Tensor, Tensor>> last_keys_;  // by kind, and values
  const TransformerConfig& c_;
  const data::Batch& batch_;
  int64_t b_;
  int64_t s_;
  State weights_;
};

}  // namespace

PlainResult run_plain_model(const TransformerConfig& config,
                            const State& weights,
                            const data::Batch& batch) {
  return PlainModel(config, weights, batch).run();
}

}  // namespace tapestry::testing
