#include "autograd/tensor/error.h"

#include <sstream>

namespace tapestry::detail {

void MessagePart::write(std::ostream& out) const {
  switch (kind_) {
    case Kind::kText:
      out << std::string_view(text_.data, text_.size);
      break;
    case Kind::kSigned:
      out << signed_;
      break;
    case Kind::kUnsigned:
      out << unsigned_;
      break;
    case Kind::kDouble:
      out << double_;
      break;
    case Kind::kOther:
      other_.print(out, other_.value);
      break;
  }
}

std::string joined(std::initializer_list<MessagePart> parts) {
  std::ostringstream out;
  for (const MessagePart& part : parts) {
    part.write(out);
  }
  return out.str();
}

}  // namespace tapestry::detail
