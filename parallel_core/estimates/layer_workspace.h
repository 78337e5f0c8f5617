// Temporaries of the backward pass through a layer.
#pragma once

#include <cstdint>

#include "parallel_core/config/config.h"
#include "parallel_core/config/model_matrices.h"

namespace tapestry {

/// What a rank works on in a pass.
struct PassSize {
  double tokens = 0;   ///< of a micro-batch
  double own = 0;      ///< of these, whose hidden states the rank has (sequence_parallel)
  double element = 0;  ///< bytes of a value
};

/// Bytes beside what a layer has kept for its backward pass, its gradients and messages.
class LayerWorkspace {
 public:
  /// `config` must outlive it; `load` as for estimate_stage().
  LayerWorkspace(const AllConfig& config,
                 const ModelShares& shares,
                 const PassSize& pass,
                 double load);

  /// What the widest part of a layer of any kind has of values and their gradients.
  double usual(int64_t layer) const;
  /// The most at any time, with what kernels pack. Attention beside an MLP or experts is gone
  /// through part by part; all else has `usual`.
  double backward(int64_t layer) const;
  /// Of a product of gradients' [tokens, rows] transposed: what its kernel packs (gemm_tiled.cpp).
  double packed(double rows, double tokens) const;

 private:
  static double d(int64_t size) { return static_cast<double>(size); }

  double dense(int64_t layer) const;
  double experts(int64_t layer) const;
  double packed_in(const LayerWidths& widths) const;
  bool is_plain(int64_t layer) const;

  const AllConfig& config_;
  const TransformerConfig& model_;
  ModelShares shares_;
  int64_t cp_;
  PassSize pass_;
  double load_;
};

}  // namespace tapestry
