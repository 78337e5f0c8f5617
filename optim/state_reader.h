// Reads a saved state of an optimizer.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "nn/module.h"
#include "optim/master_weights.h"
#include "optim/parameter_places.h"

namespace tapestry::optim {

/// Reads the entries "<parameter>.<key>" and "<parameter>.step" of one parameter after the other,
/// and finds what does not fit. Nothing is changed: the states that were read are taken at the end.
class StateReader {
 public:
  /// The arguments outlive the object; errors begin with `optimizer`.
  StateReader(const nn::StateDict& state,
              const ParameterPlaces& places,
              const MasterWeights& masters,
              std::string optimizer);

  /// A parameter without any entry is one that has had no update. ValueError for a negative number
  /// of steps.
  void read(const std::string& parameter_name, const std::vector<StateEntry>& entries);
  /// ValueError that names every missing, unexpected and mis-shaped entry.
  std::map<std::string, ParamState> take();

 private:
  nn::StateDict::const_iterator find(const std::string& key) const;
  void note_missing_step(const std::string& name, const std::vector<StateEntry>& entries);
  void read_step(const std::string& key, const Tensor& step, ParamState& into);
  void read_entry(const std::string& name, const StateEntry& entry, ParamState& into);

  const nn::StateDict& state_;
  const ParameterPlaces& places_;
  const MasterWeights& masters_;
  std::string optimizer_;
  std::map<std::string, ParamState> loaded_;
  std::set<std::string> used_;
  nn::LoadReport report_;
};

}  // namespace tapestry::optim
