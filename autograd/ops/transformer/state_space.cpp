#include "autograd/ops/transformer/state_space.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "autograd/kernels/recurrence/state_space.h"
#include "autograd/ops/activation.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/state_space_passes.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

namespace state_spaces {

constexpr OpName kName = "state_space";
constexpr OpName kStep = "state_space_step";

// ------------------------------------------------------------------------------------ arguments

int64_t width_of(const StateSpaceOptions& o) {
  return o.heads * o.head_dim + 2 * o.groups * o.state_size;
}

void check_sizes(std::string_view op, const StateSpaceOptions& o) {
  check<ValueError>(o.heads >= 1 && o.head_dim >= 1 && o.state_size >= 1, op, ": ", o.heads,
                    " heads of ", o.head_dim, " channels with a state of ", o.state_size,
                    "; options must give heads, head_dim and state_size of at least 1");
  check<ValueError>(o.groups >= 1 && o.heads % o.groups == 0, op, ": ", o.groups,
                    " groups must divide the ", o.heads, " heads");
  check<ValueError>(o.step_min >= 0 && o.step_min <= o.step_max, op,
                    ": the bounds of the steps must be 0 <= step_min <= step_max, got ", o.step_min,
                    " and ", o.step_max);
}

void check_dtype(std::string_view op, const char* what, const Tensor& x, DType of_xbc) {
  check<TypeError>(x.dtype() == of_xbc || x.dtype() == kFloat32, op, ": ", what, " must be ",
                   name_of(of_xbc), " (xbc's dtype) or float32, got ", name_of(x.dtype()));
}

// `rows`: the shape of xbc without its last axis.
void check_inputs(std::string_view op,
                  const StateSpaceInputs& in,
                  Shape rows,
                  const StateSpaceOptions& options) {
  check_floating(op, in.xbc.dtype());
  check_sizes(op, options);
  Shape expected = rows;
  expected.push_back(width_of(options));
  check<ValueError>(in.xbc.shape() == expected, op, ": xbc ", in.xbc.shape(), " must be ", expected,
                    ": ", options.heads, " heads of ", options.head_dim, " channels and twice ",
                    options.groups, " groups of ", options.state_size);
  rows.push_back(options.heads);
  check<ValueError>(in.dt.shape() == rows, op, ": dt ", in.dt.shape(), " must be ", rows,
                    " for xbc ", in.xbc.shape());
  check_dtype(op, "dt", in.dt, in.xbc.dtype());
  const std::array<std::pair<const char*, const Tensor*>, 3> parameters = {
      {{"a_log", &in.a_log}, {"d", &in.d}, {"dt_bias", &in.dt_bias}}};
  for (const auto& [what, tensor] : parameters) {
    check<ValueError>(tensor->shape() == Shape{options.heads}, op, ": ", what, " ", tensor->shape(),
                      " must be [", options.heads, "], one number for each head");
    check_dtype(op, what, *tensor, in.xbc.dtype());
  }
}

void check_documents(const Tensor& starts, int64_t batch, int64_t end) {
  check<TypeError>(starts.dtype() == kInt32, kName, ": document_starts must be int32, got ",
                   name_of(starts.dtype()));
  check<ValueError>(starts.dim() == 2 && starts.is_contiguous() &&
                        (starts.size(0) == batch || starts.size(0) == 1) && starts.size(1) >= end,
                    kName, ": document_starts must be contiguous [", batch, " or 1, at least ", end,
                    "], got ", describe(starts));
  const int32_t* row = starts.data<int32_t>();
  for (int64_t b = 0; b < starts.size(0); ++b, row += starts.size(1)) {
    for (int64_t p = 0; p < starts.size(1); ++p) {
      // A document that begins where the one before it does is the same; one that begins later does
      // so at its own first token.
      const int32_t before = p > 0 ? row[p - 1] : 0;
      check<ValueError>(row[p] == before || row[p] == p, kName,
                        ": document_starts must not decrease nor lie behind their position, and "
                        "change only where a document begins; got ",
                        row[p], " at position ", p, " of row ", b, " after ", before);
    }
  }
}

void check_call(const StateSpaceInputs& in, const StateSpaceOptions& options) {
  check_defined(kName, in.xbc, "xbc", in.dt, "dt", in.a_log, "a_log", in.d, "d", in.dt_bias,
                "dt_bias");
  check<ValueError>(in.xbc.dim() == 3, kName, ": xbc must be [B, S, channels], got ",
                    in.xbc.shape());
  const int64_t batch = in.xbc.size(0);
  check_inputs(kName, in, {batch, in.xbc.size(1)}, options);
  check<ValueError>(options.chunk_size >= 1 && options.chunk_size <= kernels::kMostChunk, kName,
                    ": chunk_size must lie in 1 .. ", kernels::kMostChunk, ", got ",
                    options.chunk_size);
  check<ValueError>(options.position_offset >= 0, kName,
                    ": position_offset must not be negative, got ", options.position_offset);
  if (options.initial_state.defined()) {
    const Shape expected = {batch, options.heads, options.head_dim, options.state_size};
    check<ValueError>(options.initial_state.shape() == expected, kName, ": initial_state ",
                      options.initial_state.shape(), " must be ", expected);
    check<TypeError>(options.initial_state.dtype() == wide_dtype(in.xbc.dtype()), kName,
                     ": initial_state must be ", name_of(wide_dtype(in.xbc.dtype())), ", got ",
                     name_of(options.initial_state.dtype()));
  }
  if (options.document_starts.defined()) {
    check_documents(options.document_starts, batch, options.position_offset + in.xbc.size(1));
  }
}

// As the kernels want document_starts: int32 [B or 1, S], counted from the first token, -1 where
// the document begins with the initial state.
Tensor first_tokens(const StateSpaceOptions& options, int64_t tokens) {
  const Tensor& starts = options.document_starts;
  if (!starts.defined()) {
    return {};
  }
  Tensor out = empty({starts.size(0), tokens}, kInt32);
  const auto offset = static_cast<int32_t>(options.position_offset);
  auto* to = out.data<int32_t>();
  for (int64_t b = 0; b < starts.size(0); ++b) {
    const int32_t* from = starts.data<int32_t>() + b * starts.size(1) + offset;
    for (int64_t t = 0; t < tokens; ++t) {
      const bool is_given = from[t] == 0 || from[t] < offset;
      *to++ = is_given ? -1 : from[t] - offset;
    }
  }
  return out;
}

// dt and parameters in the dtype that is computed in; recorded.
StateSpaceInputs widened(const StateSpaceInputs& in) {
  const DType wide = wide_dtype(in.xbc.dtype());
  return {in.xbc, in.dt.to(wide), in.a_log.to(wide), in.d.to(wide), in.dt_bias.to(wide)};
}

// --------------------------------------------------------------------------------------- kernels

// A kernel's call, and what it points to. Inputs are widened().
class Call {
 public:
  Call(const StateSpaceInputs& in, const StateSpaceOptions& options, Tensor first)
      : options_(options),
        xbc_(rows_of(in.xbc)),
        dt_(rows_of(in.dt)),
        d_(dense(in.d)),
        bias_(dense(in.dt_bias)),
        first_(std::move(first)),
        a_(in.a_log.to_vector<double>()) {
    for (double& a : a_) {
      a = -std::exp(a);
    }
    call_ = {.dtype = in.xbc.dtype(),
             .batch = in.xbc.size(0),
             .tokens = in.xbc.dim() == 3 ? in.xbc.size(1) : 1,
             .heads = options.heads,
             .head_dim = options.head_dim,
             .groups = options.groups,
             .state_size = options.state_size,
             .chunk = options.chunk_size,
             .step_min = options.step_min,
             .step_max = options.step_max,
             .xbc = xbc_.tensor.raw(),
             .xbc_stride = xbc_.stride,
             .dt = dt_.tensor.raw(),
             .dt_stride = dt_.stride,
             .a = a_.data(),
             .d = d_.raw(),
             .dt_bias = bias_.raw()};
    if (first_.defined()) {
      call_.first = first_.data<int32_t>();
      call_.first_batch = first_.size(0) == 1 ? 0 : first_.size(1);
    }
  }

