// Names of the folders and tables of a dump, for those who write and those who read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry::dump {

inline constexpr std::string_view kGraphId = "0";  ///< there is one graph
inline constexpr std::string_view kStatisticTable = "statistic.csv";
inline constexpr std::string_view kTensorTable = "tensors.csv";  ///< of dumps without statistics

/// "rank_3"
std::string rank_folder_name(int64_t rank);
/// ".12.unfinished"
std::string unfinished_name(int64_t iteration);

/// The table of an iteration's folder; "" if it has none.
std::string table_in(const std::string& folder);
/// True for a folder that holds an iteration, whole or not, or nothing.
bool is_iteration_folder(const std::string& folder);

}  // namespace tapestry::dump
