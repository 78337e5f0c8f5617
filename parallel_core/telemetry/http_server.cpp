#include "parallel_core/telemetry/http_server.h"

// The one source that includes Boost's, which take as long to compile as a few hundred lines of
// ours do.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/telemetry/quiet_thread.h"

namespace tapestry::telemetry {

// Not unnamed: the server's type, which the header names, has members of these.
namespace http_server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = asio::ip::tcp;
using Response = http::response<http::string_body>;

constexpr auto kPatience = std::chrono::seconds(10);
constexpr auto kAfterFailedAccept = std::chrono::milliseconds(200);
constexpr size_t kMostOfHeader = 8192;
constexpr size_t kMostSessions = 16;

inline Response plain_response(http::status status, const std::string& text) {
  Response response(status, 11);
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.body() = text + "\n";
  return response;
}

inline Response answer_to(const http::request<http::empty_body>& request,
                          const std::vector<HttpPage>& pages) {
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    Response response =
        plain_response(http::status::method_not_allowed, "only GET and HEAD are answered");
    response.set(http::field::allow, "GET, HEAD");
    return response;
  }
  const std::string_view target(request.target().data(), request.target().size());
  const std::string_view path = target.substr(0, target.find('?'));
  std::string known;
  for (const HttpPage& page : pages) {
    if (page.path == path) {
      Response response(http::status::ok, 11);
      response.set(http::field::content_type, page.content_type);
      response.body() = page.body();
      return response;
    }
    known += (known.empty() ? "" : ", ") + page.path;
  }
  return plain_response(http::status::not_found, "no such page; there are " + known);
}

// One connection: a request, its answer, the end. Its pending operation keeps it alive.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Tcp::socket socket, const std::vector<HttpPage>& pages)
      : stream_(std::move(socket)), pages_(pages) {
    parser_.header_limit(kMostOfHeader);
  }

  void start() {
    stream_.expires_after(kPatience);  // for all of it, however slowly its bytes come
    http::async_read_header(
        stream_, buffer_, parser_,
        [self = shared_from_this()](beast::error_code error, size_t) { self->on_request(error); });
  }

  void close() {
    beast::error_code ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

 private:
  void on_request(beast::error_code error) {
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      respond(
          plain_response(http::status::request_header_fields_too_large, "the header is too long"));
      return;
    }
    if (error && error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      respond(plain_response(http::status::bad_request, "this is no HTTP request"));
      return;
    }
    if (error) {
      close();
      return;
    }
    try {
      respond(answer_to(parser_.get(), pages_));
    } catch (const std::exception& failure) {
      respond(plain_response(http::status::internal_server_error, failure.what()));
    }
  }

  void respond(Response response) {
    response_ = std::move(response);
    response_.keep_alive(false);
    response_.prepare_payload();
    serializer_.emplace(response_);
    serializer_->split(true);
    stream_.expires_after(kPatience);
    const auto then = [self = shared_from_this()](beast::error_code, size_t) { self->close(); };
    if (parser_.is_header_done() && parser_.get().method() == http::verb::head) {
      http::async_write_header(stream_, *serializer_, then);
    } else {
      http::async_write(stream_, *serializer_, then);
    }
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMostOfHeader + 1024};
  http::request_parser<http::empty_body> parser_;
  Response response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  const std::vector<HttpPage>& pages_;
};

}  // namespace http_server

class HttpServer::Server {
  using Tcp = http_server::Tcp;
  using Session = http_server::Session;

 public:
  Server(const std::string& address, int port, std::vector<HttpPage> pages)
      : pages_(std::move(pages)) {
    try {
      const Tcp::endpoint at(boost::asio::ip::make_address(address),
                             static_cast<unsigned short>(port));
      acceptor_.open(at.protocol());
      // Without it the port of a run that has just ended is taken for a minute.
      acceptor_.set_option(boost::asio::socket_base::reuse_address(true));
      acceptor_.bind(at);
      acceptor_.listen();
      port_ = acceptor_.local_endpoint().port();
    } catch (const boost::system::system_error& error) {
      throw IoError(
          concat("cannot listen at ", address, " port ", port, ": ", error.code().message()));
    }
    accept();
    thread_ = start_quiet_thread("metrics-http", [this] { run(); });
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    context_.stop();
    thread_.join();
  }

  int port() const { return port_; }

 private:
  void run() {
    while (!context_.stopped()) {
      try {
        context_.run();
      } catch (const std::exception&) {  // of one connection, memory for example: the next goes on
      }
    }
  }

  void accept() {
    acceptor_.async_accept([this](boost::beast::error_code error, Tcp::socket socket) {
      if (error == boost::asio::error::operation_aborted) {
        return;
      }
      if (error) {  // too many open files, for example
        retry_.expires_after(http_server::kAfterFailedAccept);
        retry_.async_wait([this](boost::beast::error_code) { accept(); });
        return;
      }
      accept();
      begin_session(std::move(socket));
    });
  }

  void begin_session(Tcp::socket socket) {
    std::erase_if(sessions_, [](const auto& session) { return session.expired(); });
    if (sessions_.size() >= http_server::kMostSessions) {
      if (const auto oldest = sessions_.front().lock()) {
        oldest->close();
      }
      sessions_.pop_front();
    }
    const auto session = std::make_shared<Session>(std::move(socket), pages_);
    sessions_.push_back(session);
    session->start();
  }

  std::vector<HttpPage> pages_;
  boost::asio::io_context context_{1};
  Tcp::acceptor acceptor_{context_};
  boost::asio::steady_timer retry_{context_};
  std::deque<std::weak_ptr<Session>> sessions_;
  int port_ = 0;
  std::thread thread_;
};

HttpServer::HttpServer(const std::string& address, int port, std::vector<HttpPage> pages)
    : server_(std::make_unique<Server>(address, port, std::move(pages))) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return server_->port(); }

}  // namespace tapestry::telemetry
