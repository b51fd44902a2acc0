#include "kv/session_file.h"

#include <limits>

#include "kv/kv_testing.h"
#include "kv/session_testing.h"

namespace reprise {
namespace {

using kernels::KvType;

constexpr KvIdentity kIdentity = {11, 22, 33};

std::string load_code(const std::string& path, SequenceKv& sequence,
                      const KvIdentity& identity = kIdentity) {
  const auto saved = load_session(path, identity, sequence);
  if (saved) return "loaded";
  EXPECT_EQ(sequence.length(), 0);
  EXPECT_EQ(saved.error().message.find('\n'), std::string::npos);
  return std::string(error_name(saved.error().code));
}

// The code of loading path into a fresh pool; nothing may stay behind after an error.
std::string load_code(const std::string& path, const KvIdentity& identity = kIdentity,
                      uint32_t n_layer = 2, KvType type = KvType::kBF16) {
  PagePool pool = small_pool(n_layer, 200, type);
  SequenceKv sequence(pool);
  const std::string code = load_code(path, sequence, identity);
  if (code != "loaded") {
    EXPECT_EQ(pool.used_bytes(), 0u);
  }
  return code;
}

std::string code_of(const Status& status) {
  return status ? "done" : std::string(error_name(status.error().code));
}

SavedSession numbered(int32_t length) {
  SavedSession saved;
  for (int32_t i = 0; i < length; ++i) saved.tokens.push_back(i * 3);
  saved.state = "conversation state";
  return saved;
}

// A small file on two layers, with a hole, and its bytes.
std::string small_file(const std::string& path, int32_t length = 37) {
  PagePool pool = small_pool(2, 200);
  SequenceKv sequence(pool);
  const SavedSession saved = numbered(length);
  EXPECT_TRUE(append(sequence, saved.tokens));
  sequence.evict(1, 16, 32);
  EXPECT_EQ(code_of(save_session(path, kIdentity, saved, sequence)), "done");
  return read_all(path);
}

class SessionOfType : public testing::TestWithParam<KvType> {};
INSTANTIATE_TEST_SUITE_P(Types, SessionOfType, testing::ValuesIn(kernels::kKvTypes));

TEST_P(SessionOfType, RestoresWhatWasSaved) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  for (const int32_t length : {0, 1, 15, 16, 17, 100, 2000}) {
    for (const bool holes : {false, true}) {
      SCOPED_TRACE(testing::Message() << length << " tokens, holes " << holes);
      PagePool pool = small_pool(3, 800, GetParam());
      SequenceKv sequence(pool);
      const SavedSession saved = numbered(length);
      ASSERT_TRUE(append(sequence, saved.tokens));
      if (holes) {
        sequence.evict(0, 0, length);
        sequence.evict(2, 16, 48);
        sequence.evict(2, 320, 1500);
      }
      ASSERT_EQ(code_of(save_session(path, kIdentity, saved, sequence)), "done");
      PagePool other = small_pool(3, 800, GetParam());
      SequenceKv restored(other);
      const auto loaded = load_session(path, kIdentity, restored);
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_EQ(loaded->tokens, saved.tokens);
      EXPECT_EQ(loaded->state, saved.state);
      expect_values(restored, saved.tokens);
      for (uint32_t layer = 0; layer < 3; ++layer) {
        for (size_t block = 0; block < PageMap::blocks_of(saved.tokens.size()); ++block) {
          ASSERT_EQ(restored.pages(layer)[block] == kNoPage,
                    sequence.pages(layer)[block] == kNoPage);
        }
      }
      EXPECT_EQ(restored.bytes(), sequence.bytes());
      ASSERT_TRUE(append(restored, {1, 2, 3}));  // goes on where it stopped
    }
  }
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(SessionFile, UnusedSlotsCarryNothingOfOtherConversations) {
  const TemporaryFolder folder;
  PagePool pool = small_pool(1, 4);
  SequenceKv sequence(pool);
  ASSERT_TRUE(append(sequence, numbered(16).tokens));
  sequence.truncate(5);
  const SavedSession saved = numbered(5);
  ASSERT_TRUE(save_session(folder.file("a"), kIdentity, saved, sequence));
  EXPECT_TRUE(holds_token(sequence, 0, 10, 30));  // saving changes nothing in memory
  PagePool fresh = small_pool(1, 4);
  SequenceKv clean(fresh);
  ASSERT_TRUE(append(clean, saved.tokens));
  ASSERT_TRUE(save_session(folder.file("b"), kIdentity, saved, clean));
  EXPECT_EQ(read_all(folder.file("a")), read_all(folder.file("b")));
}

TEST(SessionFile, AFlippedBitInAnyByteIsAnError) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  const std::string good = small_file(path);
  PagePool pool = small_pool(2, 200);
  for (size_t i = 0; i < good.size(); ++i) {
    write_byte(path, i, static_cast<char>(good[i] ^ (1 << (i % 8))));
    SequenceKv sequence(pool);
    const std::string code = load_code(path, sequence);
    const char* expected = i < 8 ? "bad_magic" : i < 12 ? "unsupported_version" : "corrupt";
    ASSERT_EQ(code, expected) << "byte " << i;
    ASSERT_EQ(pool.used_bytes(), 0u);
    write_byte(path, i, good[i]);
  }
  EXPECT_EQ(load_code(path), "loaded");
}

// Attention multiplies unused slots by zero: what was refused may be no number.
TEST(SessionFile, NothingOfARefusedFileStaysInPages) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  std::string bytes = small_file(path);
  std::fill(bytes.begin() + 1000, bytes.begin() + 9000, '\xff');
  write_all(path, bytes);
  PagePool pool = small_pool(2, 200);
  SequenceKv sequence(pool);
  EXPECT_EQ(load_code(path, sequence), "corrupt");
  ASSERT_TRUE(sequence.reserve(37));
  for (size_t block = 0; block < sequence.pages(0).size(); ++block) {
    const std::byte* page = sequence.page(0, block);
    const auto zero = [](std::byte byte) { return byte == std::byte{}; };
    EXPECT_TRUE(std::all_of(page, page + pool.page_bytes(), zero)) << block;
  }
}

