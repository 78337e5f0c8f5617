// nlohmann's JSON, whose parser and writer are compiled once: included in place of the library's
// header, it spares the compiler more than half of what JSON costs a source that reads and writes
// it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace nlohmann::detail {

/// What parse() of a std::string reads from.
using StringInput = iterator_input_adapter<std::string::const_iterator>;

extern template class lexer<json, StringInput>;
extern template class lexer<ordered_json, StringInput>;
extern template class parser<json, StringInput>;
extern template class parser<ordered_json, StringInput>;
extern template class json_sax_dom_parser<json>;
extern template class json_sax_dom_parser<ordered_json>;
extern template class json_sax_dom_callback_parser<json>;
extern template class json_sax_dom_callback_parser<ordered_json>;
extern template class serializer<json>;
extern template class serializer<ordered_json>;

}  // namespace nlohmann::detail
