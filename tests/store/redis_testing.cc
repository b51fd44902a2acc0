#include "store/redis_testing.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <sstream>

#include "store/redis.h"

namespace reprise {
namespace {

constexpr int kNotInstalled = 127;

RedisConnection::Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(120);
}

}  // namespace

RedisServer::RedisServer(const std::string& folder)
    : folder_(folder), socket_(folder + "/redis.sock") {
  start();
}

void RedisServer::start() {
  process_ = ::fork();
  if (process_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(1);
    ::execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", socket_.c_str(),
             "--save", "", "--appendonly", "no", "--dir", folder_.c_str(), nullptr);
    ::_exit(kNotInstalled);
  }
  const auto address = parse_redis_address(url());
  for (int wait = 0; wait < 1000; ++wait) {
    if (RedisConnection::open(*address, soon())) return;
    int status = 0;
    if (::waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      installed_ = !WIFEXITED(status) || WEXITSTATUS(status) != kNotInstalled;
      if (installed_) ADD_FAILURE() << "redis-server ended with status " << status;
      return;
    }
    ::usleep(10'000);
  }
  ADD_FAILURE() << "redis-server does not start";
}

void RedisServer::stop() {
  if (process_ < 0) return;
  signal(SIGKILL);
  ::waitpid(process_, nullptr, 0);
  ::unlink(socket_.c_str());
  process_ = -1;
}

void RedisServer::signal(int number) const { ::kill(process_, number); }

std::string RedisServer::ask(std::initializer_list<std::string_view> words) const {
  auto connection = RedisConnection::open(*parse_redis_address(url()), soon());
  if (!connection || !connection->send(words, soon())) return "no server";
  const auto answer = connection->receive(1 << 20, soon());
  return answer ? answer->value_or("nothing") : answer.error().message;
}

std::vector<std::string> RedisServer::keys() const {
  std::istringstream all(ask({"EVAL", "return table.concat(redis.call('KEYS', '*'), ' ')", "0"}));
  std::vector<std::string> keys;
  for (std::string key; all >> key;) keys.push_back(key);
  std::ranges::sort(keys);
  return keys;
}

FakeServer::FakeServer(const std::string& folder, std::string reply, bool endless, bool closes)
    : path_(folder + "/fake.sock"), reply_(std::move(reply)), endless_(endless), closes_(closes) {
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(listener_, 8), 0);
  thread_ = std::thread([this] { serve(); });
}

FakeServer::~FakeServer() {
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  ::close(listener_);
  ::unlink(path_.c_str());
}

void FakeServer::serve() const {
  for (int peer; (peer = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(peer)) {
    char asked[4096];
    bool open = ::recv(peer, asked, sizeof asked, 0) > 0;
    do {
      open =
          open && (reply_.empty() || ::send(peer, reply_.data(), reply_.size(), MSG_NOSIGNAL) > 0);
    } while (open && endless_);
    while (open && !closes_ && ::recv(peer, asked, sizeof asked, 0) > 0) {
    }
  }
}

}  // namespace reprise
