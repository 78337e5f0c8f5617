#include "autograd/ops/transformer/gated_delta_rule.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "autograd/kernels/recurrence/gated_delta.h"
#include "autograd/ops/activation.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/documents.h"
#include "autograd/ops/transformer/gated_delta_passes.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace gated_delta {

constexpr OpName kRuleName = "gated_delta_rule";
constexpr OpName kStepName = "gated_delta_step";

namespace {

int64_t width_of(const GatedDeltaOptions& o) {
  return 2 * o.key_heads * o.key_dim + o.value_heads * o.value_dim;
}

Shape state_shape(int64_t batch, const GatedDeltaOptions& o) {
  return {batch, o.value_heads, o.key_dim, o.value_dim};
}

void check_sizes(std::string_view name, const GatedDeltaOptions& o) {
  check<ValueError>(std::min({o.key_heads, o.value_heads, o.key_dim, o.value_dim}) >= 1, name,
                    ": key_heads, value_heads, key_dim and value_dim must be at least 1, got ",
                    o.key_heads, ", ", o.value_heads, ", ", o.key_dim, " and ", o.value_dim);
  check<ValueError>(o.value_heads % o.key_heads == 0, name, ": the ", o.key_heads,
                    " key heads must divide the ", o.value_heads, " value heads");
  check<ValueError>(o.eps >= 0 && std::isfinite(o.eps), name,
                    ": eps must be a finite number of at least 0, got ", o.eps);
}

/// Of [.., n]; `leading` says what the axes before the last one are.
void check_tokens(std::string_view name,
                  const Tensor& qkv,
                  const Tensor& g,
                  const Tensor& beta,
                  const GatedDeltaOptions& o,
                  int64_t axes,
                  const char* leading) {
  check_floating(name, qkv.dtype());
  check_floating(name, g.dtype());
  check_floating(name, beta.dtype());
  check<ValueError>(qkv.dim() == axes && qkv.shape().back() == width_of(o), name, ": qkv must be [",
                    leading, ", ", width_of(o), "] for ", o.key_heads, " key heads of ", o.key_dim,
                    " and ", o.value_heads, " value heads of ", o.value_dim, ", got ",
                    describe(qkv));
  Shape gates = qkv.shape();
  gates.back() = o.value_heads;
  check<ValueError>(g.shape() == gates && beta.shape() == gates, name, ": g and beta must be ",
                    gates, ", got ", g.shape(), " and ", beta.shape());
}

void check_rule(const Tensor& qkv,
                const Tensor& g,
                const Tensor& beta,
                const GatedDeltaOptions& o) {
  check_sizes(kRuleName, o);
  check_tokens(kRuleName, qkv, g, beta, o, 3, "B, S");
  check_document_starts(kRuleName, o.document_starts, qkv.size(0), qkv.size(1), o.first_position);
  if (o.initial_state.defined()) {
    check_floating(kRuleName, o.initial_state.dtype());
    check<ValueError>(o.initial_state.shape() == state_shape(qkv.size(0), o), kRuleName,
                      ": initial_state must be ", state_shape(qkv.size(0), o), ", got ",
                      o.initial_state.shape());
  }
}

Tensor with_dense_last_axis(const Tensor& x) {
  return x.shape().back() > 1 && x.strides().back() != 1 ? dense_copy(x) : x;
}

/// The tensors of a call in the layouts that the kernel takes, which keeps them alive.
struct Arguments {
  Tensor qkv, g, beta, initial, starts;
  kernels::DeltaProblem problem;

