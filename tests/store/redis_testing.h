// Servers for stores to share through: Debian's redis-server, and one that answers what it likes.
#pragma once

#include <sys/types.h>

#include <string>
#include <thread>

#include "store/store_testing.h"

namespace reprise {

/// A redis-server of its own on a Unix socket in a folder; ends with this object.
class RedisServer {
 public:
  explicit RedisServer(const std::string& folder);
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;
  ~RedisServer() { stop(); }

  bool installed() const { return installed_; }
  std::string url() const { return "unix://" + socket_; }
  void start();
  void stop();
  void signal(int number) const;
  /// What it answers to a command.
  std::string ask(std::initializer_list<std::string_view> words) const;
  /// Every key that it holds.
  std::vector<std::string> keys() const;

 private:
  std::string folder_, socket_;
  pid_t process_ = -1;
  bool installed_ = true;
};

/// Sends a reply to whoever connects and asks, over and over when it is endless, then closes.
class FakeServer {
 public:
  FakeServer(const std::string& folder, std::string reply, bool endless, bool closes);
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  ~FakeServer();
  std::string url() const { return "unix://" + path_; }

 private:
  void serve() const;

  std::string path_, reply_;
  bool endless_, closes_;
  int listener_ = -1;
  std::thread thread_;
};

}  // namespace reprise
