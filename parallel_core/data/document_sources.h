// Which bytes of which text file each document of a data set was made of: PREFIX.sources.json, the
// files, and PREFIX.sources.npy, int64 [documents, 3]: file, offset, bytes.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/data/row_origin.h"
#include "text/sources/text_source.h"

namespace tapestry::data {

/// What a data set was made of. Written by IndexedDatasetWriter::finish.
struct DocumentSources {
  std::vector<TextFile> files;
  std::vector<TextPlace> documents;
};

std::string sources_json_path(const std::string& prefix);
std::string sources_npy_path(const std::string& prefix);

/// Writes both files: {"documents": N, "files": [{"path", "bytes", "crc64"}, ...]}, paths relative
/// to the folder of the data set, and the array. IoError.
void write_document_sources(const std::string& prefix, const DocumentSources& sources);

/// Both files, paths seen from the current folder; none if there is neither, as with data of
/// earlier releases and other programs. IoError, naming the file, if only one is there, either is
/// not of this form, or they are not of `documents` documents.
std::optional<DocumentSources> read_document_sources(const std::string& prefix, int64_t documents);

/// Bytes [offset, offset + bytes) of a file.
struct DocumentPlace {
  std::string file;
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// Looks up documents of any data sets; the files of each are read once. A file of examples is a
/// data set too, whose documents are its lines, blank ones and all.
class DocumentFinder {
 public:
  /// None if nothing is known of the data set's texts. IoError as IndexedDataset and
  /// read_document_sources; IndexError for a document that the data set does not have.
  std::optional<DocumentPlace> find(const std::string& prefix, int64_t document);
  /// What whoever reads the places should know, said once for each data set and file: that there
  /// are none, that a text file is gone or has another size than it had.
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  struct Dataset {
    int64_t documents = 0;
    std::optional<DocumentSources> sources;
  };
  const Dataset& open(const std::string& prefix);

  std::map<std::string, Dataset> datasets_;
  std::vector<std::string> remarks_;
};

/// The documents of a row for reports, [{"id", "first", "count", "file", "offset", "bytes"}, ...]:
/// a DocumentPart each and its DocumentPlace, whose members are null where there is none. Errors as
/// DocumentFinder::find.
nlohmann::ordered_json documents_json(const RowOrigin& origin, DocumentFinder& finder);

}  // namespace tapestry::data
