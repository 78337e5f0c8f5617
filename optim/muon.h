// Muon: orthogonalised momentum for matrices, AdamW for the rest.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optim/adam.h"
#include "optim/matrix_exchange.h"
#include "optim/newton_schulz.h"

namespace tapestry::optim {

/// How the learning rate is scaled for a matrix [rows, columns].
enum class MuonScale : uint8_t {
  kMatchRmsAdamW,  ///< matched_adamw_rms sqrt(max(rows, columns)): RMS of the update as AdamW's
  kOriginal,       ///< sqrt(max(1, rows / columns))
};

struct MuonOptions {
  double lr = 0.02;
  double momentum = 0.95;
  bool nesterov = true;
  int64_t ns_steps = 5;
  /// Iterations one after the other; empty: ns_steps of the published polynomial.
  std::vector<NewtonSchulzSegment> coefficients = {};
  MuonScale scale = MuonScale::kMatchRmsAdamW;
  double matched_adamw_rms = 0.2;
  double weight_decay = 0;
  /// Of the products of float32 matrices: float32 or bfloat16; left out: bfloat16 where the
  /// processor has units for it (fastest_newton_schulz_dtype).
  std::optional<DType> products = {};
  /// By the name of a logical tensor [rows, columns] whose rows are those of several matrices by
  /// turns: how many each has in a turn. {128, 64}: rows 0 to 127 of every 192 are one matrix, the
  /// others another one. Each matrix is taken by itself.
  std::map<std::string, std::vector<int64_t>> row_turns = {};
  // Of AdamW.
  double beta1 = 0.95;
  double beta2 = 0.95;
  double eps = 1e-8;
  StateStorage storage = {};
};

/// Matrices: buf = momentum buf + g; u = g + momentum buf with nesterov, else buf; X =
/// newton_schulz(u); p = p (1 - lr wd) - lr scale X. A logical tensor with three or more axes is a
/// stack of matrices, each by itself; one with row_turns is several, too. Vectors, and groups with
/// `adamw`, take AdamW.
///
/// States: momentum_buffer, or those of AdamW. Where ranks share matrices see MatrixExchange: the
/// work is shared out among them, and the result has the bits that one rank computes. Source:
/// Jordan et al. 2024, "Muon"; the scale that matches AdamW: Liu et al. 2025, arXiv:2502.16982.
/// ValueError for a setting outside its range, or store_param_remainders; in a step, naming the
/// tensor, where row_turns do not divide the rows.
class Muon final : public AdamBase {
 public:
  explicit Muon(const TensorList& params, MuonOptions options = {});
  Muon(std::vector<ParamGroup> groups, MuonOptions options);

  std::string type_name() const override { return "Muon"; }

 protected:
  std::vector<StateKind> state_kinds(const ParamGroup& group, bool is_matrix) const override;
  void update(std::span<const Update> updates, const GradTransform& transform) override;

 private:
  void update_matrices(const std::vector<Update>& updates,
                       const GradTransform& transform,
                       MatrixExchange& exchange);
  MatrixExchange& exchange_of(const Update& update);
  double scale_of(const Shape& shape) const;
  Tensor orthogonal(const Tensor& whole) const;
  Tensor orthogonal_turns(const std::string& name, const Tensor& whole) const;

  MuonOptions options_;
  // One for the parameters that the same ranks share, by slices and copies.
  std::deque<std::pair<std::pair<const RankGroup*, const RankGroup*>, MatrixExchange>> exchanges_;
};

}  // namespace tapestry::optim
