#include "text/sources/text_files.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <system_error>

#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry::data {
namespace {

namespace fs = std::filesystem;
using std::string_view_literals::operator""sv;

std::string lower(std::string_view text) {
  std::string lowered(text);
  std::transform(lowered.begin(), lowered.end(), lowered.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lowered;
}

bool ends_with_one_of(std::string_view path, const auto& endings) {
  const std::string name = lower(path);
  return std::any_of(std::begin(endings), std::end(endings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

constexpr std::array kJsonLines = {".jsonl"sv, ".ndjson"sv, ".jl"sv, ".jsonlines"sv, ".json"sv};

// ---- Files that are no text, by how they begin.

constexpr const char* kTable =
    "write its texts as JSONL first, one object with a \"text\" a line: python3 -c \"import "
    "pandas; "
    "pandas.read_parquet('FILE').to_json('NEW.jsonl', orient='records', lines=True)\"";
constexpr const char* kArrow =
    "write its texts as JSONL first, one object with a \"text\" a line: "
    "datasets.load_from_disk(FOLDER).to_json('NEW.jsonl') in Python";

struct Disguise {
  std::string_view magic;
  const char* what;
  const char* remedy;
};
constexpr Disguise kDisguises[] = {
    {"\x1F\x8B"sv, "is compressed by gzip", "unpack it first: gunzip -k FILE"},
    {"\x28\xB5\x2F\xFD"sv, "is compressed by zstd", "unpack it first: zstd -d FILE"},
    {"\xFD\x37\x7A\x58\x5A\0"sv, "is compressed by xz", "unpack it first: unxz -k FILE"},
    {"BZh"sv, "is compressed by bzip2", "unpack it first: bunzip2 -k FILE"},
    {"\x04\x22\x4D\x18"sv, "is compressed by lz4", "unpack it first: lz4 -d FILE"},
    {"7z\xBC\xAF\x27\x1C"sv, "is a 7z archive", "unpack it first: 7z x FILE"},
    {"Rar!\x1A\x07"sv, "is a RAR archive", "unpack it first: unrar x FILE"},
    {"PK\x03\x04"sv, "is a zip archive, or a document of Word, Excel or EPUB",
     "unpack it first (unzip FILE), or turn it into text: pandoc -t plain -o NEW.txt FILE"},
    {"%PDF-"sv, "is a PDF document", "turn it into text first: pdftotext FILE"},
    {"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, "is a document of an old Office",
     "turn it into text first: soffice --convert-to txt FILE"},
    {"{\\rtf"sv, "is an RTF document", "turn it into text first: pandoc -t plain -o NEW.txt FILE"},
    {"PAR1"sv, "is a Parquet table", kTable},
    {"ARROW1"sv, "is an Arrow table", kArrow},
    {"FEA1"sv, "is a Feather table", kArrow},
    {"\xFF\xFF\xFF\xFF\x10\0\0\0"sv, "is a stream of Arrow", kArrow},
    {"\xFF\xFF\xFF\xFF\x18\0\0\0"sv, "is a stream of Arrow", kArrow},
    {"ORC"sv, "is an ORC table", "write its texts as JSONL first"},
    {"Obj\x01"sv, "is an Avro file", "write its texts as JSONL first"},
    {"SQLite format 3\0"sv, "is an SQLite database", "write its texts as JSONL first"},
    {"\x89HDF\r\n"sv, "is an HDF5 file", "write its texts as JSONL first"},
    {"\x93NUMPY"sv, "is an array of NumPy",
     "arrays of tokens are read as dataset_config.step_data_dir"},
    {"GGUF"sv, "is a model (GGUF)", "name texts"},
    {"\xFF\xFE"sv, "is UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE > NEW"},
    {"\xFE\xFF"sv, "is UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE > NEW"},
    {"MMIDIDX"sv, "is the index of a data set",
     "its path without .idx is what dataset_config.data_path takes"},
};

// What else a name can say of bytes that are no text.
struct Ending {
  std::string_view ending;
  const char* remedy;
};
constexpr Ending kEndings[] = {
    {".bin", "if it is a data set's, its path without .bin is what dataset_config.data_path takes"},
    {".tar", "unpack it first: tar xf FILE"},
    {".br", "unpack it first: brotli -d -k FILE"},
    {".lzma", "unpack it first: unlzma -k FILE"},
    {".z", "unpack it first: uncompress -k FILE"},
    {".arrow", kArrow},
    {".parquet", kTable},
    {".safetensors", "it is a model's weights; name texts"},
    {".pt", "it is a model's weights; name texts"},
    {".model", "it is a tokenizer: dataset_config.tokenizer_model"},
};

std::string with_file(std::string remedy, const std::string& path) {
  constexpr std::string_view kName = "FILE";
  for (size_t at = remedy.find(kName); at != std::string::npos;
       at = remedy.find(kName, at + path.size())) {
    remedy.replace(at, kName.size(), path);
  }
  return remedy;
}

std::string remedy_by_name(const std::string& path) {
  const std::string name = lower(path);
  for (const Ending& ending : kEndings) {
    if (name.ends_with(ending.ending)) {
      return concat("; ", with_file(ending.remedy, path));
    }
  }
  return "";
}

struct ByteCounts {
  size_t zero = 0;
  size_t control = 0;  // that no text has, 0 among them
  size_t high = 0;     // from 0x80
  size_t pairs = 0;    // of these, what GB18030 writes a Chinese character as
};

ByteCounts count_bytes(std::string_view bytes) {
  ByteCounts counts;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    constexpr uint8_t kEscape = 0x1B;
    counts.zero += byte == 0 ? 1 : 0;
    counts.control += (byte < ' ' && (byte < '\t' || byte > '\r') && byte != kEscape) ? 1 : 0;
    counts.high += byte >= 0x80 ? 1 : 0;
    if (byte >= 0x81 && byte < 0xFF && i + 1 < bytes.size()) {
      const auto next = static_cast<uint8_t>(bytes[i + 1]);
      if (next >= 0xA1 && next < 0xFF) {
        counts.pairs += 2;
        counts.high += 1;
        ++i;
      }
    }
  }
  return counts;
}

// Bytes that belong to no character, among those from 0x80.
size_t bytes_outside_characters(std::string_view bytes) {
  constexpr uint32_t kReplacement = 0xFFFD;
  const std::vector<uint32_t> points = code_points(bytes);
  const auto replaced = std::count(points.begin(), points.end(), kReplacement);
  return static_cast<size_t>(replaced);
}

// ---- Names.

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_pattern(const std::string& entry) {
  return entry.find_first_of("*?[") != std::string::npos;
}

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  check<IoError>(status == 0 || status == GLOB_NOMATCH, pattern, ": the folders cannot be read");
  std::sort(paths.begin(), paths.end());
  return paths;
}

// As it would be written in full; a folder's ends with a slash.
std::string in_full(const fs::path& path, bool is_folder) {
  std::string full = fs::absolute(path).lexically_normal().string();
  return is_folder && !full.ends_with('/') ? full + "/" : full;
}

bool is_left_out(const fs::path& path, bool is_folder, const std::vector<std::string>& without) {
  const std::string full = in_full(path, is_folder);
  return std::any_of(without.begin(), without.end(), [&](const std::string& beginning) {
    return full.starts_with(in_full(beginning, /*is_folder=*/false));
  });
}

std::vector<std::string> files_below(const std::string& folder,
                                     const std::vector<std::string>& without) {
  std::vector<std::string> files;
  const auto add = [&](auto& self, const fs::path& at, int depth) -> void {
    constexpr int kDeepest = 64;  // links may lead back
    check<IoError>(depth <= kDeepest, folder, ": has folders more than ", kDeepest, " deep");
    std::vector<fs::path> entries;
    for (const fs::directory_entry& entry : fs::directory_iterator(at)) {
      if (!is_hidden(entry.path()) && !is_left_out(entry.path(), entry.is_directory(), without)) {
        entries.push_back(entry.path());
      }
    }
    for (const fs::path& entry : entries) {
      if (fs::is_directory(entry)) {
        self(self, entry, depth + 1);
      } else {
        check<IoError>(fs::is_regular_file(entry), entry.string(),
                       ": cannot be read as a text: not a regular file");
        files.push_back(entry.string());
      }
    }
  };
  const auto foreign = foreign_data(folder, /*texts=*/false, without);
  check<ValueError>(!foreign, folder, ": is no folder of texts: ", foreign ? foreign->name : "",
                    " ", foreign ? foreign->remedy : "");
  try {
    add(add, folder, 0);
  } catch (const fs::filesystem_error& error) {
    throw IoError(concat(error.path1().string(), ": cannot be read: ", error.code().message()));
  }
  std::sort(files.begin(), files.end());
  check<ValueError>(!files.empty(), folder, ": the folder has no files, expected texts");
  return files;
}

bool is_numbered(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) && name.size() > prefix.size() &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string_view::npos;
}

// Whether prepare_corpus has made a file of this name: NAME_TYPE_..., where NAME is bible, or ends
// in a checksum.
bool is_prepared_file(std::string_view name) {
  for (const std::string_view type :
       {"_byte_"sv, "_sentencepiece_"sv, "_character_"sv, "_character."sv, "_huggingface_"sv}) {
    const size_t at = name.rfind(type);
    if (at == std::string_view::npos) {
      continue;
    }
    const std::string_view of_text = name.substr(0, at);
    constexpr size_t kDigits = 8;
    if (of_text == "bible" ||
        (of_text.size() > kDigits && of_text[of_text.size() - kDigits - 1] == '_' &&
         of_text.find_first_not_of("0123456789abcdef", of_text.size() - kDigits) ==
             std::string_view::npos)) {
      return true;
    }
  }
  return name == "bible.txt";
}

constexpr std::array kTexts = {".txt"sv,    ".text"sv, ".jsonl"sv,
                               ".ndjson"sv, ".jl"sv,   ".jsonlines"sv};
constexpr std::array kPacked = {".parquet"sv, ".arrow"sv, ".gz"sv,  ".zst"sv, ".xz"sv,
                                ".bz2"sv,     ".zip"sv,   ".pdf"sv, ".docx"sv};

}  // namespace

bool is_json_lines_name(std::string_view path) { return ends_with_one_of(path, kJsonLines); }

std::vector<std::string> text_files(const std::vector<std::string>& entries,
                                    const std::string& key,
                                    const std::vector<std::string>& without) {
  std::vector<std::string> files;
  std::map<std::string, std::string> by;  // the entry that a file came by
  for (const std::string& entry : entries) {
    std::error_code error;
    const fs::file_status status = fs::status(entry, error);
    std::vector<std::string> found;
    bool is_one = false;
    if (fs::is_directory(status)) {
      found = files_below(entry, without);
    } else if (fs::exists(status) || !is_pattern(entry)) {
      found = {entry};
      is_one = true;
    } else {
      for (const std::string& match : matches_of(entry)) {
        if (is_left_out(match, fs::is_directory(match), without)) {
          continue;
        }
        if (fs::is_directory(match)) {
          const std::vector<std::string> below = files_below(match, without);
          found.insert(found.end(), below.begin(), below.end());
        } else {
          found.push_back(match);
        }
      }
      check<IoError>(!found.empty(), key, ": the pattern ", entry, " matches no file");
    }
    for (std::string& file : found) {
      const std::string plain = fs::absolute(file).lexically_normal().string();
      const auto [known, is_new] = by.emplace(plain, entry);
      check<ValueError>(is_new || (is_one && known->second == entry), key, ": ", file,
                        " comes twice, by ", known->second, " and by ", entry,
                        "; name it once, by one of them");
      files.push_back(std::move(file));
    }
  }
  return files;
}

std::optional<ForeignData> foreign_data(const std::string& folder,
                                        bool texts,
                                        const std::vector<std::string>& without) {
  std::vector<fs::path> entries;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    entries.push_back(entry.path());
  }
  std::sort(entries.begin(), entries.end());
  for (const fs::path& entry : entries) {
    const std::string name = entry.filename().string();
    if (name.find(".mindrecord") != std::string::npos) {
      return ForeignData{name,
                         "is there, but MindRecord files are not read; write their text as JSONL "
                         "and name it in dataset_config.text, or their tokens as a Megatron data "
                         "set in data_path"};
    }
    if (is_hidden(entry) || is_prepared_file(name) ||
        is_left_out(entry, fs::is_directory(entry, ignored), without)) {
      continue;
    }
    if (is_numbered(name, "step_") && fs::is_directory(entry, ignored)) {
      return ForeignData{name, concat("is a recorded step; to train on such steps set "
                                      "dataset_config.step_data_dir: ",
                                      folder)};
    }
    if (name.ends_with(".idx")) {
      return ForeignData{name,
                         concat("is a data set; to train on it set dataset_config.data_path: ",
                                (entry.parent_path() / entry.stem()).string())};
    }
    if (texts && ends_with_one_of(name, kTexts)) {
      return ForeignData{
          name, concat("is a text; to train on it set dataset_config.text: ", entry.string(),
                       ", on all in the folder dataset_config.text: ", folder)};
    }
    if (texts && ends_with_one_of(name, kPacked)) {
      return ForeignData{name,
                         "is there, but such files are not read; turn it into plain text or JSONL, "
                         "and name that in dataset_config.text"};
    }
  }
  return std::nullopt;
}

