// Ranks that were given different runs: what is said, and that all say the same.
#include "parallel_core/training/ranks/equal_configurations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/thread_ranks.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::equal_configurations_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Change = void (*)(AllConfig& config, int rank);

// What each rank says; empty: nothing.
std::vector<std::string> said(int ranks, Change change) {
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  run_thread_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
    AllConfig config = testing::small_config({});
    change(config, world->rank());
    try {
      check_equal_configurations(config, *world);
    } catch (const ValueError& error) {
      texts[static_cast<size_t>(world->rank())] = error.what();
    }
  });
  return texts;
}

TEST(EqualConfigurations, KindsOfRanksAreNamedOnce) {
  const auto texts = said(7, [](AllConfig& config, int rank) {
    config.training_config.seed = rank == 1 || rank >= 4 ? 11 : rank == 2 ? 12 : 10;
  });
  EXPECT_THAT(texts, Each(HasSubstr("training_config.seed: 10 on ranks 0, 3, 11 on ranks 1, 4-6, "
                                    "12 on rank 2")));
}

TEST(EqualConfigurations, ThreadsMayDiffer) {
  const auto texts =
      said(3, [](AllConfig& config, int rank) { config.training_config.num_threads = rank + 1; });
  EXPECT_THAT(texts, Each(""));
}

}  // namespace
}  // namespace tapestry::equal_configurations_test
