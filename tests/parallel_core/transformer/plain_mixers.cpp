#include "tests/parallel_core/transformer/plain_mixers.h"

#include <algorithm>
#include <cmath>

namespace tapestry::testing {

namespace {

Tensor gated(const Tensor& x) { return x / (exp(neg(x)) + 1.0); }
Tensor grown(const Tensor& x) { return log(exp(x) + 1.0); }

class PlainMixer {
 public:
  PlainMixer(const TransformerConfig& config,
             std::string name,
             const State& weights,
             const std::vector<int64_t>& starts)
      : c_(config), name_(std::move(name)), weights_(weights), starts_(starts) {}

  Tensor delta_net(const Tensor& x) const {
    const LinearAttentionConfig& c = c_.linear_attention;
    const int64_t dk = c.key_head_dim;
    const int64_t dv = c.value_head_dim;
    const int64_t heads = c.num_value_heads;
    const int64_t tokens = x.size(0);
    const Tensor q = gated(convolve(linear(x, "wq"), "conv_q"));
    const Tensor k = gated(convolve(linear(x, "wk"), "conv_k"));
    const Tensor v = gated(convolve(linear(x, "wv"), "conv_v"));
    const Tensor beta = (exp(neg(linear(x, "wb"))) + 1.0);
    const Tensor decay =
        neg(exp(at("A_log"))) * grown(linear(x, "wa") + at("dt_bias"));  // [S, heads]
    TensorList out;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t key_head = head / (heads / c.num_key_heads);
      Tensor state = zeros({dk, dv}, kFloat64);
      TensorList rows;
      for (int64_t t = 0; t < tokens; ++t) {
        const auto unit = [&](const Tensor& of) {
          const Tensor row = of.slice(0, t, t + 1).slice(1, key_head * dk, (key_head + 1) * dk);
          return row / sqrt(tapestry::sum(row * row, {-1}, true) + 1e-6);  // [1, dk]
        };
        const auto number = [&](const Tensor& of) {
          return of.slice(0, t, t + 1).slice(1, head, head + 1);
        };
        if (begins(t)) {
          state = zeros({dk, dv}, kFloat64);
        }
        const Tensor key = unit(k);
        const Tensor value = v.slice(0, t, t + 1).slice(1, head * dv, (head + 1) * dv);
        state = state * exp(number(decay));
        const Tensor written =
            (value - matmul(key, state)) / number(beta) * (c.allow_neg_eigval ? 2.0 : 1.0);
        state = state + matmul(key.t(), written);
        rows.push_back(matmul(unit(q), state) / std::sqrt(static_cast<double>(dk)));
      }
      const Tensor o = cat(rows, 0);
      const double epsilon = c.norm_epsilon.value_or(c_.norm_epsilon);
      const Tensor gate = gated(linear(x, "wz").slice(1, head * dv, (head + 1) * dv));
      out.push_back(o / sqrt(mean(o * o, {-1}, true) + epsilon) * at("norm") * gate);
    }
    return linear(cat(out, 1), "wo");
  }

  Tensor short_conv(const Tensor& x) const {
    const bool bias = c_.short_conv.has_bias;
    return linear(linear(x, "wc", bias) *
                      convolve(linear(x, "wb", bias) * linear(x, "wx", bias), "conv", bias),
                  "wo", bias);
  }

