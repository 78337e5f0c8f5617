// What losses of preferences ask of other keys.
#include <algorithm>
#include <string>
#include <string_view>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {

namespace {

constexpr const char* kPrefBeta = "post_training_config.beta";
constexpr const char* kPrefLossType = "post_training_config.loss_type";
constexpr const char* kPrefSmoothing = "post_training_config.label_smoothing";

// The first of the run's losses that is one of `names`; empty if none is.
std::string first_loss_of(const PostTrainingConfig& p, std::string_view names) {
  const auto some = split_text(names, '|');
  for (const std::string& loss : *p.loss_type) {
    if (std::find(some.begin(), some.end(), loss) != some.end()) {
      return loss;
    }
  }
  return {};
}

// Notes a key that none of the run's losses knows.
void idle_unless(Resolution& r, const char* key, std::string_view losses) {
  const PostTrainingConfig& p = r.config().post_training_config;
  if (first_loss_of(p, losses).empty()) {
    r.idle(concat("post_training_config.", key), concat("with loss_type ", p.loss_type->front()));
  }
}

// An error where a loss would divide by a beta of 0.
void need_beta(Resolution& r, std::string_view losses) {
  const PostTrainingConfig& p = r.config().post_training_config;
  const std::string loss = first_loss_of(p, losses);
  if (r.sound({kPrefBeta}) && *p.beta == 0 && !loss.empty()) {
    r.error(kPrefBeta, concat("is 0, by which loss_type ", loss, " divides; set it above 0"));
  }
}

void resolve_dpo(Resolution& r) {
  const PostTrainingConfig& p = r.config().post_training_config;
  need_beta(r, "ipo|sppo_hard");
  if (r.sound({kPrefSmoothing})) {
    if (p.label_smoothing >= 0.5 && !first_loss_of(p, "robust").empty()) {
      r.error(kPrefSmoothing, concat("is ", number_text(p.label_smoothing),
                                     ", but loss_type robust needs less than 0.5"));
    }
    if (p.label_smoothing == 0 && !first_loss_of(p, "exo_pair").empty()) {
      r.error(kPrefSmoothing,
              "is 0, but loss_type exo_pair needs more; its authors' choice is 0.001");
    }
  }
  const std::string without_pairs = first_loss_of(p, "aot|aot_unpaired|sft");
  if (p.use_weighting && !without_pairs.empty()) {
    r.error("post_training_config.use_weighting",
            concat("weighs pairs, but loss_type ", without_pairs,
                   " is no mean over pairs; switch it off, or leave that loss out"));
  }
  idle_unless(r, "label_smoothing", "robust|exo_pair|aot|aot_unpaired");
  idle_unless(r, "discopop_tau", "discopop");
  idle_unless(r, "f_divergence_type",
              "sigmoid|hinge|ipo|sigmoid_norm|robust|exo_pair|apo_down|discopop");
  if (p.f_divergence_type != "alpha_divergence") {
    r.idle("post_training_config.f_alpha_divergence_coef",
           concat("with f_divergence_type ", p.f_divergence_type));
  }
}

void resolve_cpo(Resolution& r) {
  need_beta(r, "ipo|simpo|alphapo");
  idle_unless(r, "label_smoothing", "sigmoid|simpo|alphapo");
  idle_unless(r, "simpo_gamma", "simpo|alphapo");
  idle_unless(r, "cpo_alpha", "sigmoid|hinge|ipo|simpo");
}

}  // namespace

void resolve_preferences(Resolution& r) {
  const PostTrainingConfig& p = r.config().post_training_config;
  if (!r.sound({kPrefLossType}) || !p.loss_type || p.loss_type->empty()) {
    return;
  }
  if (p.task == "dpo") {
    resolve_dpo(r);
  } else if (p.task == "cpo") {
    resolve_cpo(r);
  }
}

}  // namespace tapestry::config
