// A stored training of another program, for replays: its configuration as ours.
#pragma once

#include <cstdint>
#include <string>

namespace tapestry {

/// The YAML that replays a stored reference run: model, optimizer and schedule from its config.json
/// (`json_text`), start weights from case_dir/init.safetensors, batches from case_dir/data.
/// `data_parallel_size` is that of the run that replays: the batches of all ranks of the reference
/// are shared among its ranks. Keys that steer only the reference program are left out. ValueError
/// if the text is no JSON object, if a key is missing, has a wrong type or is unknown, or if the
/// global batch cannot be divided.
std::string replay_case_yaml(const std::string& json_text,
                             const std::string& case_dir,
                             const std::string& output_dir,
                             int64_t data_parallel_size = 1);

}  // namespace tapestry
