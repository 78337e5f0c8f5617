// What rules of names have made of a model's parameters, for the logs.
#pragma once

#include "nn/module.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// With weight_decay_include or weight_decay_exclude a line in the log files for each parameter of
/// this rank, "language_model.encoder.final_norm.weight: weight decay 0, a vector", and with
/// adamw_include one that says which optimizer it has; and a warning for each rule that matches no
/// parameter on any rank. Nothing without these keys. Collective over all ranks.
void log_parameter_rules(const AllConfig& config, const nn::Module& model);

}  // namespace tapestry
