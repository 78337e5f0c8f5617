#include "parallel_core/dist_checkpointing/mended_convolutions.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr std::string_view kFirst = "linear_attn.q_conv1d.weight";
constexpr std::array<std::string_view, 3> kParts = {"q", "k", "v"};
constexpr std::string_view kNormBefore = "feedforward_layer_norm.weight";
constexpr std::string_view kNormBehind = "post_attention_layernorm.weight";

// A tensor that is a stretch of several in the files, one behind the other, or one of another name.
struct Stretch {
  std::vector<std::string> files;
  uint64_t offset = 0;  // bytes into the first of them
  Shape shape;
};

class MendedFiles final : public TensorSource {
 public:
  MendedFiles(std::unique_ptr<TensorSource> files,
              std::map<std::string, Stretch> mended,
              const std::vector<std::string>& gone)
      : files_(std::move(files)), mended_(std::move(mended)) {
    for (const std::string& name : files_->names()) {
      if (!mended_.contains(name) && std::find(gone.begin(), gone.end(), name) == gone.end()) {
        names_.push_back(name);
      }
    }
    for (const auto& [name, stretch] : mended_) {
      names_.push_back(name);
    }
    std::sort(names_.begin(), names_.end());
  }

  std::vector<std::string> names() const override { return names_; }
  bool contains(const std::string& name) const override {
    return std::binary_search(names_.begin(), names_.end(), name);
  }
  const Shape& shape(const std::string& name) const override {
    const Stretch* own = find(name);
    return own != nullptr ? own->shape : files_->shape(name);
  }
  DType dtype(const std::string& name) const override { return files_->dtype(file_name(name)); }
  const std::string& file_of(const std::string& name) const override {
    return files_->file_of(file_name(name));
  }
  void read(const std::string& name, void* destination) const override {
    const auto size = static_cast<uint64_t>(size_of(dtype(name)));
    read_bytes(name, 0, static_cast<uint64_t>(shape(name).numel()) * size, destination);
  }
  void read_bytes(const std::string& name,
                  uint64_t offset,
                  size_t bytes,
                  void* destination) const override {
    const Stretch* own = find(name);
    if (own == nullptr) {
      files_->read_bytes(name, offset, bytes, destination);
      return;
    }
    const auto size = static_cast<uint64_t>(size_of(dtype(name)));
    check<IndexError>(offset + bytes <= static_cast<uint64_t>(own->shape.numel()) * size, name,
                      ": bytes ", offset, " to ", offset + bytes, " lie outside of the tensor");
    uint64_t skipped = own->offset + offset;
    auto* to = static_cast<std::byte*>(destination);
    for (const std::string& file : own->files) {
      const uint64_t all = static_cast<uint64_t>(files_->shape(file).numel()) * size;
      if (skipped < all && bytes > 0) {
        const size_t count = std::min<uint64_t>(bytes, all - skipped);
        files_->read_bytes(file, skipped, count, to);
        to += count;
        bytes -= count;
      }
      skipped -= std::min(skipped, all);
    }
  }

 private:
  const Stretch* find(const std::string& name) const {
    const auto found = mended_.find(name);
    return found == mended_.end() ? nullptr : &found->second;
  }
  const std::string& file_name(const std::string& name) const {
    const Stretch* own = find(name);
    return own != nullptr ? own->files.front() : name;
  }

  std::unique_ptr<TensorSource> files_;
  std::map<std::string, Stretch> mended_;
  std::vector<std::string> names_;
};

// Of a layer whose names begin with `stem`, the three convolutions by the rows of its projections;
// nothing if they are cut so already, or do not fit together.
void mend_convolutions(const TensorSource& files,
                       const std::string& stem,
                       std::map<std::string, Stretch>& out) {
  std::vector<std::string> taps;
  std::vector<int64_t> rows;
  int64_t all = 0;
  bool differs = false;
  for (const std::string_view part : kParts) {
    taps.push_back(concat(stem, "linear_attn.", part, "_conv1d.weight"));
    const std::string projection = concat(stem, "linear_attn.", part, "_proj.weight");
    if (!files.contains(taps.back()) || !files.contains(projection) ||
        files.shape(taps.back()).size() != 3 || files.shape(projection).size() != 2) {
      return;
    }
    rows.push_back(files.shape(projection)[0]);
    all += files.shape(taps.back())[0] - rows.back();
    differs = differs || files.shape(taps.back())[0] != rows.back();
  }
  if (!differs || all != 0) {
    return;
  }
  uint64_t offset = 0;
  for (size_t i = 0; i < taps.size(); ++i) {
    Shape shape = files.shape(taps[i]);
    shape[0] = rows[i];
    const uint64_t bytes =
        static_cast<uint64_t>(shape.numel()) * static_cast<uint64_t>(size_of(files.dtype(taps[i])));
    out[taps[i]] = {.files = taps, .offset = offset, .shape = shape};
    offset += bytes;
  }
}

}  // namespace

std::unique_ptr<TensorSource> mended_convolutions(std::unique_ptr<TensorSource> files) {
  std::map<std::string, Stretch> mended;
  std::vector<std::string> gone;
  const std::vector<std::string> names = files->names();
  const bool is_hybrid = std::any_of(
      names.begin(), names.end(), [](const std::string& name) { return name.ends_with(kFirst); });
  for (const std::string& name : names) {
    if (is_hybrid && name.ends_with(kFirst)) {
      mend_convolutions(*files, name.substr(0, name.size() - kFirst.size()), mended);
    } else if (is_hybrid && name.ends_with(kNormBefore)) {
      const std::string stem = name.substr(0, name.size() - kNormBefore.size());
      const std::string behind = stem + std::string(kNormBehind);
      if (files->contains(stem + "self_attn.q_proj.weight") && !files->contains(behind)) {
        mended[behind] = {.files = {name}, .offset = 0, .shape = files->shape(name)};
        gone.push_back(name);
      }
    }
  }
  return mended.empty() ? std::move(files)
                        : std::make_unique<MendedFiles>(std::move(files), std::move(mended), gone);
}

}  // namespace tapestry
