// Messages about sections and keys that are not known, or that stand in the wrong place.
#pragma once

#include <string>
#include <string_view>

#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {

/// The section of a name in a file whose model is in `model_section`; nullptr if there is none.
const Section* section_of(std::string_view name, std::string_view model_section);

/// The section's name as the file has it.
std::string shown_section(std::string_view section, std::string_view model_section);

/// The row of a key or of one of its other spellings; nullptr if there is none.
const Key* row_of(const Section& section, std::string_view name);

/// "unknown section 'x'; ...": where the name belongs, what stands here for another program's name,
/// or the nearest known one. `body` is what stands below it: of a section of MindFormers' static
/// configurations each key is named with its counterpart here.
std::string unknown_section(const RawNode& name,
                            const RawNode& body,
                            std::string_view model_section);

/// The same for a key; `prefix` is "" or "mapping." of the mapping that it stands in.
std::string unknown_key(const Section& section,
                        const std::string& prefix,
                        const RawNode& name,
                        std::string_view model_section);

/// What stands where a mapping of keys should, with the likely reason: "'seed:1': a space is
/// missing after `seed:`; write `seed: 1`".
std::string found_text(const RawNode& node);

/// "; its entries are rotary_percent, ..." of a mapping.
std::string entries_text(const Section& section, const Key& mapping);

/// "vocab_size, num_layers, ...": keys without which a section is not complete.
std::string required_keys(const Section& section);

/// What an override that is not section.key=value seems to mean, beginning with "; ", or nothing.
std::string override_hint(const std::string& text, std::string_view model_section);

/// The same for a word of a command line that belongs to no option: "; write --config_path
/// run.yaml", "; write --set optimizer_config.learning_rate=VALUE".
std::string word_hint(const std::string& word);

}  // namespace tapestry::config
