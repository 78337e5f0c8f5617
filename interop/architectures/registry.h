// The families that are known, and which of them a configuration is.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/architectures/architecture.h"

namespace tapestry::architectures {

/// In the order in which a configuration that several can say is given to one.
const std::vector<Architecture>& all();

/// nullptr if there is none.
const Architecture* find(std::string_view model_type);
/// The family that the configuration names (hf_model_type), or the first of the implied ones that
/// has no objection; nullptr if there is none. ValueError, with the objections, if the named one
/// cannot say the configuration, or is not known.
const Architecture* of(const TransformerConfig& config);

/// The families whose GGUF form a configuration may have: that of the one that it names, and those
/// of the implied ones. ValueError if the named one is not known.
std::vector<const Architecture*> gguf_families(const TransformerConfig& config);

/// What of the configuration config.json of the family cannot say, and the same of its GGUF form.
std::vector<Objection> objections(const Architecture& family, const TransformerConfig& config);
std::vector<Objection> gguf_objections(const Architecture& family, const TransformerConfig& config);

/// A line for each objection of those families that have the fewest: "\n  KEY: is VALUE; use ...
/// (llama, mistral)".
std::string nearest(const std::vector<std::pair<std::string, std::vector<Objection>>>& families);

/// "llama, mistral, ... and gpt2".
std::string known_types();

/// The families as a table in Markdown.
std::string families_markdown();
/// docs/families.md: what is read of each family's config.json, what all its models have, and what
/// is refused.
std::string families_page();

}  // namespace tapestry::architectures
