#include "parallel_core/dist_checkpointing/agreement.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "autograd/io/atomic_file.h"
#include "autograd/kernels/machine/signals_blocked.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

enum class Failure : uint8_t { kNone, kStorage, kIo, kValue, kOther };

struct OwnFailure {
  Failure kind = Failure::kNone;
  std::string text;
};

OwnFailure describe_failure(const std::exception_ptr& failure) {
  if (!failure) {
    return {};
  }
  try {
    std::rethrow_exception(failure);
  } catch (const StorageError& error) {
    return {Failure::kStorage, error.what()};
  } catch (const IoError& error) {
    return {Failure::kIo, error.what()};
  } catch (const ValueError& error) {
    return {Failure::kValue, error.what()};
  } catch (const std::exception& error) {
    return {Failure::kOther, error.what()};
  }
}

[[noreturn]] void throw_as(Failure kind, const std::string& text) {
  switch (kind) {
    case Failure::kStorage:
      throw StorageError(text);
    case Failure::kIo:
      throw IoError(text);
    case Failure::kValue:
      throw ValueError(text);
    default:
      throw RuntimeError(text);
  }
}

// A group that breaks down must not take the thread's variables from under it.
struct JoinAtEnd {
  std::thread& thread;
  explicit JoinAtEnd(std::thread& joined) : thread(joined) {}
  JoinAtEnd(const JoinAtEnd&) = delete;
  JoinAtEnd& operator=(const JoinAtEnd&) = delete;
  ~JoinAtEnd() { thread.join(); }
};

}  // namespace

std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& own) {
  const auto ranks = static_cast<size_t>(group.size());
  if (ranks == 1) {
    return {own};
  }
  const Tensor sizes = zeros({group.size()}, kInt64);
  group.all_gather(sizes, full({1}, static_cast<double>(own.size()), kInt64));
  const auto* bytes = sizes.data<int64_t>();
  const int64_t words = *std::max_element(bytes, bytes + ranks) / 8 + 1;
  const Tensor mine = zeros({words}, kInt64);
  const Tensor all = zeros({words * group.size()}, kInt64);
  std::memcpy(mine.raw(), own.data(), own.size());
  group.all_gather(all, mine);
  std::vector<std::string> texts;
  for (size_t r = 0; r < ranks; ++r) {
    texts.emplace_back(
        reinterpret_cast<const char*>(all.data<int64_t>() + static_cast<size_t>(words) * r),
        static_cast<size_t>(bytes[r]));
  }
  return texts;
}

std::string broadcast_text(ProcessGroup& group, const std::string& own, int root) {
  const Tensor size = full({1}, static_cast<double>(own.size()), kInt64);
  group.broadcast(size, root);
  const int64_t bytes = *size.data<int64_t>();
  const Tensor text = zeros({bytes / 8 + 1}, kInt64);
  if (group.rank() == root) {
    std::memcpy(text.raw(), own.data(), own.size());
  }
  group.broadcast(text, root);
  return {reinterpret_cast<const char*>(text.raw()), static_cast<size_t>(bytes)};
}

void throw_if_any_failed(ProcessGroup& group, const std::exception_ptr& own) {
  if (group.size() == 1) {
    if (own) {
      std::rethrow_exception(own);
    }
    return;
  }
  const OwnFailure failure = describe_failure(own);
  const Tensor failed = full({1}, failure.kind == Failure::kNone ? 0 : 1, kInt32);
  group.all_reduce(failed, ReduceOp::kMax);
  if (failed.item() == 0) {
    return;
  }
  const char kind = static_cast<char>('0' + static_cast<int>(failure.kind));
  const std::vector<std::string> texts = all_gather_text(group, kind + failure.text);
  if (own) {
    std::rethrow_exception(own);
  }
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto theirs = static_cast<Failure>(texts[rank].front() - '0');
    if (theirs != Failure::kNone) {
      throw_as(theirs, concat("rank ", rank, ": ", texts[rank].substr(1)));
    }
  }
}

void all_or_none_on_disk(ProcessGroup& group, const std::function<void()>& action) {
  if (group.size() == 1) {
    action();
    return;
  }
  constexpr auto kPoll = std::chrono::milliseconds(2);
  std::exception_ptr failure;
  std::atomic<bool> done = false;
  std::thread worker;
  {
    const kernels::SignalsBlocked blocked;
    worker = std::thread([&] {
      try {
        action();
      } catch (...) {
        failure = std::current_exception();
      }
      done = true;
    });
  }
  const JoinAtEnd join{worker};
  const Tensor all_done = zeros({1}, kInt32);
  while (true) {
    *all_done.data<int32_t>() = done ? 1 : 0;
    group.all_reduce(all_done, ReduceOp::kMin);
    if (*all_done.data<int32_t>() != 0) {
      break;
    }
    std::this_thread::sleep_for(kPoll);
  }
  throw_if_any_failed(group, failure);
}

void xor_over(ProcessGroup& group, std::vector<uint32_t>& values) {
  if (group.size() == 1 || values.empty()) {
    return;
  }
  const auto count = static_cast<int64_t>(values.size());
  const Tensor own = zeros({count}, kInt64);
  std::copy(values.begin(), values.end(), own.data<int64_t>());
  const Tensor all = zeros({count * group.size()}, kInt64);
  group.all_gather(all, own);
  std::fill(values.begin(), values.end(), 0);
  for (int64_t i = 0; i < all.numel(); ++i) {
    values[static_cast<size_t>(i % count)] ^= static_cast<uint32_t>(all.data<int64_t>()[i]);
  }
}

}  // namespace tapestry
