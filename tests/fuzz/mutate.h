// Damages inputs as disks, editors and attackers do; the same seed gives the same damage.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>

namespace tapestry::fuzz {

/// Changes `input` in one to four places: flips, cuts, copies, moves, numbers at the ends of their
/// ranges, tokens of JSON, pieces of the other inputs.
void mutate(std::string& input, std::span<const std::string> others, std::mt19937_64& random);

}  // namespace tapestry::fuzz
