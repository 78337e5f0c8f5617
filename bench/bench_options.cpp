#include "bench/bench_options.h"

#include <iostream>
#include <string>

#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/error.h"

namespace tapestry::bench {

namespace po = boost::program_options;

std::optional<po::variables_map> parse_options(int argc,
                                               char** argv,
                                               po::options_description options) {
  options.add_options()("help,h", "print this text")(
      "threads", po::value<int>(), "team size; default: all processors or OMP_NUM_THREADS");
  po::variables_map arguments;
  po::store(po::parse_command_line(argc, argv, options), arguments);
  po::notify(arguments);
  if (arguments.count("help") != 0) {
    std::cout << options;
    return std::nullopt;
  }
  if (arguments.count("threads") != 0) {
    const int threads = arguments["threads"].as<int>();
    check<ValueError>(threads > 0, "--threads must be above 0, got ", threads);
    set_num_threads(threads);
  }
  return arguments;
}

bool is_chosen(const po::variables_map& arguments, const char* option, std::string_view value) {
  return arguments.count(option) == 0 || arguments[option].as<std::string>() == value;
}

}  // namespace tapestry::bench