  Tensor mamba(const Tensor& x) const {
    const MambaConfig& c = c_.mamba;
    const int64_t heads = c.num_heads.value();
    const int64_t p = c.head_dim;
    const int64_t n = c.state_dim;
    const bool bias = c.proj_has_bias;
    const auto convolved = [&](const char* rows, const char* taps) {
      return gated(convolve(linear(x, rows, bias), taps, c.conv_has_bias));
    };
    const Tensor in = convolved("wx", "conv_x");
    const Tensor b = convolved("wB", "conv_B");
    const Tensor reads = convolved("wC", "conv_C");
    Tensor step = grown(linear(x, "wdt", bias) + at("dt_bias"));
    if (c.time_step_limit) {
      step = clamp(step, c.time_step_limit->front(), c.time_step_limit->back());
    }
    const Tensor rate = neg(exp(at("A_log")));
    TensorList out;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t group = head / (heads / c.num_groups);
      const auto number = [&](const Tensor& of) { return of.slice(0, head, head + 1); };
      Tensor state = zeros({n, p}, kFloat64);
      TensorList rows;
      for (int64_t t = 0; t < x.size(0); ++t) {
        const auto part = [&](const Tensor& of, int64_t which, int64_t size) {
          return of.slice(0, t, t + 1).slice(1, which * size, (which + 1) * size);
        };
        if (begins(t)) {
          state = zeros({n, p}, kFloat64);
        }
        const Tensor own_step = part(step, head, 1);
        const Tensor own = part(in, head, p);
        state =
            state * exp(own_step * number(rate)) + matmul(part(b, group, n).t(), own * own_step);
        rows.push_back(matmul(part(reads, group, n), state) + own * number(at("D")));
      }
      out.push_back(cat(rows, 0));
    }
    const Tensor product = cat(out, 1) * gated(linear(x, "wz", bias));
    const int64_t group = heads / c.num_groups * p;
    TensorList normed;
    for (int64_t i = 0; i < c.num_groups; ++i) {
      const Tensor part = product.slice(1, i * group, (i + 1) * group);
      normed.push_back(part / sqrt(mean(part * part, {-1}, true) + c_.norm_epsilon));
    }
    return linear(cat(normed, 1) * at("norm"), "wo", bias);
  }

 private:
  const Tensor& at(const std::string& name) const { return weights_.at(name_ + name + ".weight"); }

  Tensor linear(const Tensor& x, const char* name, bool has_bias = false) const {
    const Tensor y = matmul(x, at(name).t());
    return has_bias ? y + weights_.at(name_ + name + ".bias") : y;
  }

  bool begins(int64_t token) const {
    return std::find(starts_.begin(), starts_.end(), token) != starts_.end();
  }

  // The token and those before it, as far as its document goes.
  Tensor convolve(const Tensor& x, const char* name, bool has_bias = false) const {
    const Tensor& weight = at(name);  // [C, 1, K]
    const int64_t taps = weight.size(2);
    const int64_t channels = weight.size(0);
    TensorList rows;
    for (int64_t t = 0; t < x.size(0); ++t) {
      Tensor sum = zeros({1, channels}, kFloat64);
      for (int64_t back = 0; back < taps && back <= t; ++back) {
        const Tensor tap = weight.slice(2, taps - 1 - back, taps - back).reshape({1, channels});
        sum = sum + x.slice(0, t - back, t - back + 1) * tap;
        if (begins(t - back)) {
          break;
        }
      }
      rows.push_back(has_bias ? sum + weights_.at(name_ + name + ".bias") : sum);
    }
    return cat(rows, 0);
  }

  const TransformerConfig& c_;
  std::string name_;
  const State& weights_;
  const std::vector<int64_t>& starts_;
};

}  // namespace

Tensor plain_mixer(const TransformerConfig& config,
                   int64_t layer,
                   const Tensor& x,
                   const State& weights,
                   const std::vector<int64_t>& starts) {
  const std::string stem = "layers." + std::to_string(layer) + ".";
  const auto mixer = [&](const char* name) {
    return PlainMixer(config, stem + name, weights, starts);
  };
  switch (mixer_kind(config, layer)) {
    case MixerKind::kGatedDelta:
      return mixer("linear_attention.").delta_net(x);
    case MixerKind::kShortConv:
      return mixer("short_conv.").short_conv(x);
    default:
      return mixer("mamba.").mamba(x);
  }
}

}  // namespace tapestry::testing
