// Rules that programs are known to follow in place of the one that was meant.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "diagnosis/verify/faults/update_rule.h"

namespace tapestry {

struct KnownRule {
  std::string text;  ///< "as if every tensor decayed"
  UpdateRule rule;
  bool is_clipping = false;
  bool is_learning_rate = false;
};

/// Those that differ from it in a switch, or in a number that is often taken. `micro_batches`: of a
/// step, whose gradients may have been summed.
std::vector<KnownRule> known_rules(const UpdateRule& meant, int64_t micro_batches = 1);

/// Those that differ from it in a number that may be any.
struct RuleFamily {
  std::function<KnownRule(double value)> with;
  /// Where to begin to look for the value; above 0.
  std::vector<double> starts;
  bool is_below_one = false;  ///< how near to 1 it is counts, as of betas
  bool has_kinks = false;     ///< what it makes has, at every gradient that it reaches
};
std::vector<RuleFamily> rule_families(const UpdateRule& meant);
/// One part of the model has another learning rate than the rest; `tensors` are all logical ones.
std::vector<RuleFamily> part_families(const UpdateRule& meant,
                                      const std::vector<std::string>& tensors);
/// One part of the model is left as it is.
std::vector<KnownRule> rules_without_a_part(const UpdateRule& meant,
                                            const std::vector<std::string>& tensors);

/// "0.87", "1e-06": as few digits as tell it.
std::string short_text(double value);

/// With so many significant digits, the number that people write.
double rounded_to(double value, int digits);

}  // namespace tapestry
