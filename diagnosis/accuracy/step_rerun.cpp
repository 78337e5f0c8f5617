#include "diagnosis/accuracy/step_rerun.h"

#include "autograd/tensor/error.h"

namespace tapestry::accuracy {

using Json = nlohmann::ordered_json;

Json rerun_json(const StepRerun& rerun) {
  Json json = {{"program", rerun.program},       {"checkpoint", rerun.checkpoint},
               {"first_step", rerun.first_step}, {"step", rerun.step},
               {"hashes", Json::array()},        {"parameters", Json::array()},
               {"things", Json::array()}};
  for (const auto& [step, hash] : rerun.hashes) {
    json["hashes"].push_back({step, hash});
  }
  for (const auto& [name, hash] : rerun.parameters) {
    json["parameters"].push_back({name, hash});
  }
  for (const RerunThing& thing : rerun.things) {
    json["things"].push_back({thing.what, thing.micro_batch, thing.pass, thing.module, thing.name,
                              thing.bits, thing.inputs});
  }
  return json;
}

StepRerun parse_rerun(const std::string& text, const std::string& source) {
  try {
    const Json json = Json::parse(text);
    StepRerun rerun;
    json.at("program").get_to(rerun.program);
    json.at("checkpoint").get_to(rerun.checkpoint);
    json.at("first_step").get_to(rerun.first_step);
    json.at("step").get_to(rerun.step);
    for (const Json& entry : json.at("hashes")) {
      rerun.hashes.emplace(entry.at(0).get<int64_t>(), entry.at(1).get<std::string>());
    }
    for (const Json& entry : json.at("parameters")) {
      rerun.parameters.emplace_back(entry.at(0).get<std::string>(), entry.at(1).get<std::string>());
    }
    for (const Json& row : json.at("things")) {
      rerun.things.push_back({.what = row.at(0).get<std::string>(),
                              .micro_batch = row.at(1).get<int64_t>(),
                              .pass = row.at(2).get<std::string>(),
                              .module = row.at(3).get<std::string>(),
                              .name = row.at(4).get<std::string>(),
                              .bits = row.at(5).get<std::string>(),
                              .inputs = row.at(6).get<std::string>()});
    }
    return rerun;
  } catch (const nlohmann::json::exception& error) {
    throw IoError(
        concat(source, ": is not what a step that was run again is written as: ", error.what()));
  }
}

}  // namespace tapestry::accuracy