void check_is_text(const InputFile& file) {
  constexpr uint64_t kMost = 64 << 10U;
  std::string begin(std::min(kMost, file.size()), '\0');
  file.read_at(0, begin.data(), begin.size(), "text");
  for (const Disguise& disguise : kDisguises) {
    check<ValueError>(!begin.starts_with(disguise.magic), file.path(), ": ", disguise.what,
                      ", expected plain text; ", with_file(disguise.remedy, file.path()));
  }
  constexpr size_t kMagicOfTar = 257;
  check<ValueError>(
      begin.size() < kMagicOfTar + 5 || begin.compare(kMagicOfTar, 5, "ustar") != 0, file.path(),
      ": is a tar archive, expected plain text; unpack it first: tar xf ", file.path());
  const ByteCounts counts = count_bytes(begin);
  constexpr size_t kControlShare = 100;  // a text may have a stray one in so many bytes
  check<ValueError>(
      counts.control * kControlShare <= begin.size(), file.path(),
      ": holds bytes that no text has (", counts.control, " of the first ", begin.size(),
      "), expected plain text in UTF-8", remedy_by_name(file.path()),
      3 * counts.zero > begin.size()
          ? concat("; if it is UTF-16: iconv -f UTF-16LE -t UTF-8 ", file.path(), " > NEW")
          : "");
  // A cut last character is none of the file's faults.
  const size_t whole = begin.size() < file.size() ? without_cut_character(begin) : begin.size();
  const std::string_view seen = std::string_view(begin).substr(0, whole);
  if (is_valid_utf8(seen)) {
    return;
  }
  const size_t outside = bytes_outside_characters(seen);
  constexpr size_t kFew = 16;  // damage, not another encoding
  const bool is_other = outside >= kFew && 2 * outside > counts.high;
  const bool is_chinese = 10 * counts.pairs > 9 * counts.high;
  check<ValueError>(!is_other, file.path(), ": is not UTF-8 (", outside, " of its first ",
                    begin.size(), " bytes are none of its characters); convert it first: iconv -f ",
                    is_chinese ? "GB18030" : "WINDOWS-1252", " -t UTF-8 ", file.path(), " > NEW");
}

}  // namespace tapestry::data
