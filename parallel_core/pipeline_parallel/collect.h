// What the stages of a pipeline hold, and ranks with different experts, brought together. Every
// rank of a pipeline, or of an expert-parallel group, makes these calls; in one of one rank, and
// before initialize_model_parallel, they give back what they get.
#pragma once

#include <map>
#include <span>
#include <string>

#include "autograd/kernels/exact/exact_scalar.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Replaces each value by its sum over the stages, on all of them.
void sum_over_pipeline(std::span<double> values);

/// The exact sum of the terms of all stages, on all of them.
void sum_over_pipeline(kernels::ExactSum& sum);

/// The value that the last stage has, on all stages.
int64_t from_last_stage(int64_t value);

/// All stages' tensors, on the first stage, whose memory they fill one stage after the other; on
/// the others an empty map. ValueError if two stages have a tensor of one name.
std::map<std::string, Tensor> gather_over_pipeline(std::map<std::string, Tensor> tensors);
/// The same for numbers.
std::map<std::string, double> gather_over_pipeline(const std::map<std::string, double>& values);

/// What all ranks of the expert-parallel group have, on each of them. ValueError if two have one
/// name.
std::map<std::string, Tensor> gather_over_experts(std::map<std::string, Tensor> tensors);
/// The same for numbers.
std::map<std::string, double> gather_over_experts(const std::map<std::string, double>& values);

}  // namespace tapestry
