// What becomes of the file when saving fails half-way, or the process dies.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "kv/kv_testing.h"
#include "kv/session_testing.h"

namespace reprise {
namespace {

constexpr KvIdentity kIdentity = {11, 22, 33};
constexpr int32_t kLength = 300;

std::string code_of(const Status& status) {
  return status ? "done" : std::string(error_name(status.error().code));
}

// A sequence whose every token carries the same number, and its tokens.
struct Conversation {
  PagePool pool = small_pool(2, 200);
  SequenceKv kv{pool};
  SavedSession saved;

  explicit Conversation(int32_t value) : saved{std::vector<int32_t>(kLength, value), "state"} {
    EXPECT_TRUE(append(kv, saved.tokens));
  }
  Status save(const std::string& path, const ProgressFn& progress = {}) const {
    return save_session(path, kIdentity, saved, kv, progress);
  }
};

// The number of the conversation in a file; -1 when it does not load or tokens and KV differ.
int32_t number_in(const std::string& path) {
  PagePool pool = small_pool(2, 200);
  SequenceKv sequence(pool);
  const auto saved = load_session(path, kIdentity, sequence);
  if (!saved || saved->tokens.size() != kLength) return -1;
  for (int32_t i = 0; i < kLength; ++i) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      if (!holds_token(sequence, layer, i, saved->tokens[0])) return -1;
    }
  }
  return saved->tokens[0];
}

TEST(SessionSave, ReplacesAnOlderFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  ASSERT_TRUE(Conversation(1).save(path));
  ASSERT_TRUE(Conversation(2).save(path));
  EXPECT_EQ(number_in(path), 2);
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(SessionSave, ALinksTargetIsReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session"), link = folder.file("link");
  ASSERT_TRUE(Conversation(1).save(path));
  std::filesystem::create_symlink("session", link);
  ASSERT_TRUE(Conversation(2).save(link));
  EXPECT_EQ(number_in(path), 2);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  const std::string later = folder.file("later"), to_later = folder.file("to_later");
  std::filesystem::create_symlink(later, to_later);  // leads to no file yet
  ASSERT_TRUE(Conversation(3).save(to_later));
  EXPECT_EQ(number_in(later), 3);
  EXPECT_TRUE(std::filesystem::is_symlink(to_later));
  std::filesystem::create_symlink("circle", folder.file("circle"));
  EXPECT_EQ(code_of(Conversation(4).save(folder.file("circle"))), "file_unwritable");
  EXPECT_EQ(folder.entries(), 5u);
}

TEST(SessionSave, RefusesTokensWithoutKv) {
  const TemporaryFolder folder;
  Conversation conversation(1);
  conversation.saved.tokens.pop_back();
  EXPECT_EQ(code_of(conversation.save(folder.file("session"))), "invalid_argument");
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(SessionSave, UnwritablePaths) {
  const TemporaryFolder folder;
  const Conversation conversation(1);
  EXPECT_EQ(code_of(conversation.save(folder.file("missing/session"))), "file_unwritable");
  EXPECT_EQ(code_of(conversation.save(folder.file(""))), "file_unwritable");
  EXPECT_EQ(code_of(conversation.save("/dev/full")), "file_unwritable");
  EXPECT_EQ(code_of(conversation.save("/proc/session")), "file_unwritable");
  EXPECT_EQ(code_of(conversation.save(folder.file(std::string(300, 'x')))), "file_unwritable");
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(SessionSave, StoppedAtEveryStepLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  ASSERT_TRUE(Conversation(1).save(path));
  const Conversation next(2);
  int stop = 1;
  for (;; ++stop) {
    int calls = 0;
    const Status status = next.save(path, [&](const Progress&) { return ++calls < stop; });
    if (status) break;
    ASSERT_EQ(code_of(status), "cancelled");
    ASSERT_EQ(number_in(path), 1);
    ASSERT_EQ(folder.entries(), 1u);
  }
  EXPECT_GT(stop, 5);
  EXPECT_EQ(number_in(path), 2);
}

// A limit on file size makes the write fail at any byte, as a full disk does.
TEST(SessionSave, FullDiskLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  ASSERT_TRUE(Conversation(1).save(path));
  const size_t size = read_all(path).size();
  const Conversation next(2);
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  for (size_t room = 0; room <= size; room += room < size - 40 ? 499 : 1) {
    const rlimit limit = {room, old_limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    const Status status = next.save(path);
    ::setrlimit(RLIMIT_FSIZE, &old_limit);
    ASSERT_EQ(code_of(status), room < size ? "file_unwritable" : "done") << room;
    ASSERT_EQ(number_in(path), room < size ? 1 : 2);
    ASSERT_EQ(folder.entries(), 1u);
  }
  std::signal(SIGXFSZ, old_handler);
}

// A process that is killed while it saves again and again leaves one whole file, old or new.
TEST(SessionSave, KilledProcessLeavesAWholeFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  const Conversation one(1), two(2);
  ASSERT_TRUE(one.save(path));
  for (useconds_t delay = 0; delay < 60; ++delay) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) {
        if (!two.save(path) || !one.save(path)) ::_exit(1);
      }
    }
    ::usleep(200 + delay * 97);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    ASSERT_GT(number_in(path), 0);
  }
  ASSERT_TRUE(two.save(path));  // temporary files left behind are in nobody's way
  EXPECT_EQ(number_in(path), 2);
}

bool allows_nameless_files(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_WRONLY, S_IRUSR | S_IWUSR);
  if (file >= 0) ::close(file);
  return file >= 0;
}

TEST(SessionSave, KilledProcessLeavesNoOtherFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  if (!allows_nameless_files(folder.file(""))) GTEST_SKIP();
  const Conversation one(1), two(2);
  ASSERT_TRUE(one.save(path));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int calls = 0;
    (void)two.save(path, [&](const Progress&) { return ++calls < 3 || ::raise(SIGKILL) != 0; });
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(number_in(path), 1);
  EXPECT_EQ(folder.entries(), 1u);
}

}  // namespace
}  // namespace reprise
