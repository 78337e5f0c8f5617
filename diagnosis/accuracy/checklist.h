// accuracy checklist: two configurations, key by key, before anything is trained.
#pragma once

#include <vector>

#include "diagnosis/accuracy/checklist_side.h"
#include "diagnosis/report/verdict_report.h"

namespace tapestry::accuracy {

/// Findings {group, key, ours, other, status, advice}, a row for each item (checklist_items.h) that
/// says anything, each learning rate and weight decay that matters, and what the data hold. Status:
/// - same: both have the value; numbers may differ by 1e-9 of themselves;
/// - rounding: they differ, but what is computed is the same but for rounding;
/// - differs: something else is computed;
/// - unknown: the other side does not say.
/// Seed and start values only move rounding where our run loads its weights and, for the seed,
/// recorded steps. Learning rates are compared at each step of the shorter run (evenly spread ones
/// of more than a million), weight decay parameter by parameter under the rule of the other side's
/// program. Data are looked at where ours are there, and recorded steps of the other side. The
/// verdict is differ if some item differs; the stage then is config.
VerdictReport run_checklist(const ChecklistSide& ours, const ChecklistSide& other);

}  // namespace tapestry::accuracy