  kernels::StateSpaceCall& operator*() { return call_; }
  kernels::StateSpaceCall* operator->() { return &call_; }
  const std::vector<double>& a() const { return a_; }

  int64_t chunks() const { return kernels::state_space_chunks(call_.tokens, call_.chunk); }
  int64_t states() const { return call_.batch * call_.heads; }
  DType wide() const { return wide_dtype(call_.dtype); }
  Shape state_shape() const {
    return {call_.batch, call_.heads, options_.head_dim, options_.state_size};
  }
  Shape padded_shape() const {
    return {call_.batch, call_.heads, kernels::state_space_padded(options_.state_size),
            kernels::state_space_padded(options_.head_dim)};
  }
  Shape borders_shape() const {
    const Shape s = padded_shape();
    return {s[0], chunks() + 1, s[1], s[2], s[3]};
  }

  // [B, H, p, N] to and from the kernels' form; undefined: zeros.
  Tensor padded(const Tensor& state) const {
    if (!state.defined()) {
      return zeros(padded_shape(), wide());
    }
    const Tensor values = dense(state);
    Tensor out = empty(padded_shape(), wide());
    kernels::pad_states(wide(), states(), options_.head_dim, options_.state_size, values.raw(),
                        out.raw());
    return out;
  }
  Tensor unpadded(const Tensor& padded) const {
    const Tensor values = dense(padded);
    Tensor out = empty(state_shape(), wide());
    kernels::unpad_states(wide(), states(), options_.head_dim, options_.state_size, values.raw(),
                          out.raw());
    return out;
  }

