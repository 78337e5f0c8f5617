#include "diagnosis/dump/rounding_file.h"

#include <cmath>
#include <filesystem>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "diagnosis/dump/csv.h"

namespace tapestry::dump {

std::string rounding_path(const std::string& dump_folder) {
  return (std::filesystem::path(dump_folder) / "rounding.csv").string();
}

void write_rounding(const std::string& path, const std::vector<RoundingRow>& rows) {
  AtomicFile file(path);
  file.write(csv_line({"Op Name", "IO", "Slot", "Pass", "Iteration", "Distance"}));
  for (const RoundingRow& row : rows) {
    check<ValueError>(std::isfinite(row.distance) && row.distance >= 0, path, ": ", row.op_name,
                      " moves by ", row.distance, "; expected a finite number from 0 on");
    file.write(csv_line({row.op_name, row.input ? "input" : "output", std::to_string(row.slot),
                         row.pass, std::to_string(row.iteration), number_field(row.distance)}));
  }
  file.commit();
}

std::vector<RoundingRow> read_rounding(const std::string& path) {
  const CsvTable table(path);
  const size_t name = table.column("Op Name");
  const size_t io = table.column("IO");
  const size_t slot = table.column("Slot");
  const size_t pass = table.column("Pass");
  const size_t iteration = table.column("Iteration");
  const size_t distance = table.column("Distance");
  std::vector<RoundingRow> rows;
  for (size_t i = 0; i < table.size(); ++i) {
    RoundingRow row;
    row.op_name = table.at(i, name);
    if (table.at(i, io) != "input" && table.at(i, io) != "output") {
      table.fail(i, io, "is neither input nor output");
    }
    row.input = table.at(i, io) == "input";
    const auto integer = [&](size_t column) {
      const auto value = parse_integer(table.at(i, column));
      if (!value.has_value() || *value < 0) {
        table.fail(i, column, "is no integer from 0 on");
      }
      return *value;
    };
    row.slot = integer(slot);
    row.pass = table.at(i, pass);
    row.iteration = integer(iteration);
    const auto moved = parse_number(table.at(i, distance));
    if (!moved.has_value() || !std::isfinite(*moved) || *moved < 0) {
      table.fail(i, distance, "is no finite number from 0 on");
    }
    row.distance = *moved;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace tapestry::dump
