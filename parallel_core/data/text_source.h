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
  /// files named *.jsonl or *.json are JSONL with the key "text", all others plain text.
  std::string json_key;
  DocumentSplit split_documents = DocumentSplit::kFile;
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

/// Reads the beginning of each file. ValueError, with a command that helps, for files that hold no
/// text as it is: compressed ones, UTF-16, a data set or a checkpoint. The result are remarks:
/// which files begin with a byte-order mark of UTF-8, which read_documents leaves out.
std::vector<std::string> check_text_files(const std::vector<std::string>& files);

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
