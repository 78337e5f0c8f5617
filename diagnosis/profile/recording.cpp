#include "diagnosis/profile/recording.h"

#include <chrono>

namespace tapestry::profile {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint32_t Names::id(std::string_view text) {
  if (const auto found = ids_.find(text); found != ids_.end()) {
    return found->second;
  }
  const auto [entry, added] = ids_.emplace(std::string(text), static_cast<uint32_t>(texts_.size()));
  texts_.push_back(&entry->first);  // keys of an unordered_map stay where they are
  return entry->second;
}

const std::string& Names::operator[](uint32_t id) const {
  static const std::string kEmpty;
  return id == kNone ? kEmpty : *texts_[id];
}

std::string_view name_of(Category category) {
  switch (category) {
    case Category::kStep:
      return "step";
    case Category::kPhase:
      return "phase";
    case Category::kModule:
      return "module";
    case Category::kOp:
      return "op";
    case Category::kWait:
      return "wait";
  }
  return {};
}

}  // namespace tapestry::profile
