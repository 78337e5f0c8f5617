#include "diagnosis/accuracy/step_rerun.h"

#include "autograd/tensor/error.h"

namespace tapestry::accuracy {

using OrderedJson = nlohmann::ordered_json;

namespace {

OrderedJson json_of(const NamedHashes& hashes) {
  OrderedJson out = OrderedJson::array();
  for (const auto& [name, hash] : hashes) {
    out.push_back({name, hash});
  }
  return out;
}

NamedHashes hashes_in(const OrderedJson& json) {
  NamedHashes out;
  for (const OrderedJson& entry : json) {
    out.emplace_back(entry.at(0).get<std::string>(), entry.at(1).get<std::string>());
  }
  return out;
}

}  // namespace

OrderedJson rerun_json(const StepRerun& rerun) {
  OrderedJson json = {{"program", rerun.program},
                      {"checkpoint", rerun.checkpoint},
                      {"first_step", rerun.first_step},
                      {"step", rerun.step},
                      {"hashes", OrderedJson::array()},
                      {"loss", rerun.of_step.loss},
                      {"grad_norm", rerun.of_step.grad_norm},
                      {"gradients", json_of(rerun.of_step.gradients)},
                      {"parameters", json_of(rerun.of_step.parameters)},
                      {"things", OrderedJson::array()}};
  for (const auto& [step, hash] : rerun.hashes) {
    json["hashes"].push_back({step, hash});
  }
  for (const RerunThing& thing : rerun.things) {
    json["things"].push_back({thing.what, thing.micro_batch, thing.pass, thing.module, thing.name,
                              thing.bits, thing.inputs});
  }
  return json;
}

StepRerun parse_rerun(const std::string& text, const std::string& source) {
  try {
    const OrderedJson json = OrderedJson::parse(text);
    StepRerun rerun;
    json.at("program").get_to(rerun.program);
    json.at("checkpoint").get_to(rerun.checkpoint);
    json.at("first_step").get_to(rerun.first_step);
    json.at("step").get_to(rerun.step);
    for (const OrderedJson& entry : json.at("hashes")) {
      rerun.hashes.emplace(entry.at(0).get<int64_t>(), entry.at(1).get<std::string>());
    }
    json.at("loss").get_to(rerun.of_step.loss);
    json.at("grad_norm").get_to(rerun.of_step.grad_norm);
    rerun.of_step.gradients = hashes_in(json.at("gradients"));
    rerun.of_step.parameters = hashes_in(json.at("parameters"));
    for (const OrderedJson& row : json.at("things")) {
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
