// Every model family on a CUDA device, held against the CPU.
#include "cuda/engine_testing.h"
#include "cuda/family_model.h"

namespace reprise::test {
namespace {

struct Family {
  std::string name;
  uint32_t head_dim;
  double score_spread = 2;  // standard deviation of logits of attention, at most
};

// Rounded to bf16 on either side, each wrong by 2^-9 / sqrt(3) of itself on average: in the
// attention's branch inputs and weights of two products, weights of keys, values, and queries and
// keys, whose error the spread of scores multiplies; in the MLP's the input (twice, as the gate's
// product has two factors), its two products' weights, and those of the third and its input; then
// the head's. Errors add up independently.
double family_tolerance(const Family& family, uint32_t n_layer) {
  const double attention = 6 + 2 * family.score_spread * family.score_spread, mlp = 9;
  return 0x1p-9 / std::sqrt(3.0) * std::sqrt(2 * ((attention + mlp) * n_layer + 2));
}

class CudaFamilies : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    if (!kernels::cuda::has_device()) GTEST_SKIP() << "no CUDA device";
  }
};

// Weights are F32 here: both sides round them for prefill, beside the activations.
TEST_P(CudaFamilies, LogitsAreThoseOfTheCpu) {
  const GoldenFolder folder = family_folder(GetParam().name, GetParam().head_dim);
  EngineOptions options = cuda_options(), cpu;
  options.model = folder.path();
  cpu = options;
  cpu.device = "cpu";
  const auto here = tiny_engine(options), there = tiny_engine(cpu);
  const double tolerance = family_tolerance(GetParam(), here->info().n_layer);
  for (const size_t length : {1, 23, 24, 25, 100, 300}) {  // around the window of 24, two chunks
    Request request = request_of(tiny_prompt(length), 30);
    const Logits want = logits_of(*there, request);
    request.forced = best_tokens(want);
    SCOPED_TRACE(length);
    expect_near(logits_of(*here, request), want, tolerance);
  }
}

// A product in float is wrong by some 2^-21 where one of bf16 operands is by 2^-9.
TEST_P(CudaFamilies, InFloatLogitsAreThoseOfTheCpu) {
  const GoldenFolder folder = family_folder(GetParam().name, GetParam().head_dim);
  EngineOptions options = cuda_options(), cpu;
  options.model = folder.path();
  options.precision = "f32";
  cpu = options;
  cpu.device = "cpu";
  const auto here = tiny_engine(options), there = tiny_engine(cpu);
  const double tolerance = 0x1p-12 * family_tolerance(GetParam(), here->info().n_layer);
  Request request = request_of(tiny_prompt(100), 30);
  const Logits want = logits_of(*there, request);
  request.forced = best_tokens(want);
  expect_near(logits_of(*here, request), want, tolerance);
}

// Products of few rows do not take rows of 36864 columns: those of prompts compute decoded rows,
// too, and round more of them than the CPU does.
TEST_F(CudaEngine, DecodesWhereRowsAreTooLongForProductsOfFew) {
  constexpr uint32_t kFfn = 36864;
  const Family family = {"llama", 64};
  const GoldenFolder folder = family_folder(family.name, family.head_dim, kFfn, true);
  EngineOptions options = cuda_options(), cpu;
  options.model = folder.path();
  cpu = options;
  cpu.device = "cpu";
  Request request = request_of(tiny_prompt(20), 5);
  const Logits want = logits_of(*tiny_engine(cpu), request);
  request.forced = best_tokens(want);
  expect_near(logits_of(*tiny_engine(options), request), want, 2 * family_tolerance(family, 1));
  options.precision = "f32";
  const auto exact = Engine::load(options);
  ASSERT_FALSE(exact);
  EXPECT_EQ(exact.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(exact.error().message.find(std::to_string(kFfn)), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, CudaFamilies,
                         testing::Values(Family{"llama", 64}, Family{"llama_bias", 64},
                                         Family{"llama3_rope", 128}, Family{"llama_linear", 64},
                                         Family{"mistral", 128}, Family{"smollm3", 64},
                                         Family{"qwen2", 128}, Family{"qwen2_yarn", 64},
                                         Family{"qwen2_window", 64}, Family{"qwen3", 128},
                                         Family{"phi3", 96}, Family{"phi3_short", 96},
                                         Family{"phi3_long", 96}, Family{"granite", 64},
                                         Family{"gemma2", 256}, Family{"gemma3", 256, 4}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace reprise::test
