#include "text/chat/chatml.h"

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry::chat {

std::shared_ptr<const ChatTemplate> chatml_template(const std::string& end_of_turn) {
  const std::string end = Json(end_of_turn).dump();
  return std::make_shared<ChatTemplate>(
      concat("{% for message in messages %}"
             "{% if message.content is not string %}"
             "{{ raise_exception('ChatML: the content of a message has to be a text') }}"
             "{% endif %}"
             "{{ '<|im_start|>' + message.role + '\\n' + message.content + ",
             end,
             " + '\\n' }}"
             "{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"),
      "ChatML");
}

}  // namespace tapestry::chat
