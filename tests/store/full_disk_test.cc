// A store on a disk without room: a file system in memory of few megabytes, where one may be
// mounted.
#include <sys/mount.h>

#include <fstream>

#include "store/store_testing.h"

namespace reprise {
namespace {

class FullDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (::mount("tmpfs", folder_.file("").c_str(), "tmpfs", 0, "size=8m") != 0) {
      GTEST_SKIP() << "nothing may be mounted here";
    }
    mounted_ = true;
  }
  ~FullDisk() override {
    if (mounted_) ::umount2(folder_.file("").c_str(), MNT_DETACH);
  }
  void fill() const {
    std::ofstream file(folder_.file("filler"), std::ios::binary);
    const std::vector<char> block(4096, 'x');
    while (file.write(block.data(), 4096).flush()) {
    }
  }
  // A store of so many chunks, and a disk that is full beside it.
  std::string full_store(uint32_t chunks) const {
    {
      ChunkStore store = open_store(folder_.file("store"));
      for (uint32_t n = 1; n <= chunks; ++n) EXPECT_TRUE(add_chunk(store, n).value());
    }
    fill();
    return folder_.file("store");
  }
  uint64_t room() const { return std::filesystem::space(folder_.file("")).available; }

  const TemporaryFolder folder_;
  bool mounted_ = false;
};

TEST_F(FullDisk, WhatIsThereIsFoundListedAndRemoved) {
  const std::string path = full_store(20);
  ASSERT_EQ(room(), 0u);
  for (const bool empty : {false, true}) {
    auto store = ChunkStore::open(path, false);
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_EQ(store->list()->size(), empty ? 0u : 20u);
    if (empty) break;
    for (uint32_t n = 1; n <= 20; ++n) EXPECT_EQ(look_up(*store, n), Found::kRight);
    EXPECT_TRUE(store->verify()->empty());
    EXPECT_TRUE(store->remove(*store->list()));
    const auto freed = store->collect(1.0);
    ASSERT_TRUE(freed) << freed.error().message;
    EXPECT_GT(*freed, 0u);
  }
  EXPECT_EQ(std::filesystem::file_size(path + "/spare"), SpareRoom::kBytes);
}

// A chunk that would fit into the room that was given up.
TEST_F(FullDisk, NothingIsAddedIntoTheSpareRoom) {
  const std::string path = full_store(1);
  {
    ChunkStore store = open_store(path);
    const auto added = add_chunk(store, 2);
    ASSERT_FALSE(added);
    EXPECT_THAT(added.error().message, testing::HasSubstr("No space left on device"));
    std::filesystem::remove(folder_.file("filler"));
    EXPECT_TRUE(add_chunk(store, 2).value());
  }
  EXPECT_EQ(std::filesystem::file_size(path + "/spare"), SpareRoom::kBytes);
}

// Stores of earlier versions have none.
TEST_F(FullDisk, RoomIsMadeWhenAStoreIsOpened) {
  const std::string path = folder_.file("store");
  open_store(path);
  std::filesystem::remove(path + "/spare");
  EXPECT_TRUE(open_store(path).list());
  EXPECT_EQ(std::filesystem::file_size(path + "/spare"), SpareRoom::kBytes);
}

TEST_F(FullDisk, NothingIsAddedAndNothingLost) {
  const std::string path = folder_.file("store");
  {
    ChunkStore store = open_store(path);
    ASSERT_TRUE(add_chunk(store, 1).value());
    fill();
    const auto added = add_chunk(store, 2);
    ASSERT_FALSE(added);
    EXPECT_THAT(added.error().message, testing::HasSubstr("No space left on device"));
    EXPECT_EQ(look_up(store, 1), Found::kRight);
  }
  std::filesystem::remove(folder_.file("filler"));
  ChunkStore store = open_store(path);
  EXPECT_EQ(look_up(store, 1), Found::kRight);
  EXPECT_EQ(look_up(store, 2), Found::kMissing);
  EXPECT_TRUE(add_chunk(store, 2).value());
}

// When whoever gave it up ends, also where that was moved meanwhile.
TEST_F(FullDisk, TheRoomIsTakenBack) {
  const std::string path = full_store(1);
  {
    auto store = ChunkStore::open(path, false);
    ASSERT_TRUE(store);
    EXPECT_EQ(look_up(*store, 1), Found::kRight);
    EXPECT_FALSE(std::filesystem::exists(path + "/spare"));
    ChunkStore moved = std::move(*store);
    EXPECT_EQ(look_up(moved, 1), Found::kRight);
  }
  EXPECT_EQ(std::filesystem::file_size(path + "/spare"), SpareRoom::kBytes);
}

}  // namespace
}  // namespace reprise
