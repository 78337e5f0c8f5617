// What the text and the page of a report share: findings as cells of a table.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "diagnosis/report/verdict_report.h"

namespace tapestry::accuracy {

/// The keys of the findings, in the order in which they first come up.
std::vector<std::string> columns_of_findings(const std::vector<Finding>& findings);

/// A value as people read it: "" for null, numbers in six digits, "nan", "inf", texts as they are.
std::string cell_text(const Finding& value);

/// The cell of a finding in a column; "" where it has none.
std::string cell_text(const Finding& finding, const std::string& column);

/// How a finding is marked, by its "status".
enum class Mark : uint8_t { kNone, kGood, kSoft, kBad };
Mark mark_of(const Finding& finding);

/// Name and text of what is known of the first difference: {"micro-batch", "0"}.
std::vector<std::pair<std::string, std::string>> known_parts(const FirstDifference& first);

}  // namespace tapestry::accuracy
