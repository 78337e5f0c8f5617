#include "parallel_core/data/document_sources.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "autograd/io/npy.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/indexed_dataset.h"
#include "text/sources/line_reader.h"
#include "text/util/file.h"

namespace tapestry::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kColumns = 3;  // file, offset, bytes

fs::path folder_of_dataset(const std::string& prefix) {
  const fs::path folder = fs::path(prefix).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

[[noreturn]] void throw_not_sources(const std::string& path, const std::string& expected) {
  throw IoError(concat(path, ": does not say where documents come from, expected ", expected,
                       "; prepare the text again, or remove PREFIX.sources.json and .npy"));
}

std::vector<TextFile> read_files(const std::string& prefix, int64_t documents) {
  const std::string path = sources_json_path(prefix);
  const Json json = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  const auto is_file = [](const Json& file) {
    const auto has = [&](const char* key, auto test) {
      const auto value = file.find(key);
      return value != file.end() && test(*value);
    };
    return file.is_object() && has("path", [](const Json& v) { return v.is_string(); }) &&
           has("bytes", [](const Json& v) { return v.is_number_unsigned(); }) &&
           has("crc64", [](const Json& v) { return v.is_string(); });
  };
  if (!json.is_object() || !json.contains("documents") || !json["documents"].is_number_unsigned() ||
      !json.contains("files") || !json["files"].is_array()) {
    throw_not_sources(path, "JSON with \"documents\" and \"files\"");
  }
  if (json["documents"].get<int64_t>() != documents) {
    throw_not_sources(path, concat(documents, " documents, as the data set has, found ",
                                   json["documents"].get<int64_t>()));
  }
  std::vector<TextFile> files;
  for (const Json& file : json["files"]) {
    if (!is_file(file)) {
      throw_not_sources(path, "files with \"path\", \"bytes\" and \"crc64\"");
    }
    const fs::path name = file["path"].get<std::string>();
    files.push_back({(folder_of_dataset(prefix) / name).lexically_normal().string(),
                     file["bytes"].get<int64_t>(), file["crc64"].get<std::string>()});
  }
  return files;
}

std::vector<TextPlace> read_places(const std::string& prefix,
                                   int64_t documents,
                                   const std::vector<TextFile>& files) {
  const std::string path = sources_npy_path(prefix);
  const NpyArray array = read_npy(path);
  if (array.dtype != DType::kInt64 || array.shape != Shape{documents, kColumns}) {
    throw_not_sources(
        path, concat("int64 [", documents, ", 3], found ", name_of(array.dtype), " ", array.shape));
  }
  const auto* values = reinterpret_cast<const int64_t*>(array.bytes.data());
  std::vector<TextPlace> places;
  places.reserve(static_cast<size_t>(documents));
  for (int64_t d = 0; d < documents; ++d, values += kColumns) {
    const TextPlace place{values[0], values[1], values[2]};
    const bool known = place.file >= 0 && place.file < static_cast<int64_t>(files.size());
    const int64_t size = known ? files[static_cast<size_t>(place.file)].bytes : 0;
    if (!known || place.offset < 0 || place.bytes < 0 || place.offset > size ||
        place.bytes > size - place.offset) {
      throw_not_sources(
          path, concat("bytes inside one of the ", files.size(), " files, found for document ", d,
                       ": file ", place.file, ", offset ", place.offset, ", bytes ", place.bytes));
    }
    places.push_back(place);
  }
  return places;
}

}  // namespace

std::string sources_json_path(const std::string& prefix) { return prefix + ".sources.json"; }
std::string sources_npy_path(const std::string& prefix) { return prefix + ".sources.npy"; }