  // With the states before the first chunk.
  Tensor new_borders() const {
    Tensor borders = empty(borders_shape(), wide());
    if (borders.numel() > 0) {
      copy_values(padded(options_.initial_state), borders.select(1, 0));
    }
    return borders;
  }
  Tensor final_state(const Tensor& borders) const { return unpadded(borders.select(1, chunks())); }
  Tensor new_output() const {
    return empty({call_.batch, call_.tokens, options_.heads * options_.head_dim}, call_.dtype);
  }

 private:
  const StateSpaceOptions& options_;
  RowView xbc_, dt_;
  Tensor d_, bias_, first_;
  std::vector<double> a_;
  kernels::StateSpaceCall call_;
};

Tensor vector_of(const std::vector<double>& values, DType dtype) {
  return tensor(values, {static_cast<int64_t>(values.size())}).to(dtype);
}

StateSpaceGradientTensors run_backward(const StateSpaceInputs& in,
                                       const StateSpaceOptions& options,
                                       const Tensor& first,
                                       const Tensor& borders,
                                       const Tensor& dy_,
                                       const Tensor& dfinal) {
  Call call(in, options, first);
  call->borders = borders.raw();
  const RowView dy = rows_of(dy_.defined() ? dy_ : zeros(call.new_output().shape(), call->dtype));
  const Tensor dstates = call.padded(dfinal);
  StateSpaceGradientTensors out;
  out.xbc = empty(in.xbc.shape(), call->dtype);
  out.dt = empty(in.dt.shape(), call.wide());
  const auto heads = static_cast<size_t>(options.heads);
  std::vector<double> da(heads);
  std::vector<double> dd(heads);
  std::vector<double> dbias(heads);
  kernels::state_space_backward(*call, {.dy = dy.tensor.raw(),
                                        .dy_stride = dy.stride,
                                        .dstates = dstates.raw(),
                                        .dxbc = out.xbc.raw(),
                                        .ddt = out.dt.raw(),
                                        .da = da.data(),
                                        .dd = dd.data(),
                                        .ddt_bias = dbias.data()});
  for (size_t h = 0; h < heads; ++h) {
    da[h] *= call.a()[h];
  }
  out.a_log = vector_of(da, call.wide());
  out.d = vector_of(dd, call.wide());
  out.dt_bias = vector_of(dbias, call.wide());
  out.initial_state = call.unpadded(dstates);
  return out;
}

// ------------------------------------------------------------------------------------------ twin

// [B, S, G, N] -> [B, H, S, N]
Tensor of_heads(const Tensor& by_group, int64_t heads) {
  const int64_t batch = by_group.size(0);
  const int64_t groups = by_group.size(2);
  const Tensor wide = by_group.permute({0, 2, 1, 3}).unsqueeze(2);
  return wide.expand({batch, groups, heads / groups, by_group.size(1), by_group.size(3)})
      .reshape({batch, heads, by_group.size(1), by_group.size(3)});
}

// first: as by first_tokens().
std::array<Tensor, 2> composed(const StateSpaceInputs& in,
                               const StateSpaceOptions& o,
                               const Tensor& first,
                               const Tensor& initial) {
  const int64_t batch = in.xbc.size(0);
  const int64_t s = in.xbc.size(1);
  const int64_t inner = o.heads * o.head_dim;
  const int64_t states = o.groups * o.state_size;
  const Tensor all = widen(in.xbc);
  const Tensor x =
      slice(all, -1, 0, inner).reshape({batch, s, o.heads, o.head_dim}).permute({0, 2, 1, 3});
  const Shape grouped = {batch, s, o.groups, o.state_size};
  const Tensor b = of_heads(slice(all, -1, inner, inner + states).reshape(grouped), o.heads);
  const Tensor c =
      of_heads(slice(all, -1, inner + states, inner + 2 * states).reshape(grouped), o.heads);
  Tensor step = softplus(in.dt + in.dt_bias);
  if (o.step_min > 0 || std::isfinite(o.step_max)) {
    step = clamp(step, o.step_min, o.step_max);
  }
  step = step.permute({0, 2, 1});  // [B, H, S]
  const Tensor decay = mul(step, neg(exp(in.a_log)).unsqueeze(-1));
  const Tensor sums = cumsum(decay, -1);
  const Tensor positions = arange(s, kInt32);
  Tensor hidden = gt(positions.unsqueeze(0), positions.unsqueeze(1));  // [t, s]: s > t
  Tensor from = full({1, s}, -1, kInt32);
  if (first.defined()) {
    from = first;
    hidden =
        logical_or(hidden, lt(positions.view({1, 1, 1, s}), first.view({first.size(0), 1, s, 1})));
  }
  const double never = -std::numeric_limits<double>::infinity();
  const Tensor weights =
      exp(masked_fill(sub(sums.unsqueeze(-1), sums.unsqueeze(-2)), hidden, never));
  const Tensor scaled = mul(x, step.unsqueeze(-1));
  const Tensor scores = mul(matmul(c, b.transpose(-1, -2)), weights);
  Tensor y = add(matmul(scores, scaled), mul(x, in.d.view({o.heads, 1, 1})));
  // Of the last token: what of each token is in the final state.
  Tensor final_state;
  if (s > 0) {
    const Tensor last = slice(weights, -2, s - 1, s).transpose(-1, -2);  // [B, H, S, 1]
    final_state = matmul(mul(scaled, last).transpose(-1, -2), b);
  } else {
    final_state = zeros({batch, o.heads, o.head_dim, o.state_size}, all.dtype());
  }
  if (initial.defined()) {
    const Tensor begun = ge(from, scalar(0, kInt32)).unsqueeze(1);
    const Tensor since = exp(masked_fill(sums, begun, never)).unsqueeze(-1);  // [B, H, S, 1]
    y = add(y, mul(matmul(c, initial.transpose(-1, -2)), since));
    final_state = s > 0 ? add(final_state, mul(slice(since, -2, s - 1, s), initial)) : initial;
  }
  return {y.permute({0, 2, 1, 3}).reshape({batch, s, inner}).to(in.xbc.dtype()), final_state};
}

// -------------------------------------------------------------------------------------------- op

/// Border states that outlive a dropped result, for inputs that are told by their memory.
struct KeptBorders {
  struct Input {
    const Storage* storage;
    uint32_t version;
    int64_t offset;
    bool operator==(const Input&) const = default;
  };
  std::vector<Input> inputs;
  Tensor borders;

