// Proves that a step of a run in exact mode comes to the hash that was recorded of it.
#pragma once

#include <cstdint>
#include <string>

#include "diagnosis/report/verdict_report.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

struct ProofRequest {
  /// config.yaml of the run; its folder has the recorded hashes. Empty: of the run that the
  /// checkpoint lies in.
  std::string config_file;
  std::string checkpoint;  ///< a folder of an earlier step of it
  int64_t step = 0;
  std::string program;            ///< name and version, for the certificate
  PretrainOptions training = {};  ///< world, parts and task of the program
};

/// Runs the steps after the checkpoint again, by the configuration that `load` reads, in its layout
/// and with the threads and ranks that there are, and compares the hash of `step` with the one that
/// the run has recorded: in metrics.jsonl, or in its checkpoint of that step. Verdicts: "proved",
/// "differs"; the lines are a certificate: step, class, both hashes, program, fingerprints of
/// configuration and data. Findings {step, recorded, here, status} of all steps that were run.
/// Nothing of the run is changed. Collective. ValueError if no hash of that step is recorded, or if
/// this machine or configuration computes in another class; IoError.
accuracy::VerdictReport prove_step(const ProofRequest& request, const ConfigLoader& load);

/// Of all keys that change what is computed, in any layout: hexadecimal.
std::string configuration_fingerprint(const AllConfig& config);

}  // namespace tapestry
