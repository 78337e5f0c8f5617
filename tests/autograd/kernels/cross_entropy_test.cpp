#include "autograd/kernels/losses/cross_entropy.h"

#include <limits>

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

constexpr int64_t kIgnore = -100;

struct Case {
  int64_t rows, vocab, valid;
};

/// Every third label is ignored, the first one and the last valid one occur.
std::vector<int64_t> labels_of(const Case& c) {
  std::vector<int64_t> labels(c.rows);
  for (int64_t i = 0; i < c.rows; ++i) {
    labels[i] = i % 3 == 2 ? kIgnore : (i % 3 == 1 ? c.valid - 1 : i * 7 % c.valid);
  }
  return labels;
}

void expect_matches(const Case& c, const Array& logits) {
  const DType dtype = logits.dtype();
  const DType type = statistics_dtype(dtype);
  const std::vector<int64_t> labels = labels_of(c);
  Array loss(type, c.rows);
  Array lse(type, c.rows);
  Array dloss = random_array(type, c.rows, 2);
  for (int64_t i = 2; i < c.rows; i += 3) {
    dloss.set(i, NAN);  // must not reach the gradient of an ignored row
  }
  Array dlogits(dtype, c.rows * c.vocab);
  const kernels::CrossEntropyShape shape{dtype, c.rows, c.vocab, c.valid, kIgnore};
  kernels::cross_entropy({shape, logits.data(), labels.data(), loss.data(), lse.data()});
  kernels::cross_entropy_backward(
      {shape, logits.data(), labels.data(), lse.data(), dloss.data(), dlogits.data()});
  Doubles losses(c.rows);
  Doubles lses(c.rows);
  Doubles gradients(c.rows * c.vocab);
  for (int64_t i = 0; i < c.rows; ++i) {
    double max = -std::numeric_limits<double>::infinity();
    double sum = 0;
    for (int64_t j = 0; j < c.valid; ++j) {
      max = std::max(max, logits[i * c.vocab + j]);
    }
    for (int64_t j = 0; j < c.valid; ++j) {
      sum += std::exp(logits[i * c.vocab + j] - max);
    }
    lses[i] = max + std::log(sum);
    if (labels[i] != kIgnore) {
      losses[i] = lses[i] - logits[i * c.vocab + labels[i]];
      for (int64_t j = 0; j < c.valid; ++j) {
        gradients[i * c.vocab + j] =
            (std::exp(logits[i * c.vocab + j] - lses[i]) - (j == labels[i] ? 1 : 0)) * dloss[i];
      }
    }
  }
  expect_close(lse, lses, "lse");
  expect_close(loss, losses, "loss");
  expect_close(dlogits, gradients, "dlogits");
  for (int64_t i = 0; i < c.rows; ++i) {
    if (labels[i] == kIgnore) {
      EXPECT_EQ(loss[i], 0);
    }
    for (int64_t j = labels[i] == kIgnore ? 0 : c.valid; j < c.vocab; ++j) {
      ASSERT_EQ(dlogits[i * c.vocab + j], 0);
    }
  }
  Array in_place = logits;
  kernels::cross_entropy_backward(
      {shape, in_place.data(), labels.data(), lse.data(), dloss.data(), in_place.data()});
  EXPECT_TRUE(in_place.same_bits(dlogits));
}

TEST(CrossEntropy, MatchesLoops) {
  for_each_dtype([](DType dtype) {
    for (const Case& c :
         {Case{0, 5, 5}, Case{1, 1, 1}, Case{4, 7, 7}, Case{5, 600, 513}, Case{3, 2000, 1999}}) {
      SCOPED_TRACE(c.vocab);
      expect_matches(c, random_array(dtype, c.rows * c.vocab, 1, 3));
    }
  });
}

TEST(CrossEntropy, GrowingAndHugeLogits) {
  at_every_cpu_level([] {
    // The running maximum rises from block to block, and from -1000 to 1000.
    const Case c{2, 1500, 1500};
    Array logits(kFloat64, 3000);
    for (int64_t i = 0; i < 3000; ++i) {
      logits.set(i, (i % 1500 - 750) / 0.75);
    }
    expect_matches(c, logits);
  });
}

TEST(CrossEntropy, MaskedLogits) {
  at_every_cpu_level([] {
    const Case c{1, 1100, 1100};
    Array logits = random_array(kFloat32, 1100, 4);
    for (int64_t i = 1; i < 700; ++i) {  // the whole first block but one, and part of the second
      logits.set(i, -std::numeric_limits<double>::infinity());
    }
    expect_matches(c, logits);
    logits.set(0, 1e4);  // only one left
    expect_matches(c, logits);
  });
}

TEST(CrossEntropy, SameForAnyTeam) {
  at_every_cpu_level([] {
    expect_same_for_any_team([] {
      const Case c{101, 333, 300};
      const Array logits = random_array(kFloat32, c.rows * c.vocab, 1);
      const std::vector<int64_t> labels = labels_of(c);
      Array loss(kFloat32, c.rows);
      Array lse(kFloat32, c.rows);
      Array dlogits(kFloat32, c.rows * c.vocab);
      const kernels::CrossEntropyShape shape{kFloat32, c.rows, c.vocab, c.valid, kIgnore};
      kernels::cross_entropy({shape, logits.data(), labels.data(), loss.data(), lse.data()});
      kernels::cross_entropy_backward(
          {shape, logits.data(), labels.data(), lse.data(), lse.data(), dlogits.data()});
      return std::vector<Array>{loss, lse, dlogits};
    });
  });
}