TEST(SessionFile, EveryTruncationIsAnError) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  const std::string good = small_file(path);
  PagePool pool = small_pool(2, 200);
  for (size_t size = good.size(); size-- > 0;) {
    std::filesystem::resize_file(path, size);
    SequenceKv sequence(pool);
    ASSERT_EQ(load_code(path, sequence), "truncated") << size;
    ASSERT_EQ(pool.used_bytes(), 0u);
  }
  write_all(path, good + "x");
  EXPECT_EQ(load_code(path), "corrupt");
  write_all(path, good);
  EXPECT_EQ(load_code(path), "loaded");
}

TEST(SessionFile, BlocksThatChangedPlacesAreFound) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  PagePool pool = small_pool(2, 200);
  SequenceKv sequence(pool);
  const SavedSession saved = numbered(16);
  ASSERT_TRUE(append(sequence, saved.tokens));
  ASSERT_TRUE(save_session(path, kIdentity, saved, sequence));
  std::string bytes = read_all(path);
  const size_t block = pool.page_bytes() + sizeof(uint64_t);
  const auto first = bytes.end() - static_cast<std::ptrdiff_t>(sizeof(SessionFooter) + 2 * block);
  std::swap_ranges(first, first + static_cast<std::ptrdiff_t>(block),
                   first + static_cast<std::ptrdiff_t>(block));
  write_all(path, bytes);
  EXPECT_EQ(load_code(path), "corrupt");
  SequenceKv restored(pool);
  EXPECT_THAT(
      load_session(path, kIdentity, restored).error().message,
      testing::HasSubstr("keys and values"));  // told by the block itself, not by the footer
}

