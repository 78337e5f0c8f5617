#include "diagnosis/verify/layout_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string_view>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr int64_t kMostRanks = 1 << 20;

enum class Kind { kCount, kSwitch, kTable, kLevel };

struct Entry {
  std::string_view name;
  Kind kind;
  std::string_view key;  // of the configuration; empty where more than one or none is meant
};

constexpr std::array kEntries = {
    Entry{"tp", Kind::kCount, "parallel_config.tensor_model_parallel_size"},
    Entry{"sp", Kind::kSwitch, "parallel_config.sequence_parallel"},
    Entry{"pp", Kind::kCount, "parallel_config.pipeline_model_parallel_size"},
    Entry{"vpp", Kind::kCount, "parallel_config.virtual_pipeline_model_parallel_size"},
    Entry{"dp", Kind::kCount, ""},
    Entry{"cp", Kind::kCount, "parallel_config.context_parallel_size"},
    Entry{"ep", Kind::kCount, "parallel_config.expert_model_parallel_size"},
    Entry{"etp", Kind::kCount, "parallel_config.expert_tensor_parallel_size"},
    Entry{"layers", Kind::kTable, "parallel_config.num_layer_list"},
    Entry{"offset", Kind::kTable, "parallel_config.offset"},
    Entry{"embedding_stage", Kind::kSwitch, "parallel_config.standalone_embedding_stage"},
    Entry{"micro", Kind::kCount, "dataset_config.micro_batch_num"},
    Entry{"dist_opt", Kind::kSwitch, "training_config.use_distributed_optimizer"},
    Entry{"zero", Kind::kLevel, "parallel_config.zero_level"},
    Entry{"bucket", Kind::kCount, "training_config.bucket_size"},
    Entry{"overlap", Kind::kSwitch, ""},
    Entry{"delay", Kind::kSwitch, "training_config.delay_grad_reduce"},
};

std::string known_names() {
  std::string out;
  for (const Entry& entry : kEntries) {
    out += concat(out.empty() ? "" : ", ", entry.name);
  }
  return out;
}

[[noreturn]] void complain(const std::string& item, const std::string& what) {
  throw ValueError(concat("layout: '", item, "' ", what));
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string_view::npos
             ? std::string()
             : std::string(text.substr(first, text.find_last_not_of(' ') + 1 - first));
}

bool is_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// A number of a table, or the end of one row and the start of the next: "3/9".
bool continues_table(std::string_view item) {
  return !item.empty() && item.find_first_not_of("0123456789-/ ") == std::string_view::npos;
}

// Entries between commas; numbers that follow one another belong to one table.
std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = trimmed(std::string_view(text).substr(begin, end - begin));
    if (continues_table(item) && !items.empty() && items.back().find('=') != std::string::npos) {
      items.back() += "," + item;
    } else {
      items.push_back(item);
    }
    begin = end + 1;
  }
  return items;
}

std::string count_of(const std::string& item, const std::string& value) {
  if (!is_number(value)) {
    complain(item, "needs a number");
  }
  if (value[0] == '-' || value.size() > 10 || std::stoll(value) < 1 ||
      std::stoll(value) > kMostRanks) {
    complain(item, concat("must be between 1 and ", kMostRanks));
  }
  return value;
}

std::string switch_of(const std::string& item, const std::string& value) {
  if (value.empty() || value == "True" || value == "true" || value == "1") {
    return "True";
  }
  if (value == "False" || value == "false" || value == "0") {
    return "False";
  }
  complain(item, "must be True or False");
}

// "9,3/2,1" as the YAML list that it is.
std::string layer_table_yaml(const std::string& item, const std::string& value) {
  std::string out;
  int rows = 0;
  for (size_t begin = 0; begin <= value.size(); ++rows) {
    const size_t end = std::min(value.find('/', begin), value.size());
    std::string row;
    for (size_t i = begin; i <= end;) {
      const size_t stop = std::min(value.find(',', i), end);
      const std::string number = trimmed(std::string_view(value).substr(i, stop - i));
      if (!is_number(number)) {
        complain(item, "needs numbers, as in 9,3, and '/' between the rows of virtual stages");
      }
      row += (row.empty() ? "" : ", ") + number;
      i = stop + 1;
    }
    out += (out.empty() ? "[" : ", [") + row + "]";
    begin = end + 1;
  }
  return rows == 1 ? out : "[" + out + "]";
}

const Entry& entry_of(const std::string& item, const std::string& name) {
  const auto* found = std::find_if(kEntries.begin(), kEntries.end(),
                                   [&](const Entry& entry) { return entry.name == name; });
  if (found == kEntries.end()) {
    complain(item, "is not known; choose from " + known_names());
  }
  return *found;
}

std::string checked_value(const Entry& entry, const std::string& item, const std::string& value) {
  switch (entry.kind) {
    case Kind::kCount:
      return count_of(item, value);
    case Kind::kSwitch:
      return switch_of(item, value);
    case Kind::kTable:
      return layer_table_yaml(item, value);
    case Kind::kLevel:
      break;
  }
  if (value != "z1" && value != "z2" && value != "z3") {
    complain(item, "must be z1, z2 or z3");
  }
  return value;
}

