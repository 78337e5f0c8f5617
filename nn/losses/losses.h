// Losses as modules; the functions are in autograd/ops/loss.h.
#pragma once

#include <string>

#include "autograd/ops/loss.h"
#include "autograd/tensor/error.h"
#include "nn/module.h"

namespace tapestry::nn {

/// A module of predictions and targets.
class Loss : public Module {
 public:
  virtual Tensor forward(const Tensor& prediction, const Tensor& target) = 0;
  Tensor operator()(const Tensor& prediction, const Tensor& target) {
    return forward(prediction, target);
  }
};

/// logits [.., V], labels [..]; see tapestry::cross_entropy.
class CrossEntropyLoss final : public Loss {
 public:
  explicit CrossEntropyLoss(CrossEntropyOptions options = {}) : options_(std::move(options)) {}
  std::string type_name() const override { return "CrossEntropyLoss"; }
  Tensor forward(const Tensor& logits, const Tensor& labels) override {
    return cross_entropy(logits, labels, options_);
  }

 private:
  CrossEntropyOptions options_;
};

/// log-probabilities [.., V], labels [..]; see tapestry::nll_loss.
class NLLLoss final : public Loss {
 public:
  explicit NLLLoss(NllLossOptions options = {}) : options_(options) {}
  std::string type_name() const override { return "NLLLoss"; }
  Tensor forward(const Tensor& log_probs, const Tensor& labels) override {
    return nll_loss(log_probs, labels, options_);
  }

 private:
  NllLossOptions options_;
};

class MSELoss final : public Loss {
 public:
  explicit MSELoss(Reduction reduction = Reduction::kMean) : reduction_(reduction) {}
  std::string type_name() const override { return "MSELoss"; }
  Tensor forward(const Tensor& prediction, const Tensor& target) override {
    return mse_loss(prediction, target, reduction_);
  }

 private:
  Reduction reduction_;
};

class L1Loss final : public Loss {
 public:
  explicit L1Loss(Reduction reduction = Reduction::kMean) : reduction_(reduction) {}
  std::string type_name() const override { return "L1Loss"; }
  Tensor forward(const Tensor& prediction, const Tensor& target) override {
    return l1_loss(prediction, target, reduction_);
  }

 private:
  Reduction reduction_;
};

/// See tapestry::smooth_l1_loss.
class SmoothL1Loss final : public Loss {
 public:
  explicit SmoothL1Loss(SmoothL1LossOptions options = {}) : options_(options) {}
  std::string type_name() const override { return "SmoothL1Loss"; }
  std::string extra_repr() const override { return concat("beta=", options_.beta); }
  Tensor forward(const Tensor& prediction, const Tensor& target) override {
    return smooth_l1_loss(prediction, target, options_);
  }

 private:
  SmoothL1LossOptions options_;
};

/// log-probabilities and probabilities, or log-probabilities with log_target; see tapestry::kl_div.
class KLDivLoss final : public Loss {
 public:
  explicit KLDivLoss(KlDivOptions options = {}) : options_(options) {}
  std::string type_name() const override { return "KLDivLoss"; }
  std::string extra_repr() const override { return options_.log_target ? "log_target" : ""; }
  Tensor forward(const Tensor& log_probs, const Tensor& target) override {
    return kl_div(log_probs, target, options_);
  }

 private:
  KlDivOptions options_;
};

class BCEWithLogitsLoss final : public Loss {
 public:
  explicit BCEWithLogitsLoss(Tensor pos_weight = {}, Reduction reduction = Reduction::kMean)
      : pos_weight_(std::move(pos_weight)), reduction_(reduction) {}
  std::string type_name() const override { return "BCEWithLogitsLoss"; }
  Tensor forward(const Tensor& logits, const Tensor& targets) override {
    return binary_cross_entropy_with_logits(logits, targets, pos_weight_, reduction_);
  }

 private:
  Tensor pos_weight_;
  Reduction reduction_;
};

}  // namespace tapestry::nn
