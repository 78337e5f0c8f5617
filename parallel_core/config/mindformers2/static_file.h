// Whole files of MindFormers' static graphs, whose names its 2.0 still has beside the new ones.
#pragma once

#include "parallel_core/config/mindformers2/translate.h"

namespace tapestry::config::mindformers2 {

/// Whether a file is one: it has `trainer`, or a model's keys in model.model_config.
bool is_static_file(const RawNode& root);

/// The file with the sections of the schema in place of those that static files alone have. What is
/// read anyway (runner_config, runner_wrapper, callbacks, ...) stays, and so does what is unknown.
Translation translate_static(const RawNode& root);

}  // namespace tapestry::config::mindformers2
