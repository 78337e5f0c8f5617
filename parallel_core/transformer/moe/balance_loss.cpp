#include "parallel_core/transformer/moe/balance_loss.h"

#include <algorithm>
#include <numeric>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/softmax.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// Each count as a share of all; zeros if there are none.
std::vector<double> shares_of(std::span<const int64_t> counts) {
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<double> out(counts.size(), 0);
  if (all > 0) {
    std::transform(counts.begin(), counts.end(), out.begin(), [&](int64_t count) {
      return static_cast<double>(count) / static_cast<double>(all);
    });
  }
  return out;
}

// Each share becomes the sum over its pool.
void pool(std::vector<double>& shares, size_t pools) {
  const size_t size = shares.size() / pools;
  for (size_t first = 0; first < shares.size(); first += size) {
    const auto begin = shares.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(size);
    std::fill(begin, end, std::accumulate(begin, end, 0.0));
  }
}

}  // namespace

void check_balance_loss(const MoEBalanceLoss& loss, int64_t num_experts, int64_t num_groups) {
  const std::string& type = loss.type;
  check<ValueError>(
      type == "aux_loss" || type == "seq_aux_loss" || type == "global_aux_loss" || type == "device",
      "the balance loss '", type,
      "' is not known; choose aux_loss, seq_aux_loss, global_aux_loss or device");
  check<ValueError>(type != "device" || (num_groups >= 1 && num_experts % num_groups == 0),
                    "the balance loss device needs expert_group_size, a number of groups that "
                    "divides num_experts ",
                    num_experts, ", got ", num_groups);
}

void add_balance_weights(const MoEBalanceLoss& loss,
                         const BalanceCounts& counts,
                         std::span<double> weights) {
  check_balance_loss(loss, counts.num_experts, counts.num_groups);
  const auto experts = static_cast<size_t>(counts.num_experts);
  const auto tokens = static_cast<double>(std::max<int64_t>(counts.rows * counts.seq_length, 1));
  double scale = loss.coeff * static_cast<double>(counts.num_experts) / tokens;
  if (loss.type == "seq_aux_loss") {
    // The mean over rows of means over a row's tokens is the mean over tokens.
    for (size_t first = 0; first < weights.size(); first += experts) {
      const std::vector<double> shares =
          shares_of(std::span(counts.per_row).subspan(first, experts));
      for (size_t e = 0; e < experts; ++e) {
        weights[first + e] += scale * shares[e];
      }
    }
    return;
  }
  const bool is_device = loss.type == "device";
  const bool is_global = loss.type == "global_aux_loss";
  const bool has_previous = is_global && std::any_of(counts.previous.begin(), counts.previous.end(),
                                                     [](int64_t count) { return count > 0; });
  std::vector<double> shares = shares_of(has_previous ? counts.previous : counts.per_expert);
  if (is_device) {
    scale = loss.coeff * static_cast<double>(counts.num_groups) / tokens;
    pool(shares, static_cast<size_t>(counts.num_groups));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] += scale * shares[i % experts];
  }
}

namespace {

// p[t, e] weights[row of t, e]
Tensor weighted_probabilities(const Tensor& probabilities,
                              const std::vector<double>& weights,
                              const std::vector<int64_t>& numbers,
                              int64_t seq_length) {
  const int64_t experts = probabilities.size(1);
  check<ValueError>(probabilities.size(0) == std::ssize(numbers), "balance_loss: there are ",
                    numbers.size(), " numbers for ", probabilities.size(0), " tokens");
  std::vector<int64_t> rows(numbers.size());
  std::transform(numbers.begin(), numbers.end(), rows.begin(),
                 [&](int64_t number) { return number / seq_length; });
  const Tensor by_row = tensor(weights, {std::ssize(weights) / experts, experts});
  const Tensor by_token =
      index_select(by_row.to(probabilities.dtype()), 0, tensor(rows, {std::ssize(rows)}));
  return probabilities * by_token;
}

double z_factor(double coeff, int64_t total) {
  return coeff / static_cast<double>(std::max<int64_t>(total, 1));
}

}  // namespace

Tensor balance_loss(const Tensor& probabilities,
                    const std::vector<double>& weights,
                    const std::vector<int64_t>& numbers,
                    int64_t seq_length) {
  return sum(weighted_probabilities(probabilities, weights, numbers, seq_length));
}

Tensor balance_loss_of_tokens(const Tensor& probabilities,
                              const std::vector<double>& weights,
                              const std::vector<int64_t>& numbers,
                              int64_t seq_length) {
  return sum(weighted_probabilities(probabilities, weights, numbers, seq_length), {-1});
}

Tensor router_z_loss(const Tensor& logits, double coeff, int64_t total) {
  return sum(square(logsumexp(logits, {-1}))) * z_factor(coeff, total);
}

Tensor router_z_loss_of_tokens(const Tensor& logits, double coeff, int64_t total) {
  return square(logsumexp(logits, {-1})) * z_factor(coeff, total);
}

}  // namespace tapestry
