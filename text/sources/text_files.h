// Which files a text is: names of files, folders, patterns; and what else may lie where they are
// looked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/io/input_file.h"

namespace tapestry::data {

/// Whether the name says one JSON object a line: .jsonl, .ndjson, .jl, .jsonlines or .json, in any
/// case.
bool is_json_lines_name(std::string_view path);

/// The files that the entries of `key` (for messages) name: a file itself; a folder: all files
/// below it but hidden ones; a pattern of a shell (`*`, `?`, `[a-z]`): what it matches. In the
/// order of the entries, within one by path, byte by byte. A file or folder of exactly that name
/// goes before a pattern. IoError, naming the entry, for what is not there, is neither file nor
/// folder, or matches nothing; ValueError for a folder without files or with data that are no
/// text (foreign_data), and where a file comes a second time by a folder or pattern. Of folders,
/// what lies at `without` is left out: what the caller itself writes, such as "out/" (all below
/// it) or "corpus/set_" (all whose paths begin so).
std::vector<std::string> text_files(const std::vector<std::string>& entries,
                                    const std::string& key = "text",
                                    const std::vector<std::string>& without = {});

/// Something in a folder that training could be meant to read.
struct ForeignData {
  std::string name;    ///< of the file or folder in it
  std::string remedy;  ///< "is a data set; dataset_config.data_path takes ..."
};

/// The first, by name, of the recorded steps (step_N), data sets (*.idx) and MindRecord files in
/// a folder; with `texts` also of the texts and of what texts are packed in. Nothing of that is
/// what Tapestry itself leaves in a dataset_dir. None if there is no such folder.
std::optional<ForeignData> foreign_data(const std::string& folder,
                                        bool texts,
                                        const std::vector<std::string>& without = {});

/// ValueError, with a command that helps, for a file that holds no UTF-8 text: a compressed one, a
/// table (Parquet, Arrow), a document (PDF, Word), another encoding, or bytes that are none. Looks
/// at the first 64 KiB.
void check_is_text(const InputFile& file);

}  // namespace tapestry::data
