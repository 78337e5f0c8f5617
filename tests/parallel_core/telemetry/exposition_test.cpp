#include "parallel_core/telemetry/exposition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace tapestry::telemetry {
namespace {

TEST(Exposition, HasTheLinesOfTheFormat) {
  Exposition out(Labels{{"run", "a"}});
  out.single("x_total", MetricType::kCounter, "How many.", 3);
  out.metric("y_bytes", MetricType::kGauge, "Sizes.");
  out.sample(0.1, {{"kind", "one"}});
  out.sample(-2.5e-300, {{"kind", "two"}});
  EXPECT_EQ(out.text(),
            "# HELP x_total How many.\n# TYPE x_total counter\nx_total{run=\"a\"} 3\n"
            "# HELP y_bytes Sizes.\n# TYPE y_bytes gauge\ny_bytes{run=\"a\",kind=\"one\"} 0.1\n"
            "y_bytes{run=\"a\",kind=\"two\"} -2.5e-300\n");
}

TEST(Exposition, EscapesLabelsAndHelp) {
  Exposition out(Labels{{"run", "a\\b\"c\nd\xff\xc3\xa4"}});
  out.single("x", MetricType::kGauge, "A \\ and \"\n.", 1);
  EXPECT_EQ(out.text(),
            "# HELP x A \\\\ and \"\\n.\n# TYPE x gauge\n"
            "x{run=\"a\\\\b\\\"c\\nd\xef\xbf\xbd\xc3\xa4\"} 1\n");
}

TEST(Exposition, NumbersThatAreNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Exposition out(Labels{});
  out.metric("x", MetricType::kGauge, "X.");
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    out.sample(value);
  }
  EXPECT_THAT(out.text(), ::testing::EndsWith("\nx NaN\nx +Inf\nx -Inf\n"));
}

}  // namespace
}  // namespace tapestry::telemetry
