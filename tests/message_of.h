// What an exception says.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace tapestry {

/// The message of the E that f throws; a test failure if it throws something else or nothing.
template <class E, class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another type: " << e.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace tapestry
