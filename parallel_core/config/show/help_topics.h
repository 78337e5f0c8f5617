// What a word behind --help means: keys by their names, and by those that other programs have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {

struct KeyOfTopic {
  const Section* section;
  const Key* key;
};

/// The keys that a topic names, and how, for people.
struct TopicMatch {
  std::vector<KeyOfTopic> keys;
  /// "lr: here it is optimizer_config.learning_rate"; empty for a key's own name.
  std::string remark;
};

/// "--learning-rate=1" as "learning_rate".
std::string plain_topic(std::string_view topic);

/// Of a plain topic: the keys of this name (section.key, a whole key, its last part, another
/// spelling), else of this name in another program, else those with it as a part of their names or
/// as a value, else those of the nearest name if it is near. A remark without keys says why
/// nothing stands for another program's name; neither: nothing is known of the topic.
TopicMatch find_topic(const std::string& topic);

/// All names, without sections, of the keys that have this one, here or in another program; the
/// name first.
std::vector<std::string> spellings_of(const std::string& name);

/// Whether a name is so near that it is meant.
bool is_near(std::string_view name, std::string_view other);

/// Whether each part of the topic between underscores is in the name.
bool has_parts(std::string_view name, std::string_view topic);

}  // namespace tapestry::config
