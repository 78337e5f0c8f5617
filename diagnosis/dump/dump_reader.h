// Reads the files of a dump, of all its ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "diagnosis/dump/dump_row.h"

namespace tapestry::dump {

/// A tensor as one rank has dumped it.
struct StoredTensor {
  int64_t rank = 0;
  std::string folder;  ///< of the iteration
  size_t place = 0;    ///< among the rank's rows of the iteration
  DumpRow row;

  bool has_value() const { return !row.file.empty(); }
  /// False too for a file that is too small for more than the first elements.
  bool has_all_elements() const;
  /// The elements in the file, of the type they have there (float32 for bfloat16). Shape: as the
  /// row says, or one axis of the first elements (sample_mode). IoError, naming the file, if it is
  /// missing, malformed or of another shape or dtype.
  Tensor value() const;
};

/// A dump's folder: what the `path` of its configuration was. Any number of ranks, as MindSpore or
/// Tapestry have named them, "rank_3" and below it NET/GRAPH/ITERATION. Files are not trusted.
class DumpReader {
 public:
  /// Lists the folders. IoError if `folder` is none, or holds no iteration of any rank.
  explicit DumpReader(std::string folder);

  const std::string& folder() const { return folder_; }
  /// Ascending, counted from 0: those that at least one rank has whole.
  std::vector<int64_t> iterations() const;
  std::vector<int64_t> ranks() const;
  /// Folders of iterations that were cut short.
  const std::vector<std::string>& unfinished() const { return unfinished_; }
  /// Whether the dump's configuration, which lies beside it, has told a rank to write only some of
  /// the ops: those of `kernels`, or those with an overflow.
  bool chose_ops() const;

  /// What all ranks have of the iteration, rank after rank in the order of their tables. Values are
  /// not read. IoError, with file and line, for malformed tables.
  std::vector<StoredTensor> tensors(int64_t iteration) const;

 private:
  std::string folder_;
  std::map<int64_t, std::map<int64_t, std::vector<std::string>>> folders_;  // iteration, rank
  std::vector<std::string> unfinished_;
};

}  // namespace tapestry::dump