  static std::vector<Input> told(const TensorList& tensors) {
    std::vector<Input> out;
    for (const Tensor& t : tensors) {
      if (t.defined()) {
        out.push_back({t.storage().get(), t.version(), t.offset()});
      }
    }
    return out;
  }
};

struct StateSpace {
  static constexpr OpName name = kName;
  StateSpaceOptions options;          // without tensors
  std::shared_ptr<KeptBorders> kept;  // where results may be dropped
  SavedTensor xbc, dt, a_log, d, dt_bias, first, initial, borders;

  void for_float64() { kept.reset(); }

  std::array<Tensor, 2> forward(const Tensor& xbc_,
                                const Tensor& dt_,
                                const Tensor& a_log_,
                                const Tensor& d_,
                                const Tensor& dt_bias_,
                                const Tensor& first_,
                                const Tensor& initial_) {
    xbc.save(xbc_);
    dt.save(dt_);
    a_log.save(a_log_);
    d.save(d_);
    dt_bias.save(dt_bias_);
    first.save(first_);
    initial.save(initial_);
    StateSpaceOptions own = options;
    own.initial_state = initial_;
    Call call({xbc_, dt_, a_log_, d_, dt_bias_}, own, first_);
    const Tensor y = call.new_output();
    std::vector<KeptBorders::Input> inputs;
    if (kept != nullptr) {
      inputs = KeptBorders::told({xbc_, dt_, a_log_, d_, dt_bias_, first_, initial_});
    }
    Tensor states;
    if (is_recomputing() && kept != nullptr && kept->borders.defined() && kept->inputs == inputs) {
      states = kept->borders;
      call->borders = states.raw();
      kernels::state_space_output(*call, y.raw());
    } else {
      states = call.new_borders();
      call->borders = states.raw();
      kernels::state_space(*call, y.raw());
      if (kept != nullptr) {
        kept->inputs = std::move(inputs);
        kept->borders = states;
      }
    }
    borders.save(states);
    return {y, options.want_final_state ? call.final_state(states) : Tensor()};
  }

