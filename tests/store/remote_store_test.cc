// Stores that share chunks through a server find right ones or none, whatever the server does.
#include "store/remote_store.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "store/redis_testing.h"

namespace reprise {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr RemoteOptions kPatient = {.timeout = milliseconds(120'000),
                                    .retry_after = milliseconds(0)};
constexpr RemoteOptions kHasty = {.timeout = milliseconds(100), .retry_after = milliseconds(0)};

ChunkStore sharing(const std::string& folder, const std::string& url,
                   const RemoteOptions& options = kPatient) {
  ChunkStore store = open_store(folder);
  store.share_through(RemoteStore::open(url, options).value());
  return store;
}

struct SharedStore : testing::Test {
  TemporaryFolder folder;
  std::optional<RedisServer> server;

  void SetUp() override {
    server.emplace(folder.file(""));
    if (!server->installed()) {
      GTEST_SKIP() << "redis-server is not installed; tools/setup.sh --dev installs it";
    }
  }
  ChunkStore open(const std::string& name, const RemoteOptions& options = kPatient) {
    return sharing(folder.file(name), server->url(), options);
  }
};

TEST_F(SharedStore, GivesWhatAnotherAdded) {
  ChunkStore one = open("one"), other = open("other");
  for (uint32_t n = 0; n < 12; ++n) ASSERT_TRUE(*add_chunk(one, n, kTestCodecs[n % 4]));
  for (uint32_t n = 0; n < 12; ++n) {
    EXPECT_EQ(look_up(other, n, kTestCodecs[n % 4]), Found::kRight) << n;
  }
  EXPECT_EQ(look_up(other, 12), Found::kMissing);
  EXPECT_EQ(other.fetched(), 12u);
  EXPECT_EQ(other.search(kTestIdentity, "number7", 5)->size(), 1u);
  EXPECT_FALSE(*add_chunk(other, 3, kTestCodecs[3]));
  for (const std::string& key : server->keys()) EXPECT_GT(std::stol(server->ask({"TTL", key})), 0);
  server->stop();  // what was fetched stays here
  for (uint32_t n = 0; n < 12; ++n) {
    EXPECT_EQ(look_up(other, n, kTestCodecs[n % 4]), Found::kRight) << n;
  }
  EXPECT_THAT(other.take_warning(), IsEmpty());
  EXPECT_TRUE(other.verify()->empty());
}

TEST_F(SharedStore, OfAnotherIdentityIsNotThere) {
  ChunkStore one = open("one"), other = open("other");
  ASSERT_TRUE(add_chunk(one, 1));
  ChunkIdentity identity = kTestIdentity;
  ++identity.kv.model;
  const TestChunk chunk = make_chunk(1);
  EXPECT_FALSE(*other.find(identity, chunk.ids()));
  EXPECT_FALSE(*other.find(kTestIdentity, {{}, chunk.tokens}));
  EXPECT_THAT(other.take_warning(), IsEmpty());
}

// What was here before there was a server is shared when it is added again.
TEST_F(SharedStore, GetsWhatWasHereBefore) {
  {
    ChunkStore alone = open_store(folder.file("one"));
    ASSERT_TRUE(*add_chunk(alone, 1));
  }
  ChunkStore one = open("one"), other = open("other"), third = open("third");
  one.share(**one.find(kTestIdentity, make_chunk(1).ids()));
  EXPECT_EQ(look_up(other, 1), Found::kRight);
  server->ask({"FLUSHALL"});
  EXPECT_FALSE(*add_chunk(one, 1));
  EXPECT_EQ(look_up(third, 1), Found::kRight);
}

TEST_F(SharedStore, ExactReplacesRounded) {
  ChunkStore one = open("one"), other = open("other"), third = open("third");
  const BlockCodec rounded = {.q8_0 = true};
  ASSERT_TRUE(*add_chunk(one, 1, rounded));
  EXPECT_EQ(look_up(other, 1, rounded), Found::kRight);
  ASSERT_TRUE(*add_chunk(other, 1, {}));
  ASSERT_FALSE(*add_chunk(one, 1, rounded));
  EXPECT_EQ(look_up(third, 1), Found::kRight);
}

// Any value of the server damaged, cut, another's or of another type: never wrong KV. Then the
// chunk can be shared anew.
TEST_F(SharedStore, WrongDataIsNotThere) {
  ChunkStore one = open("one"), other = open("other");
  std::mt19937 random(1);
  const BlockCodec codec = {.zstd = true};
  for (uint32_t n = 0; n < 2; ++n) ASSERT_TRUE(add_chunk(one, n, codec));
  const auto keys = server->keys();
  int missing = 0;
  ASSERT_EQ(keys.size(), 2u * (1 + kTestIdentity.n_layer));
  for (int round = 0; round < 200; ++round) {
    const std::string& key = keys[random() % keys.size()];
    const std::string value = server->ask({"GET", key});
    std::string bad = value;
    const int kind = round % 5;
    if (kind == 0) bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    if (kind == 1) bad.resize(random() % bad.size());
    if (kind == 2) bad += 'x';
    if (kind == 3) bad = server->ask({"GET", keys[random() % keys.size()]});
    server->ask({"DEL", key});
    if (kind == 4) server->ask({"LPUSH", key, "x"});
    if (kind != 4) server->ask({"SET", key, bad});
    for (uint32_t n = 0; n < 2; ++n) {
      const Found found = look_up(other, n, codec);
      ASSERT_NE(found, Found::kWrong) << key;
      missing += found == Found::kMissing ? 1 : 0;
      ASSERT_EQ(other.take_warning().empty(), found == Found::kRight) << key << " " << kind;
    }
    server->ask({"DEL", key});
    server->ask({"SET", key, value});
    for (uint32_t n = 0; n < 2; ++n) {
      ASSERT_FALSE(*add_chunk(one, n, codec));
      ASSERT_EQ(look_up(other, n, codec), Found::kRight) << key << " " << kind;
    }
    ASSERT_TRUE(other.remove(*other.list()));
    ASSERT_TRUE(round % 50 != 49 || other.collect());
  }
  EXPECT_GT(missing, 180);  // a value may be put where it was
  EXPECT_EQ(other.damaged(), 0u);
}

TEST_F(SharedStore, EvictedLayerIsNotThereAndCanBeSharedAgain) {
  ChunkStore one = open("one"), other = open("other");
  ASSERT_TRUE(add_chunk(one, 1));
  server->ask({"DEL", server->keys().back()});
  EXPECT_EQ(look_up(other, 1), Found::kMissing);
  EXPECT_THAT(other.take_warning(), IsEmpty());  // servers make room
  ASSERT_FALSE(*add_chunk(one, 1));
  EXPECT_EQ(look_up(other, 1), Found::kRight);
}

TEST_F(SharedStore, ServerThatGoesIsLeftAloneAndSaidOnce) {
  ChunkStore one = open("one");
  ChunkStore other =
      open("other", {.timeout = milliseconds(120'000), .retry_after = milliseconds(3'600'000)});
  for (uint32_t n = 0; n < 4; ++n) ASSERT_TRUE(add_chunk(one, n));
  EXPECT_EQ(look_up(other, 0), Found::kRight);
  server->stop();
  EXPECT_EQ(look_up(other, 1), Found::kMissing);
  EXPECT_THAT(other.take_warning(), HasSubstr("going on with the local store alone"));
  EXPECT_TRUE(*add_chunk(other, 1));
  EXPECT_EQ(look_up(other, 1), Found::kRight);
  EXPECT_EQ(look_up(other, 2), Found::kMissing);
  EXPECT_THAT(other.take_warning(), IsEmpty());
  server->start();
  EXPECT_TRUE(*add_chunk(one, 5));  // this one tries again at once
  ChunkStore third = open("third");
  EXPECT_EQ(look_up(third, 5), Found::kRight);
}

// A server that does not answer costs the timeout; its late answers are nobody's.
TEST_F(SharedStore, ServerThatHangsIsGivenUp) {
  ChunkStore one = open("one"), other = open("other", kHasty);
  for (uint32_t n = 0; n < 3; ++n) ASSERT_TRUE(add_chunk(one, n));
  static_cast<void>(look_up(other, 0));  // connects
  server->signal(SIGSTOP);
  EXPECT_EQ(look_up(other, 1), Found::kMissing);
  EXPECT_THAT(other.take_warning(), HasSubstr("no answer in time"));
  server->signal(SIGCONT);
  ChunkStore patient = open("other");
  for (uint32_t n = 0; n < 3; ++n) EXPECT_EQ(look_up(patient, n), Found::kRight);
}

TEST_F(SharedStore, FullServerKeepsNothingHalf) {
  ChunkStore one = open("one"), other = open("other");
  server->ask({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_TRUE(*add_chunk(one, 1));
  EXPECT_THAT(one.take_warning(), HasSubstr("OOM"));
  EXPECT_EQ(look_up(one, 1), Found::kRight);
  EXPECT_EQ(look_up(other, 1), Found::kMissing);
  server->ask({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_FALSE(*add_chunk(one, 1));
  EXPECT_EQ(look_up(other, 1), Found::kRight);
}

TEST_F(SharedStore, PasswordIsAskedForAndNotTold) {
  server->ask({"CONFIG", "SET", "requirepass", "sesame"});
  const std::string path = server->url().substr(7);
  ChunkStore one = sharing(folder.file("one"), "unix://:sesame@" + path);
  ChunkStore none = sharing(folder.file("none"), server->url());
  ChunkStore other = sharing(folder.file("other"), "unix://:simsim@" + path);
  ASSERT_TRUE(add_chunk(one, 1));
  EXPECT_THAT(one.take_warning(), IsEmpty());
  for (ChunkStore* store : {&none, &other}) {
    EXPECT_EQ(look_up(*store, 1), Found::kMissing);
    EXPECT_THAT(store->take_warning(),
                testing::AllOf(HasSubstr("it says: "), Not(HasSubstr("simsim"))));
  }
}

// Writers that are killed at any time leave whole chunks or none.
TEST_F(SharedStore, KilledWritersLeaveNothingHalf) {
  std::mt19937 random(5);
  constexpr uint32_t kChunks = 400;
  for (int kill = 0; kill < repeats("REPRISE_STORE_KILLS", 15); ++kill) {
    const std::string name = "writer" + std::to_string(kill);
    const pid_t child = ::fork();
    if (child == 0) {
      ChunkStore store = open(name);
      for (uint32_t n = 0; n < kChunks; ++n) static_cast<void>(add_chunk(store, n));
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(10'000 + random() % 40'000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
  ChunkStore reader = open("reader");
  for (uint32_t n = 0; n < kChunks; ++n) ASSERT_NE(look_up(reader, n), Found::kWrong);
  EXPECT_GT(reader.fetched(), 0u);
  EXPECT_THAT(reader.take_warning(), IsEmpty());
}

TEST(RemoteStore, TakesAnythingForAServer) {
  const TemporaryFolder folder;
  const struct {
    std::string reply;
    bool endless, closes;
  } servers[] = {{"", false, false},
                 {"", false, true},
                 {"$5\r\nab", false, true},
                 {"$5\r\nab", false, false},
                 {"+OK\r\n", true, false},
                 {"-ERR \x1b[2Jno\r\n", false, false},
                 {"*2000000000\r\n", false, false},
                 {"*-5\r\n", false, false},
                 {"$2000000000\r\n", false, false},
                 {"$99999999999999999999\r\n", false, true},
                 {std::string(100'000, '+'), true, false},
                 {"HTTP/1.1 400 Bad Request\r\n\r\n", false, true},
                 {std::string("\0\xff\xfe:", 4), true, false},
                 {":12\r\n", true, false},
                 {"$3\r\nabc\r\n", true, false}};
  int number = 0;
  for (const auto& server : servers) {
    const FakeServer fake(folder.file(""), server.reply, server.endless, server.closes);
    ChunkStore store = sharing(folder.file("s" + std::to_string(number++)), fake.url(), kHasty);
    EXPECT_EQ(look_up(store, 1), Found::kMissing);
    const std::string warning = store.take_warning();
    EXPECT_THAT(warning, HasSubstr("shared store")) << server.reply.substr(0, 40);
    EXPECT_THAT(warning, Not(HasSubstr("\x1b")));
    EXPECT_TRUE(*add_chunk(store, 1));
    EXPECT_EQ(look_up(store, 1), Found::kRight);
  }
}

TEST(RemoteStore, NobodyThere) {
  const TemporaryFolder folder;
  for (const std::string& url :
       {"unix://" + folder.file("none"), std::string("redis://127.0.0.1:1")}) {
    ChunkStore store = sharing(folder.file("store"), url);
    EXPECT_EQ(look_up(store, 1), Found::kMissing);
    EXPECT_THAT(store.take_warning(), HasSubstr("cannot be used (")) << url;
  }
}

TEST(RemoteStore, ReadsAddresses) {
  const auto all = [](std::string_view text) {
    const auto a = parse_redis_address(text);
    if (!a) return std::string(error_name(a.error().code));
    return fmt::format("{}|{}|{}|{}|{}|{}", a->host, a->port, a->path, a->user, a->password,
                       a->database);
  };
  EXPECT_EQ(all("redis://host"), "host|6379||||0");
  EXPECT_EQ(all("redis://host:1234/7"), "host|1234||||7");
  EXPECT_EQ(all("redis://host/"), "host|6379||||0");
  EXPECT_EQ(all("redis://:p@ss:w@host"), "host|6379|||p@ss:w|0");
  EXPECT_EQ(all("redis://me:secret@[::1]:99"), "::1|99||me|secret|0");
  EXPECT_EQ(all("unix:///run/redis.sock"), "|6379|/run/redis.sock|||0");
  for (const char* bad : {"", "host", "http://host", "redis://", "redis://host:0",
                          "redis://host:99999", "redis://host:x", "redis://host/x", "redis://[::1",
                          "redis://secret@host", "unix://run", "rediss://host"}) {
    EXPECT_EQ(all(bad), "invalid_argument") << bad;
  }
  EXPECT_THAT(parse_redis_address("redis://:secret@host:x").error().message,
              Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace reprise