  Arguments(const Tensor& qkv_,
            const Tensor& g_,
            const Tensor& beta_,
            const Tensor& initial_,
            const Tensor& starts_,
            const GatedDeltaOptions& o)
      : qkv(with_dense_last_axis(qkv_)),
        g(dense(g_)),
        beta(dense(beta_)),
        initial(initial_.defined() ? dense(initial_) : initial_),
        starts(starts_) {
    const DocumentRows documents = document_rows(starts);
    const bool has_sequence = qkv.dim() == 3;
    problem = {.dtype = qkv.dtype(),
               .batch = qkv.size(0),
               .seq = has_sequence ? qkv.size(1) : 1,
               .key_heads = o.key_heads,
               .value_heads = o.value_heads,
               .key_dim = o.key_dim,
               .value_dim = o.value_dim,
               .eps = o.eps,
               .qkv = {qkv.raw(), qkv.strides()[0], has_sequence ? qkv.strides()[1] : 0},
               .g = g.raw(),
               .beta = beta.raw(),
               .starts = documents.starts,
               .starts_batch = documents.batch_stride,
               .first_position = o.first_position,
               .initial = initial.defined() ? initial.raw() : nullptr};
  }
};

void* address(const Tensor& x) { return x.defined() ? x.raw() : nullptr; }

void fill_zeros(const Tensor& x) {
  if (x.defined()) {
    copy_values(broadcast_view(scalar(0, x.dtype()), x.shape()), x);
  }
}

/// A state that nothing happens to: of no tokens, or of none that reaches it.
void copy_state(const Tensor& from, const Tensor& to) {
  if (!to.defined()) {
    return;
  }
  if (from.defined()) {
    copy_values(from, to);
  } else {
    fill_zeros(to);
  }
}

void run_forward(const Arguments& in, const GatedDeltaPass& to) {
  if (in.problem.seq == 0) {
    copy_state(in.initial, to.final_state);
    return;
  }
  kernels::gated_delta(
      in.problem,
      {.out = address(to.out), .states = address(to.states), .final = address(to.final_state)});
}

void run_outputs(const Arguments& in, const GatedDeltaPass& to) {
  if (in.problem.seq == 0) {
    copy_state(in.initial, to.final_state);
    return;
  }
  kernels::gated_delta_again(in.problem, address(to.states), address(to.out),
                             address(to.final_state));
}

void run_backward(const Arguments& in,
                  const Tensor& states,
                  const Tensor& dout,
                  const Tensor& dfinal,
                  const GatedDeltaGradients& to) {
  if (in.problem.seq == 0) {
    copy_state(dfinal, to.dinitial);
    return;
  }
  const auto& p = in.problem;
  const Tensor rows =
      dout.defined()
          ? with_dense_last_axis(dout.reshape({p.batch, p.seq, p.value_heads * p.value_dim}))
          : dout;
  const Tensor last = dfinal.defined() ? dense(dfinal) : dfinal;
  kernels::DeltaRows of_out;
  if (rows.defined()) {
    of_out = {rows.raw(), rows.strides()[0], rows.strides()[1]};
  }
  kernels::gated_delta_backward(in.problem, {.states = address(states),
                                             .dout = of_out,
                                             .dfinal = address(last),
                                             .dqkv = address(to.dqkv),
                                             .dg = address(to.dg),
                                             .dbeta = address(to.dbeta),
                                             .dinitial = address(to.dinitial)});
}

/// The options without their tensors.
GatedDeltaOptions without_tensors(GatedDeltaOptions options) {
  options.document_starts = {};
  options.initial_state = {};
  return options;
}

/// The states of an op's first forward, for the second one that makes its results again.
struct KeptStates {
  Tensor states;
  Tensor qkv;  // of which, in its version then
  uint32_t version = 0;

  bool are_of(const Tensor& x) const {
    return states.defined() && x.storage() == qkv.storage() && x.version() == version;
  }
};

struct GatedDeltaRule {
  static constexpr OpName name = kRuleName;
  GatedDeltaOptions options;
  std::shared_ptr<KeptStates> kept;
  SavedTensor qkv = {}, g = {}, beta = {}, initial = {}, starts = {}, states = {};