  TensorList backward(const TensorList& dys, NeedsGrad needs) const {
    const Tensor tokens = first;
    const Tensor state = initial;
    if (grad_enabled()) {
      return composed_backward(dys);
    }
    const StateSpaceGradientTensors g =
        run_backward({xbc, dt, a_log, d, dt_bias}, options, tokens, borders.get(), dys[0],
                     dys.size() > 1 ? dys[1] : Tensor());
    return {g.xbc, g.dt, g.a_log, g.d, g.dt_bias, Tensor(), needs[6] ? g.initial_state : Tensor()};
  }

 private:
  TensorList composed_backward(const TensorList& dys) const {
    TensorList sum(7);
    for (size_t k = 0; k < 2; ++k) {
      if (!dys[k].defined()) {
        continue;
      }
      const auto twin = [this, k, tokens = first.get()](const TensorList& in) {
        return composed({in[0], in[1], in[2], in[3], in[4]}, options, tokens, in[5])[k];
      };
      const TensorList part = vjp(twin, dys[k], {xbc, dt, a_log, d, dt_bias, initial});
      for (size_t i = 0; i < part.size(); ++i) {
        Tensor& to = sum[i < 5 ? i : 6];
        to = to.defined() && part[i].defined() ? add(to, part[i])
             : part[i].defined()               ? part[i]
                                               : to;
      }
    }
    return sum;
  }
};

struct StateSpaceStepOp {
  static constexpr OpName name = kStep;
  static constexpr bool differentiable = false;
  StateSpaceOptions options;
  std::vector<int64_t> slots;

  Tensor forward(const Tensor& xbc,
                 const Tensor& dt,
                 const Tensor& a_log,
                 const Tensor& d,
                 const Tensor& dt_bias,
                 const Tensor& states) {
    Call call({xbc, dt, a_log, d, dt_bias}, options, {});
    Tensor y = empty({xbc.size(0), options.heads * options.head_dim}, xbc.dtype());
    kernels::state_space_step({*call, slots.data(), states.raw(), y.raw()});
    states.bump_version();
    return y;
  }
};

StateSpaceOptions without_tensors(StateSpaceOptions options) {
  options.document_starts = {};
  options.initial_state = {};
  return options;
}

// For passes: checked, unrecorded, widened, with the tokens at which documents begin.
struct Posed {
  StateSpaceInputs inputs;
  Tensor first;
};

Posed pose(const StateSpaceInputs& inputs, const StateSpaceOptions& options) {
  check_call(inputs, options);
  return {widened(inputs), first_tokens(options, inputs.xbc.size(1))};
}

void check_borders(const Call& call, const Tensor& borders) {
  check_defined(kName, borders, "borders");
  check<ValueError>(borders.shape() == call.borders_shape() && borders.dtype() == call.wide() &&
                        borders.is_contiguous(),
                    kName, ": borders must be contiguous ", name_of(call.wide()), " ",
                    call.borders_shape(), ", as state_space_forward() with these options gives ",
                    "them, got ", describe(borders));
}

void check_gradients(const Call& call, const Tensor& dy, const Tensor& y, const Tensor& dfinal) {
  check<ValueError>(!dy.defined() || dy.shape() == y.shape(), kName, ": dy must be ", y.shape(),
                    ", got ", dy.defined() ? dy.shape() : Shape());
  check<TypeError>(!dy.defined() || dy.dtype() == y.dtype(), kName, ": dy must be ",
                   name_of(y.dtype()), " (xbc's dtype)");
  check<ValueError>(!dfinal.defined() || dfinal.shape() == call.state_shape(), kName,
                    ": dfinal_state must be ", call.state_shape(), ", got ",
                    dfinal.defined() ? dfinal.shape() : Shape());
  check<TypeError>(!dfinal.defined() || dfinal.dtype() == call.wide(), kName,
                   ": dfinal_state must be ", name_of(call.wide()));
}

}  // namespace state_spaces

}  // namespace

