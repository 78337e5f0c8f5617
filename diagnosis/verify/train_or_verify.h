// The whole of a program that trains a model of one's own.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/comm/distributed.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

/// Trains with the configuration that the words of the command line give (init_configs_from_args):
/// `pretrain` with `options`, whose world and signals are those of the job; `--overwrite` and
/// `--replace` among the words are those of PretrainOptions. With `--verify_layout
/// LAYOUT` among the words it compares that layout with one process instead (compare_layout), over
/// `--verify_steps N` steps (3), and prints the report. The exit code; kFailure if the layout does
/// not compute what one process does. `--help` or `-h`, alone or with a section, prints and
/// returns.
int train_or_verify(std::vector<std::string> words,
                    const Distributed& job,
                    PretrainOptions options = {});

}  // namespace tapestry
