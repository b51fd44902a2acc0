// Where loaded keys stand after fusion on a CUDA device.
#include <complex>

#include "cuda/fusion_testing.h"

namespace reprise::test {
namespace {

/// Keys [tokens, heads, head_dim] that stood from a position on, rotated to where they stand now.
std::vector<float> turned(std::vector<float> keys, Engine& engine, uint32_t layer, int32_t from,
                          int32_t to) {
  const ModelConfig& config = engine.impl().model->config();
  const RopeTable& rope = engine.impl().model->rope(layer);
  const size_t width = size_t{config.n_kv_head} * config.head_dim;
  std::vector<float> before(2 * rope.pairs()), after(2 * rope.pairs());
  for (size_t token = 0; token < keys.size() / width; ++token) {
    rope.cos_sin(from + static_cast<int32_t>(token), before.data());
    rope.cos_sin(to + static_cast<int32_t>(token), after.data());
    for (size_t i = 0; i < config.n_kv_head * rope.pairs(); ++i) {
      const size_t head = i / rope.pairs(), pair = i % rope.pairs();
      using Complex = std::complex<float>;
      const Complex by = Complex(after[2 * pair], after[2 * pair + 1]) /
                         Complex(before[2 * pair], before[2 * pair + 1]);
      float* at = &keys[token * width + head * config.head_dim + 2 * pair];
      const Complex key = Complex(at[0], at[1]) * by;
      at[0] = key.real();
      at[1] = key.imag();
    }
  }
  return keys;
}

void expect_keys(const std::vector<float>& got, const std::vector<float>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double size = std::hypot(want[i], want[i ^ 1]);
    ASSERT_NEAR(got[i], want[i], 0x1p-7 * size + 1e-6) << i;
  }
}

// In layer 0 keys and values depend on the token alone, and are computed. In others keys are
// rounded to bf16 before they are stored, and once more behind the rotation.
TEST_F(CudaEngine, FusionRotatesKeysToTheirNewPlace) {
  for (const char* scaling : {"", "linear", "yarn"}) {
    Books books(stored_options("bf16", scaling));
    const PartedPrompt prompt = three_chunks();
    books.add(prompt);
    auto exact = *books.engine->open(), moved = *books.engine->open();
    books.logits(*exact, prompt);
    ASSERT_TRUE(books.library->fuse(*moved, prompt, "pie"));
    for (const bool keys : {true, false}) {
      const auto want = read_back(*exact, 0, 0, 332, keys),
                 got = read_back(*moved, 0, 0, 332, keys);
      SCOPED_TRACE(std::string(scaling) + (keys ? " keys" : " values"));
      expect_keys(got, want);
      EXPECT_GT(relative_distance(read_back(*moved, 1, 21, 332, keys),
                                  read_back(*exact, 1, 21, 332, keys)),
                bf16_tolerance(kStoredLayers));
    }
    auto alone = *books.engine->open();
    const PartedPrompt elsewhere = {{256}, {prompt.chunks[0]}, prompt.question};
    ASSERT_TRUE(books.library->fuse(*alone, elsewhere, "pie"));
    expect_keys(read_back(*moved, 1, 21, 121, true),
                turned(read_back(*alone, 1, 1, 101, true), *books.engine, 1, 1, 21));
    ASSERT_TRUE(books.library->fuse(*moved, prompt, "full-reuse"));
    EXPECT_GT(
        relative_distance(read_back(*moved, 0, 21, 121, true), read_back(*exact, 0, 21, 121, true)),
        0.1);
    EXPECT_LT(relative_distance(read_back(*moved, 0, 21, 121, false),
                                read_back(*exact, 0, 21, 121, false)),
              0x1p-7);
  }
}

}  // namespace
}  // namespace reprise::test
