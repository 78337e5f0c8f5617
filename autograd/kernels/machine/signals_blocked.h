// For threads that the library starts.
#pragma once

#include <csignal>

namespace tapestry::kernels {

/// Signals are for the threads of the program, which one that came to a thread of the library's
/// would not wake: a thread that is started while this lives inherits the mask, and gets none.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

 private:
  sigset_t previous_{};
};

}  // namespace tapestry::kernels