TEST(SessionFile, BlocksOfAnotherFileAreFound) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  PagePool pool = small_pool(2, 200);
  const auto file_of = [&](int32_t value) {
    SequenceKv sequence(pool);
    EXPECT_TRUE(append(sequence, std::vector<int32_t>(16, value)));
    EXPECT_TRUE(save_session(path, kIdentity, numbered(16), sequence));
    return read_all(path);
  };
  std::string bytes = file_of(1);
  const std::string other = file_of(2);
  const size_t block = pool.page_bytes() + sizeof(uint64_t);
  const size_t first = bytes.size() - sizeof(SessionFooter) - 2 * block;
  bytes.replace(first, block, other, first, block);  // its own checksum is right
  write_all(path, bytes);
  EXPECT_EQ(load_code(path), "corrupt");
}

// Numbers that contradict each other although every checksum matches.
TEST(SessionFile, ForgedNumbersAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  const std::string good = small_file(path);
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  using Change = void (*)(SessionHeader&);
  const std::pair<Change, const char*> changes[] = {
      {[](SessionHeader& h) { h.file_bytes = kHuge; }, "truncated"},
      {[](SessionHeader& h) { --h.file_bytes; }, "corrupt"},
      {[](SessionHeader& h) { h.token_count = kHuge; }, "corrupt"},
      {[](SessionHeader& h) { h.token_count = 0x7fffffff; }, "corrupt"},
      {[](SessionHeader& h) { h.token_count = 36; }, "corrupt"},
      {[](SessionHeader& h) { h.token_count = 38; }, "corrupt"},
      {[](SessionHeader& h) { h.state_bytes = kHuge; }, "corrupt"},
      {[](SessionHeader& h) { h.state_bytes = kHuge - 100; }, "corrupt"},
      {[](SessionHeader& h) { --h.state_bytes; }, "corrupt"},
      {[](SessionHeader& h) { h.page_count = kHuge; }, "corrupt"},
      {[](SessionHeader& h) { h.page_count = kHuge / h.page_bytes + 1; }, "corrupt"},
      {[](SessionHeader& h) { --h.page_count; }, "corrupt"},
      {[](SessionHeader& h) { h.page_bytes = 0; }, "corrupt"},
      {[](SessionHeader& h) { ++h.page_bytes; }, "corrupt"},
      {[](SessionHeader& h) { h.pages_per_block = 0; }, "corrupt"},
      {[](SessionHeader& h) { h.pages_per_block = kHuge; }, "corrupt"},
      {[](SessionHeader& h) { h.pages_per_block = 1; }, "corrupt"},
      {[](SessionHeader& h) { h.n_layer = kHuge; }, "session_mismatch"},
      {[](SessionHeader& h) { h.n_layer = uint64_t{2} << 32 | 2; }, "session_mismatch"},
      {[](SessionHeader& h) { h.page_tokens = 32; }, "session_mismatch"},
      {[](SessionHeader& h) { h.page_format = 2; }, "session_mismatch"},
      {[](SessionHeader& h) { h.kv_type = 99; }, "session_mismatch"}};
  for (size_t i = 0; i < std::size(changes); ++i) {
    std::string bad = good;
    SessionHeader header = header_of(bad);
    changes[i].first(header);
    set_header(bad, header);
    write_all(path, bad);
    EXPECT_EQ(load_code(path), changes[i].second) << "change " << i;
    repair_checksums(bad);
    write_all(path, bad);
    EXPECT_EQ(load_code(path), changes[i].second) << "change " << i << ", all checksums repaired";
  }
}

