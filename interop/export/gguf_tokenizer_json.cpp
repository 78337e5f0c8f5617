#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_fields.h"
#include "interop/export/gguf_vocabulary.h"
#include "interop/gguf/gguf_pre.h"
#include "text/tokenizers/huggingface/tokenizer_files.h"
#include "text/util/utf8.h"

namespace tapestry {
namespace {

using hf::Json;
using TokenMerge = std::pair<std::string, std::string>;

constexpr const char* kSpaceSign = "\u2581";

Json part_of(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) ? object.at(name) : Json();
}

std::string text_of(const Json& object, const char* name) {
  const Json found = part_of(object, name);
  return found.is_string() ? found.get<std::string>() : std::string();
}

bool is_true(const Json& object, const char* name) { return part_of(object, name) == true; }

// "<0x0A>"
bool is_byte_token(std::string_view text) {
  return text.size() == 6 && text.starts_with("<0x") && text.back() == '>' &&
         text.find_first_not_of("0123456789ABCDEF", 3) == 5;
}

// Reads a tokenizer.json whose model is BPE.
class TokenizerJson {
 public:
  TokenizerJson(const std::string& file, Json json, GgufTokenizer& out)
      : file_(file), json_(std::move(json)), out_(out) {}

  void read() {
    const Json model = part_of(json_, "model");
    check_model(model);
    read_merges(part_of(model, "merges"));
    read_tokens(part_of(model, "vocab"));
    read_added();
    const bool bytes = is_true(model, "byte_fallback");
    if (bytes) {
      read_pieces(model);
    } else {
      read_byte_level(model);
    }
    if (const std::string unknown = text_of(model, "unk_token"); !unknown.empty()) {
      const int64_t id = gguf_token_id(out_, unknown);
      check<ValueError>(id >= 0, file_, ": model.unk_token: there is no token \"", unknown, "\"");
      out_.unknown = id;
      out_.types[static_cast<size_t>(id)] = kGgufUnknown;
    }
    if (bytes) {
      make_scores();
    }
    read_post_processor(part_of(json_, "post_processor"));
  }

 private:
  void check_model(const Json& model) const {
    check<ValueError>(model.is_object(), file_, ": model: expected an object");
    const std::string type = text_of(model, "type");
    // Old files do not name it.
    check<ValueError>(type == "BPE" || (type.empty() && model.contains("merges")), file_,
                      ": model.type: ", type.empty() ? "is missing" : type,
                      ": what can be written as GGUF is BPE");
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      check<ValueError>(text_of(model, affix).empty(), file_, ": model.", affix, ": is \"",
                        text_of(model, affix), "\", which llama.cpp does not have");
    }
    const Json dropout = part_of(model, "dropout");
    check<ValueError>(dropout.is_null() || dropout == 0, file_, ": model.dropout: is ",
                      dropout.dump(), ", which leaves ids to chance");
  }

  void read_merges(const Json& merges) {
    check<ValueError>(merges.is_array(), file_, ": model.merges: expected a list");
    for (const Json& merge : merges) {
      const std::string text = merge.is_string() ? merge.get<std::string>() : std::string();
      const size_t space = text.find(' ');
      if (merge.is_string() && space != std::string::npos &&
          text.find(' ', space + 1) == std::string::npos) {
        merges_.emplace_back(text.substr(0, space), text.substr(space + 1));
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        merges_.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      } else {
        throw ValueError(concat(file_, ": model.merges: expected two tokens, got ",
                                merge.dump(-1, ' ', false, Json::error_handler_t::replace)));
      }
    }
  }

  void read_tokens(const Json& vocabulary) {
    check<ValueError>(vocabulary.is_object(), file_, ": model.vocab: expected an object");
    for (const auto& [text, id] : vocabulary.items()) {
      check<ValueError>(id.is_number_integer(), file_, ": model.vocab: ", text,
                        ": expected an id, got ", id.dump());
      set_gguf_token(out_, id.get<int64_t>(), text, kGgufNormal);
    }
  }

