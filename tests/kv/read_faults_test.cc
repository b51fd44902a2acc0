// A disk that cannot be read, or not at once: what cannot be read is told, and never what it was
// not.
#include "kv/read_faults.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <deque>
#include <optional>

#include "kv/file_io.h"
#include "kv/hidden_file.h"
#include "kv/kv_testing.h"
#include "kv/page_reader.h"
#include "kv/paged_testing.h"
#include "kv/session_testing.h"

namespace reprise {
namespace {

class ReadFaults : public testing::Test {
 protected:
  /// A sequence of 320 tokens, of whose 40 pages 12 have room in memory.
  void SetUp() override {
    ASSERT_TRUE(pool_.add_disk(folder_.file(""), 200 * small_layout().page_bytes()));
    ASSERT_GE(hidden_file(folder_.file("")), 0);  // no direct transfers from now on
    large_.page_out();
    want_ = random_values(random_, 320);
    for (size_t i = 0; i < want_.size(); i += 20) {
      ASSERT_TRUE(append_paged(large_, Values(&want_[i], &want_[i] + 20)));
    }
  }

  /// Whether the page can be read; then it is as it was.
  bool is_there(uint32_t layer, size_t block) {
    const Held held(large_, layer, block, block + 1);
    if (!held.status) {
      EXPECT_EQ(held.status.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(held.status.error().message, testing::HasSubstr("--kv-disk"));
      return false;
    }
    for (size_t i = 16 * block; i < 16 * block + 16; ++i) {
      EXPECT_TRUE(holds_token(large_, layer, static_cast<int32_t>(i), want_[i])) << layer << i;
    }
    return true;
  }

  TemporaryFolder folder_;
  std::mt19937 random_{1};
  PagePool pool_ = small_pool(2, 12);
  SequenceKv large_{pool_};
  Values want_;
};

TEST_F(ReadFaults, ShortAndInterruptedReadsGoOn) {
  const ReadFault pieces(ReadFault::kPieces);
  expect_paged(large_, want_);
  EXPECT_GT(pieces.count(), 100);
  EXPECT_EQ(pool_.tiers().lost_pages, 0u);
}

TEST_F(ReadFaults, WhatCannotBeReadIsLostAndTheRestIsWhatItWas) {
  for (const ReadFault::Kind kind : ReadFault::failures()) {
    SCOPED_TRACE(kind);
    const uint64_t lost_before = pool_.tiers().lost_pages;
    std::vector<bool> there;
    {
      const ReadFault fault(kind, kind == ReadFault::kShortThenBroken ? 1 : 9);
      for (size_t page = 0; page < 40; ++page) {
        there.push_back(is_there(static_cast<uint32_t>(page / 20), page % 20));
      }
      EXPECT_GT(fault.count(), 0);
    }
    EXPECT_GT(pool_.tiers().lost_pages, lost_before);
    for (size_t page = 0; page < 40; ++page) {  // and stays lost, when the disk works again
      EXPECT_EQ(is_there(static_cast<uint32_t>(page / 20), page % 20), there[page]) << page;
    }
  }
}

// Enough of them, one after another in the file, that several become one request.
TEST(PageReader, OneDamagedPageOfManyNeighboursIsTheOnlyOneThatFails) {
  constexpr size_t kPages = 160, kBytes = 4096, kDamaged = 70;
  const TemporaryFolder folder;
  std::mt19937_64 random(5);
  std::vector<uint64_t> written(kPages * kBytes / sizeof(uint64_t)), read(written.size());
  for (uint64_t& word : written) word = random();
  const auto page_of = [&](std::vector<uint64_t>& words, size_t page) {
    return reinterpret_cast<std::byte*>(words.data()) + page * kBytes;
  };
  const int file = ::open(folder.file("pages").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_TRUE(write_at(file, page_of(written, 0), kPages * kBytes, 0));
  for (const int fault : {-1, int{ReadFault::kPieces}, int{ReadFault::kBroken}}) {
    SCOPED_TRACE(fault);
    std::deque<PageReader::Read> reads(kPages);
    std::vector<PageReader::Read*> asked;
    for (size_t page = 0; page < kPages; ++page) {
      reads[page].offset = page * kBytes;
      reads[page].checksum = XXH3_64bits(page_of(written, page), kBytes) + (page == kDamaged);
      reads[page].data = page_of(read, page);
      asked.push_back(&reads[page]);
    }
    std::fill(read.begin(), read.end(), 0);
    std::optional<ReadFault> faults;
    if (fault >= 0) faults.emplace(static_cast<ReadFault::Kind>(fault), 3);
    PageReader reader(file, kBytes, false);
    reader.start(asked, true);
    size_t failed = 0;
    for (size_t page = 0; page < kPages; ++page) {
      reader.wait(reads[page]);
      const bool done = reads[page].state == PageReader::Read::kDone;
      if (!done) ++failed;
      EXPECT_FALSE(done && page == kDamaged);
      EXPECT_TRUE(!done || std::memcmp(page_of(read, page), page_of(written, page), kBytes) == 0);
    }
    EXPECT_TRUE(failed == 1 || fault == ReadFault::kBroken);
    EXPECT_LT(failed, kPages / 2);
  }
  ::close(file);
}

}  // namespace
}  // namespace reprise
