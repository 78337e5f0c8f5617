// Looks at pages as a browser would: tags that close, charts whose lines can be read back.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "diagnosis/report/plot/curves.h"

namespace tapestry::report {

/// What stands between the first `before` at or behind `from` and the next `after`; "" without it.
inline std::string part_between(const std::string& text,
                                const std::string& before,
                                const std::string& after,
                                size_t from = 0) {
  const size_t at = text.find(before, from);
  if (at == std::string::npos) {
    return "";
  }
  const size_t begin = at + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

/// Fails unless every element closes in the right order, and attributes are quoted.
inline void expect_well_formed(const std::string& page) {
  const std::string html = std::regex_replace(
      page.substr(0, page.find("<script>")) + page.substr(page.find("</script>") + 9),
      std::regex("<style>[^<]*</style>|<!DOCTYPE html>"), "");
  const std::regex tag("<(/?)([a-z0-9]+)((?: [a-zA-Z0-9-]+(?:=\"[^\"<]*\")?)*)(/?)>");
  std::vector<std::string> open;
  size_t at = 0;
  for (size_t next = html.find('<'); next != std::string::npos; next = html.find('<', at)) {
    EXPECT_EQ(html.substr(at, next - at).find('>'), std::string::npos)
        << html.substr(at, next - at);
    const size_t end = html.find('>', next);
    ASSERT_NE(end, std::string::npos);
    const std::string text = html.substr(next, end + 1 - next);
    at = end + 1;
    // Paths are long: a regular expression of the library cannot take them.
    std::smatch match;
    const std::string shortened = std::regex_replace(text, std::regex(" d=\"[^\"]*\""), "");
    ASSERT_TRUE(std::regex_match(shortened, match, tag)) << text.substr(0, 200);
    const std::string name = match[2];
    if (match[1] == "/") {
      ASSERT_FALSE(open.empty()) << text;
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    } else if (match[4] != "/" && name != "meta" && name != "input") {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

/// A line of a chart in the units of its axes.
struct ChartLine {
  std::string label;
  std::string kind;
  plot::Points points;
};

/// The lines of the first chart with the title.
inline std::vector<ChartLine> read_chart(const std::string& page, const std::string& title) {
  const size_t caption = page.find("<figcaption><b>" + title + "</b>");
  EXPECT_NE(caption, std::string::npos) << title;
  const size_t begin = page.rfind("<figure", caption);
  const std::string figure = page.substr(begin, page.find("</figure>", begin) - begin);
  const auto number = [&](const std::string& name) {
    return std::stod(part_between(figure, " data-" + name + "=\"", "\""));
  };
  const double x0 = number("x0");
  const double unit = number("xunit");
  const double y0 = number("y0");
  const double y1 = number("y1");
  const bool logarithmic = number("log") != 0;
  std::vector<ChartLine> lines;
  for (size_t at = figure.find("<g class=\"line "); at != std::string::npos;
       at = figure.find("<g class=\"line ", at + 1)) {
    const std::string owner = part_between(figure, "data-owner=\"", "\"", at);
    ChartLine line{.label = (owner.empty() ? "" : owner + ", ") +
                            part_between(figure, "data-name=\"", "\"", at),
                   .kind = part_between(figure, "<g class=\"line ", " ", at),
                   .points = {}};
    const std::string path = part_between(figure, "d=\"", "\"", at + 2);
    const char* text = path.c_str();
    while (*text != 0) {
      char* end = nullptr;
      const double x = std::strtod(text, &end);
      if (end == text || *end != ',') {
        text = end == text ? text + 1 : end;
        continue;
      }
      const double y = y0 + (1 - std::strtod(end + 1, &end) / 100'000) * (y1 - y0);
      line.points.push_back({x0 + x * unit, logarithmic ? std::pow(10, y) : y});
      text = end;
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace tapestry::report
