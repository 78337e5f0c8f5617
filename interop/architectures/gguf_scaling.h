// How GGUF files say that a rotation is scaled for long texts.
#pragma once

#include <string>
#include <vector>

#include "interop/architectures/architecture.h"

namespace tapestry::architectures {

/// Keys of linear scaling, yarn and longrope, and of the length that a model was first trained on.
/// llama3's divisors are a tensor, and so are longrope's.
void add_scaling_keys(GgufTables& gguf);
/// yarn's beta_fast and beta_slow, which few architectures read: in others they are 32 and 1.
void add_yarn_ends(GgufTables& gguf);
/// With multi-head latent attention scores grow with what cosines and sines are multiplied by, and
/// a key of its own says how much more.
void use_latent_scaling(GgufTables& gguf);

/// What of the configuration's scaling the GGUF form cannot say.
void object_to_scaling(const GgufTables& gguf,
                       const AllConfig& config,
                       std::vector<Objection>& out);

/// What llama.cpp computes a little differently, a sentence each: it rounds the ends of yarn's
/// ramp, as transformers does but for `truncate: false` (GPT-OSS).
std::vector<std::string> departures_of_scaling(const TransformerConfig& config);

}  // namespace tapestry::architectures
