// Layouts of small models against one process.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "diagnosis/verify/verify_layout.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

inline LayoutParts made_up_data() {
  LayoutParts parts;
  parts.data = [](const AllConfig& config) { return std::make_unique<MadeUpSamples>(config); };
  return parts;
}

/// A small_config in a layout and in one process.
inline LayoutPair small_pair(const std::string& layout, const Overrides& overrides = {}) {
  return load_layout_pair(
      layout, [&](const Overrides& more) { return small_config(joined(overrides, more)); });
}

}  // namespace tapestry::testing
