// A stored model whose tables of tokens have more rows than its files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/io/tensor_source.h"

namespace tapestry {

/// The tensors of other files, of which some matrices have `rows` rows, the last ones being the
/// mean of those in the files, computed in float64 and rounded once. With such a row a new token is
/// neither likelier nor less likely than the average of those that the model knows. Source: Hewitt
/// 2021, "Initializing new word embeddings for pretrained language models".
class GrownTables final : public TensorSource {
 public:
  /// `tables`: names of matrices [V, H]; those that the files lack are passed over. ValueError for
  /// one that has more than `rows` rows.
  GrownTables(std::unique_ptr<TensorSource> files,
              const std::vector<std::string>& tables,
              int64_t rows);

  std::vector<std::string> names() const override { return files_->names(); }
  bool contains(const std::string& name) const override { return files_->contains(name); }
  const Shape& shape(const std::string& name) const override;
  DType dtype(const std::string& name) const override { return files_->dtype(name); }
  const std::string& file_of(const std::string& name) const override {
    return files_->file_of(name);
  }
  void read(const std::string& name, void* destination) const override;
  void read_bytes(const std::string& name,
                  uint64_t offset,
                  size_t bytes,
                  void* destination) const override;

 private:
  struct Table {
    Shape shape;
    uint64_t stored_bytes = 0;
    std::vector<char> new_row;  // in the dtype of the files
  };

  std::unique_ptr<TensorSource> files_;
  std::map<std::string, Table> tables_;
};

}  // namespace tapestry