std::string table_text(const LayerTable& table) {
  std::string out;
  for (const std::vector<int64_t>& row : table) {
    out += out.empty() ? "" : "/";
    for (size_t i = 0; i < row.size(); ++i) {
      out += (i == 0 ? "" : ",") + std::to_string(row[i]);
    }
  }
  return out;
}

}  // namespace

LayoutText parse_layout(const std::string& text) {
  LayoutText out;
  if (trimmed(text).empty()) {
    return out;
  }
  std::set<std::string> seen;
  bool overlaps = false;
  bool shards = false;
  for (const std::string& item : items_of(text)) {
    const size_t equals = item.find('=');
    const std::string name = trimmed(std::string_view(item).substr(0, equals));
    const Entry& entry = entry_of(item, name);
    if (!seen.insert(name).second) {
      complain(item, "is the second entry of this name");
    }
    std::string value;
    if (equals != std::string::npos) {
      value = trimmed(std::string_view(item).substr(equals + 1));
      if (value.empty()) {
        complain(item, "has no value");
      }
    }
    value = checked_value(entry, item, value);
    if (name == "dp") {
      out.data_parallel_size = std::stoll(value);
    } else if (name == "overlap") {
      overlaps = value == "True";
    } else {
      out.overrides.push_back(concat(entry.key, "=", value));
    }
    shards = shards || name == "zero" || (name == "dist_opt" && value == "True");
  }
  if (shards || overlaps) {
    out.overrides.emplace_back("training_config.wrap_with_ddp=True");
  }
  if (seen.contains("overlap")) {
    const char* value = overlaps ? "True" : "False";
    out.overrides.push_back(concat("training_config.overlap_grad_reduce=", value));
    if (shards || !overlaps) {
      out.overrides.push_back(concat("optimizer_config.overlap_param_gather=", value));
    }
  }
  return out;
}

std::vector<std::string> single_process_overrides(const AllConfig& layout,
                                                  int64_t data_parallel_size) {
  const std::string parallel = "parallel_config.";
  const std::string training = "training_config.";
  return {parallel + "tensor_model_parallel_size=1",
          parallel + "pipeline_model_parallel_size=1",
          parallel + "virtual_pipeline_model_parallel_size=null",
          parallel + "context_parallel_size=1",
          parallel + "expert_model_parallel_size=1",
          parallel + "expert_tensor_parallel_size=null",
          parallel + "sequence_parallel=False",
          parallel + "zero_level=null",
          parallel + "standalone_embedding_stage=False",
          parallel + "num_layer_list=null",
          parallel + "offset=null",
          training + "wrap_with_ddp=False",
          training + "overlap_grad_reduce=False",
          training + "delay_grad_reduce=False",
          training + "use_distributed_optimizer=False",
          training + "bucket_size=null",
          "optimizer_config.overlap_param_gather=False",
          concat("dataset_config.micro_batch_num=",
                 layout.dataset_config.micro_batch_num * data_parallel_size)};
}

std::string layout_text(const AllConfig& config, int64_t data_parallel_size) {
  const ModelParallelConfig& p = config.parallel_config;
  const TrainingConfig& t = config.training_config;
  std::string out = concat("tp=", p.tensor_model_parallel_size);
  const auto add = [&](bool wanted, const std::string& entry) {
    if (wanted) {
      out += "," + entry;
    }
  };
  add(p.sequence_parallel, "sp");
  add(true, concat("pp=", p.pipeline_model_parallel_size));
  add(p.virtual_pipeline_model_parallel_size.has_value(),
      concat("vpp=", p.virtual_pipeline_model_parallel_size.value_or(1)));
  add(p.num_layer_list.has_value(),
      "layers=" + table_text(p.num_layer_list.value_or(LayerTable())));
  add(p.offset.has_value(), "offset=" + table_text(p.offset.value_or(LayerTable())));
  add(p.standalone_embedding_stage, "embedding_stage");
  add(p.context_parallel_size > 1, concat("cp=", p.context_parallel_size));
  add(true, concat("dp=", data_parallel_size));
  add(p.expert_model_parallel_size > 1, concat("ep=", p.expert_model_parallel_size));
  add(p.expert_tensor_parallel_size.has_value(),
      concat("etp=", p.expert_tensor_parallel_size.value_or(1)));
  add(t.use_distributed_optimizer && !p.zero_level, "dist_opt");
  add(p.zero_level.has_value(), "zero=" + p.zero_level.value_or(""));
  add(t.bucket_size.has_value(), concat("bucket=", t.bucket_size.value_or(0)));
  add(t.overlap_grad_reduce, "overlap");
  add(t.delay_grad_reduce, "delay");
  add(true, concat("micro=", config.dataset_config.micro_batch_num));
  return out;
}

int64_t world_size(const ModelParallelConfig& config, int64_t data_parallel_size) {
  return config.tensor_model_parallel_size * config.pipeline_model_parallel_size *
         config.context_parallel_size * data_parallel_size;
}

}  // namespace tapestry
