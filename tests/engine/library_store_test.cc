// What the store gives back shows in answers as it should: forms of chunks, damage.
#include <fstream>

#include "engine/library_testing.h"

namespace reprise {
namespace {

using test::Books;
using test::distance;
using test::three_chunks;

// Damage that shows when a deep layer is read makes the chunk one that is computed.
TEST(LibraryStore, DamagedChunkIsComputed) {
  for (const char* codec : {"none", "zstd", "q8_0", "q8_0+zstd"}) {
    Books books("bf16", "", codec);
    PartedPrompt prompt = three_chunks();
    books.add(prompt);
    const std::string segment = books.folder + "/seg-00000001.kv";
    {
      std::fstream file(segment, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(-5000, std::ios::end).put('\x55').put('\x55').put('\x55');  // third chunk
    }
    const auto damaged = books.fused(prompt, "legolink:first=5");
    EXPECT_EQ(books.report.damaged_chunks, 1u) << codec;
    EXPECT_EQ(books.report.loaded_rows, 137u);
    Books others("bf16", "", codec);
    ASSERT_TRUE(others.library->add("book", 0, prompt.chunks[0]));
    ASSERT_TRUE(others.library->add("book", 0, prompt.chunks[1]));
    EXPECT_EQ(others.fused(prompt, "legolink:first=5"), damaged) << codec;
    EXPECT_EQ(others.report.missing_chunks, 1u);
  }
}

// Compression changes nothing; rounding changes little, and is counted.
TEST(LibraryStore, StoredFormsGiveTheSameOrNearlySo) {
  for (const char* type : {"bf16", "f32"}) {
    Books exact(type), packed(type, "", "zstd"), rounded(type, "", "q8_0+zstd");
    const PartedPrompt prompt = three_chunks();
    for (Books* books : {&exact, &packed, &rounded}) books->add(prompt);
    const auto full = exact.full(prompt), loaded = exact.fused(prompt, "pie");
    EXPECT_EQ(packed.fused(prompt, "pie"), loaded) << type;
    EXPECT_EQ(packed.report.rounded_chunks, 0u);
    EXPECT_LT(packed.report.loaded_bytes, exact.report.loaded_bytes);
    const auto near = rounded.fused(prompt, "pie");
    EXPECT_EQ(rounded.report.rounded_chunks, 3u);
    EXPECT_NE(near, loaded);
    // Less than not having seen what stands before.
    EXPECT_LT(distance(near, loaded), distance(loaded, full) / 2) << type;
    EXPECT_EQ(rounded.fused(prompt, "a3:ratio=1"), full);
    EXPECT_FALSE(*packed.library->add("book", 0, prompt.chunks[0]));
  }
}

}  // namespace
}  // namespace reprise
