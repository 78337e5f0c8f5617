// A signal may arrive while a product runs: its handler's frame must land on the thread's stack.
#include <gtest/gtest.h>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "tests/cpu_levels.h"

// The thread sanitizer delivers signals at a time of its own.
#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_THREAD__)
#include <pthread.h>
#include <sys/time.h>
#include <ucontext.h>

#include <atomic>
#include <csignal>
#include <vector>

namespace tapestry::kernels {
namespace {

std::atomic<int> signals{0};
std::atomic<int> outside{0};
thread_local const char* stack_begin = nullptr;
thread_local const char* stack_end = nullptr;

// Looks where the interrupted code had its stack pointer.
void look(int /*signal*/, siginfo_t* /*info*/, void* context) {
  const auto* state = static_cast<const ucontext_t*>(context);
  const auto* pointer = reinterpret_cast<const char*>(state->uc_mcontext.gregs[REG_RSP]);  // NOLINT
  if (stack_begin != nullptr) {
    ++signals;
    outside += pointer < stack_begin || pointer > stack_end ? 1 : 0;
  }
}

// Where this thread's stack lies, and another one for handlers, so that a wrong pointer does no
// harm here.
class StackWatch {
 public:
  StackWatch() : other_(1 << 17) {
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    void* address = nullptr;
    size_t size = 0;
    pthread_attr_getstack(&attributes, &address, &size);
    pthread_attr_destroy(&attributes);
    const stack_t alternative = {.ss_sp = other_.data(), .ss_flags = 0, .ss_size = other_.size()};
    sigaltstack(&alternative, nullptr);
    stack_begin = static_cast<const char*>(address);
    stack_end = stack_begin + size;
    struct sigaction action = {};
    action.sa_sigaction = look;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    const itimerval every = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }
  StackWatch(const StackWatch&) = delete;
  StackWatch& operator=(const StackWatch&) = delete;
  ~StackWatch() {
    const itimerval never = {};
    setitimer(ITIMER_REAL, &never, nullptr);
    signal(SIGALRM, SIG_IGN);
    stack_begin = nullptr;
    const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    sigaltstack(&none, nullptr);
  }

 private:
  std::vector<char> other_;
};

TEST(GemmSignal, AProductLeavesTheStackPointerOnTheStack) {
  const int team = num_threads();
  set_num_threads(1);
  at_every_cpu_level([&] {
    for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
      constexpr int64_t kSize = 256;
      std::vector<double> a(kSize * kSize);
      std::vector<double> b(kSize * kSize);
      std::vector<double> c(kSize * kSize);
      for (const bool trans : {false, true}) {
        signals = 0;
        outside = 0;
        const StackWatch watch;
        while (signals < 40) {
          gemm({.dtype = dtype,
                .c_dtype = dtype,
                .trans_a = trans,
                .trans_b = trans,
                .m = kSize,
                .n = kSize,
                .k = kSize,
                .lda = kSize,
                .ldb = kSize,
                .ldc = kSize},
               a.data(), b.data(), c.data());
        }
        EXPECT_EQ(outside, 0) << name_of(dtype) << (trans ? ", transposed" : "");
      }
    }
  });
  set_num_threads(team);
}

}  // namespace
}  // namespace tapestry::kernels
#endif
