#include "autograd/io/json.h"

namespace nlohmann::detail {

template class lexer<json, StringInput>;
template class lexer<ordered_json, StringInput>;
template class parser<json, StringInput>;
template class parser<ordered_json, StringInput>;
template class json_sax_dom_parser<json>;
template class json_sax_dom_parser<ordered_json>;
template class json_sax_dom_callback_parser<json>;
template class json_sax_dom_callback_parser<ordered_json>;
template class serializer<json>;
template class serializer<ordered_json>;

}  // namespace nlohmann::detail
