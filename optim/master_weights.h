// What an optimizer keeps of a parameter: its states, and the float32 values of a 16-bit one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "autograd/kernels/random_rows.h"
#include "autograd/tensor/tensor.h"

namespace tapestry::optim {

/// How an optimizer holds what it keeps for each parameter. All states of a float64 parameter are
/// float64, whatever is written here.
struct StateStorage {
  /// Adam's moments: float32 or bfloat16. A bfloat16 moment is rounded stochastically after each
  /// step: rounded to nearest, it would stop where a step changes it by less than half a unit.
  DType exp_avg_dtype = kFloat32;
  DType exp_avg_sq_dtype = kFloat32;
  /// Of a bfloat16 parameter, keep the 16 bits that it lacks in place of a whole float32 master
  /// (kernels/optimizer.h, split_float32): 4 bytes for both instead of 6, and the same values.
  bool store_param_remainders = false;
  /// Of the stochastic rounding. Its random numbers are those of seed, step, name and position of
  /// an element in its logical tensor, so the same in every layout (nn/random_rows.h).
  uint64_t seed = 0;
};

/// Of one parameter.
struct ParamState {
  int64_t step = 0;         ///< updates done, this one included while it runs
  bool has_states = false;  ///< there has been a step, or a saved state was loaded
  std::map<std::string, Tensor> tensors;
  Tensor main_param;  ///< float32 master of a 16-bit parameter
  Tensor low_bits;    ///< or its 16 lower bits; the dtype says nothing
  /// Which random numbers its elements take, whatever the step; as they are asked for.
  std::vector<kernels::RandomRows> numbers;
};

/// Whether a dtype has 16 bits.
bool is_half(DType dtype);

/// Keeps the float32 values behind 16-bit parameters: a whole master, or the bits that the
/// parameter lacks. The sign of one of these bits is that of the second moment (split_float32), so
/// that who looks at a state comes here too.
class MasterWeights {
 public:
  /// ValueError for dtypes that states cannot have.
  explicit MasterWeights(const StateStorage& storage);

  const StateStorage& storage() const { return storage_; }
  /// What a state of the parameter is stored in.
  DType state_dtype(const std::string& state_name, const Tensor& parameter) const;

  /// Before the first step of a parameter.
  void begin(const Tensor& parameter, ParamState& state) const;
  /// Turns a float32 parameter into a 16-bit one, whose bits go to `place`.
  void narrow(const Tensor& parameter, const Tensor& place, ParamState& state) const;
  /// Takes over the master of another state of the parameter.
  void keep_master(const Tensor& parameter, const ParamState& old, ParamState& state) const;

  /// The values that training goes by, a copy where they are stored as remainders. `state` may be
  /// null.
  Tensor values(const Tensor& parameter, const ParamState* state) const;
  /// Sets master and parameter.
  void set_values(const Tensor& values, const Tensor& parameter, ParamState* state) const;
  /// Puts other states in the place of the parameter's, which keeps its values.
  void set_states(std::map<std::string, Tensor> tensors,
                  const Tensor& parameter,
                  ParamState& state) const;

  /// A state in float32 (of a float64 parameter: float64), without what the signs mean.
  Tensor state_values(const std::string& state_name, const ParamState& state) const;
  /// The same as it is stored.
  Tensor stored_state(const std::string& state_name, const ParamState& state) const;

 private:
  void add_low_bits(const Tensor& parameter, ParamState& state) const;
  Tensor joined(const Tensor& parameter, const ParamState& state) const;
  void split(const Tensor& values, const Tensor& parameter, const ParamState& state) const;

  StateStorage storage_;
};

}  // namespace tapestry::optim
