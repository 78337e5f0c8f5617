#include "parallel_core/comm/thread_ranks.h"

#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/communicator.h"
#include "parallel_core/comm/communicator_group.h"
#include "parallel_core/comm/thread_transport.h"

namespace tapestry {

namespace {

std::string message_of_exception(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

void run_thread_ranks(int world_size,
                      const std::function<void(const std::shared_ptr<ProcessGroup>& world)>& body,
                      const CommunicationOptions& options) {
  check<ValueError>(world_size >= 1, "run_thread_ranks: a world of ", world_size, " ranks");
  // They outlive the threads: what a rank that fails leaves behind may still be read by others.
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (std::unique_ptr<Transport>& transport : make_thread_transports(world_size)) {
    communicators.push_back(std::make_shared<Communicator>(std::move(transport), options));
  }
  std::mutex mutex;
  std::exception_ptr first_error;  // guarded by mutex
  std::vector<std::thread> threads;
  threads.reserve(communicators.size());
  const auto rank_of = [&](const std::shared_ptr<Communicator>& communicator) {
    return [&, communicator] {
      RankContext context(communicator->rank(), communicator->size());
      const RankContextGuard guard(context);
      set_num_threads(1);
      try {
        body(make_world_group(communicator));
        communicator->finish();
      } catch (...) {
        const std::exception_ptr error = std::current_exception();
        {
          const std::scoped_lock lock(mutex);
          if (first_error == nullptr) {
            first_error = error;
          }
        }
        communicator->announce_failure(message_of_exception(error));
      }
      communicator->leave();
    };
  };
  try {
    for (const std::shared_ptr<Communicator>& communicator : communicators) {
      threads.emplace_back(rank_of(communicator));
    }
  } catch (const std::exception& error) {  // no thread, or no memory for one
    const std::string reason = concat("run_thread_ranks: the system has no thread for rank ",
                                      threads.size(), " of ", world_size, " (", error.what(),
                                      "); its limits are ulimit -u, ulimit -v and, of a "
                                      "control group, pids.max");
    {
      const std::scoped_lock lock(mutex);
      first_error = std::make_exception_ptr(RuntimeError(reason));
    }
    for (size_t rank = threads.size(); rank < communicators.size(); ++rank) {
      communicators[rank]->announce_failure(reason);
      communicators[rank]->leave();
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first_error != nullptr) {
    std::rethrow_exception(first_error);
  }
}

}  // namespace tapestry
