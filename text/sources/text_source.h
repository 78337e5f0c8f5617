// Documents from text files, read as a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::data {

/// What separates the documents of a plain text file.
enum class DocumentSplit { kFile, kBlankLine };

struct TextInput {
  std::vector<std::string> files;
  /// Not empty: every file is JSONL, one object a line, whose text stands under this key. Empty:
  /// files whose names say so (is_json_lines_name) are JSONL with the key "text", all others plain
  /// text.
  std::string json_key;
  DocumentSplit split_documents = DocumentSplit::kFile;
  /// Takes what is wrong with a line of JSONL, which is then left out; without it, that is an
  /// error.
  std::function<void(const std::string& message)> on_bad_line = nullptr;
};

/// A file that documents were read from.
struct TextFile {
  std::string path;
  int64_t bytes = 0;
  std::string crc64;  ///< of all of them (checksum.h)
  bool operator==(const TextFile&) const = default;
};

/// Where a document lies: bytes [offset, offset + bytes) of a file, of a plain text its lines, of
/// JSONL the line with its object, without the newline.
struct TextPlace {
  int64_t file = 0;  ///< its number in TextInput::files
  int64_t offset = 0;
  int64_t bytes = 0;
  bool operator==(const TextPlace&) const = default;
};

/// Takes a piece of text, whether it is the last one of its document, and the place of the document
/// up to the end of this piece.
using DocumentSink =
    std::function<void(std::string_view text, bool ends_document, const TextPlace& place)>;
/// Takes the bytes read so far and the bytes of all files.
using ReadProgress = std::function<void(uint64_t done, uint64_t total)>;

/// Lines that were left out: how many, and what is wrong with the first ones.
struct BadLines {
  int64_t count = 0;
  std::vector<std::string> first;

  void add(const std::string& message);
  /// "3 bad lines are left out: FILE:7: ...; FILE:9: ...; and 1 more". Empty if there are none.
  std::string text() const;
};

/// Reads the beginning of each file. ValueError as check_is_text, for files that hold no text. The
/// result are remarks: which files begin with a byte-order mark of UTF-8, which read_documents
/// leaves out, and which, unless all are `json_lines`, look like JSONL but are not named so.
std::vector<std::string> check_text_files(const std::vector<std::string>& files,
                                          bool json_lines = false);

/// Hands over all documents in order. With `in_pieces` a long document comes in pieces that end
/// with a newline (but for the last), so that memory stays bounded; otherwise each is whole.
/// IoError for files that cannot be read; ValueError as check_text_files, and, with file:line, for
/// a JSONL line that is not an object with a string under the key. Blank JSONL lines are passed
/// over. Returns the files.
std::vector<TextFile> read_documents(const TextInput& input,
                                     bool in_pieces,
                                     const DocumentSink& sink,
                                     const ReadProgress& progress = {});

}  // namespace tapestry::data
