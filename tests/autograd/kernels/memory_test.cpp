#include "autograd/kernels/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "tests/pages_present.h"

namespace tapestry::kernels {
namespace {

// Pages of fresh memory, and which of them are there.
class Pages {
 public:
  explicit Pages(int64_t count)
      : count_(count),
        base_(mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    madvise(base_, bytes(), MADV_NOHUGEPAGE);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(base_, bytes()); }

  size_t bytes() const { return static_cast<size_t>(count_ * page()); }
  std::byte* base() const { return static_cast<std::byte*>(base_); }
  static int64_t page() { return sysconf(_SC_PAGESIZE); }

  std::vector<bool> present() const { return pages_present(base_, bytes()); }

 private:
  int64_t count_;
  void* base_;
};

class Memory : public ::testing::Test {
 protected:
  void TearDown() override { set_num_threads(before_); }
  int before_ = num_threads();
};

TEST_F(Memory, FirstTouchPagesInWhatIsWholeAndNothingElse) {
  if (system_ignores_paging_requests()) {
    GTEST_SKIP() << "the system ignores MADV_POPULATE_WRITE";
  }
  set_num_threads(3);
  const Pages memory(100);
  const int64_t page = Pages::page();
  first_touch(memory.base() + page * 2 + 8, 90 * page);  // from within page 2 to within page 92
  std::vector<bool> expected(100);
  std::fill(expected.begin() + 3, expected.begin() + 92, true);
  EXPECT_EQ(memory.present(), expected);
  EXPECT_TRUE(std::all_of(memory.base(), memory.base() + memory.bytes(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(Memory, FirstTouchLeavesPagesToASingleThread) {
  set_num_threads(1);
  const Pages memory(100);
  first_touch(memory.base(), 100 * Pages::page());
  EXPECT_EQ(memory.present(), std::vector<bool>(100));
}

TEST_F(Memory, FirstTouchOfNothing) {
  set_num_threads(2);
  std::byte byte{7};
  first_touch(&byte, 0);
  first_touch(&byte, 1);
  EXPECT_EQ(byte, std::byte{7});
}

TEST_F(Memory, ClearWritesItsBytesAndNoOthers) {
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    for (const size_t size : {0U, 1U, 63U, 4096U, 100'001U, 1'000'000U}) {
      std::vector<std::byte> memory(size + 2, std::byte{9});
      clear(memory.data() + 1, static_cast<int64_t>(size));
      EXPECT_EQ(memory.front(), std::byte{9});
      EXPECT_EQ(memory.back(), std::byte{9});
      EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0}), size);
    }
  }
}

}  // namespace
}  // namespace tapestry::kernels