  TensorList forward(const Tensor& qkv_,
                     const Tensor& g_,
                     const Tensor& beta_,
                     const Tensor& initial_,
                     const Tensor& starts_) {
    const Arguments in(qkv_, g_, beta_, initial_, starts_, options);
    const DType wide = wide_dtype(qkv_.dtype());
    GatedDeltaPass to;
    to.out =
        empty({qkv_.size(0), qkv_.size(1), options.value_heads, options.value_dim}, qkv_.dtype());
    if (options.wants_final_state) {
      to.final_state = empty(state_shape(qkv_.size(0), options), wide);
    }
    if (thread_state().recording_node == nullptr) {
      if (is_recomputing() && kept->are_of(qkv_)) {
        to.states = kept->states;
        run_outputs(in, to);
      } else {
        run_forward(in, to);
      }
      return results(to);
    }
    qkv.save(qkv_);
    g.save(g_);
    beta.save(beta_);
    initial.save(initial_);
    starts.save(starts_);
    to.states = empty(gated_delta_states_shape(qkv_.size(0), qkv_.size(1), options), wide);
    states.save(to.states);
    run_forward(in, to);
    if (noted_values() != nullptr) {
      *kept = {to.states, detail::without_graph(qkv_), qkv_.version()};
    }
    return results(to);
  }

  TensorList backward(const TensorList& dys, NeedsGrad needs) const {
    const Tensor dout = dys[0];
    const Tensor dfinal = dys.size() > 1 ? dys[1] : Tensor();
    if (grad_enabled()) {
      return composed_backward(dout, dfinal, needs);
    }
    const Arguments in(qkv, g, beta, initial, starts, options);
    GatedDeltaGradients to;
    to.dqkv = empty(in.qkv.shape(), in.qkv.dtype());
    to.dg = empty(in.g.shape(), in.g.dtype());
    to.dbeta = empty(in.g.shape(), in.g.dtype());
    if (needs[3]) {
      to.dinitial = empty(in.initial.shape(), in.initial.dtype());
    }
    run_backward(in, states, dout, dfinal, to);
    return {to.dqkv, to.dg, to.dbeta, to.dinitial, Tensor()};
  }

 private:
  static TensorList results(const GatedDeltaPass& to) {
    return to.final_state.defined() ? TensorList{to.out, to.final_state} : TensorList{to.out};
  }

  /// Of both results as one row of numbers in the wide dtype.
  TensorList composed_backward(const Tensor& dout, const Tensor& dfinal, NeedsGrad needs) const {
    const Tensor first_state = initial;
    GatedDeltaOptions own = options;
    own.document_starts = starts;
    own.wants_final_state = dfinal.defined();
    const auto twin = [&](const TensorList& in) {
      own.initial_state = needs[3] ? in[3] : first_state;
      const GatedDeltaResult result = composed_gated_delta_rule(in[0], in[1], in[2], own);
      return joined(dout.defined() ? result.out : Tensor(), result.final_state);
    };
    TensorList inputs = {qkv, g, beta};
    if (needs[3]) {
      inputs.push_back(first_state);
    }
    TensorList gradients = vjp(twin, joined(dout, dfinal), inputs);
    const Tensor dinitial = needs[3] ? gradients[3] : Tensor();
    return {gradients[0], gradients[1], gradients[2], dinitial, Tensor()};
  }

  static Tensor joined(const Tensor& a, const Tensor& b) {
    TensorList parts;
    for (const Tensor& part : {a, b}) {
      if (part.defined()) {
        parts.push_back(widen(part).reshape({part.numel()}));
      }
    }
    return parts.size() == 1 ? parts[0] : cat(parts, 0);
  }
};

struct GatedDeltaStep {
  static constexpr OpName name = kStepName;
  static constexpr bool differentiable = false;
  GatedDeltaOptions options;
  std::vector<int64_t> slots;

