#include "store/redis.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "base/try.h"

namespace reprise {
namespace {

using Deadline = RedisConnection::Deadline;
using std::chrono::milliseconds;

constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kShortReply = 4096;

template <class... Args>
tl::unexpected<Error> unavailable(fmt::format_string<Args...> format, Args&&... args) {
  return fail(ErrorCode::kDeviceUnavailable, format, std::forward<Args>(args)...);
}

milliseconds left(Deadline deadline) {
  const auto time = deadline - std::chrono::steady_clock::now();
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(time));
}

// Until there are bytes to read, or room to write.
Status wait_for(int socket, short events, Deadline deadline) {
  while (true) {
    const auto time = std::min<int64_t>(left(deadline).count(), 1 << 30);
    if (time == 0) return unavailable("no answer in time");
    pollfd waited = {socket, events, 0};
    const int ready = ::poll(&waited, 1, static_cast<int>(time));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return unavailable("{}", std::strerror(errno));
  }
}

template <class T>
bool parse_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// host, host:port or [IPv6]:port.
bool parse_host(std::string_view text, RedisAddress& address) {
  const size_t bracket = text.starts_with('[') ? text.find(']') : 0;
  if (bracket == std::string_view::npos) return false;
  const size_t colon = text.find(':', bracket);
  if (colon != std::string_view::npos && !parse_number(text.substr(colon + 1), address.port)) {
    return false;
  }
  address.host = bracket > 0 ? text.substr(1, bracket - 1) : text.substr(0, colon);
  return !address.host.empty() && address.port != 0;
}

bool parse(std::string_view text, RedisAddress& address) {
  const bool tcp = text.starts_with("redis://"), local = text.starts_with("unix://");
  if (!tcp && !local) return false;
  text.remove_prefix(tcp ? 8 : 7);
  const size_t at = text.rfind('@');
  if (at != std::string_view::npos) {
    const size_t colon = text.substr(0, at).find(':');
    if (colon == std::string_view::npos) return false;
    address.user = text.substr(0, colon);
    address.password = text.substr(colon + 1, at - colon - 1);
    text.remove_prefix(at + 1);
  }
  if (local) {
    address.path = text;
    return text.starts_with('/');
  }
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos && slash + 1 < text.size() &&
      !parse_number(text.substr(slash + 1), address.database)) {
    return false;
  }
  return parse_host(text.substr(0, slash), address);
}

}  // namespace

std::string RedisAddress::name() const {
  return path.empty() ? fmt::format("redis://{}:{}/{}", host, port, database) : "unix://" + path;
}

Result<RedisAddress> parse_redis_address(std::string_view text) {
  RedisAddress address;
  if (parse(text, address)) return address;
  // The text is not repeated: it may hold a password.
  return fail(ErrorCode::kInvalidArgument,
              "--store-remote takes redis://[[user]:password@]host[:port][/database] or "
              "unix:///path");
}

void RedisConnection::Free::operator()(redisContext* context) const { redisFree(context); }

Result<RedisConnection> RedisConnection::open(const RedisAddress& address, Deadline deadline) {
  const auto time = std::max(left(deadline), milliseconds(1));
  const timeval limit = {static_cast<time_t>(time.count() / 1000),
                         static_cast<suseconds_t>(time.count() % 1000 * 1000)};
  redisContext* context = address.path.empty()
                              ? redisConnectWithTimeout(address.host.c_str(), address.port, limit)
                              : redisConnectUnixWithTimeout(address.path.c_str(), limit);
  if (context == nullptr) return unavailable("no memory for a connection");
  RedisConnection connection(context);
  if (context->err != 0) return unavailable("{}", context->errstr);
  if (!address.user.empty()) {
    REPRISE_CHECK(connection.expect_ok({"AUTH", address.user, address.password}, deadline));
  } else if (!address.password.empty()) {
    REPRISE_CHECK(connection.expect_ok({"AUTH", address.password}, deadline));
  }
  if (address.database != 0) {
    REPRISE_CHECK(connection.expect_ok({"SELECT", std::to_string(address.database)}, deadline));
  }
  return connection;
}

bool RedisConnection::alive() const {
  char byte;
  return ::recv(context_->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

Status RedisConnection::expect_ok(Words words, Deadline deadline) {
  REPRISE_CHECK(send(words, deadline));
  REPRISE_TRY(const auto answer, receive(kShortReply, deadline));
  if (answer == "OK") return {};
  return unavailable("{} was not answered as Redis answers it", *words.begin());
}

Status RedisConnection::send(Words words, Deadline deadline) {
  std::vector<const char*> starts;
  std::vector<size_t> sizes;
  for (const std::string_view word : words) {
    starts.push_back(word.data());
    sizes.push_back(word.size());
  }
  char* formatted = nullptr;
  const auto size = redisFormatCommandArgv(&formatted, static_cast<int>(words.size()),
                                           starts.data(), sizes.data());
  if (size < 0) return unavailable("a command is too long");
  const std::unique_ptr<char, void (*)(char*)> command(formatted, redisFreeCommand);
  // hiredis's own writing raises SIGPIPE when the server is gone, and knows no deadline.
  for (std::string_view rest(formatted, static_cast<size_t>(size)); !rest.empty();) {
    const ssize_t sent =
        ::send(context_->fd, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      rest.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      REPRISE_CHECK(wait_for(context_->fd, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return unavailable("{}", std::strerror(errno));
    }
  }
  return {};
}

Status RedisConnection::read_some(Deadline deadline) {
  thread_local std::vector<char> buffer(kReadBytes);
  while (true) {
    REPRISE_CHECK(wait_for(context_->fd, POLLIN, deadline));
    const ssize_t got = ::recv(context_->fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got == 0) return unavailable("the server closed the connection");
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return unavailable("{}", std::strerror(errno));
    if (redisReaderFeed(context_->reader, buffer.data(), static_cast<size_t>(got)) == REDIS_OK) {
      return {};
    }
    return unavailable("{}", context_->reader->errstr);
  }
}

Result<std::optional<std::string>> RedisConnection::receive(size_t most, Deadline deadline) {
  redisReader& reader = *context_->reader;
  if (reader.pos == reader.len) REPRISE_CHECK(read_some(deadline));
  // No command here is answered by a list, for which the reader would take what it is told to.
  if (std::string_view("+-:$").find(reader.buf[reader.pos]) == std::string_view::npos) {
    return unavailable("what answers there is no Redis server");
  }
  void* reply = nullptr;
  while (true) {
    if (redisReaderGetReply(&reader, &reply) != REDIS_OK) return unavailable("{}", reader.errstr);
    if (reply != nullptr) break;
    if (reader.len - reader.pos > most + kReadBytes) return unavailable("the answer is too long");
    REPRISE_CHECK(read_some(deadline));
  }
  const std::unique_ptr<redisReply, void (*)(void*)> answer(static_cast<redisReply*>(reply),
                                                            freeReplyObject);
  if (answer->type == REDIS_REPLY_NIL) return std::nullopt;
  if (answer->type == REDIS_REPLY_INTEGER) return std::to_string(answer->integer);
  std::string text(answer->str, answer->len);
  if (answer->type == REDIS_REPLY_ERROR) {
    text.resize(std::min<size_t>(text.size(), 200));
    std::ranges::replace_if(
        text, [](char c) { return c < ' ' || c > '~'; }, '?');
    return unavailable("it says: {}", text);
  }
  if (text.size() > most) return unavailable("the answer is too long");
  return text;
}

}  // namespace reprise
