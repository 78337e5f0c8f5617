#include "parallel_core/post_training/reference/reference_file.h"

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "autograd/io/safetensors.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/dist_checkpointing/agreement.h"

namespace tapestry::post_training {

namespace {

constexpr const char* kSequences = "log_probs";
constexpr const char* kMismatched = "mismatched_log_probs";

void read_table(const SafetensorsReader& reader, const char* name, LogProbTable& table) {
  const auto count = std::ssize(table.values());
  if (count == 0) {
    return;
  }
  check<IoError>(reader.contains(name) && reader.dtype(name) == kFloat32 &&
                     reader.entry(name).shape == Shape{count},
                 reader.path(), ": ", name, ": expected float32 [", count,
                 "]; remove the file, and "
                 "it is made again");
  reader.read(name, table.values().data());
}

// What rank 0 has, on all of them.
void share(ProcessGroup& world, LogProbTable& table) {
  const auto count = std::ssize(table.values());
  if (world.size() == 1 || count == 0) {
    return;
  }
  const Tensor all = empty({count}, kFloat32);
  std::copy(table.values().begin(), table.values().end(), all.data<float>());
  world.broadcast(all, 0);
  std::copy_n(all.data<float>(), count, table.values().begin());
}

std::string difference(const std::map<std::string, std::string>& metadata,
                       const ReferenceIdentity& identity) {
  const auto of = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  if (of("sequences") != identity.sequences || of("mismatched") != identity.mismatched) {
    return "is of other examples";
  }
  if (!identity.model.empty() && of("model") != identity.model) {
    return concat("is of another model, ", of("model"), "; this run's is ", identity.model);
  }
  return {};
}

}  // namespace

ReferenceIdentity identity_of(std::string model, const TaskExamples& examples) {
  return {.model = std::move(model),
          .sequences = examples.sequences.checksum(),
          .mismatched = examples.mismatched.checksum()};
}

std::optional<ReferenceLogProbs> read_reference_file(const std::string& path,
                                                     const ReferenceIdentity& identity,
                                                     const TaskExamples& examples,
                                                     ProcessGroup& world,
                                                     std::string& remark) {
  ReferenceLogProbs values{.sequences = LogProbTable(examples.sequences),
                           .mismatched = LogProbTable(examples.mismatched)};
  std::string verdict = "absent";
  all_or_none(world, [&] {
    if (world.rank() != 0 || !std::filesystem::exists(path)) {
      return;
    }
    const SafetensorsReader reader(path);
    verdict = difference(reader.metadata(), identity);
    if (verdict.empty()) {
      read_table(reader, kSequences, values.sequences);
      read_table(reader, kMismatched, values.mismatched);
    }
  });
  verdict = all_gather_text(world, verdict).front();
  if (!verdict.empty()) {
    remark = verdict == "absent" ? std::string() : concat(path, ": ", verdict);
    return std::nullopt;
  }
  share(world, values.sequences);
  share(world, values.mismatched);
  return values;
}

void write_reference_file(const std::string& path,
                          const ReferenceIdentity& identity,
                          const ReferenceLogProbs& values,
                          ProcessGroup& world) {
  all_or_none_on_disk(world, [&] {
    if (world.rank() != 0) {
      return;
    }
    std::vector<TensorView> tensors;
    const auto add = [&](const char* name, const LogProbTable& table) {
      const std::span<const float> all = table.values();
      if (!all.empty()) {
        tensors.push_back(
            {.name = name, .dtype = kFloat32, .shape = {std::ssize(all)}, .data = all.data()});
      }
    };
    add(kSequences, values.sequences);
    add(kMismatched, values.mismatched);
    write_safetensors(path, tensors,
                      {{"model", identity.model},
                       {"sequences", identity.sequences},
                       {"mismatched", identity.mismatched}});
  });
}

}  // namespace tapestry::post_training
