// Blocks of stored chunks that threads read ahead, against what was stored.
#include "fusion/block_reader.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/no_threads.h"
#include "kv/read_faults.h"
#include "store/store_testing.h"

namespace reprise {
namespace {

using test::NoThreads;

constexpr uint32_t kChunks = 7;

// Chunks of all forms in a prompt.
BlockCodec codec_of(size_t chunk) { return kTestCodecs[chunk % std::size(kTestCodecs)]; }

class BlockReading : public ::testing::Test {
 protected:
  BlockReading() {
    for (uint32_t number = 1; number <= kChunks; ++number) {
      EXPECT_TRUE(add_chunk(store_, number, codec_of(number - 1)));
      const TestChunk chunk = make_chunk(number);
      auto found = store_.find(kTestIdentity, chunk.ids());
      EXPECT_TRUE(found && *found);
      chunks_.push_back(std::move(**found));
    }
    for (const StoredChunk& chunk : chunks_) {
      const auto tokens = static_cast<int32_t>(chunk.record().tokens.size());
      loads_.push_back({&chunk, 0, tokens, 0, 0});
      all_bytes_ += block_stride(chunk);
    }
  }

  BlockReader::Plan plan(size_t most_bytes, size_t slots, ThreadPool& pool) {
    BlockReader::Plan plan;
    plan.loads = loads_;
    plan.parts = block_parts(loads_, most_bytes);
    plan.layers = kTestIdentity.n_layer;
    memory_.assign(slots, std::vector<std::byte>(all_bytes_));
    for (auto& slot : memory_) plan.slots.push_back(slot.data());
    plan.pool = &pool;
    return plan;
  }
  static std::vector<std::byte> stored(size_t chunk, size_t layer) {
    return layer_as(make_chunk(static_cast<uint32_t>(chunk) + 1), static_cast<uint32_t>(layer),
                    codec_of(chunk), kReadForm);
  }
  void expect_part(const BlockPart& part, size_t layer, const std::byte* slot) {
    for (size_t i = part.first; i < part.end; ++i) {
      const auto want = stored(i, layer);
      ASSERT_EQ(std::vector<std::byte>(slot, slot + want.size()), want) << layer << ": " << i;
      slot += block_aligned(want.size());
    }
  }
  void expect_all(const BlockReader::Plan& plan) {
    BlockReader reader(plan);
    for (size_t layer = plan.first_layer; layer < plan.layers; ++layer) {
      for (const BlockPart& part : plan.parts) {
        const auto slot = reader.next();
        ASSERT_TRUE(slot) << slot.error().message;
        expect_part(part, layer, *slot);
        reader.release();
      }
    }
    EXPECT_EQ(reader.failed(), nullptr);
    EXPECT_EQ(reader.slow(), nullptr);
  }