  Tensor forward(const Tensor& qkv, const Tensor& g, const Tensor& beta, const Tensor& state) {
    Tensor out = empty({qkv.size(0), options.value_heads, options.value_dim}, qkv.dtype());
    const Arguments in(qkv, g, beta, {}, {}, options);
    kernels::gated_delta_step(in.problem,
                              {.states = state.raw(), .slots = slots.data(), .out = out.raw()});
    state.bump_version();
    return out;
  }
};

std::string shown(const Tensor& x) { return x.defined() ? concat(describe(x)) : "nothing"; }

void check_written(const char* what, const Tensor& x, const Shape& shape, DType dtype) {
  check<ValueError>(!x.defined() || (x.shape() == shape && x.dtype() == dtype && x.is_contiguous()),
                    kRuleName, ": ", what, " must be contiguous ", name_of(dtype), " ", shape,
                    ", got ", shown(x));
}

/// The arguments of a pass, whose dtypes must be right already.
Arguments pass_arguments(const Tensor& qkv,
                         const Tensor& g,
                         const Tensor& beta,
                         const GatedDeltaOptions& o) {
  check_defined(kRuleName, qkv, "qkv", g, "g", beta, "beta");
  check_rule(qkv, g, beta, o);
  const DType wide = wide_dtype(qkv.dtype());
  check<TypeError>(g.dtype() == wide && beta.dtype() == wide &&
                       (!o.initial_state.defined() || o.initial_state.dtype() == wide),
                   kRuleName, ": g, beta and initial_state of ", name_of(qkv.dtype()),
                   " qkv must be ", name_of(wide));
  return {qkv, g, beta, o.initial_state, o.document_starts, o};
}

void check_pass(const Tensor& qkv, const GatedDeltaOptions& o, const GatedDeltaPass& to) {
  const DType wide = wide_dtype(qkv.dtype());
  check_written("out", to.out, {qkv.size(0), qkv.size(1), o.value_heads, o.value_dim}, qkv.dtype());
  check_written("states", to.states, gated_delta_states_shape(qkv.size(0), qkv.size(1), o), wide);
  check_written("final_state", to.final_state, state_shape(qkv.size(0), o), wide);
}

}  // namespace
}  // namespace gated_delta

Shape gated_delta_states_shape(int64_t batch, int64_t tokens, const GatedDeltaOptions& options) {
  const int64_t chunks = (tokens + kernels::kDeltaChunk - 1) / kernels::kDeltaChunk;
  return {batch, options.value_heads, std::max<int64_t>(chunks - 1, 0), options.key_dim,
          options.value_dim};
}

GatedDeltaResult gated_delta_rule(const Tensor& qkv,
                                  const Tensor& g,
                                  const Tensor& beta,
                                  const GatedDeltaOptions& options) {
  using namespace gated_delta;
  check_defined(kRuleName, qkv, "qkv", g, "g", beta, "beta");
  check_rule(qkv, g, beta, options);
  const DType wide = wide_dtype(qkv.dtype());
  const Tensor initial =
      options.initial_state.defined() ? options.initial_state.to(wide) : options.initial_state;
  TensorList results =
      apply_op(GatedDeltaRule{without_tensors(options), std::make_shared<KeptStates>()}, qkv,
               g.to(wide), beta.to(wide), initial, options.document_starts);
  return {results[0], results.size() > 1 ? results[1] : Tensor()};
}

