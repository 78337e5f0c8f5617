#include "parallel_core/data/dataset_fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::data {
namespace {

class DatasetFingerprintTest : public ::testing::Test {
 protected:
  // Of files with this content.
  DatasetFingerprint of(const std::string& idx, const std::string& bin) const {
    dir_.write("d.idx", idx);
    dir_.write("d.bin", bin);
    return dataset_fingerprint(dir_.file("d"));
  }
  TempDir dir_;
};

TEST_F(DatasetFingerprintTest, KnowsContentAndNotTheName) {
  const DatasetFingerprint a = of("index", "tokens");
  EXPECT_EQ(a.prefix, dir_.file("d"));
  EXPECT_EQ(a.idx_bytes, 5);
  EXPECT_EQ(a.bin_bytes, 6);
  EXPECT_TRUE(a.same_content(of("index", "tokens")));
  EXPECT_FALSE(a.same_content(of("indey", "tokens")));
  EXPECT_FALSE(a.same_content(of("index", "tokent")));
  EXPECT_FALSE(a.same_content(of("indext", "okens")));  // the same bytes, cut elsewhere
  dir_.write("other.idx", "index");
  dir_.write("other.bin", "tokens");
  EXPECT_TRUE(a.same_content(dataset_fingerprint(dir_.file("other"))));
  EXPECT_FALSE(a == dataset_fingerprint(dir_.file("other")));
}

TEST_F(DatasetFingerprintTest, LooksAtBothEndsOfLargeFiles) {
  const std::string large(1 << 20, 'x');
  const DatasetFingerprint a = of(large, large);
  for (const size_t at : {size_t{0}, large.size() - 1}) {
    std::string changed = large;
    changed[at] = 'y';
    EXPECT_FALSE(a.same_content(of(changed, large))) << at;
    EXPECT_FALSE(a.same_content(of(large, changed))) << at;
  }
}

TEST_F(DatasetFingerprintTest, TakesAnySizeAndMissesFiles) {
  EXPECT_EQ(of("", "").bin_bytes, 0);
  const std::string odd((64 << 10) + 1, 'x');
  EXPECT_EQ(of(odd, odd).idx_bytes, (64 << 10) + 1);
  EXPECT_ERROR(dataset_fingerprint(dir_.file("none")), IoError, "none.bin");
}

}  // namespace
}  // namespace tapestry::data
