#include "optim/check_settings.h"

#include "autograd/tensor/error.h"

namespace tapestry::optim {

void check_betas(std::string_view optimizer, const std::array<double, 2>& betas) {
  for (const double beta : betas) {
    check<ValueError>(beta >= 0 && beta < 1, optimizer, ": betas must lie in [0, 1), got ",
                      betas[0], " and ", betas[1]);
  }
}

void check_not_negative(std::string_view optimizer,
                        const std::vector<std::pair<std::string_view, double>>& settings) {
  for (const auto& [name, value] : settings) {
    check<ValueError>(value >= 0, optimizer, ": ", name, " must not be negative, got ", value);
  }
}

void check_above_0(std::string_view optimizer,
                   const std::vector<std::pair<std::string_view, double>>& settings) {
  for (const auto& [name, value] : settings) {
    check<ValueError>(value > 0, optimizer, ": ", name, " must be above 0, got ", value);
  }
}

}  // namespace tapestry::optim