  const TemporaryFolder folder_;
  ChunkStore store_ = open_store(folder_.file("store"));
  std::vector<StoredChunk> chunks_;
  std::vector<ChunkLoad> loads_;
  size_t all_bytes_ = 0;
  std::vector<std::vector<std::byte>> memory_;
};

TEST_F(BlockReading, PartsComeInOrderHoweverManyThreadsRead) {
  for (const int threads : {1, 2, 8}) {
    ThreadPool pool(threads);
    for (const size_t most_bytes : {size_t{1}, all_bytes_ / 3, all_bytes_}) {
      for (const size_t slots : {1, 2, 4}) {
        for (const uint32_t first : {0u, 2u}) {
          auto plan = this->plan(most_bytes, slots, pool);
          plan.first_layer = first;
          expect_all(plan);
        }
      }
    }
  }
}

TEST_F(BlockReading, ASlotIsWrittenWhenItIsUnused) {
  ThreadPool pool(4);
  auto plan = this->plan(all_bytes_, 2, pool);
  std::atomic<size_t> unused = 0;
  plan.await_unused = [&](size_t nth) -> Status {
    EXPECT_LT(nth, 1u);  // of three parts, one takes the slot of another
    ++unused;
    return {};
  };
  expect_all(plan);
  EXPECT_EQ(unused, kChunks);
  plan.await_unused = [](size_t) -> Status { return fail(ErrorCode::kUnsupported, "no event"); };
  BlockReader reader(plan);
  auto slot = reader.next();
  ASSERT_TRUE(slot) << "its slot was never used";
  size_t given = 0;
  for (; slot; slot = reader.next()) {
    ++given;
    reader.release();
  }
  EXPECT_LE(given, 2u);  // 1 where the second part was still read when the third one failed
  EXPECT_EQ(slot.error().message, "no event");
  EXPECT_EQ(reader.failed(), nullptr);
}

TEST_F(BlockReading, WhatStaysIsReadOnce) {
  ThreadPool pool(3);
  std::vector<std::vector<std::byte>> kept(kChunks);
  auto plan = this->plan(all_bytes_ / 3, 2, pool);
  plan.kept.resize(kChunks);
  for (const size_t chunk : {1, 4}) {
    kept[chunk].resize(plan.layers * block_stride(chunks_[chunk]));
    plan.kept[chunk].blocks = kept[chunk].data();
  }
  for (const bool again : {false, true}) {
    const ReadFault counted(ReadFault::kSlow);
    BlockReader reader(plan);
    for (size_t part = 0; part < plan.layers * plan.parts.size(); ++part) {
      ASSERT_TRUE(reader.next());
      reader.release();
    }
    EXPECT_EQ(counted.count(), static_cast<int>(plan.layers * (again ? kChunks - 2 : kChunks)));
    for (const size_t chunk : {1, 4}) {
      for (size_t layer = 0; layer < plan.layers; ++layer) {
        const auto want = stored(chunk, layer);
        const auto* at = kept[chunk].data() + layer * block_aligned(want.size());
        EXPECT_EQ(std::vector<std::byte>(at, at + want.size()), want);
      }
      plan.kept[chunk].read = true;
    }
  }
}

TEST_F(BlockReading, NothingIsReadWhereAllStays) {
  ThreadPool pool(2);
  auto plan = this->plan(all_bytes_, 2, pool);
  plan.kept.assign(kChunks, {memory_[0].data(), true});
  for (const bool threads : {true, false}) {
    std::optional<NoThreads> none;
    if (!threads) none.emplace();
    const ReadFault broken(ReadFault::kBroken);
    BlockReader reader(plan);
    for (size_t part = 0; part < plan.layers; ++part) {
      ASSERT_TRUE(reader.next());
      reader.release();
    }
    EXPECT_EQ(broken.count(), 0);
  }
}

TEST_F(BlockReading, AChunkThatCannotBeReadIsNamed) {
  ThreadPool pool(4);
  for (const bool threads : {true, false}) {
    std::optional<NoThreads> none;
    if (!threads) none.emplace();
    const ReadFault broken(ReadFault::kBroken);
    BlockReader reader(plan(all_bytes_ / 3, 3, pool));
    const auto slot = reader.next();
    ASSERT_FALSE(slot);
    EXPECT_EQ(slot.error().code, ErrorCode::kFileUnreadable);
    EXPECT_EQ(std::ranges::count(loads_, reader.failed(), &ChunkLoad::chunk), 1);
    EXPECT_EQ(reader.slow(), nullptr);
  }
}

TEST_F(BlockReading, SlowReadingIsGivenUp) {
  ThreadPool pool(4);
  for (const bool threads : {true, false}) {
    std::optional<NoThreads> none;
    if (!threads) none.emplace();
    const ReadFault slow(ReadFault::kSlow);
    auto plan = this->plan(all_bytes_, 2, pool);
    plan.row_ms = 0.01;
    BlockReader reader(plan);
    const auto slot = reader.next();
    ASSERT_FALSE(slot);
    EXPECT_EQ(slot.error().code, ErrorCode::kCancelled);
    ASSERT_NE(reader.slow(), nullptr);
    EXPECT_EQ(reader.slow()->chunks.size(), kChunks);
    EXPECT_GT(reader.slow()->reading_ms, reader.slow()->computing_ms);
    EXPECT_EQ(reader.failed(), nullptr);
  }
}

// Threads side by side take the time of one after the other in part; waits for slots do not count.
TEST_F(BlockReading, OnlyReadingIsForecast) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (const bool starts : {true, false}) {
      std::optional<NoThreads> none;
      if (!starts) none.emplace();
      const ReadFault slow(ReadFault::kSlow);
      auto plan = this->plan(all_bytes_, 1, pool);
      plan.row_ms = 1e-6;
      BlockReader reader(plan);
      ASSERT_FALSE(reader.next());
      ASSERT_NE(reader.slow(), nullptr);
      const double side_by_side = starts ? std::max(1, threads - 1) : 1;
      EXPECT_GE(reader.slow()->reading_ms, 3 * 50 * kChunks / side_by_side);
    }
  }
  ThreadPool pool(2);
  auto plan = this->plan(all_bytes_, 1, pool);
  plan.row_ms = 2;  // 112 ms for all tokens; parts wait for 420
  plan.await_unused = [](size_t) -> Status {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    return {};
  };
  expect_all(plan);
}

TEST_F(BlockReading, AReaderThatIsNotReadToItsEndStops) {
  ThreadPool pool(4);
  for (int parts = 0; parts < 3; ++parts) {
    BlockReader reader(plan(all_bytes_ / 3, 1, pool));
    for (int i = 0; i < parts; ++i) {
      ASSERT_TRUE(reader.next());
      reader.release();
    }
  }
}

TEST_F(BlockReading, TheCallerReadsWhereTheSystemStartsNoThread) {
  ThreadPool pool(2);
  const NoThreads none;
  for (const size_t slots : {1, 3}) expect_all(plan(all_bytes_ / 3, slots, pool));
}

}  // namespace
}  // namespace reprise
