// Checks that constructors of optimizers share.
#pragma once

#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace tapestry::optim {

/// ValueError unless both lie in [0, 1).
void check_betas(std::string_view optimizer, const std::array<double, 2>& betas);

/// ValueError, naming the first setting of the list that is negative.
void check_not_negative(std::string_view optimizer,
                        const std::vector<std::pair<std::string_view, double>>& settings);
/// ValueError, naming the first setting of the list that is not above 0.
void check_above_0(std::string_view optimizer,
                   const std::vector<std::pair<std::string_view, double>>& settings);

}  // namespace tapestry::optim
