#include "diagnosis/accuracy/run_hashes.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/metrics_file.h"

namespace tapestry::accuracy {

namespace {

namespace fs = std::filesystem;

using Json = nlohmann::json;

constexpr const char* kHashesFile = "hashes.jsonl";

// Names sort by letters; a model has its embeddings, its layers by number, and the rest.
std::pair<int, int64_t> place_in_model(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  if (name.find("embed") != std::string::npos) {
    return {0, 0};
  }
  return name.starts_with(kLayers) ? std::pair<int, int64_t>(1, std::atoll(&name[kLayers.size()]))
                                   : std::pair<int, int64_t>(2, 0);
}

// One text has the hashes of all names, of one length each.
NamedHashes split_hashes(const std::string& text, const std::vector<std::string>& names) {
  NamedHashes out;
  if (names.empty()) {
    return out;
  }
  const size_t width = text.size() / names.size();
  check<IoError>(width > 0 && width * names.size() == text.size(), text.size(),
                 " letters are no hashes of ", names.size(), " names");
  for (size_t i = 0; i < names.size(); ++i) {
    out.emplace_back(names[i], text.substr(i * width, width));
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return place_in_model(a.first) < place_in_model(b.first);
  });
  return out;
}

// The names that a line of hashes.jsonl gives to the steps below it.
struct HashedNames {
  std::vector<std::string> weights;
  std::vector<std::string> gradients;
};

StepHashes step_hashes(const Json& line, const HashedNames& names) {
  StepHashes out = {
      .loss = line.at("loss").get<std::string>(),
      .grad_norm = line.at("grad_norm").get<std::string>(),
      .gradients = {},
      .parameters = split_hashes(line.at("weights").get<std::string>(), names.weights)};
  if (line.contains("gradients")) {  // not those of a step that was not finite
    out.gradients = split_hashes(line.at("gradients").get<std::string>(), names.gradients);
  }
  return out;
}

// Names whose hashes differ, or that one of the two lacks, in the order of the first.
std::vector<std::string> differing(const NamedHashes& a, const NamedHashes& b) {
  std::vector<std::string> out;
  const std::map<std::string, std::string> others(b.begin(), b.end());
  for (const auto& [name, hash] : a) {
    const auto other = others.find(name);
    if (other == others.end() || other->second != hash) {
      out.push_back(name);
    }
  }
  return out;
}

}  // namespace

RunHashes read_run_hashes(const std::string& folder) {
  RunHashes out;
  const std::string file = plot::metrics_file(folder);
  out.folder = fs::path(file).parent_path().string();
  std::map<int64_t, bool> has_hash;
  plot::read_metrics_lines(file, [&](const plot::MetricsLine& line) {
    const auto hash = line.json.find("hash");
    has_hash[line.step] = hash != line.json.end() && hash->is_string();
    if (has_hash[line.step]) {
      out.steps[line.step] = hash->get<std::string>();
    } else {
      out.steps.erase(line.step);
    }
    if (const auto tokens = line.json.find("tokens"); tokens != line.json.end()) {
      out.tokens[line.step] = tokens->get<int64_t>();
    }
  });
  for (const auto& [step, has] : has_hash) {
    if (!has) {
      out.without.push_back(step);
    }
  }
  return out;
}

std::string class_of_hash(const std::string& hash) {
  const size_t colon = hash.find(':');
  return colon == std::string::npos ? std::string() : hash.substr(0, colon);
}

StepHashes read_step_hashes(const std::string& folder, int64_t step) {
  StepHashes out;
  const std::string path = (fs::path(folder) / kHashesFile).string();
  std::ifstream file(path);
  HashedNames names;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const auto json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) {
      continue;  // the last line of a run that is writing it
    }
    try {
      if (!json.contains("step")) {
        json.at("weights").get_to(names.weights);
        json.at("gradients").get_to(names.gradients);
      } else if (json.at("step") == step) {
        out = step_hashes(json, names);  // trained again: the last one counts
      }
    } catch (const std::exception& error) {
      throw IoError(concat(path, ":", number, ": is no line of hashes: ", error.what()));
    }
  }
  return out;
}

HashDifference difference_of(const StepHashes& a, const StepHashes& b) {
  HashDifference out;
  out.loss = a.loss != b.loss;
  out.grad_norm = a.grad_norm != b.grad_norm;
  out.parameters = differing(a.parameters, b.parameters);
  out.gradients = differing(a.gradients, b.gradients);
  std::reverse(out.gradients.begin(), out.gradients.end());
  out.of = std::max(a.parameters.size(), b.parameters.size());
  return out;
}

std::string HashDifference::earliest() const {
  return loss                              ? "loss"
         : !gradients.empty() || grad_norm ? "gradients"
         : !parameters.empty()             ? "parameters"
                                           : "";
}

std::string HashDifference::tensor() const {
  if (!loss && !gradients.empty()) {
    return gradients.front();
  }
  return parameters.empty() ? std::string() : parameters.front();
}

std::string HashDifference::text() const {
  std::string out;
  const auto add = [&](bool wanted, const std::string& text) {
    if (wanted) {
      out += concat(out.empty() ? "" : "; ", text);
    }
  };
  add(loss, "the loss");
  add(!gradients.empty(),
      concat(gradients.size(), " of ", of, " gradients, from the head back first ",
             gradients.empty() ? "" : gradients.front()));
  add(grad_norm, "their norm");
  add(!parameters.empty(), concat(parameters.size(), " of ", of, " parameters, first ",
                                  parameters.empty() ? "" : parameters.front()));
  add(out.empty(), "nothing of which it is made");
  return out;
}

}  // namespace tapestry::accuracy
