// What a step of Adafactor and one of CAME have in common: statistics of the rows and columns of
// whole logical tensors, of which this rank may have a part.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "autograd/kernels/factored_update.h"
#include "optim/optimizer.h"

namespace tapestry::optim {

/// The passes of one step over a set of parameters.
///
/// A logical tensor with two or more axes keeps, in place of a second moment for each element,
/// averages of the mean square of each row and each column, which every rank has whole that holds a
/// part of it. What is summed over these ranks in a step is one number for each row and column, and
/// one or two for each tensor, in double precision: all of them compute as one process does, but
/// for rounding.
class FactoredStep {
 public:
  /// What is updated of one parameter; see Optimizer::Update.
  struct Parameter {
    Tensor values;
    Tensor grad;
    Tensor copy;
    int64_t first = 0;
    const std::vector<nn::LogicalTensor>* logical = nullptr;
    const RankGroup* slices = nullptr;  ///< that hold slices of these; null: this rank alone
    const RankGroup* copies = nullptr;  ///< that hold the same slices; null: this rank alone
    bool is_matrix = false;
    std::map<std::string, Tensor>* states = nullptr;  ///< by the keys of Optimizer::StateEntry
    double lr = 0;
    double weight_decay = 0;
    double beta2 = 0;
  };
  struct Settings {
    double eps1 = 0;
    double eps2 = 0;
    double eps3 = 0;
    double clip_threshold = 1;
    double beta1 = 0;
    bool scale_parameter = false;
    GradTransform transform;
    bool cut_in_pieces = false;  ///< the parameters' copies hold pieces
  };
  FactoredStep(std::vector<Parameter> parameters, const Settings& settings);
  FactoredStep(const FactoredStep&) = delete;
  FactoredStep& operator=(const FactoredStep&) = delete;

  /// Averages of squared gradients; with them each tensor's clipping and step size.
  void find_directions();
  /// The update with u, or its average where there is an exp_avg.
  void apply_directions();
  /// CAME's update, with averages of squared residuals whose decay rate is beta3.
  void apply_with_confidence(double beta3);

 private:
  // A logical tensor of a parameter.
  struct Part {
    size_t parameter = 0;
    const nn::LogicalTensor* logical = nullptr;
    std::string suffix;  // of its states' keys
    int64_t stack = 1;   // matrices
    int64_t rows = 0;    // of one
    int64_t columns = 0;
    int64_t sums = 0;  // place of its rows' sums, and behind them its columns', among all
    size_t first_tile = 0;
    size_t end_tile = 0;
    Tensor row_root, column_root;
    kernels::FactoredConstants constants;
  };
  // What a tile has of its part: its first row and column, of all in the stack.
  struct TilePlace {
    int64_t row = 0;
    int64_t column = 0;
  };

  // Consecutive parts that the same ranks share.
  struct Shared {
    const RankGroup* slices = nullptr;
    const RankGroup* copies = nullptr;
    size_t end_part = 0;
    int64_t end_sum = 0;
  };

  void add_parts(size_t parameter);
  void add_shared(const Parameter& parameter);
  void add_tiles(Part& part);
  void add_tile(const Part& part, int64_t number, int64_t at, int64_t rows, int64_t columns);
  void finish_tiles();
  std::span<const kernels::FactoredTile> matrices() const {
    return std::span(tiles_).first(matrix_tiles_);
  }
  void sum_over_ranks(const Shared& shared, const Tensor& values, int64_t begin, int64_t end) const;
  void clear_column_sums() const;
  void add_tile_sums(const Part& part, double* sums) const;
  void average(const std::string& row_state, const std::string& column_state, const double* beta);
  void average(const Part& part,
               const double* sums,
               const Tensor& row_state,
               const Tensor& column_state,
               double beta) const;
  void scale_steps();

  std::vector<Parameter> parameters_;
  Settings settings_;
  std::vector<Part> parts_;
  std::vector<Shared> shared_;                // in the order of the parts
  std::vector<kernels::FactoredTile> tiles_;  // those of matrices first
  std::vector<TilePlace> places_;             // of the same
  size_t matrix_tiles_ = 0;
  int64_t sums_ = 0;       // of all parts' rows and columns
  Tensor row_scratch_;     // row sums of tiles, float64
  Tensor column_scratch_;  // column sums of tiles, in the dtype of each; float32 here
  Tensor norms_;           // squares of u and of p, by tile; float64
};

/// Base of optimizers that step so.
class FactoredOptimizer : public Optimizer {
 protected:
  using Optimizer::Optimizer;

  /// All of them with beta2 0.
  static std::vector<FactoredStep::Parameter> parameters_of(std::span<const Update> updates);
};

}  // namespace tapestry::optim
