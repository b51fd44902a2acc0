#include "kv/page_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "kv/kv_testing.h"

namespace reprise {
namespace {

using kernels::KvLayout;
using kernels::KvType;

// Bytes of a layer's slab that are backed by memory.
size_t resident_bytes(const PagePool& pool, uint32_t layer) {
  const auto system_page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(pool.limit_bytes() / system_page + 1);
  EXPECT_EQ(::mincore(pool.memory().slab(layer), pool.limit_bytes(), resident.data()), 0);
  size_t count = 0;
  for (const unsigned char page : resident) count += page & 1;
  return count * system_page;
}

TEST(PagePool, CreateRejectsEmptyAndTooSmallAndTooLarge) {
  const KvLayout layout = small_layout();
  const auto code = [](const Result<PagePool>& result) {
    return result ? "created" : error_name(result.error().code);
  };
  EXPECT_EQ(code(PagePool::create(layout, 0, 1 << 20)), "invalid_argument");
  EXPECT_EQ(code(PagePool::create({KvType::kBF16, 0, 32}, 1, 1 << 20)), "invalid_argument");
  EXPECT_EQ(code(PagePool::create(layout, 4, 4 * layout.page_bytes() - 1)), "out_of_memory");
  EXPECT_EQ(code(PagePool::create(layout, 4, 4 * layout.page_bytes())), "created");
  EXPECT_EQ(code(PagePool::create(layout, 64, uint64_t{1} << 60)), "out_of_memory");
  EXPECT_EQ(code(PagePool::create(layout, 1 << 30, ~uint64_t{0})), "out_of_memory");
}

TEST(PagePool, LimitCountsPagesOfAllLayers) {
  PagePool pool = small_pool(2, 5);
  EXPECT_EQ(pool.free_pages(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_NE(pool.allocate(i % 2), kNoPage);
  EXPECT_EQ(pool.allocate(0), kNoPage);
  EXPECT_EQ(pool.allocate(1), kNoPage);
  EXPECT_EQ(pool.used_bytes(), 5 * pool.page_bytes());
  EXPECT_EQ(pool.used_bytes(), pool.limit_bytes());
  pool.release(0, 1);
  EXPECT_EQ(pool.allocate(1), 2u);  // what one layer frees, another may use
}

TEST(PagePool, FreshPagesAreContiguousAndZero) {
  PagePool pool = small_pool(2, 64);
  for (PageId i = 0; i < 64; ++i) {
    ASSERT_EQ(pool.allocate(1), i);
    ASSERT_EQ(pool.data(1, i), pool.data(1, 0) + i * pool.page_bytes());
    for (size_t byte = 0; byte < pool.page_bytes(); ++byte) {
      ASSERT_EQ(pool.data(1, i)[byte], std::byte{0});
    }
  }
}

// A slab begins in small pages, and what they hold stays when huge ones take their place.
TEST(PagePool, AShortTextTakesLittleMemoryAndALongOneKeepsIt) {
  const uint64_t pages = 1500;  // of 4 KiB
  PagePool pool = small_pool(1, pages);
  const auto value = [](PageId page) { return static_cast<int>(page % 251 + 1); };
  for (PageId page = 0; page < pages; ++page) {
    ASSERT_EQ(pool.allocate(0), page);
    std::memset(pool.data(0, page), value(page), pool.page_bytes());
    if (page == 2) {
      EXPECT_LE(resident_bytes(pool, 0), size_t{512} << 10);
    }
  }
  for (PageId page = 0; page < pages; ++page) {
    const std::byte* data = pool.data(0, page);
    for (size_t i = 0; i < pool.page_bytes(); ++i) ASSERT_EQ(data[i], std::byte(value(page)));
  }
}

TEST(PagePool, LastFreedIsReusedFirst) {
  PagePool pool = small_pool(1, 40);
  for (int i = 0; i < 8; ++i) pool.allocate(0);
  pool.release(0, 2);
  pool.release(0, 6);
  EXPECT_EQ(pool.allocate(0), 6u);
  EXPECT_EQ(pool.allocate(0), 2u);
  EXPECT_EQ(pool.allocate(0), 8u);
}

TEST(PagePool, SharedPageIsFreedByItsLastUser) {
  PagePool pool = small_pool(1, 4);
  const PageId page = pool.allocate(0);
  pool.retain(0, page);
  pool.retain(0, page);
  EXPECT_EQ(pool.references(0, page), 3u);
  pool.release(0, page);
  pool.release(0, page);
  EXPECT_EQ(pool.used_bytes(), pool.page_bytes());
  pool.release(0, page);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(PagePool, MoveKeepsPages) {
  PagePool first = small_pool(1, 4);
  const PageId page = first.allocate(0);
  std::memset(first.data(0, page), 7, first.page_bytes());
  PagePool second = std::move(first);
  EXPECT_EQ(second.data(0, page)[11], std::byte{7});
  EXPECT_EQ(second.used_bytes(), second.page_bytes());
}

class PagePoolOfType : public testing::TestWithParam<KvType> {};
INSTANTIATE_TEST_SUITE_P(Types, PagePoolOfType, testing::ValuesIn(kernels::kKvTypes));

// What one layer freed is given back before another layer touches new memory.
TEST_P(PagePoolOfType, BackedMemoryStaysWithinTheLimit) {
  const uint64_t pages = 400;
  PagePool pool = small_pool(3, pages, GetParam());
  // A touched huge page is resident as a whole.
  const size_t slack = 2 * 4096 + 3 * (size_t{2} << 20);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (uint64_t i = 0; i < pages; ++i) {
      const PageId page = pool.allocate(layer);
      ASSERT_NE(page, kNoPage);
      std::memset(pool.data(layer, page), 1, pool.page_bytes());
      ASSERT_LE(pool.backed_bytes(), pool.limit_bytes());
    }
    size_t resident = 0;
    for (uint32_t other = 0; other < 3; ++other) resident += resident_bytes(pool, other);
    EXPECT_LE(resident, pool.limit_bytes() + slack);
    // Out of order, so that pages are given back one by one and in runs.
    for (PageId i = 0; i < pages; i += 2) pool.release(layer, i);
    for (PageId i = 1; i < pages; i += 2) pool.release(layer, i);
    EXPECT_LE(pool.backed_bytes(), pool.limit_bytes() / 4 + pool.page_bytes());
  }
}

// Random use against a model that knows what every live page holds.
TEST_P(PagePoolOfType, RandomUseKeepsContentsAndCounts) {
  struct Live {
    uint32_t references;
    std::byte content;
  };
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const uint32_t n_layer = 1 + random() % 3;
    const uint64_t limit = n_layer + random() % 60;
    PagePool pool = small_pool(n_layer, limit, GetParam());
    std::map<std::pair<uint32_t, PageId>, Live> live;
    const auto check = [&](const auto& entry) {
      const auto& [where, page] = entry;
      ASSERT_EQ(pool.references(where.first, where.second), page.references);
      const std::byte* data = pool.data(where.first, where.second);
      for (size_t i = 0; i < pool.page_bytes(); ++i) ASSERT_EQ(data[i], page.content);
    };
    for (int step = 0; step < 400; ++step) {
      const uint32_t layer = random() % n_layer;
      if (live.empty() || random() % 2 == 0) {
        const PageId page = pool.allocate(layer);
        ASSERT_EQ(page == kNoPage, live.size() == limit);
        if (page == kNoPage) continue;
        const std::byte content{static_cast<unsigned char>(random())};
        std::memset(pool.data(layer, page), static_cast<int>(content), pool.page_bytes());
        ASSERT_TRUE(live.emplace(std::pair(layer, page), Live{1, content}).second);
      } else {
        auto entry = std::next(live.begin(), static_cast<int>(random() % live.size()));
        const auto [where, page] = *entry;
        if (random() % 3 == 0) {
          pool.retain(where.first, where.second);
          ++entry->second.references;
        } else {
          pool.release(where.first, where.second);
          if (--entry->second.references == 0) live.erase(entry);
        }
      }
      ASSERT_EQ(pool.used_bytes(), live.size() * pool.page_bytes());
      ASSERT_LE(pool.backed_bytes(), pool.limit_bytes());
    }
    for (const auto& entry : live) check(entry);
    for (const auto& [where, page] : live) {
      for (uint32_t i = 0; i < page.references; ++i) pool.release(where.first, where.second);
    }
    EXPECT_EQ(pool.used_bytes(), 0u);
  }
}

}  // namespace
}  // namespace reprise
