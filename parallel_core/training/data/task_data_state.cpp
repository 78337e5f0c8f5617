#include "parallel_core/training/data/task_data_state.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::internal {

namespace {

std::string task_files_text(const std::vector<data::TextFile>& files) {
  std::string text;
  for (const data::TextFile& file : files) {
    text += concat(text.empty() ? "" : ", ", file.path, " (", file.bytes, " bytes, checksum ",
                   file.crc64, ")");
  }
  return text;
}

}  // namespace

StateObject::Json task_state_json(const TaskDataState& task) {
  StateObject::Json files = StateObject::Json::array();
  for (const data::TextFile& file : task.files) {
    files.push_back({{"path", file.path}, {"bytes", file.bytes}, {"crc64", file.crc64}});
  }
  StateObject::Json json = {{"name", task.task},
                            {"files", std::move(files)},
                            {"max_length", task.max_length},
                            {"long_sequences", task.long_sequences},
                            {"eod", task.eod},
                            {"chat_template_crc64", task.template_crc64},
                            {"ids_crc64", task.ids_crc64}};
  if (!task.chat_date.empty()) {
    json["chat_date"] = task.chat_date;
  }
  if (task.group > 0) {
    json["group"] = task.group;
  }
  return json;
}

TaskDataState read_task_state(StateObject object, const std::string& source) {
  TaskDataState task;
  task.task = object.text("name");
  object.each("files", [&](StateObject& entry) {
    task.files.push_back({entry.text("path"), entry.integer("bytes"), entry.checksum("crc64")});
  });
  check<IoError>(!task.files.empty(), source, ": task: has no file");
  task.max_length = object.integer("max_length", 1);
  task.long_sequences = object.text("long_sequences");
  task.eod = object.integer("eod", -1);
  task.template_crc64 = object.checksum("chat_template_crc64", /*may_be_empty=*/true);
  task.ids_crc64 = object.checksum("ids_crc64");
  if (object.has("chat_date")) {
    task.chat_date = object.text("chat_date");
  }
  if (object.has("group")) {
    task.group = object.integer("group", 1);
  }
  object.finish();
  return task;
}

void compare_tasks(const TaskDataState& now,
                   const TaskDataState& then,
                   std::vector<std::string>& found) {
  const auto compare = [&](const char* what, const auto& a, const auto& b) {
    if (a != b) {
      found.push_back(concat(what, " is ", a, "; it was ", b));
    }
  };
  const size_t before = found.size();
  compare("post_training_config.task", now.task, then.task);
  const bool same_files = std::equal(
      now.files.begin(), now.files.end(), then.files.begin(), then.files.end(),
      [](const auto& a, const auto& b) { return a.bytes == b.bytes && a.crc64 == b.crc64; });
  if (!same_files) {
    compare("post_training_config.data", task_files_text(now.files), task_files_text(then.files));
  }
  compare("post_training_config.max_length", now.max_length, then.max_length);
  compare("what becomes of longer examples", now.long_sequences, then.long_sequences);
  compare("the token that ends a text", now.eod, then.eod);
  const auto none = [](const std::string& text) { return text.empty() ? "none" : text; };
  compare("dataset_config.chat_date", none(now.chat_date), none(then.chat_date));
  const auto shown = [](const std::string& crc64) {
    return crc64.empty() ? std::string("none") : concat("one with checksum ", crc64);
  };
  compare("the chat template", shown(now.template_crc64), shown(then.template_crc64));
  compare("the global batch, with which epochs end,", now.group, then.group);
  if (found.size() == before) {
    compare("the checksum of the examples' tokens", now.ids_crc64, then.ids_crc64);
  }
}

}  // namespace tapestry::internal