GatedDeltaResult composed_gated_delta_rule(const Tensor& qkv,
                                           const Tensor& g,
                                           const Tensor& beta,
                                           const GatedDeltaOptions& options) {
  using namespace gated_delta;
  check_rule(qkv, g, beta, options);
  const GatedDeltaOptions& o = options;
  const DType wide = wide_dtype(qkv.dtype());
  const int64_t batch = qkv.size(0);
  const int64_t tokens = qkv.size(1);
  const Tensor x = widen(qkv);
  const auto heads = [&](int64_t begin, int64_t count, int64_t dim) {
    return slice(x, -1, begin, begin + count * dim).reshape({batch, tokens, count, dim});
  };
  const auto normalized = [&](int64_t begin, double factor) {
    const Tensor rows = heads(begin, o.key_heads, o.key_dim);
    const Tensor y = mul(rows, rsqrt(add(sum(square(rows), {-1}, true), o.eps)));
    const int64_t group = o.value_heads / o.key_heads;
    return mul(y, factor)
        .unsqueeze(3)
        .expand({batch, tokens, o.key_heads, group, o.key_dim})
        .reshape({batch, tokens, o.value_heads, o.key_dim});
  };
  const Tensor q = normalized(0, 1 / std::sqrt(static_cast<double>(o.key_dim)));
  const Tensor k = normalized(o.key_heads * o.key_dim, 1);
  const Tensor v = heads(2 * o.key_heads * o.key_dim, o.value_heads, o.value_dim);
  const Tensor decay = exp(g.to(wide)).unsqueeze(-1).unsqueeze(-1);
  const Tensor gates = beta.to(wide).unsqueeze(-1).unsqueeze(-1);
  const Tensor begins =
      o.document_starts.defined()
          ? begins_document(o.document_starts, tokens, o.first_position).unsqueeze(-1).unsqueeze(-1)
          : Tensor();
  Tensor state =
      o.initial_state.defined() ? o.initial_state.to(wide) : zeros(state_shape(batch, o), wide);
  TensorList out;
  for (int64_t t = 0; t < tokens; ++t) {
    if (begins.defined()) {
      state = masked_fill(state, begins.select(1, t).unsqueeze(1), 0);
    }
    state = mul(state, decay.select(1, t));
    const Tensor key = k.select(1, t).unsqueeze(2);  // [B, Hv, 1, dk]
    const Tensor delta =
        mul(gates.select(1, t), sub(v.select(1, t).unsqueeze(2), matmul(key, state)));
    state = add(state, matmul(key.transpose(2, 3), delta));
    out.push_back(matmul(q.select(1, t).unsqueeze(2), state).squeeze(2));
  }
  const Tensor rows = out.empty() ? zeros({batch, 0, o.value_heads, o.value_dim}, qkv.dtype())
                                  : stack(out, 1).to(qkv.dtype());
  return {rows, o.wants_final_state ? state : Tensor()};
}

Tensor gated_delta_step(const Tensor& qkv,
                        const Tensor& g,
                        const Tensor& beta,
                        const Tensor& state,
                        std::span<const int64_t> slots,
                        const GatedDeltaOptions& options) {
  using namespace gated_delta;
  check_defined(kStepName, qkv, "qkv", g, "g", beta, "beta", state, "state");
  check_sizes(kStepName, options);
  check_tokens(kStepName, qkv, g, beta, options, 2, "M");
  check<ValueError>(!options.document_starts.defined() && options.first_position == 0 &&
                        !options.initial_state.defined() && !options.wants_final_state,
                    kStepName, ": takes sizes and eps only; the states are those in `state`");
  const DType wide = wide_dtype(qkv.dtype());
  check<TypeError>(state.dtype() == wide, kStepName, ": the state of ", name_of(qkv.dtype()),
                   " qkv must be ", name_of(wide), ", got ", name_of(state.dtype()));
  check<ValueError>(state.dim() == 4 && state.is_contiguous() &&
                        state.shape() == state_shape(state.size(0), options),
                    kStepName, ": the state must be contiguous [slots, ", options.value_heads, ", ",
                    options.key_dim, ", ", options.value_dim, "], got ", describe(state));
  check_slots(kStepName, slots, qkv.size(0), state.size(0));
  check<RuntimeError>(!grad_enabled() || !(qkv.requires_grad() || g.requires_grad() ||
                                           beta.requires_grad() || state.requires_grad()),
                      kStepName,
                      ": has no gradient; run inference under a NoGradGuard, or take "
                      "gated_delta_rule()");
  return apply_op(GatedDeltaStep{options, {slots.begin(), slots.end()}}, qkv, g.to(wide),
                  beta.to(wide), state);
}

