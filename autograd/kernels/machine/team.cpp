#include "autograd/kernels/machine/team.h"

#include <cblas.h>

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/kernels/machine/signals_blocked.h"
#include "autograd/kernels/machine/team_state.h"
#endif

namespace tapestry {

#ifdef _OPENMP

// The setting is OpenMP's own of the calling thread, which OpenBLAS and oneDNN read as well: they
// are only called where it is 1, inside parts, or where the team is.
int num_threads() { return omp_get_max_threads(); }

void set_num_threads(int count) { omp_set_num_threads(count); }

namespace kernels {

namespace {

// How long a thread that has nothing to do looks for work before it sleeps: longer than the few
// microseconds between two loops of an idle machine, shorter than what a neighbour would miss. Two
// runs of two threads on two cores took 1.8 times as long as one alone at 10 microseconds, 1.9 at
// 20, 2.1 at 50 and 2.3 at 100, and one alone the same at all of them.
constexpr std::chrono::microseconds kSpin{20};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether done() came true before the time to spin was over.
template <class Done>
bool spin_until(const Done& done) {
  constexpr int kLooksPerClock = 16;
  if (done()) {
    return true;
  }
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      relax();
      if (done()) {
        return true;
      }
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

thread_local constinit bool runs_a_part = false;

// A thread's helpers. Work is handed out in rounds, numbered from 1: `round_` names the current one
// and how many parts it has, and each part has a cell that says in which round it was taken last.
// A thread that comes late compares numbers, so it can take no part of a round that it did not see.
class Team {
 public:
  // With helpers for all parts but the caller's, if the system has threads left: what they do not
  // do the caller does.
  explicit Team(int parts)
      : cells_(std::make_unique<Cell[]>(static_cast<size_t>(parts))), most_parts_(parts) {
    const SignalsBlocked blocked;
    try {
      for (int i = 1; i < parts; ++i) {
        helpers_.emplace_back([this, i] { help(i); });
      }
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
    }
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  ~Team() {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& helper : helpers_) {
      helper.join();
    }
  }

  int most_parts() const { return most_parts_; }

  void run(int parts, void (*body)(const void*, int), const void* context) {
    const uint64_t number = number_of(round_.load(std::memory_order_relaxed)) + 1;
    body_ = body;
    context_ = context;
    state_ = team_state();
    one_order_ = in_one_order();
    exact_ = in_exact();
    tokens_ = exact_tokens();
    failure_ = nullptr;
    left_.store(parts, std::memory_order_relaxed);
    cells_[0].taken.store(number, std::memory_order_relaxed);
    round_ = number << kPartsBits | static_cast<uint64_t>(parts);
    if (sleeping_ > 0) {
      const std::scoped_lock lock(mutex_);
      work_.notify_all();
    }
    runs_a_part = true;
    {
      const LibraryAlone alone;
      run_part(0);
      take_parts(number, parts, 1);
    }
    runs_a_part = false;
    const auto finished = [this] { return left_ == 0; };
    if (!spin_until(finished)) {
      std::unique_lock lock(mutex_);
      caller_sleeps_ = true;
      done_.wait(lock, finished);
      caller_sleeps_ = false;
    }
    if (failure_) [[unlikely]] {
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
  }

 private:
  struct alignas(64) Cell {
    std::atomic<uint64_t> taken = 0;  ///< in this round last
  };

  static constexpr unsigned kPartsBits = 16;
  static constexpr uint64_t number_of(uint64_t round) { return round >> kPartsBits; }
  static constexpr int parts_of(uint64_t round) {
    return static_cast<int>(round & ((1U << kPartsBits) - 1));
  }

  void help(int own) {
    runs_a_part = true;
    omp_set_num_threads(1);
    uint64_t seen = 0;
    while (true) {
      uint64_t round = round_;
      const auto changed = [&] {
        round = round_;
        return number_of(round) != seen;
      };
      if (!spin_until(changed)) {
        std::unique_lock lock(mutex_);
        ++sleeping_;
        work_.wait(lock, [&] { return changed() || stop_; });
        --sleeping_;
        if (stop_) {
          return;
        }
      }
      seen = number_of(round);
      const int parts = parts_of(round);
      if (own < parts) {
        take_parts(seen, parts, own);
      }
    }
  }

  // Runs parts of a round that nobody has begun, from `first` on and around.
  void take_parts(uint64_t number, int parts, int first) {
    for (int i = 0; i < parts; ++i) {
      const int part = first + i < parts ? first + i : first + i - parts;
      std::atomic<uint64_t>& cell = cells_[static_cast<size_t>(part)].taken;
      uint64_t taken = cell;
      if (taken < number && cell.compare_exchange_strong(taken, number)) {
        run_part(part);
      }
    }
  }

  void run_part(int part) {
    {
      const TeamStateGuard inherited(state_);
      const OneOrderScope order(one_order_);
      const ExactScope exact(exact_);
      const ExactTokensScope tokens(tokens_);
      try {
        body_(context_, part);
      } catch (...) {
        const std::scoped_lock lock(mutex_);
        failure_ = std::current_exception();
      }
    }
    if (--left_ == 0 && caller_sleeps_) {
      const std::scoped_lock lock(mutex_);
      done_.notify_one();
    }
  }

  std::unique_ptr<Cell[]> cells_;
  int most_parts_;
  // Of the round: written by the caller before it begins, read by who has taken a part.
  void (*body_)(const void*, int) = nullptr;
  const void* context_ = nullptr;
  TeamState state_;
  bool one_order_ = false;
  bool exact_ = false;
  ExactTokens tokens_;
  alignas(64) std::atomic<uint64_t> round_ = 0;  // number << kPartsBits | parts
  alignas(64) std::atomic<int> left_ = 0;        // parts that have not ended
  std::atomic<int> sleeping_ = 0;                // helpers; changed under the mutex
  std::atomic<bool> caller_sleeps_ = false;      // changed under the mutex
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::vector<std::thread> helpers_;
};

// A process that forks has no helpers in the child: that begins with a team of its own.
std::atomic<int> forks = 0;

class TeamOfThread {
 public:
  TeamOfThread() {
    [[maybe_unused]] static const int registered =
        pthread_atfork(nullptr, nullptr, [] { ++forks; });
  }
  TeamOfThread(const TeamOfThread&) = delete;
  TeamOfThread& operator=(const TeamOfThread&) = delete;
  ~TeamOfThread() {
    if (made_in_ != forks) {
      (void)team_.release();
    }
  }

  Team& with_room_for(int parts) {
    if (made_in_ != forks) {
      (void)team_.release();  // its threads are not there
    }
    if (!team_ || team_->most_parts() < parts) {
      team_.reset();
      team_ = std::make_unique<Team>(parts);
      made_in_ = forks;
    }
    return *team_;
  }

 private:
  std::unique_ptr<Team> team_;
  int made_in_ = 0;
};

}  // namespace

bool in_team() { return runs_a_part; }

void run_parts(int parts, void (*body)(const void*, int), const void* context) {
  thread_local TeamOfThread team;
  team.with_room_for(parts).run(parts, body, context);
}

LibraryAlone::LibraryAlone() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }

LibraryAlone::~LibraryAlone() { omp_set_num_threads(before_); }

}  // namespace kernels

#else

int num_threads() { return 1; }

void set_num_threads(int /*count*/) { openblas_set_num_threads(1); }

namespace kernels {

bool in_team() { return false; }

void run_parts(int parts, void (*body)(const void*, int), const void* context) {
  for (int part = 0; part < parts; ++part) {
    body(context, part);
  }
}

// The library's own team is the process's; it is set by each thread that gets here.
LibraryAlone::LibraryAlone() : before_(1) {
  thread_local const bool single = (openblas_set_num_threads(1), true);
  (void)single;
}

LibraryAlone::~LibraryAlone() = default;

}  // namespace kernels

#endif

}  // namespace tapestry
