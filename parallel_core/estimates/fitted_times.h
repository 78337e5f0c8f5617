// What a step costs beside the speed of the machine: fitted to steps of the tiny preset, of one of
// 0.8 million parameters and of one of 7,000.
#pragma once

namespace tapestry::fitted_times {

/// Of the largest product's speed, which all products reach.
inline constexpr double kShareOfSpeed = 0.7;
/// How often what is kept of a layer passes through memory, with its gradient and what is made of
/// it and not kept.
inline constexpr double kPassesOverActivations = 8;
/// What a pass through a layer, and a step, take however little they compute.
inline constexpr double kSecondsPerPass = 60e-6;
inline constexpr double kSecondsPerStep = 100e-6;
/// Gradient, parameter, two moments: read; the last three written, the gradient cleared.
inline constexpr double kBytesPerUpdate = 32;

}  // namespace tapestry::fitted_times
