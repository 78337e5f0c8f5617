#include "parallel_core/training/step/qk_clip.h"

#include <algorithm>
#include <limits>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// Elements from number `first` on, of rows that have `columns` each, times the factors of their
// rows: products in double precision, rounded once.
template <class T>
void multiply_rows(const Tensor& values,
                   int64_t first,
                   int64_t columns,
                   const std::vector<double>& factors) {
  T* data = values.data<T>();
  const int64_t end = first + values.numel();
  for (int64_t e = first; e < end;) {
    const int64_t row = e / columns;
    const int64_t row_end = std::min((row + 1) * columns, end);
    const double factor = factors[static_cast<size_t>(row)];
    for (; e < row_end; ++e) {
      T& value = data[e - first];
      value = static_cast<T>(static_cast<double>(value) * factor);
    }
  }
}

}  // namespace

QkClip::QkClip(nn::Module& model, optim::Optimizer& optimizer, double threshold)
    : optimizer_(optimizer), threshold_(threshold) {
  check<ValueError>(threshold > 0, "qk_clip: the threshold must be above 0, got ", threshold);
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    names_.emplace(entry.parameter, entry.name);
  }
  for (const nn::Module::NamedModule& entry : model.named_modules()) {
    auto* mixer = dynamic_cast<TokenMixer*>(entry.module);
    if (mixer == nullptr || mixer->core_attention() == nullptr) {
      continue;
    }
    layers_.emplace(mixer->core_attention()->layer(), mixer);
    const std::vector<double> none(static_cast<size_t>(mixer->core_attention()->total_heads()), 1);
    for (const RowFactors& rows : mixer->score_factors(none)) {
      const std::string& name = names_.at(rows.parameter);
      check<ValueError>(!optimizer_.is_fixed(name), "qk_clip: '", name,
                        "' is frozen, so its queries and keys cannot be scaled; switch "
                        "optimizer_config.qk_clip_enabled off, or train it");
    }
  }
}

int64_t QkClip::scale_weights(const HeadMaxima& maxima) const {
  int64_t scaled = 0;
  for (const auto& [layer, heads] : maxima) {
    std::vector<double> factors;
    for (const float most : heads) {
      // Infinite scores come with a loss that is not finite, and no update.
      const bool clips = most >= threshold_ && most <= std::numeric_limits<float>::max();
      factors.push_back(clips ? threshold_ / static_cast<double>(most) : 1);
      scaled += clips ? 1 : 0;
    }
    if (std::all_of(factors.begin(), factors.end(), [](double f) { return f == 1; })) {
      continue;
    }
    for (const RowFactors& rows : layers_.at(layer)->score_factors(factors)) {
      scale(rows);
    }
  }
  return scaled;
}

void QkClip::scale(const RowFactors& rows) const {
  const std::string& name = names_.at(rows.parameter);
  const optim::OwnPart part = optimizer_.own_part(name);
  if (part.count == 0) {
    return;
  }
  const Tensor old = optimizer_.own_main_param(name);
  const Tensor values = empty(old.shape(), old.dtype());
  copy_values(old, values);
  const int64_t columns = part.shape.numel() / std::ssize(rows.factors);
  if (values.dtype() == kFloat64) {
    multiply_rows<double>(values, part.first, columns, rows.factors);
  } else {
    multiply_rows<float>(values, part.first, columns, rows.factors);
  }
  optimizer_.set_own_main_param(name, values);
}

}  // namespace tapestry
