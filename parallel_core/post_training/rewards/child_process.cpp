#include "parallel_core/post_training/rewards/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"

namespace tapestry::post_training {

namespace {

using namespace std::chrono_literals;

void close_pipe_end(int& descriptor) {
  if (descriptor >= 0) {
    ::close(descriptor);
    descriptor = -1;
  }
}

// Both ends close on exec, so that no other child holds them open.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) {
      throw_io_error("a pipe", "be made", errno);
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_pipe_end(ends_[0]);
    close_pipe_end(ends_[1]);
  }
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  // Keeps an end, which does not wait.
  int take(size_t end) {
    const int kept = std::exchange(ends_[end], -1);
    ::fcntl(kept, F_SETFL, ::fcntl(kept, F_GETFL) | O_NONBLOCK);
    return kept;
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

// Writing to a program that is gone raises SIGPIPE, which a run takes for a request to stop.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;
  ~WithoutSigpipe() {
    const timespec none = {0, 0};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &none) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

// In the child, where other threads' locks may be held for ever: system calls alone.
[[noreturn]] void become(const char* command, int in, int out, int errors, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(126);  // it was gone already
  }
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) {
    ::sigaction(number, &plain, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(in, STDIN_FILENO) < 0 || ::dup2(out, STDOUT_FILENO) < 0 ||
      ::dup2(errors, STDERR_FILENO) < 0) {
    ::_exit(126);
  }
  const char* const words[] = {"/bin/sh", "-c", command, nullptr};
  ::execv(words[0], const_cast<char* const*>(words));
  ::_exit(127);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const char* name = ::strsignal(number);
    return concat("signal ", number, " (", name != nullptr ? name : "unknown", ")");
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return concat("exit code ", code, code == 127 ? " (no such program)" : "");
}

}  // namespace

ChildProcess::ChildProcess(const std::string& command) {
  Pipe in;
  Pipe out;
  Pipe errors;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) {
    throw_io_error(concat("'", command, "'"), "be started", errno);
  }
  if (pid_ == 0) {
    become(command.c_str(), in.read_end(), out.write_end(), errors.write_end(), parent);
  }
  ::setpgid(pid_, pid_);  // whoever of the two comes first
  input_ = in.take(1);
  output_ = out.take(0);
  errors_ = errors.take(0);
}

ChildProcess::~ChildProcess() { end(); }

void ChildProcess::close_all() {
  close_pipe_end(input_);
  close_pipe_end(output_);
  close_pipe_end(errors_);
}

std::string ChildProcess::end() {
  if (pid_ < 0) {
    return how_;
  }
  close_all();
  int status = 0;
  const auto deadline = Clock::now() + 1s;
  pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  while (ended == 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(2ms);
    ended = ::waitpid(pid_, &status, WNOHANG);
  }
  ::kill(-pid_, SIGKILL);  // also what it has started
  if (ended == 0) {
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  how_ = how_it_ended(status);
  return how_;
}

void ChildProcess::read_output(std::string& output) {
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(output_, buffer.data(), buffer.size());
  if (got > 0) {
    output.append(buffer.data(), static_cast<size_t>(got));
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    close_pipe_end(output_);
  }
}

void ChildProcess::read_errors(const std::function<void(const std::string&)>& on_error_line) {
  std::array<char, 4096> buffer;
  const ssize_t got = ::read(errors_, buffer.data(), buffer.size());
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    close_pipe_end(errors_);
    if (!error_line_.empty()) {
      on_error_line(std::exchange(error_line_, {}));
    }
    return;
  }
  constexpr size_t kLongest = 4096;
  for (ssize_t i = 0; i < got; ++i) {
    const char c = buffer[static_cast<size_t>(i)];
    if (c != '\n') {
      error_line_.push_back(c);
    }
    if (c == '\n' || error_line_.size() == kLongest) {
      on_error_line(std::exchange(error_line_, {}));
    }
  }
}

bool ChildProcess::exchange(std::string_view& pending,
                            std::string& output,
                            const std::function<bool()>& enough,
                            Clock::time_point deadline,
                            const std::function<void(const std::string&)>& on_error_line) {
  const WithoutSigpipe quiet;
  while (output_ >= 0 && !enough()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left < 0) {
      return false;
    }
    std::array<pollfd, 3> fds = {
        {{output_, POLLIN, 0}, {errors_, POLLIN, 0}, {pending.empty() ? -1 : input_, POLLOUT, 0}}};
    constexpr int64_t kLongestWait = 1000;
    if (::poll(fds.data(), fds.size(),
               static_cast<int>(std::min<int64_t>(left + 1, kLongestWait))) < 0 &&
        errno != EINTR) {
      throw_io_error("the pipes of a program", "be waited for", errno);
    }
    if (fds[0].revents != 0) {
      read_output(output);
    }
    if (fds[1].revents != 0) {
      read_errors(on_error_line);
    }
    if (fds[2].revents != 0) {
      const ssize_t sent = ::write(input_, pending.data(), pending.size());
      if (sent > 0) {
        pending.remove_prefix(static_cast<size_t>(sent));
      } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        close_pipe_end(input_);  // it reads no more; what it has written still counts
      }
    }
  }
  // What it says of itself belongs before what is said of it.
  while (errors_ >= 0) {
    pollfd ready = {errors_, POLLIN, 0};
    const int wait = output_ < 0 ? 100 : 0;
    if (::poll(&ready, 1, wait) <= 0) {
      break;
    }
    read_errors(on_error_line);
  }
  return true;
}

}  // namespace tapestry::post_training
