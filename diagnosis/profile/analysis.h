// One profile from those of the ranks.
#pragma once

#include <string>

namespace tapestry::profile {

/// Reads FOLDER/rank_0, rank_1, ... (write_rank_files) and writes beside them what they say
/// together: trace.json, with all ranks on the clock of rank 0 and arrows between the two ends of
/// messages and the ranks of collectives, and as far as it was recorded ops.csv, modules.csv,
/// communication.csv, data.csv, memory.csv, stacks.txt and parallel_strategy.json. Returns the
/// largest rows of the tables, for people.
///
/// Clocks: a moment t of rank r, whose barriers ended at S_r and E_r, is t + (S_0 - S_r) +
/// (t - S_r) / (E_r - S_r) ((E_0 - E_r) - (S_0 - S_r)), each difference the median over several
/// barriers; the trace's otherData has shift and scale of every rank.
///
/// IoError, with the file, for one that is missing, is no profile of this version, or is of other
/// steps than rank 0's.
std::string analyse(const std::string& folder);

/// Removes the folders of the ranks, which analyse() has read.
void remove_rank_files(const std::string& folder, int ranks);

}  // namespace tapestry::profile
