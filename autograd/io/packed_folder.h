// Files that stand for the folder of a model: what programs read of such a folder, its
// configuration and its tokenizer, is made of the one file. "MODEL.gguf/config.json" is then a path
// like any other to read_file, path_exists and folder_exists; writers and the system know nothing
// of it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace tapestry {

/// Content of the files of a folder, by name.
using PackedFiles = std::map<std::string, std::string>;
/// Makes them of a file. Throws what readers of files throw.
using ReadPackedFolder = PackedFiles (*)(const std::string& path);

/// Makes regular files whose names end so stand for folders; for initialisers of static objects.
/// RuntimeError for an ending that is known already.
bool register_packed_folder(std::string_view ending, ReadPackedFolder read);

/// Whether a path is a regular file that stands for a folder.
bool is_packed_folder(const std::string& path);

/// Whether a path is a folder, or a file that stands for one.
bool folder_exists(const std::string& path);

/// Whether there is such a file or folder, on disk or in a file that stands for a folder; of the
/// latter all that its reader throws.
bool path_exists(const std::string& path);

/// The files of a file that stands for a folder. Made once for as long as the file stays what it is
/// (inode, size, time of change), and few of those that were asked for last are kept.
std::shared_ptr<const PackedFiles> packed_files(const std::string& path);

/// Whether a path leads into a regular file that stands for a folder, and to which of its files.
/// The file need not be among those that it has.
struct PackedPath {
  std::string folder;
  std::string name;  ///< empty: the path does not lead into such a file
};
PackedPath packed_path(const std::string& path);

}  // namespace tapestry