GatedDeltaGates gated_delta_gates(const Tensor& a,
                                  const Tensor& b,
                                  const Tensor& a_log,
                                  const Tensor& dt_bias,
                                  double beta_scale) {
  constexpr std::string_view kGatesName = "gated_delta_gates";
  check_defined(kGatesName, a, "a", b, "b", a_log, "a_log", dt_bias, "dt_bias");
  for (const Tensor& x : {a, b, a_log, dt_bias}) {
    check_floating(kGatesName, x.dtype());
  }
  check<ValueError>(a.dim() >= 1 && a.shape() == b.shape(), kGatesName,
                    ": a and b must be [.., heads] of one shape, got ", a.shape(), " and ",
                    b.shape());
  const Shape heads = {a.shape().back()};
  check<ValueError>(a_log.shape() == heads && dt_bias.shape() == heads, kGatesName,
                    ": a_log and dt_bias must be ", heads, ", got ", a_log.shape(), " and ",
                    dt_bias.shape());
  check<ValueError>(beta_scale > 0 && std::isfinite(beta_scale), kGatesName,
                    ": beta_scale must be a finite number above 0, got ", beta_scale);
  const DType wide = wide_dtype(a.dtype());
  const Tensor g = mul(neg(exp(a_log.to(wide))), softplus(add(a.to(wide), dt_bias.to(wide))));
  const Tensor beta = sigmoid(b.to(wide));
  return {g, beta_scale == 1 ? beta : mul(beta, beta_scale)};
}

void gated_delta_forward(const Tensor& qkv,
                         const Tensor& g,
                         const Tensor& beta,
                         const GatedDeltaOptions& options,
                         const GatedDeltaPass& to) {
  using namespace gated_delta;
  const Arguments in = pass_arguments(qkv, g, beta, options);
  check_pass(qkv, options, to);
  run_forward(in, to);
}

void gated_delta_outputs(const Tensor& qkv,
                         const Tensor& g,
                         const Tensor& beta,
                         const GatedDeltaOptions& options,
                         const GatedDeltaPass& to) {
  using namespace gated_delta;
  const Arguments in = pass_arguments(qkv, g, beta, options);
  check_defined(kRuleName, to.states, "states");
  check_pass(qkv, options, to);
  run_outputs(in, to);
}

void gated_delta_backward(const Tensor& qkv,
                          const Tensor& g,
                          const Tensor& beta,
                          const GatedDeltaOptions& options,
                          const Tensor& states,
                          const Tensor& dout,
                          const Tensor& dfinal,
                          const GatedDeltaGradients& gradients) {
  using namespace gated_delta;
  const Arguments in = pass_arguments(qkv, g, beta, options);
  const DType wide = wide_dtype(qkv.dtype());
  const Shape state = state_shape(qkv.size(0), options);
  const bool wants_tokens = gradients.dqkv.defined();
  check<ValueError>(wants_tokens == gradients.dg.defined() &&
                        wants_tokens == gradients.dbeta.defined() &&
                        wants_tokens <= states.defined(),
                    kRuleName, ": dqkv, dg and dbeta are made together, and of the states");
  check_written("states", states, gated_delta_states_shape(qkv.size(0), qkv.size(1), options),
                wide);
  const Shape tokens = {qkv.size(0), qkv.size(1), options.value_heads, options.value_dim};
  check<ValueError>(!dout.defined() || (dout.shape() == tokens && dout.dtype() == qkv.dtype()),
                    kRuleName, ": dout must be ", name_of(qkv.dtype()), " ", tokens, ", got ",
                    shown(dout));
  check<ValueError>(!dfinal.defined() || (dfinal.shape() == state && dfinal.dtype() == wide),
                    kRuleName, ": dfinal must be ", name_of(wide), " ", state, ", got ",
                    shown(dfinal));
  check_written("dqkv", gradients.dqkv, qkv.shape(), qkv.dtype());
  check_written("dg", gradients.dg, g.shape(), wide);
  check_written("dbeta", gradients.dbeta, g.shape(), wide);
  check_written("dinitial", gradients.dinitial, state, wide);
  run_backward(in, states, dout, dfinal, gradients);
}

}  // namespace tapestry
