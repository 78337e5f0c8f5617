#include "diagnosis/report/write_report.h"

#include <array>
#include <ctime>
#include <filesystem>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "diagnosis/report/page.h"
#include "diagnosis/report/plot/letters.h"
#include "text/util/numbers.h"

namespace tapestry::report {
namespace {

std::string local_time() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  localtime_r(&time, &parts);
  std::array<char, 40> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &parts)};
}

}  // namespace

std::string write_report(const ReportOptions& options) {
  const plot::XAxis axis = plot::parse_x_axis(options.x);
  check<ValueError>(options.out.empty() || options.out.ends_with(".html"), "--out is '",
                    options.out, "'; expected a name that ends in .html");
  check<ValueError>(!options.smooth || (*options.smooth >= 0 && *options.smooth < 1),
                    "--smooth is ", options.smooth.value_or(0),
                    "; expected a number from 0 to below 1");
  const std::vector<RunRecord> runs = read_run_records(options.runs);
  const std::string out =
      options.out.empty() ? (std::filesystem::path(runs.front().folder) / "report.html").string()
                          : options.out;
  const std::string page = report_page(
      runs, {.charts = {.x = axis, .smooth = options.smooth},
             .made = concat("Made ", local_time(), " by ", options.version, " --report")});
  write_file_atomically(out, page);
  std::string text =
      concat("wrote ", out, ": ", runs.size(), runs.size() == 1 ? " run, " : " runs, ",
             bytes_text(static_cast<double>(page.size())), "\n");
  for (const RunRecord& run : runs) {
    for (const std::string& note : run.notes) {
      text += concat("note: ", plot::printable(run.name), ": ", plot::printable(note), "\n");
    }
  }
  return text;
}

}  // namespace tapestry::report
