#include "autograd/io/temporary_names.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tapestry {
namespace {

// Texts of malloc, which whoever takes one out owns: a handler that runs between a name and its end
// reads none that is freed.
constexpr int kPlaces = 1000;
std::array<std::atomic<char*>, kPlaces> g_names{};
static_assert(std::atomic<char*>::is_always_lock_free);

}  // namespace

TemporaryName::TemporaryName(const std::string& path) {
  char* name = ::strdup(path.c_str());
  for (int place = 0; name != nullptr && place < kPlaces; ++place) {
    char* none = nullptr;
    if (g_names[static_cast<size_t>(place)].compare_exchange_strong(none, name)) {
      place_ = place;
      return;
    }
  }
  std::free(name);
}

TemporaryName::TemporaryName(TemporaryName&& other) noexcept
    : place_(std::exchange(other.place_, -1)) {}

TemporaryName& TemporaryName::operator=(TemporaryName&& other) noexcept {
  std::swap(place_, other.place_);
  return *this;
}

TemporaryName::~TemporaryName() {
  if (place_ >= 0) {
    std::free(g_names[static_cast<size_t>(place_)].exchange(nullptr));
  }
}

void remove_temporaries() noexcept {
  for (std::atomic<char*>& place : g_names) {
    if (const char* name = place.exchange(nullptr)) {
      ::unlink(name);
    }
  }
}

}  // namespace tapestry
