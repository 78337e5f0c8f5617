#include "text/tokenizers/huggingface/post_processor.h"

#include <limits>

#include "autograd/tensor/error.h"

namespace tapestry::data::huggingface {
namespace post_processors {
namespace {

constexpr int64_t kMostId = std::numeric_limits<int32_t>::max();

// The id in ["</s>", 2].
int32_t pair_id(const Component& component, const char* key) {
  const Json& pair = component.list(key);
  if (pair.size() != 2 || !pair[1].is_number_unsigned() || pair[1].get<uint64_t>() > kMostId) {
    component.fail(concat("\"", key, "\" is not [token, id]"));
  }
  return pair[1].get<int32_t>();
}

}  // namespace
}  // namespace post_processors

PostProcessor::PostProcessor(const Json& json) {
  if (!json.is_null()) {
    add(Component(json, "post_processor"));
  }
}

void PostProcessor::add(const Component& component) {
  const std::string& type = component.type();
  if (type == "Sequence") {
    for (const Component& part : component.parts("processors")) {
      add(part);
    }
  } else if (type == "ByteLevel") {
    if (component.flag("trim_offsets", true)) {
      trims_.push_back(component.flag("add_prefix_space", true));
    }
  } else if (type == "TemplateProcessing") {
    add_template(component);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    if (type == "RobertaProcessing" && component.flag("trim_offsets", true)) {
      trims_.push_back(component.flag("add_prefix_space", true));
    }
    before_.insert(before_.begin(), post_processors::pair_id(component, "cls"));
    after_.push_back(post_processors::pair_id(component, "sep"));
  } else {
    component.refuse();
  }
}

void PostProcessor::add_template(const Component& component) {
  std::vector<int32_t> before;
  bool behind = false;
  for (const Component& item : component.parts("single")) {
    if (item.has("Sequence")) {
      if (behind) {
        component.fail("\"single\" has the text twice");
      }
      behind = true;
      continue;
    }
    if (!item.has("SpecialToken")) {
      item.fail("is neither Sequence nor SpecialToken");
    }
    const Component special(item.json()["SpecialToken"], item.place() + ".SpecialToken");
    const std::string name = special.text("id");
    const Json& known = component.json().contains("special_tokens")
                            ? component.json()["special_tokens"]
                            : component.json();
    const auto found = known.is_object() ? known.find(name) : known.end();
    if (!known.is_object() || found == known.end()) {
      component.fail(concat("special_tokens has no ", name));
    }
    const Component entry(*found, concat(component.place(), ".special_tokens.", name));
    for (const Json& id : entry.list("ids")) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > post_processors::kMostId) {
        entry.fail(concat("\"ids\" has ", id.dump().substr(0, 40), ", expected an id"));
      }
      (behind ? after_ : before).push_back(id.get<int32_t>());
    }
  }
  if (!behind) {
    component.fail("\"single\" has no Sequence, where the text is to be");
  }
  before_.insert(before_.begin(), before.begin(), before.end());
}

}  // namespace tapestry::data::huggingface
