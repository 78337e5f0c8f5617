// The layouts that are compared with one process: a part of them in each test run, all by the
// program layout_matrix.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "diagnosis/verify/verify_layout.h"

namespace tapestry::testing {

struct LayoutRow {
  std::string model;   ///< see layout_table.cpp
  std::string layout;  ///< see parse_layout
  /// Of the layout alone: one process stays as the model has it.
  std::vector<std::string> overrides = {};
  bool in_every_test_run = false;

  /// "llama tp=2,sp SBH", as one word if `joined`.
  std::string name(bool joined = false) const;
};
std::ostream& operator<<(std::ostream& out, const LayoutRow& row);

const std::vector<LayoutRow>& layout_table();

/// Whether a part of the row's training is in bfloat16.
bool has_bfloat16(const LayoutRow& row);

/// Writes the checkpoint from which all layouts of a model start, unless it is there. Returns its
/// path, below `folder`.
std::string start_checkpoint(const std::string& model, const std::string& folder);

/// Trains 20 steps from a start_checkpoint, in the row's layout and in one process. Compares losses
/// and norms of all steps, activations and gradients of the first, and the weights after the last.
LayoutReport compare_row(const LayoutRow& row, const std::string& checkpoint);
/// The same without measuring bounds, for the bits of the layout and for distances.
LayoutReport run_row(const LayoutRow& row, const std::string& checkpoint);

}  // namespace tapestry::testing
