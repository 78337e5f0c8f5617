#include "parallel_core/dist_checkpointing/text_part.h"

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// In a model of text, of a name in one of text and images; nothing for a name of another part.
std::optional<std::string> name_in_text(std::string_view name) {
  constexpr std::string_view kWhole = "language_model.";
  constexpr std::string_view kInner = "model.language_model.";
  for (const char* part : {"model.", "lm_head."}) {
    if (name.starts_with(concat(kWhole, part))) {
      return std::string(name.substr(kWhole.size()));
    }
  }
  if (name.starts_with(kInner)) {
    return concat("model.", name.substr(kInner.size()));
  }
  return name.starts_with("lm_head.") ? std::optional(std::string(name)) : std::nullopt;
}

class TextPart final : public TensorSource {
 public:
  TextPart(std::unique_ptr<TensorSource> files, std::map<std::string, std::string> stored)
      : files_(std::move(files)), stored_(std::move(stored)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const auto& [name, stored] : stored_) {
      out.push_back(name);
    }
    return out;
  }
  bool contains(const std::string& name) const override { return stored_.contains(name); }
  const Shape& shape(const std::string& name) const override {
    return files_->shape(stored_name(name));
  }
  DType dtype(const std::string& name) const override { return files_->dtype(stored_name(name)); }
  const std::string& file_of(const std::string& name) const override {
    return files_->file_of(stored_name(name));
  }
  void read(const std::string& name, void* destination) const override {
    files_->read(stored_name(name), destination);
  }
  void read_bytes(const std::string& name,
                  uint64_t offset,
                  size_t bytes,
                  void* destination) const override {
    files_->read_bytes(stored_name(name), offset, bytes, destination);
  }

 private:
  // What is not there is left to the files to say.
  const std::string& stored_name(const std::string& name) const {
    const auto found = stored_.find(name);
    return found == stored_.end() ? name : found->second;
  }

  std::unique_ptr<TensorSource> files_;
  std::map<std::string, std::string> stored_;  // by the name in a model of text
};

}  // namespace

std::unique_ptr<TensorSource> text_part(std::unique_ptr<TensorSource> files) {
  std::map<std::string, std::string> stored;
  bool is_inside = false;
  for (const std::string& name : files->names()) {
    if (const auto own = name_in_text(name)) {
      is_inside = is_inside || *own != name;
      stored.emplace(*own, name);
    }
  }
  return is_inside ? std::make_unique<TextPart>(std::move(files), std::move(stored))
                   : std::move(files);
}

}  // namespace tapestry
