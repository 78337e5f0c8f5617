// misbehave SCENARIO, run by mpirun: ranks that do not get on. What each scenario must end in is in
// failures_test.sh.
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/communicator_group.h"
#include "parallel_core/comm/distributed.h"

namespace tapestry {
namespace {

void sleep_seconds(int seconds) { std::this_thread::sleep_for(std::chrono::seconds(seconds)); }

const std::map<std::string, std::function<void(ProcessGroup&)>>& scenarios() {
  static const std::map<std::string, std::function<void(ProcessGroup&)>> kScenarios = {
      {"fine", [](ProcessGroup& world) { world.all_reduce(zeros({10})); }},
      {"another_collective",
       [](ProcessGroup& world) {
         if (world.rank() == 0) {
           world.all_gather(zeros({1024 * int64_t{world.size()}}), zeros({1024}));
         } else {
           world.all_reduce(zeros({1024}));
         }
       }},
      {"another_size",
       [](ProcessGroup& world) { world.all_reduce(zeros({100000 + int64_t{world.rank()}})); }},
      {"another_dtype",
       [](ProcessGroup& world) {
         world.broadcast(zeros({9000}, world.rank() == 1 ? kBFloat16 : kFloat32), 0);
         world.barrier();
       }},
      {"another_reduction",
       [](ProcessGroup& world) {
         world.all_reduce(zeros({9}), world.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum);
       }},
      {"another_root",
       [](ProcessGroup& world) {
         world.broadcast(zeros({9}), world.rank() == 1 ? 1 : 0);
         world.barrier();
       }},
      {"one_has_finished",
       [](ProcessGroup& world) {
         if (world.rank() != 1) {
           world.all_reduce(zeros({9}));
         }
       }},
      {"no_send",
       [](ProcessGroup& world) {
         if (world.rank() == 1) {
           world.receive(zeros({9}), 0);
         }
         world.barrier();
       }},
      {"crossed_groups",
       [](ProcessGroup& world) {
         const std::vector<int> all = world.world_ranks();
         const auto a = world.new_group(all, "dp");
         const auto b = world.new_group(all, "pp");
         (world.rank() == 0 ? a : b)->all_reduce(zeros({50000}));
         (world.rank() == 0 ? b : a)->all_reduce(zeros({50000}));
       }},
      {"one_does_not_come",  // with a timeout of one second
       [](ProcessGroup& world) {
         if (world.rank() == 1) {
           sleep_seconds(60);
         }
         world.all_reduce(zeros({9}));
       }},
      {"one_throws",
       [](ProcessGroup& world) {
         if (world.rank() == 1) {
           throw IoError("the disk is full");
         }
         world.all_reduce(zeros({9}));
       }},
      {"another_size_unseen",
       [](ProcessGroup& world) {
         const WorkHandle work = world.all_reduce_async(zeros({100000 + int64_t{world.rank()}}));
         sleep_seconds(2);
         work->wait();
       }},
      {"one_throws_unseen",
       [](ProcessGroup& world) {
         const WorkHandle work = world.all_reduce_async(zeros({1000000}));
         sleep_seconds(1);
         if (world.rank() == 1) {
           throw IoError("the disk is full");
         }
         work->wait();
         world.barrier();
       }},
      {"one_is_killed",  // by the test
       [](ProcessGroup& world) {
         while (true) {
           world.all_reduce(zeros({9}));
           sleep_seconds(world.rank() == 1 ? 1 : 0);
         }
       }},
      {"one_is_slow",  // the last, until rank 0 has found out
       [](ProcessGroup& world) {
         for (bool found = false; !found;) {
           if (world.rank() == world.size() - 1) {
             std::this_thread::sleep_for(std::chrono::milliseconds(100));
           }
           world.all_reduce(zeros({100000}));
           const std::string straggler = tell_waits(world);
           std::cout << straggler;
           const Tensor flag = full({1}, straggler.empty() ? 0 : 1);
           world.all_reduce(flag, ReduceOp::kMax);
           found = flag.at({0}) != 0;
         }
         std::cout << std::endl;
       }},
      {"one_starts_late", [](ProcessGroup& /*world*/) {}},  // see MPI_Init_thread below
      {"one_ends_late", [](ProcessGroup& /*world*/) {}},    // see MPI_Finalize below
      {"all_read_a_wrong_file",
       [](ProcessGroup& /*world*/) { throw ValueError("config.yaml:3:5: no such key"); }},
  };
  return kScenarios;
}

std::string scenario;

// Rank 1 of such a scenario sleeps for longer than the others wait.
void sleep_if(const char* is) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  rank = rank == nullptr ? std::getenv("PMI_RANK") : rank;
  if (scenario == is && rank != nullptr && std::string(rank) == "1") {
    sleep_seconds(50);
  }
}

}  // namespace
}  // namespace tapestry

// These two take the place of MPI's own, which keep their names with a P (MPI 4.0, section 15.2).
// They are declared here because one object serves both MPIs, whose headers differ.
extern "C" {
int PMPI_Init_thread(int* argc, char*** argv, int required, int* provided);
int PMPI_Finalize();
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  tapestry::sleep_if("one_starts_late");
  return PMPI_Init_thread(argc, argv, required, provided);
}
int MPI_Finalize() {
  tapestry::sleep_if("one_ends_late");
  return PMPI_Finalize();
}
}

int main(int argc, char** argv) {
  tapestry::scenario = argc > 1 ? argv[1] : "";
  std::optional<tapestry::Distributed> job;
  try {
    job.emplace(argc, argv);
    tapestry::scenarios().at(tapestry::scenario)(*job->world());
    job->finish();
    return 0;
  } catch (const std::exception& error) {
    const int code = dynamic_cast<const tapestry::ValueError*>(&error) != nullptr ? 2 : 1;
    if (!job) {
      std::cerr << error.what() << "\n";
      return code;
    }
    if (job->announce(error.what())) {
      std::cerr << "rank " << job->world()->rank() << ": " << error.what() << "\n";
    }
    job->abort(code);
  }
}