StateSpaceResult state_space(const Tensor& xbc,
                             const Tensor& dt,
                             const Tensor& a_log,
                             const Tensor& d,
                             const Tensor& dt_bias,
                             const StateSpaceOptions& options) {
  const StateSpaceInputs given = {xbc, dt, a_log, d, dt_bias};
  state_spaces::check_call(given, options);
  const StateSpaceInputs in = state_spaces::widened(given);
  state_spaces::StateSpace op;
  op.options = state_spaces::without_tensors(options);
  if (noted_values() != nullptr) {
    op.kept = std::make_shared<state_spaces::KeptBorders>();
  }
  const auto [y, final_state] =
      apply_op(std::move(op), in.xbc, in.dt, in.a_log, in.d, in.dt_bias,
               state_spaces::first_tokens(options, xbc.size(1)), options.initial_state);
  return {y, final_state};
}

StateSpaceResult composed_state_space(const Tensor& xbc,
                                      const Tensor& dt,
                                      const Tensor& a_log,
                                      const Tensor& d,
                                      const Tensor& dt_bias,
                                      const StateSpaceOptions& options) {
  const StateSpaceInputs given = {xbc, dt, a_log, d, dt_bias};
  state_spaces::check_call(given, options);
  const auto [y, final_state] = state_spaces::composed(
      state_spaces::widened(given), options, state_spaces::first_tokens(options, xbc.size(1)),
      options.initial_state);
  return {y, options.want_final_state ? final_state : Tensor()};
}

Tensor state_space_step(const Tensor& xbc,
                        const Tensor& dt,
                        const Tensor& a_log,
                        const Tensor& d,
                        const Tensor& dt_bias,
                        const StateSpaceOptions& options,
                        const Tensor& states,
                        const std::vector<int64_t>& slots) {
  const auto name = state_spaces::kStep;
  check_defined(name, xbc, "xbc", dt, "dt", a_log, "a_log", d, "d", dt_bias, "dt_bias", states,
                "states");
  check<ValueError>(xbc.dim() == 2, name, ": xbc must be [texts, channels], got ", xbc.shape());
  const StateSpaceInputs given = {xbc, dt, a_log, d, dt_bias};
  state_spaces::check_inputs(name, given, {xbc.size(0)}, options);
  const DType wide = wide_dtype(xbc.dtype());
  check<TypeError>(states.dtype() == wide, name, ": states must be ", name_of(wide), ", got ",
                   name_of(states.dtype()));
  const Shape expected = {states.dim() > 0 ? states.size(0) : 0, options.heads, options.head_dim,
                          options.state_size};
  check<ValueError>(states.shape() == expected && states.is_contiguous(), name,
                    ": states must be contiguous [slots, ", options.heads, ", ", options.head_dim,
                    ", ", options.state_size, "], got ", describe(states));
  check<ValueError>(static_cast<int64_t>(slots.size()) == xbc.size(0), name, ": ", slots.size(),
                    " slots for ", xbc.size(0), " texts");
  std::vector<bool> used(static_cast<size_t>(states.size(0)));
  for (const int64_t slot : slots) {
    check<ValueError>(slot >= 0 && slot < states.size(0), name, ": slot ", slot,
                      " is not one of the ", states.size(0), " of states");
    check<ValueError>(!used[static_cast<size_t>(slot)], name, ": slot ", slot, " stands twice");
    used[static_cast<size_t>(slot)] = true;
  }
  const auto wants = [](const Tensor& t) { return t.requires_grad(); };
  check<RuntimeError>(!grad_enabled() || !(wants(xbc) || wants(dt) || wants(a_log) || wants(d) ||
                                           wants(dt_bias) || wants(states)),
                      name,
                      ": has no gradient; run inference under a NoGradGuard, or take "
                      "state_space()");
  const StateSpaceInputs in = state_spaces::widened(given);
  return apply_op(state_spaces::StateSpaceStepOp{state_spaces::without_tensors(options), slots},
                  in.xbc, in.dt, in.a_log, in.d, in.dt_bias, states);
}

