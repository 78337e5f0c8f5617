// The program fuzz.NAME: libFuzzer's main() and the target of that name.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/targets.h"

using tapestry::fuzz::Target;

static const Target& target_of(std::string_view name) {
  for (const auto targets : {tapestry::fuzz::file_targets(), tapestry::fuzz::checkpoint_targets(),
                             tapestry::fuzz::accuracy_targets(), tapestry::fuzz::sft_targets(),
                             tapestry::fuzz::chat_targets(), tapestry::fuzz::tokenizer_targets()}) {
    for (const Target& target : targets) {
      if (target.name == name) {
        return target;
      }
    }
  }
  std::fprintf(stderr, "there is no target %s\n", TAPESTRY_FUZZ_TARGET);
  std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Target& target = target_of(TAPESTRY_FUZZ_TARGET);
  static tapestry::fuzz::InputFolder folder;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string fault = tapestry::fuzz::fault_of(target, folder, input);
  if (!fault.empty()) {
    std::fprintf(stderr, "%s: %s\n", target.name, fault.c_str());
    std::abort();
  }
  return 0;
}
