// One connection to a Redis server. Every call ends by a deadline; nothing that a server sends
// makes it take more memory than it was told to.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reprise/error.h"

struct redisContext;

namespace reprise {

struct RedisAddress {
  std::string host, path;  // path: of a Unix socket, instead of a host
  uint16_t port = 6379;
  std::string user, password;
  uint32_t database = 0;

  /// Without the password.
  std::string name() const;
};
/// redis://[[user]:password@]host[:port][/database] or unix://[[user]:password@]/path.
/// kInvalidArgument.
Result<RedisAddress> parse_redis_address(std::string_view text);

class RedisConnection {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  using Words = std::initializer_list<std::string_view>;

  /// All errors here and below are kDeviceUnavailable: the connection is of no use then.
  static Result<RedisConnection> open(const RedisAddress& address, Deadline deadline);

  /// Whether it is open, where no answer is awaited: servers close what is idle for long.
  bool alive() const;
  /// One command; its words may hold any bytes.
  Status send(Words words, Deadline deadline);
  /// The answer to the first command that has none yet, as text; nothing where the key is not
  /// there. Also an error when it is longer than so many bytes, or says that a command failed.
  Result<std::optional<std::string>> receive(size_t most, Deadline deadline);

 private:
  struct Free {
    void operator()(redisContext* context) const;
  };
  explicit RedisConnection(redisContext* context) : context_(context) {}
  Status expect_ok(Words words, Deadline deadline);
  Status read_some(Deadline deadline);

  std::unique_ptr<redisContext, Free> context_;
};

}  // namespace reprise
