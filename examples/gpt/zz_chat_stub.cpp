#include "parallel_core/chat/chat_format.h"
#include <nlohmann/json.hpp>
namespace tapestry::chat {
std::string ChatFormat::render(const Json&, bool) const { return "x"; }
std::string ChatFormat::render(const Json&, bool, const Json&) const { return "x"; }
std::optional<ChatFormat> read_chat_format(const std::string&, const std::string&) { return {}; }
}