  void read_added() {
    const Json list = part_of(json_, "added_tokens");
    check<ValueError>(list.is_null() || list.is_array(), file_, ": added_tokens: expected a list");
    for (const Json& token : list) {
      const Json id = part_of(token, "id");
      const Json content = part_of(token, "content");
      check<ValueError>(id.is_number_integer() && content.is_string(), file_,
                        ": added_tokens: expected id and content, got ",
                        token.dump(-1, ' ', false, Json::error_handler_t::replace));
      const bool special = is_true(token, "special");
      for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
        if (is_true(token, flag)) {
          check<ValueError>(special, file_, ": added_tokens: \"", content.get<std::string>(),
                            "\": ", flag, " is something that llama.cpp does not do");
          out_.remarks.push_back(concat(file_, ": llama.cpp passes over ", flag, " of \"",
                                        content.get<std::string>(), "\""));
        }
      }
      set_gguf_token(out_, id.get<int64_t>(), content.get<std::string>(),
                     special ? kGgufControl : kGgufUserDefined);
    }
  }

  void read_byte_level(const Json& model) {
    GgufPre pre = gguf_pre(json_, file_);
    out_.model = "gpt2";
    out_.pre = pre.name;
    for (std::string& remark : pre.remarks) {
      out_.remarks.push_back(std::move(remark));
    }
    const bool whole = is_true(model, "ignore_merges");
    if (whole != pre.takes_whole_pieces) {
      const std::string other = token_that_merges_do_not_make(part_of(model, "vocab"));
      check<ValueError>(other.empty(), file_, ": model.ignore_merges: is ",
                        whole ? "true" : "false", ", llama.cpp has the opposite for ", pre.name,
                        ", and the token \"", other, "\" is none that the merges make");
    }
    for (const auto& [left, right] : merges_) {
      out_.merges.push_back(concat(left, " ", right));
    }
  }

  // A token whose own characters the merges turn into something else; empty: there is none, and it
  // is the same whether whole tokens are looked up before merges are made.
  std::string token_that_merges_do_not_make(const Json& vocabulary) const {
    std::unordered_map<std::string, size_t> ranks;
    for (size_t rank = 0; rank < merges_.size(); ++rank) {
      ranks.emplace(concat(merges_[rank].first, " ", merges_[rank].second), rank);
    }
    for (const auto& [text, id] : vocabulary.items()) {
      std::vector<std::string> parts;
      for (const uint32_t point : data::code_points(text)) {
        parts.push_back(data::utf8(point));
      }
      while (parts.size() > 1) {
        size_t best = ranks.size();
        size_t place = 0;
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
          const auto found = ranks.find(concat(parts[i], " ", parts[i + 1]));
          if (found != ranks.end() && found->second < best) {
            best = found->second;
            place = i;
          }
        }
        if (best == ranks.size()) {
          return text;
        }
        parts[place] += parts[place + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
      }
    }
    return {};
  }

  // Pieces like SentencePiece's, whose other characters are bytes.
  void read_pieces(const Json& model) {
    check<ValueError>(!is_true(model, "ignore_merges"), file_,
                      ": model.ignore_merges: is true, which llama.cpp does not do with pieces");
    out_.model = "llama";
    out_.pre = "default";
    out_.add_space_prefix = adds_space_prefix();
    std::vector<bool> seen(256);
    for (size_t id = 0; id < out_.tokens.size(); ++id) {
      if (out_.types[id] != kGgufUnused && is_byte_token(out_.tokens[id])) {
        out_.types[id] = kGgufByte;
        seen[std::stoul(out_.tokens[id].substr(3, 2), nullptr, 16)] = true;
      }
    }
    const auto missing = std::find(seen.begin(), seen.end(), false);
    check<ValueError>(missing == seen.end(), file_,
                      ": model.byte_fallback: of the 256 byte tokens "
                      "<0x00> .. <0xFF> number ",
                      missing - seen.begin(),
                      " is missing, without which llama.cpp does not load a vocabulary");
  }

  // Whether a text begins with a space of the tokenizer's own. ValueError for other components than
  // those that llama.cpp's pieces know.
  bool adds_space_prefix() {
    const Json replace = Json::parse(
        concat(R"({"type":"Replace","pattern":{"String":" "},"content":")", kSpaceSign, R"("})"));
    const Json prepend =
        Json::parse(concat(R"({"type":"Prepend","prepend":")", kSpaceSign, R"("})"));
    Json normalizer = part_of(json_, "normalizer");
    if (text_of(normalizer, "type") == "Sequence") {
      const Json list = part_of(normalizer, "normalizers");
      normalizer = list.size() == 1 ? list[0] : list;
    }
    const Json splitter = part_of(json_, "pre_tokenizer");
    const auto refuse = [&](const char* name, const Json& component) {
      throw ValueError(concat(file_, ": ", name, ": ",
                              component.dump(-1, ' ', false, Json::error_handler_t::replace),
                              ": not one that llama.cpp has for pieces. Known are Prepend and "
                              "Replace of spaces, Replace alone, and Metaspace without either"));
    };
    const bool replaces = normalizer == replace;
    const bool prepends = normalizer == Json::array({prepend, replace});
    if (text_of(splitter, "type") == "Metaspace" && normalizer.is_null()) {
      return metaspace_prefix(splitter, refuse);
    }
    if (!replaces && !prepends) {
      refuse("normalizer", normalizer);
    }
    // Where all spaces are replaced, a split at spaces finds none.
    const bool no_split =
        splitter.is_null() || (text_of(splitter, "type") == "Split" &&
                               part_of(part_of(splitter, "pattern"), "String") == " ");
    if (!no_split) {
      refuse("pre_tokenizer", splitter);
    }
    return prepends;
  }

  template <class Refuse>
  bool metaspace_prefix(const Json& splitter, const Refuse& refuse) {
    const std::string scheme = text_of(splitter, "prepend_scheme");
    const Json old_prefix = part_of(splitter, "add_prefix_space");
    const bool known = scheme == "first" || scheme == "always" || scheme == "never" ||
                       (scheme.empty() && !old_prefix.is_null());
    if (text_of(splitter, "replacement") != kSpaceSign || !known) {
      refuse("pre_tokenizer", splitter);
    }
    if (part_of(splitter, "split") != false) {
      for (const std::string& token : out_.tokens) {
        check<ValueError>(token.find(kSpaceSign, 1) == std::string::npos ||
                              token.find_first_not_of(kSpaceSign) == std::string::npos,
                          file_,
                          ": pre_tokenizer: Metaspace with split, which llama.cpp does not "
                          "do, and the token \"",
                          token, "\" goes over a space");
      }
    }
    const bool prefix = scheme.empty() ? old_prefix == true : scheme != "never";
    if (prefix) {
      out_.remarks.push_back(
          concat(file_,
                 ": llama.cpp puts the first space also before texts that begin with one, "
                 "and after special tokens, where Metaspace does not"));
    }
    return prefix;
  }

  // Higher merges first; what no merge makes comes after all of them.
  void make_scores() {
    std::unordered_map<std::string, size_t> first;
    for (size_t rank = 0; rank < merges_.size(); ++rank) {
      first.emplace(merges_[rank].first + merges_[rank].second, rank);
    }
    for (size_t id = 0; id < out_.tokens.size(); ++id) {
      const auto found = first.find(out_.tokens[id]);
      const size_t rank = found == first.end() ? merges_.size() : found->second;
      out_.scores.push_back(out_.types[id] == kGgufNormal ? -static_cast<float>(rank) : 0.0F);
    }
  }

  // Ids before and after a text.
  void read_post_processor(const Json& processor) {
    const std::string type = text_of(processor, "type");
    if (type == "Sequence") {
      for (const Json& part : part_of(processor, "processors")) {
        read_post_processor(part);
      }
      return;
    }
    if (processor.is_null() || type == "ByteLevel") {
      return;
    }
    check<ValueError>(type == "TemplateProcessing", file_, ": post_processor: ", type,
                      ": llama.cpp puts one id before a text and one after it, or none, as "
                      "TemplateProcessing can");
    std::vector<int64_t> before;
    std::vector<int64_t> after;
    bool text_seen = false;
    for (const Json& item : part_of(processor, "single")) {
      if (item.contains("Sequence")) {
        text_seen = true;
        continue;
      }
      const std::string name = text_of(part_of(item, "SpecialToken"), "id");
      for (const Json& id :
           part_of(part_of(part_of(processor, "special_tokens"), name.c_str()), "ids")) {
        check<ValueError>(id.is_number_integer(), file_, ": post_processor: ids of ", name,
                          ": expected an id, got ", id.dump());
        (text_seen ? after : before).push_back(id.get<int64_t>());
      }
    }
    check<ValueError>(before.size() <= 1 && after.size() <= 1, file_, ": post_processor: puts ",
                      before.size(), " ids before a text and ", after.size(),
                      " after it; llama.cpp puts one there at most");
    const auto take = [&](const std::vector<int64_t>& ids, std::optional<int64_t>& id, bool& add) {
      if (!ids.empty()) {
        check<ValueError>(ids[0] >= 0 && ids[0] < static_cast<int64_t>(out_.tokens.size()), file_,
                          ": post_processor: id ", ids[0], " is beyond the model's vocabulary");
        id = ids[0];
        add = true;
      }
    };
    take(before, out_.bos, out_.add_bos);
    take(after, out_.eos, out_.add_eos);
  }

  const std::string& file_;
  Json json_;
  GgufTokenizer& out_;
  std::vector<TokenMerge> merges_;
};

}  // namespace

void read_tokenizer_json(const std::string& folder, GgufTokenizer& tokenizer) {
  namespace files = data::huggingface;
  const files::TokenizerFiles found = files::find_tokenizer_files(folder);
  const bool whole = !found.tokenizer_json.empty();
  const std::string file = whole ? found.tokenizer_json : found.vocab_json;
  tokenizer.source = file;
  Json json = whole ? hf::parse_strictly(files::read_tokenizer_file(file), file)
                    : files::tokenizer_json_of(found);
  files::apply_folder(json, found, tokenizer.remarks);
  TokenizerJson(file, std::move(json), tokenizer).read();
}

}  // namespace tapestry
