// The faults of the drill: what goes wrong, what has to be found.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnosis/verify/faults/find_fault.h"
#include "tests/parallel_core/drill/drill_reference.h"

namespace tapestry::testing {

struct PlantedFault {
  std::string name;
  DrillModel model;
  std::function<void(FindFaultOptions&)> plant;
  /// The stages one of which has to be named: several where the fault lies between two.
  std::vector<std::string> stages;
  /// A regular expression that the module, the op or the tensor that is named has to hold.
  std::string place;
  /// And one that the sentence about it has to hold: of an update what it is as if.
  std::string sentence = "";
};

struct FaultClass {
  std::string name;
  std::vector<PlantedFault> faults;
};

std::vector<PlantedFault> forward_faults();
std::vector<PlantedFault> backward_faults();
std::vector<PlantedFault> optimizer_faults();
std::vector<PlantedFault> data_faults();
std::vector<PlantedFault> layout_faults();
/// All five, ten each.
std::vector<FaultClass> fault_classes();

/// The same of a model that computes in bfloat16; those of layouts in float32 alone say enough.
PlantedFault in_bfloat16(PlantedFault fault);

}  // namespace tapestry::testing
