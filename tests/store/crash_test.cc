// Processes that are killed, disks that fail or are full, and many processes at once: no chunk that
// was added is lost, and none is wrong.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <numeric>

#include "store/failing_calls.h"
#include "store/store_testing.h"

namespace reprise {
namespace {

pid_t in_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  EXPECT_GT(child, 0);
  return child;
}

bool exited_well(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Numbers that a child has sent so far.
struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() { EXPECT_EQ(::pipe(ends), 0); }
  ~Pipe() {
    ::close(ends[0]);
    if (ends[1] >= 0) ::close(ends[1]);
  }
  void send(uint32_t number) const { EXPECT_EQ(::write(ends[1], &number, sizeof number), 4); }
  std::vector<uint32_t> receive() {
    ::close(ends[1]);
    ends[1] = -1;
    std::vector<uint32_t> numbers;
    for (uint32_t n; ::read(ends[0], &n, sizeof n) == sizeof n;) numbers.push_back(n);
    return numbers;
  }
};

/// Everything that is in the store is right.
void expect_right(const std::string& folder, std::span<const uint32_t> committed, uint32_t end) {
  ChunkStore store = open_store(folder);
  for (const uint32_t n : committed) ASSERT_EQ(look_up(store, n), Found::kRight) << n;
  for (uint32_t n = 0; n < end; ++n) ASSERT_NE(look_up(store, n), Found::kWrong) << n;
  const auto bad = store.verify();
  ASSERT_TRUE(bad);
  ASSERT_TRUE(bad->empty());
  ASSERT_EQ(store.damaged(), 0u);
}

// REPRISE_STORE_KILLS=1000 for the long version.
TEST(StoreCrash, KilledAtAnyTime) {
  const TemporaryFolder folder;
  const std::string path = folder.file("store");
  std::mt19937 random(7);
  std::vector<uint32_t> committed;
  uint32_t next = 0;
  const int kills = repeats("REPRISE_STORE_KILLS", 40);
  for (int kill = 0; kill < kills; ++kill) {
    Pipe pipe;
    const pid_t child = in_child([&] {
      auto store = ChunkStore::open(path, true, {.segment_bytes = 100'000});
      for (uint32_t n = next; store; ++n) {
        if (add_chunk(*store, n)) pipe.send(n);
        if (n % 5 == 4) static_cast<void>(store->collect(1.0));
      }
    });
    ::usleep(static_cast<useconds_t>(random() % 30'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto added = pipe.receive();
    committed.insert(committed.end(), added.begin(), added.end());
    if (!added.empty()) next = added.back() + 2;  // the one after it may be there or not
    ASSERT_NO_FATAL_FAILURE(expect_right(path, committed, next)) << kill;
    if (committed.size() < 300) continue;
    committed.clear();  // the cost of a check stays bounded
    next = 0;
    std::filesystem::remove_all(path);
  }
}

// What a process does to a store that holds chunks 0 to 9: adds, removes, evicts, collects.
Status work(const std::string& path, std::vector<uint32_t>& added) {
  auto opened = ChunkStore::open(path, true, {.bytes = 40 * 8192, .segment_bytes = 30'000});
  if (!opened) return tl::unexpected<Error>(opened.error());
  Status failed;
  for (uint32_t n = 10; n < 14; ++n) {
    const auto done = add_chunk(*opened, n);
    if (done) added.push_back(n);
    if (!done) failed = tl::unexpected<Error>(done.error());
  }
  const auto rows = opened->list();
  if (!rows) return tl::unexpected<Error>(rows.error());
  if (const Status done = opened->remove(std::span(*rows).first(1)); !done) failed = done;
  const auto freed = opened->collect(1.0);
  return freed ? failed : tl::unexpected<Error>(freed.error());
}

struct StoreFaults : testing::Test {
  TemporaryFolder folder;
  std::string path = folder.file("store");
  const uint32_t removed = 0;

  void start() const {
    std::filesystem::remove_all(path);
    ChunkStore store = open_store(path, {.segment_bytes = 30'000});
    for (uint32_t n = 0; n < 10; ++n) ASSERT_TRUE(add_chunk(store, n));
  }
  void check(std::vector<uint32_t> added) const {
    for (uint32_t n = 0; n < 10; ++n) {
      if (n != removed) added.push_back(n);
    }
    expect_right(path, added, 20);
    ChunkStore store = open_store(path);
    ASSERT_TRUE(add_chunk(store, 30));  // it still works
    ASSERT_EQ(look_up(store, 30), Found::kRight);
  }
};

TEST_F(StoreFaults, KilledAtEveryCall) {
  int n = 1;
  for (bool ended = false; !ended; ++n) {
    ASSERT_NO_FATAL_FAILURE(start());
    Pipe pipe;
    const pid_t child = in_child([&] {
      arm_calls(CallFault::kKill, n);
      std::vector<uint32_t> added;
      static_cast<void>(work(path, added));
      disarm_calls();
    });
    ended = exited_well(child);
    ASSERT_NO_FATAL_FAILURE(check({})) << n;
  }
  EXPECT_GT(n, 30);
}

// Whoever opens the store next makes the index, whatever there is of it.
TEST_F(StoreFaults, StoppedWhileADamagedIndexIsMadeAgain) {
  const std::vector<uint32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  ASSERT_NO_FATAL_FAILURE(start());
  std::string index = read_all(path + "/index.db");
  write_all(path + "/index.db", index.replace(0, 14, 14, 'x'));
  const std::string damaged = folder.file("damaged");
  std::filesystem::rename(path, damaged);
  for (const CallFault fault : {CallFault::kKill, CallFault::kError, CallFault::kShort}) {
    int n = 1;
    for (bool ended = false; !ended; ++n) {
      std::filesystem::remove_all(path);
      std::filesystem::copy(damaged, path);
      const pid_t child = in_child([&] {
        arm_calls(fault, n);
        const auto store = ChunkStore::open(path, false);
        if (disarm_calls() >= n) ::_exit(1);
      });
      ended = exited_well(child);
      ASSERT_NO_FATAL_FAILURE(expect_right(path, all, 0)) << n;
    }
    EXPECT_GT(n, 15);
  }
}

// So does a store that was open already, before it takes a segment without rows for dead.
TEST_F(StoreFaults, AnOpenStoreCompletesAnIndexThatWasLeftHalfMade) {
  const auto add = [](ChunkStore& store) { return add_chunk(store, 10).has_value(); };
  const auto collect = [](ChunkStore& store) { return store.collect().has_value(); };
  const auto remove = [](ChunkStore& store) { return store.remove({}).has_value(); };
  const auto list = [](ChunkStore& store) { return store.list().has_value(); };
  const std::vector<std::function<bool(ChunkStore&)>> uses = {add, collect, remove, list};
  for (const bool tables : {false, true}) {
    for (size_t use = 0; use < uses.size() - (tables ? 1 : 0); ++use) {
      ASSERT_NO_FATAL_FAILURE(start());
      ChunkStore store = open_store(path, {.segment_bytes = 30'000});
      ASSERT_EQ(look_up(store, 3), Found::kRight);
      EXPECT_TRUE(exited_well(in_child([&] {  // what is left of one that is killed early
        auto index = ChunkIndex::open(path + "/index.db");
        if (!index || !index->reset() || (tables && !index->make_tables())) ::_exit(1);
      })));
      EXPECT_TRUE(uses[use](store)) << use;
      for (uint32_t n = 0; n < 10; ++n) ASSERT_EQ(look_up(store, n), Found::kRight) << use;
    }
  }
}

// Nobody has to end for it, unless the damage hides that they share a write-ahead log.
TEST_F(StoreFaults, TheIndexIsMadeAgainBesideAReader) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (const bool damaged : {false, true}) {
    Pipe ready, done;
    const pid_t reader = in_child([&] {
      ::close(done.ends[1]);
      ChunkStore store = open_store(path);
      if (look_up(store, 3) != Found::kRight) ::_exit(1);
      ready.send(1);
      ::close(ready.ends[1]);
      char byte = 0;
      [[maybe_unused]] const auto ended = ::read(done.ends[0], &byte, 1);
      if (!damaged && store.list()->size() != 10) ::_exit(2);
    });
    EXPECT_EQ(ready.receive().size(), 1u);
    const auto from = std::chrono::steady_clock::now();
    if (damaged) {
      for (uint64_t at = 0; at < 14; ++at) write_byte(path + "/index.db", at, 'x');
      const auto store = ChunkStore::open(path, false);
      ASSERT_FALSE(store);
      EXPECT_EQ(store.error().code, ErrorCode::kFileUnwritable);
      EXPECT_THAT(store.error().message, testing::HasSubstr("another process has it open"));
      EXPECT_THAT(store.error().message, testing::Not(testing::HasSubstr("--rebuild")));
    } else {
      EXPECT_TRUE(ChunkStore::rebuild(path));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(20));
    static_cast<void>(done.receive());  // closes it, which ends the reader
    EXPECT_TRUE(exited_well(reader));
  }
  const std::vector<uint32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  expect_right(path, all, 0);
}

// An error, or a disk that is full in the middle of a write.
TEST_F(StoreFaults, EveryCallFailsOnce) {
  for (const CallFault fault : {CallFault::kError, CallFault::kShort}) {
    int errors = 0;
    for (int n = 1;; ++n) {
      ASSERT_NO_FATAL_FAILURE(start());
      std::vector<uint32_t> added;
      arm_calls(fault, n);
      const Status status = work(path, added);
      const int calls = disarm_calls();
      if (!status) ++errors;
      ASSERT_NO_FATAL_FAILURE(check(added)) << n;
      if (calls < n) break;
    }
    EXPECT_GT(errors, 15);
  }
}

TEST_F(StoreFaults, FullDiskIsAnErrorAndTheStoreGoesOn) {
  ASSERT_NO_FATAL_FAILURE(start());
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {20'000, old_limit.rlim_max};
  Result<bool> added = true;
  uint32_t n = 10;
  {
    ChunkStore store = open_store(path);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    while (added && n < 20) added = add_chunk(store, n++);
    ::setrlimit(RLIMIT_FSIZE, &old_limit);
    std::signal(SIGXFSZ, old_handler);
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code, ErrorCode::kFileUnwritable);
    EXPECT_EQ(look_up(store, 3), Found::kRight);
  }
  check({});
}

// A chunk is dropped with its bytes, or not at all, and no copies stay that nobody refers to. Only
// where a segment cannot be removed are there more bytes than before.
TEST_F(StoreFaults, AnEvictionThatFailsDropsNothing) {
  for (const CallFault fault : {CallFault::kError, CallFault::kShort}) {
    int errors = 0, kept = 0;
    for (int n = 1;; ++n) {
      ASSERT_NO_FATAL_FAILURE(start());
      ChunkStore store = open_store(path, {.bytes = 10 * 8192, .segment_bytes = 30'000});
      const StoreStats before = *store.stats();
      arm_calls(fault, n);
      const auto added = add_chunk(store, 10);
      const int calls = disarm_calls();
      const StoreStats after = *store.stats();
      if (!added) ++errors;
      if (after.disk_bytes > before.disk_bytes) {
        ++kept;
      } else if (after.disk_bytes == before.disk_bytes) {
        EXPECT_EQ(after.chunks, before.chunks) << n;
      }
      if (calls < n) break;
    }
    EXPECT_GT(errors, 10);
    EXPECT_LE(kept, 1);
  }
}

// What nobody refers to goes first, which needs no room; copies that have none are undone.
TEST_F(StoreFaults, ACollectionOnAFullDiskFreesWhatItCan) {
  {
    ChunkStore store = open_store(path, {.segment_bytes = 1'000'000});
    for (uint32_t n = 0; n < 320; ++n) ASSERT_TRUE(add_chunk(store, n));
  }
  ChunkStore store = open_store(path, {.segment_bytes = 1'200'000});
  auto rows = *store.list();
  std::erase_if(rows, [](const ChunkRow& row) {
    return row.place.segment == 3 || (row.place.segment == 1 && row.part % 2 == 0);
  });
  ASSERT_TRUE(store.remove(rows));
  const StoreStats before = *store.stats();
  const uint64_t unused = std::filesystem::file_size(path + "/seg-00000002.kv");
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {900'000, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto freed = store.collect(1.0);
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(freed);
  EXPECT_EQ(freed.error().code, ErrorCode::kFileUnwritable);
  const StoreStats after = *store.stats();
  EXPECT_EQ(after.chunks, before.chunks);
  EXPECT_EQ(after.disk_bytes, before.disk_bytes - unused);
  EXPECT_TRUE(store.verify()->empty());
  ASSERT_TRUE(store.collect(1.0));
  EXPECT_EQ(store.stats()->disk_bytes, after.live_bytes);
}

TEST(StoreCrash, ManyProcessesMakeOneStore) {
  const TemporaryFolder folder;
  for (int round = 0; round < 10; ++round) {
    const std::string path = folder.file(std::to_string(round));
    Pipe start;
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i) {
      children.push_back(in_child([&] {
        ::close(start.ends[1]);
        char byte = 0;
        [[maybe_unused]] const auto ended = ::read(start.ends[0], &byte, 1);
        if (!ChunkStore::open(path, true)) ::_exit(2);
      }));
    }
    static_cast<void>(start.receive());  // closes it, which starts them all
    for (const pid_t child : children) EXPECT_TRUE(exited_well(child));
  }
}

// All of them find it damaged; one makes it again and says so.
TEST(StoreCrash, ManyProcessesFindADamagedIndex) {
  const TemporaryFolder folder;
  for (int round = 0; round < 10; ++round) {
    const std::string path = folder.file(std::to_string(round));
    {
      ChunkStore store = open_store(path);
      for (uint32_t n = 0; n < 20; ++n) ASSERT_TRUE(add_chunk(store, n));
    }
    std::string index = read_all(path + "/index.db");
    write_all(path + "/index.db", index.replace(0, 14, 14, 'x'));
    Pipe start, warned;
    std::vector<pid_t> children;
    for (uint32_t i = 0; i < 8; ++i) {
      children.push_back(in_child([&] {
        ::close(start.ends[1]);
        char byte = 0;
        [[maybe_unused]] const auto ended = ::read(start.ends[0], &byte, 1);
        auto store = ChunkStore::open(path, false);
        if (!store || !add_chunk(*store, 100 + i)) ::_exit(2);
        if (look_up(*store, i) != Found::kRight) ::_exit(3);
        if (!store->take_warning().empty()) warned.send(i);
      }));
    }
    static_cast<void>(start.receive());  // closes it, which starts them all
    for (const pid_t child : children) EXPECT_TRUE(exited_well(child));
    EXPECT_EQ(warned.receive().size(), 1u);
    std::vector<uint32_t> all(20);
    std::iota(all.begin(), all.end(), 0);
    for (uint32_t i = 0; i < 8; ++i) all.push_back(100 + i);
    expect_right(path, all, 0);
  }
}

// REPRISE_STORE_SECONDS=60 for the long version. Writers add what they say and collect; readers see
// nothing wrong, and everything that was added before they looked.
TEST(StoreCrash, WritersAndReadersAtOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.file("store");
  { open_store(path); }
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(repeats("REPRISE_STORE_SECONDS", 3));
  const auto go_on = [&] { return std::chrono::steady_clock::now() < end; };
  constexpr uint32_t kRange = 1'000'000, kNumbers = 1500;
  Pipe pipes[2];
  std::vector<pid_t> children;
  for (uint32_t writer = 0; writer < 2; ++writer) {
    children.push_back(in_child([&] {
      auto store = ChunkStore::open(path, false, {.segment_bytes = 200'000});
      if (!store) ::_exit(2);
      // Half of the numbers are the other writer's, too.
      for (uint32_t n = 0; go_on(); ++n) {
        const uint32_t number = n % 2 * writer * kRange + n % kNumbers;
        if (!add_chunk(*store, number)) ::_exit(3);
        if (look_up(*store, number) != Found::kRight) ::_exit(4);
        if (n < kNumbers) pipes[writer].send(number);
        if (n % 50 == 49 && !store->collect(1.0)) ::_exit(5);
      }
    }));
  }
  for (uint32_t reader = 0; reader < 8; ++reader) {
    children.push_back(in_child([&] {
      auto store = ChunkStore::open(path, false);
      if (!store) ::_exit(2);
      std::mt19937 random(reader);
      std::vector<bool> seen(kRange + kNumbers);
      while (go_on()) {
        const uint32_t n = random() % 2 * kRange + random() % kNumbers;
        const Found found = look_up(*store, n);
        if (found == Found::kWrong || (seen[n] && found == Found::kMissing)) ::_exit(3);
        if (found == Found::kRight) seen[n] = true;
      }
      if (store->damaged() > 0) ::_exit(4);
    }));
  }
  std::vector<uint32_t> added;
  for (Pipe& pipe : pipes) {
    const auto numbers = pipe.receive();
    added.insert(added.end(), numbers.begin(), numbers.end());
  }
  for (const pid_t child : children) EXPECT_TRUE(exited_well(child));
  EXPECT_GT(added.size(), 20u);
  expect_right(path, added, 0);
  RecordProperty("chunks", static_cast<int>(added.size()));
}

}  // namespace
}  // namespace reprise