void write_document_sources(const std::string& prefix, const DocumentSources& sources) {
  Json json;
  json["documents"] = sources.documents.size();
  json["files"] = Json::array();
  for (const TextFile& file : sources.files) {
    std::error_code error;
    const fs::path relative = fs::proximate(file.path, folder_of_dataset(prefix), error);
    json["files"].push_back({{"path", error ? file.path : relative.string()},
                             {"bytes", file.bytes},
                             {"crc64", file.crc64}});
  }
  // Names of files need not be UTF-8.
  write_file_atomically(
      sources_json_path(prefix),
      json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
  static_assert(sizeof(TextPlace) == kColumns * sizeof(int64_t));
  write_npy(sources_npy_path(prefix), DType::kInt64,
            Shape{static_cast<int64_t>(sources.documents.size()), kColumns},
            sources.documents.data());
}

std::optional<DocumentSources> read_document_sources(const std::string& prefix, int64_t documents) {
  const bool json = fs::exists(sources_json_path(prefix));
  const bool npy = fs::exists(sources_npy_path(prefix));
  if (!json && !npy) {
    return std::nullopt;
  }
  check<IoError>(json && npy, json ? sources_npy_path(prefix) : sources_json_path(prefix),
                 ": is missing, but ", json ? sources_json_path(prefix) : sources_npy_path(prefix),
                 " is there; prepare the text again, or remove the other one");
  DocumentSources sources;
  sources.files = read_files(prefix, documents);
  sources.documents = read_places(prefix, documents, sources.files);
  return sources;
}

namespace {

// The lines of a file of examples, which is a data set of its own.
DocumentSources lines_of(const std::string& path) {
  DocumentSources sources;
  LineReader reader(path);
  for (std::string line; reader.next(line);) {
    const size_t newline = line.ends_with('\n') ? 1 : 0;
    sources.documents.push_back(
        {0, static_cast<int64_t>(reader.offset()), static_cast<int64_t>(line.size() - newline)});
  }
  sources.files.push_back(reader.file());
  return sources;
}

}  // namespace

const DocumentFinder::Dataset& DocumentFinder::open(const std::string& prefix) {
  const auto known = datasets_.find(prefix);
  if (known != datasets_.end()) {
    return known->second;
  }
  if (fs::is_regular_file(prefix)) {
    Dataset lines{.documents = 0, .sources = lines_of(prefix)};
    lines.documents = std::ssize(lines.sources->documents);
    return datasets_.emplace(prefix, std::move(lines)).first->second;
  }
  Dataset opened{.documents = IndexedDataset(prefix).num_documents(), .sources = std::nullopt};
  opened.sources = read_document_sources(prefix, opened.documents);
  if (!opened.sources) {
    remarks_.push_back(concat(prefix, ": has no ", sources_json_path(prefix),
                              ", so the files that its documents come from are not known; prepare "
                              "the text again to know them"));
  } else {
    for (const TextFile& file : opened.sources->files) {
      std::error_code error;
      const uintmax_t bytes = fs::file_size(file.path, error);
      if (error) {
        remarks_.push_back(concat(file.path, ": is not there any more; ", prefix,
                                  " was made of it when it had ", file.bytes, " bytes"));
      } else if (bytes != static_cast<uintmax_t>(file.bytes)) {
        remarks_.push_back(concat(file.path, ": has ", bytes, " bytes, but had ", file.bytes,
                                  " when ", prefix,
                                  " was made of it, and places are those of then"));
      }
    }
  }
  return datasets_.emplace(prefix, std::move(opened)).first->second;
}

std::optional<DocumentPlace> DocumentFinder::find(const std::string& prefix, int64_t document) {
  const Dataset& dataset = open(prefix);
  check<IndexError>(document >= 0 && document < dataset.documents, prefix, ": document ", document,
                    " of ", dataset.documents);
  if (!dataset.sources) {
    return std::nullopt;
  }
  const TextPlace& place = dataset.sources->documents[static_cast<size_t>(document)];
  return DocumentPlace{dataset.sources->files[static_cast<size_t>(place.file)].path, place.offset,
                       place.bytes};
}

nlohmann::ordered_json documents_json(const RowOrigin& origin, DocumentFinder& finder) {
  Json documents = Json::array();
  for (const DocumentPart& part : origin.documents) {
    const std::optional<DocumentPlace> place =
        finder.find(part.dataset.empty() ? origin.dataset : part.dataset, part.document);
    Json entry = {{"id", part.document}, {"first", part.first}, {"count", part.count}};
    entry["file"] = place ? Json(place->file) : Json();
    entry["offset"] = place ? Json(place->offset) : Json();
    entry["bytes"] = place ? Json(place->bytes) : Json();
    documents.push_back(std::move(entry));
  }
  return documents;
}

}  // namespace tapestry::data
