#include "parallel_core/telemetry/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/telemetry/run_metrics.h"

namespace tapestry::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A connection to a server of this machine.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
  }
  Client(Client&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), connected_(other.connected_) {}
  Client& operator=(Client&&) = delete;
  ~Client() {
    if (socket_ >= 0) {
      ::close(socket_);
    }
  }

  bool connected() const { return connected_; }
  void say(const std::string& text) const {
    ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // All that comes until the server closes.
  std::string hear() const {
    std::string heard;
    std::array<char, 4096> part{};
    for (ssize_t n = 0; (n = ::recv(socket_, part.data(), part.size(), 0)) > 0;) {
      heard.append(part.data(), static_cast<size_t>(n));
    }
    return heard;
  }
  std::string get(const std::string& path) const {
    say("GET " + path + " HTTP/1.1\r\nHost: here\r\n\r\n");
    return hear();
  }

 private:
  int socket_;
  bool connected_ = false;
};

std::vector<HttpPage> one_page(std::function<std::string()> body) {
  return {{"/metrics", "text/plain", std::move(body)}};
}

TEST(HttpServer, AnswersWhileTheRunChangesItsNumbers) {
  SharedMetrics metrics(RunFacts{.run = "a"});
  HttpServer server("127.0.0.1", 0, one_page([&] { return metrics.exposition(); }));
  constexpr int kClients = 3;
  constexpr int kRequests = 10;
  std::atomic<int> answered = 0;
  std::vector<std::thread> clients;
  clients.reserve(kClients);
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      for (int j = 0; j < kRequests; ++j) {
        const std::string heard = Client(server.port()).get("/metrics");
        answered += heard.starts_with("HTTP/1.1 200") &&
                            heard.find("\ntapestry_steps_total{") != std::string::npos
                        ? 1
                        : 0;
      }
    });
  }
  while (answered < 1) {
    metrics.change([](RunMetrics& m) { m.step += 1; });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(answered, kClients * kRequests);
}

TEST(HttpServer, SaysWhatItDoesNotAnswer) {
  HttpServer server("127.0.0.1", 0, one_page([] { return std::string("1\n"); }));
  EXPECT_THAT(Client(server.port()).get("/nothing"), StartsWith("HTTP/1.1 404"));
  Client poster(server.port());
  poster.say("POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n");
  EXPECT_THAT(poster.hear(), StartsWith("HTTP/1.1 405"));
  Client stranger(server.port());
  stranger.say("no words of HTTP\r\n\r\n");
  EXPECT_THAT(stranger.hear(), StartsWith("HTTP/1.1 400"));
}

TEST(HttpServer, APageThatThrowsIsAnErrorOfThatRequest) {
  HttpServer server("127.0.0.1", 0,
                    one_page([]() -> std::string { throw ValueError("no numbers yet"); }));
  const std::string heard = Client(server.port()).get("/metrics");
  EXPECT_THAT(heard, StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(heard, HasSubstr("no numbers yet"));
}

// Those that say nothing are closed, the oldest first, and the end waits for none of them.
TEST(HttpServer, SilentConnectionsHoldNobodyUp) {
  std::vector<Client> silent;
  {
    HttpServer server("127.0.0.1", 0, one_page([] { return std::string("1\n"); }));
    for (int i = 0; i < 40; ++i) {
      silent.emplace_back(server.port());
      ASSERT_TRUE(silent.back().connected());
    }
    EXPECT_THAT(Client(server.port()).get("/metrics"), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(silent.front().hear(), "");
  }
  EXPECT_EQ(silent.back().hear(), "");
}

TEST(HttpServer, APortThatIsTakenIsAnError) {
  HttpServer server("127.0.0.1", 0, {});
  EXPECT_THROW(HttpServer("127.0.0.1", server.port(), {}), IoError);
}

}  // namespace
}  // namespace tapestry::telemetry