TEST(SessionFile, ForgedPageMapsAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  const std::string good = small_file(path);  // 3 blocks: layer 0 has 0b111, layer 1 has 0b101
  const SessionHeader header = header_of(good);
  const size_t map = sizeof(SessionHeader) + header.token_count * sizeof(int32_t) +
                     header.state_bytes + 2 * sizeof(uint64_t);
  ASSERT_EQ(good.substr(map, 2), std::string("\x07\x05", 2));
  const auto with_map = [&](const char* bits) {
    std::string bad = good;
    bad.replace(map, 2, bits, 2);
    repair_checksums(bad);
    write_all(path, bad);
    return load_code(path);
  };
  EXPECT_EQ(with_map("\x07\x05"), "loaded");
  EXPECT_EQ(with_map("\x05\x07"), "loaded");   // another valid file: a forger may write any KV
  EXPECT_EQ(with_map("\x07\x03"), "corrupt");  // the partly filled last page must be there
  EXPECT_EQ(with_map("\x07\x0d"), "corrupt");  // a block that no token needs
  EXPECT_EQ(with_map("\x07\x07"), "corrupt");  // more pages than the file holds
  EXPECT_EQ(with_map("\x07\x04"), "corrupt");  // fewer
}

TEST(SessionFile, SaysWhichPartOfTheIdentityDiffers) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  small_file(path);
  const auto message = [&](const KvIdentity& identity, uint32_t n_layer = 2,
                           KvType type = KvType::kBF16) {
    PagePool pool = small_pool(n_layer, 200, type);
    SequenceKv sequence(pool);
    const auto saved = load_session(path, identity, sequence);
    if (saved) return std::string();
    EXPECT_EQ(error_name(saved.error().code), "session_mismatch");
    return saved.error().message;
  };
  using testing::AllOf, testing::HasSubstr, testing::Not;
  EXPECT_EQ(message(kIdentity), "");
  EXPECT_THAT(message({12, 22, 33}), AllOf(HasSubstr("another model;"), Not(HasSubstr("token"))));
  EXPECT_THAT(message({11, 23, 33}), AllOf(HasSubstr("another tokenizer;")));
  EXPECT_THAT(message({11, 22, 34}), HasSubstr("another numerics"));
  EXPECT_THAT(message({1, 2, 33}), HasSubstr("another model, another tokenizer;"));
  EXPECT_THAT(message(kIdentity, 3), HasSubstr("another layout"));
  EXPECT_THAT(message(kIdentity, 2, KvType::kF16), HasSubstr("another layout"));
}

TEST(SessionFile, OtherFilesAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  EXPECT_EQ(load_code(folder.file("missing")), "file_not_found");
  EXPECT_EQ(load_code(folder.file("")), "file_unreadable");
  EXPECT_EQ(load_code("/dev/null"), "file_unreadable");
  write_all(path, "GGUF");
  EXPECT_EQ(load_code(path), "bad_magic");
  write_all(path, std::string(500, '\0'));
  EXPECT_EQ(load_code(path), "bad_magic");
  write_all(path, "");
  EXPECT_EQ(load_code(path), "truncated");
}

TEST(SessionFile, DoesNotFitInThePool) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  small_file(path);  // 5 pages
  for (const uint64_t pages : {4u, 5u}) {
    PagePool pool = small_pool(2, pages);
    SequenceKv sequence(pool);
    EXPECT_EQ(load_code(path, sequence), pages < 5 ? "out_of_memory" : "loaded");
  }
}

TEST(SessionFile, RestoringStopsAtEveryStep) {
  const TemporaryFolder folder;
  const std::string path = folder.file("session");
  small_file(path);
  PagePool pool = small_pool(2, 200);
  int steps = 0;
  for (int stop = 1;; ++stop) {
    SequenceKv sequence(pool);
    uint64_t done = 0;
    int calls = 0;
    const auto saved = load_session(path, kIdentity, sequence, [&](const Progress& progress) {
      EXPECT_GT(progress.done, done);
      EXPECT_LE(progress.done, progress.total);
      EXPECT_EQ(progress.unit, "bytes");
      done = progress.done;
      return ++calls < stop;
    });
    if (saved) break;
    steps = stop;
    ASSERT_EQ(error_name(saved.error().code), "cancelled");
    ASSERT_EQ(pool.used_bytes(), 0u);
    ASSERT_EQ(sequence.length(), 0);
  }
  EXPECT_EQ(steps, 5);  // tokens, state, page map, two layers
}

}  // namespace
}  // namespace reprise
