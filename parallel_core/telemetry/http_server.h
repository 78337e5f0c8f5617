// A few pages for programs that watch a run, over HTTP.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tapestry::telemetry {

struct HttpPage {
  std::string path;  ///< "/metrics"
  std::string content_type;
  std::function<std::string()> body;  ///< called by the server's thread
};

/// Answers GET and HEAD of its pages, one request a connection, from one thread of its own, which
/// sleeps until somebody asks and takes no signals. Nobody can hold it: a connection has ten
/// seconds for its request and ten for the answer, 8 KiB for its header and no body; where sixteen
/// are open and another one comes, the oldest is closed.
class HttpServer {
 public:
  /// Listens from here on. IoError, with address, port and reason, if that cannot be. `port` 0: one
  /// that is free.
  HttpServer(const std::string& address, int port, std::vector<HttpPage> pages);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  int port() const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace tapestry::telemetry