TEST(CrossEntropy, ExactModeHasTheSameBitsAtEveryLevel) {
  for (const DType dtype : {kFloat32, kBFloat16}) {
    for (const Case& c : {Case{5, 1, 1}, Case{4, 23, 19}, Case{7, 333, 300}, Case{3, 5003, 5000}}) {
      expect_same_at_fused_levels([&] {
        const Array logits = random_array(dtype, c.rows * c.vocab, 1, 3);
        const std::vector<int64_t> labels = labels_of(c);
        const Array dloss = random_array(kFloat32, c.rows, 2);
        Array loss(kFloat32, c.rows);
        Array lse(kFloat32, c.rows);
        Array dlogits(dtype, c.rows * c.vocab);
        const kernels::CrossEntropyShape shape{dtype, c.rows, c.vocab, c.valid, kIgnore};
        kernels::cross_entropy({shape, logits.data(), labels.data(), loss.data(), lse.data()});
        kernels::cross_entropy_backward(
            {shape, logits.data(), labels.data(), lse.data(), dloss.data(), dlogits.data()});
        return std::vector<Array>{loss, lse, dlogits};
      });
    }
  }
}

// What ranks do that have so many leaves of the vocabulary each.
std::vector<Array> in_shares(const Case& c, const Array& logits, int64_t ranks) {
  const int64_t own = c.vocab / ranks;
  const std::vector<int64_t> labels = labels_of(c);
  Doubles maxima(c.rows, -std::numeric_limits<double>::infinity());
  Doubles label_logits(c.rows);
  std::vector<Array> shares;
  const auto shape_of = [&](int64_t rank) {
    return kernels::CrossEntropyShape{logits.dtype(), c.rows, own,
                                      std::clamp<int64_t>(c.valid - rank * own, 0, own), kIgnore};
  };
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Array share(logits.dtype(), c.rows * own);
    std::vector<int64_t> own_labels(labels);
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < own; ++j) {
        share.set(i * own + j, logits[i * c.vocab + rank * own + j]);
      }
      if (labels[i] != kIgnore) {
        own_labels[i] = labels[i] / own == rank ? labels[i] % own : -1;
      }
    }
    Array own_maxima(kFloat32, c.rows);
    Array own_logits(kFloat32, c.rows);
    kernels::cross_entropy_maxima(shape_of(rank), share.data(), own_maxima.data());
    kernels::cross_entropy_label_logits(shape_of(rank), share.data(), own_labels.data(),
                                        own_logits.data());
    for (int64_t i = 0; i < c.rows; ++i) {
      maxima[i] = std::max(maxima[i], own_maxima[i]);
      label_logits[i] += own_logits[i];
    }
    shares.push_back(share);
  }
  const Array all_maxima(kFloat32, maxima);
  std::vector<Doubles> sums(ranks, Doubles(c.rows));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    kernels::cross_entropy_exponentials({.shape = shape_of(rank),
                                         .logits = shares[rank].data(),
                                         .maxima = all_maxima.data(),
                                         .leaves = kSumLeaves / ranks,
                                         .sums = sums[rank].data()});
  }
  for (int64_t count = ranks / 2; count > 0; count /= 2) {  // the rest of the tree
    for (int64_t rank = 0; rank < count; ++rank) {
      for (int64_t i = 0; i < c.rows; ++i) {
        sums[rank][i] = sums[2 * rank][i] + sums[2 * rank + 1][i];
      }
    }
  }
  Array loss(kFloat32, c.rows);
  Array lse(kFloat32, c.rows);
  const Array all_label_logits(kFloat32, label_logits);
  kernels::cross_entropy_finish({.shape = {logits.dtype(), c.rows, 0, 0, kIgnore},
                                 .maxima = all_maxima.data(),
                                 .sums = sums[0].data(),
                                 .label_logits = all_label_logits.data(),
                                 .labels = labels.data(),
                                 .loss = loss.data(),
                                 .lse = lse.data()});
  return {loss, lse};
}

TEST(CrossEntropy, ExactModeHasTheSameBitsWhereRanksShareTheVocabulary) {
  const ExactScope scope;
  for (const DType dtype : {kFloat32, kBFloat16}) {
    // The last ranks may have padding alone; leaves need not be equal.
    for (const Case& c : {Case{7, 40, 9}, Case{6, 1000, 1000}, Case{6, 5064, 4000}}) {
      const Array logits = random_array(dtype, c.rows * c.vocab, 1, 3);
      const std::vector<int64_t> labels = labels_of(c);
      Array loss(kFloat32, c.rows);
      Array lse(kFloat32, c.rows);
      const kernels::CrossEntropyShape shape{dtype, c.rows, c.vocab, c.valid, kIgnore};
      kernels::cross_entropy({shape, logits.data(), labels.data(), loss.data(), lse.data()});
      for (const int64_t ranks : {1, 2, 4, 8}) {
        const std::vector<Array> shared = in_shares(c, logits, ranks);
        EXPECT_TRUE(shared[0].same_bits(loss)) << ranks << " ranks, vocabulary " << c.vocab;
        EXPECT_TRUE(shared[1].same_bits(lse)) << ranks << " ranks, vocabulary " << c.vocab;
      }
    }
  }
}

TEST(CrossEntropy, ExactModeMatchesTheFormula) {
  const ExactScope scope;
  for_each_dtype([](DType dtype) {
    for (const Case& c : {Case{4, 1, 1}, Case{7, 333, 300}, Case{3, 2000, 2000}}) {
      expect_matches(c, random_array(dtype, c.rows * c.vocab, 1, 3));
    }
  });
}

}  // namespace
}  // namespace tapestry::testing
