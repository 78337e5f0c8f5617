// What a step has come to when it was run again in one process (verify/exact/rerun_step.h), as a
// file that one program writes and another reads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "diagnosis/accuracy/run_hashes.h"

namespace tapestry::accuracy {

/// One thing that the step has computed, in the order of computing.
struct RerunThing {
  std::string what;  ///< as ComputedThing has it: "op results", "gradients", ...
  int64_t micro_batch = -1;
  std::string pass;
  std::string module;
  std::string name;
  std::string bits;    ///< checksum, hexadecimal
  std::string inputs;  ///< of what an op was given
};

struct StepRerun {
  std::string program;                    ///< that has run it
  std::string checkpoint;                 ///< that it began with; empty: the start of the run
  int64_t first_step = 1;                 ///< that was run again
  int64_t step = 0;                       ///< whose things these are, the last one
  std::map<int64_t, std::string> hashes;  ///< of the steps that were run
  StepHashes of_step;                     ///< what that of the last one is made of
  std::vector<RerunThing> things;
};

nlohmann::ordered_json rerun_json(const StepRerun& rerun);
/// IoError, naming `source`, for what rerun_json has not written.
StepRerun parse_rerun(const std::string& text, const std::string& source);

}  // namespace tapestry::accuracy
