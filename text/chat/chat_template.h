// Chat templates: the Jinja that makes the text of a conversation, as Python's transformers do.
//
// The language is Jinja2 3.1 in the sandbox of transformers (trim_blocks, lstrip_blocks, loop
// controls, `tojson` as json.dumps); docs/chat.md lists what of it there is. What a template needs
// beyond that is refused with its name and line when the template is read, never rendered wrongly.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tapestry::chat {

using Json = nlohmann::ordered_json;  ///< `tojson` writes keys in the order in which they came

/// How much a rendering may take; more is a ValueError.
struct RenderLimits {
  /// Operations; 64 bytes that are made, searched, copied or compared, 4 that are gone through
  /// letter by letter, or an element copied are one.
  int64_t steps = 10'000'000;
  int64_t bytes = 64 << 20;  ///< of the result, and of each text that the template makes
};

/// What `{% generation %}` marks say of a text: that these bytes [begin, end) are the model's.
struct GenerationMarks {
  struct Span {
    size_t begin = 0;
    size_t end = 0;
  };
  std::vector<Span> spans;  ///< ascending, none over another
  /// False: some are in the text of a macro or a block, whose place in the whole is not known.
  bool are_placed = true;
};

/// A template, read once. Rendering changes nothing: threads may share one.
class ChatTemplate {
 public:
  /// ValueError "NAME:LINE: ..." for what is no Jinja, for a statement, filter, test, function or
  /// method that is not known here, and for nesting of more than 200.
  explicit ChatTemplate(std::string source, std::string name = "chat_template");

  /// The text. `variables`: an object, each key a variable of the template. `strftime_now`, the
  /// function that tells the day, is only defined if `now` says what it tells, so that texts for
  /// training do not depend on when they are made; most templates have a date of their own for
  /// that. ValueError "NAME:LINE: ..." for what Python would raise an exception for: the template's
  /// own raise_exception (its message is part of ours), operations that the types do not have,
  /// attributes of undefined values; and beyond the limits. `marks`, if given, become those of
  /// the text.
  std::string render(const Json& variables,
                     const RenderLimits& limits = {},
                     std::optional<std::time_t> now = std::nullopt,
                     GenerationMarks* marks = nullptr) const;

  const std::string& source() const;
  const std::string& name() const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace tapestry::chat
