// What a data set is known by, whatever it is called.
#pragma once

#include <cstdint>
#include <string>

namespace tapestry::data {

/// Sizes of PREFIX.idx and PREFIX.bin, and a checksum that costs the same for any size.
struct DatasetFingerprint {
  std::string prefix;
  int64_t idx_bytes = 0;
  int64_t bin_bytes = 0;
  /// CRC-64 (checksum.h) of the first and last 64 KiB of both files: header, lengths of the first
  /// sequences, boundaries of the last documents, first and last tokens.
  std::string crc64;

  /// Whether the files are the same as far as this says; the prefix may differ.
  bool same_content(const DatasetFingerprint& other) const {
    return idx_bytes == other.idx_bytes && bin_bytes == other.bin_bytes && crc64 == other.crc64;
  }
  bool operator==(const DatasetFingerprint&) const = default;
};

/// IoError for files that cannot be read (open_dataset_file).
DatasetFingerprint dataset_fingerprint(const std::string& prefix);

}  // namespace tapestry::data
