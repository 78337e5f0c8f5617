// Sections of other programs: which of their values mean something here.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/config/read/foreign_names.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {

/// A value under a name of another program's that is read.
struct ForeignValue {
  const ForeignName* row = nullptr;
  RawNode name;
  RawNode value;
};

struct ForeignSection {
  std::vector<ForeignValue> values;  // as they stand in the file
  RawNode rest;                      // what nothing here reads
  bool is_read = false;              // whole: it is empty, or nothing is left
};

/// Takes a section apart. `name` is its name at top level: "runner_wrapper".
ForeignSection read_foreign_section(const std::string& name, const RawNode& body);

}  // namespace tapestry::config
