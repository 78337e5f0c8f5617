#include "tests/parallel_core/drill/op_fault.h"

#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"

namespace tapestry::testing {

namespace {

class MistakenOp final : public Observer {
 public:
  MistakenOp(FaultyOp where, OpMistake before, OpMistake after)
      : where_(std::move(where)), before_(std::move(before)), after_(std::move(after)) {}

  void op_begins(const OpRun& run) override {
    if (before_ && is_meant(run)) {
      before_(run);
    }
  }
  void op_ended(const OpRun& run) override {
    if (after_ && is_meant(run)) {
      after_(run);
    }
  }

 private:
  bool is_meant(const OpRun& run) const {
    return run.pass == where_.pass && run.op == where_.op && run.module.ends_with(where_.module);
  }

  FaultyOp where_;
  OpMistake before_;
  OpMistake after_;
};

std::function<void(FindFaultOptions&)> planted(FaultyOp where, OpMistake before, OpMistake after) {
  return [where = std::move(where), before = std::move(before),
          after = std::move(after)](FindFaultOptions& options) {
    options.training.parts.observer = [where, before, after] {
      return std::make_unique<MistakenOp>(where, before, after);
    };
  };
}

}  // namespace

std::function<void(FindFaultOptions&)> mistake_in(FaultyOp where, OpMistake mistake) {
  return planted(std::move(where), {}, std::move(mistake));
}

std::function<void(FindFaultOptions&)> mistake_before(FaultyOp where, OpMistake mistake) {
  return planted(std::move(where), std::move(mistake), {});
}

void change_values(const Tensor& x, const std::function<double(double, int64_t)>& change) {
  const NoGradGuard guard;
  const Tensor values = dense_copy(x.to(kFloat64));
  auto* v = values.data<double>();
  const int64_t last = x.dim() > 0 ? x.size(-1) : 1;
  for (int64_t i = 0; i < values.numel(); ++i) {
    v[i] = change(v[i], i % last);
  }
  copy_values(values.to(x.dtype()), x);
}

OpMistake result_changed(size_t index, std::function<double(double, int64_t)> change) {
  return [index, change = std::move(change)](const OpRun& run) {
    check<IndexError>(index < run.outputs.size(), run.op, " has ", run.outputs.size(), " results");
    if (run.outputs[index].defined()) {
      change_values(run.outputs[index], change);
    }
  };
}

OpMistake result_times(size_t index, double factor) {
  return result_changed(index, [factor](double value, int64_t /*at*/) { return value * factor; });
}

OpMistake result_rounded_to_bfloat16(size_t index) {
  return [index](const OpRun& run) {
    const NoGradGuard guard;
    const Tensor& result = run.outputs[index];
    copy_values(result.to(kBFloat16).to(result.dtype()), result);
  };
}

OpMistake even_rows_of_result_halved(size_t index) {
  return [index](const OpRun& run) {
    const Tensor& result = run.outputs[index];
    for (int64_t row = 0; row < result.size(0); row += 2) {
      change_values(result.slice(0, row, row + 1),
                    [](double value, int64_t /*at*/) { return value / 2; });
    }
  };
}

}  // namespace tapestry::testing