// ---------------------------------------------------------------------------------------- passes

StateSpacePass state_space_forward(const StateSpaceInputs& inputs,
                                   const StateSpaceOptions& options) {
  const NoGradGuard guard;
  const state_spaces::Posed posed = state_spaces::pose(inputs, options);
  state_spaces::Call call(posed.inputs, options, posed.first);
  StateSpacePass out = {call.new_output(), call.new_borders(), {}};
  call->borders = out.borders.raw();
  kernels::state_space(*call, out.y.raw());
  out.final_state = call.final_state(out.borders);
  return out;
}

StateSpacePass state_space_states(const StateSpaceInputs& inputs,
                                  const StateSpaceOptions& options) {
  const NoGradGuard guard;
  const state_spaces::Posed posed = state_spaces::pose(inputs, options);
  state_spaces::Call call(posed.inputs, options, posed.first);
  StateSpacePass out = {{}, call.new_borders(), {}};
  call->borders = out.borders.raw();
  kernels::state_space_states(*call);
  out.final_state = call.final_state(out.borders);
  return out;
}

Tensor state_space_output(const StateSpaceInputs& inputs,
                          const StateSpaceOptions& options,
                          const Tensor& borders) {
  const NoGradGuard guard;
  const state_spaces::Posed posed = state_spaces::pose(inputs, options);
  state_spaces::Call call(posed.inputs, options, posed.first);
  state_spaces::check_borders(call, borders);
  call->borders = borders.raw();
  Tensor y = call.new_output();
  kernels::state_space_output(*call, y.raw());
  return y;
}

Tensor state_space_decay(const StateSpaceInputs& inputs, const StateSpaceOptions& options) {
  const NoGradGuard guard;
  const state_spaces::Posed posed = state_spaces::pose(inputs, options);
  state_spaces::Call call(posed.inputs, options, posed.first);
  const Tensor out = empty({call->batch, call->heads}, kFloat64);
  kernels::state_space_log_decay(*call, out.data<double>());
  return exp(out);
}

StateSpaceGradientTensors state_space_backward(const StateSpaceInputs& inputs,
                                               const StateSpaceOptions& options,
                                               const Tensor& borders,
                                               const Tensor& dy,
                                               const Tensor& dfinal_state) {
  const NoGradGuard guard;
  const state_spaces::Posed posed = state_spaces::pose(inputs, options);
  const state_spaces::Call call(posed.inputs, options, posed.first);
  state_spaces::check_borders(call, borders);
  state_spaces::check_gradients(call, dy, call.new_output(), dfinal_state);
  return state_spaces::run_backward(posed.inputs, options, posed.first, borders, dy, dfinal_state);
}

Tensor state_space_initial_gradient(const StateSpaceInputs& inputs,
                                    const StateSpaceOptions& options,
                                    const Tensor& dy,
                                    const Tensor& dfinal_state) {
  const NoGradGuard guard;
  const state_spaces::Posed posed = state_spaces::pose(inputs, options);
  state_spaces::Call call(posed.inputs, options, posed.first);
  const Tensor y = call.new_output();
  state_spaces::check_gradients(call, dy, y, dfinal_state);
  const Tensor dstates = call.padded(dfinal_state);
  const RowView rows = rows_of(dy.defined() ? dy : zeros(y.shape(), y.dtype()));
  kernels::state_space_backward_states(
      *call, {.dy = rows.tensor.raw(), .dy_stride = rows.stride, .dstates = dstates.raw()});
  return call.unpadded(dstates);
}

}  // namespace tapestry
