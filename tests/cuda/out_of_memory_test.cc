// What an engine says where a device has no memory left, and that it goes on.
#include <cmath>

#include "cuda/session_testing.h"

namespace reprise::test {
namespace {

class CudaOutOfMemory : public CudaEngine {};

/// Takes the device's memory, but for some megabytes.
class Filler {
 public:
  Filler() {
    for (size_t size = size_t{1} << 36; size >= kLeast;) {
      size_t free = 0, total = 0;
      void* block = nullptr;
      EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
      if (free >= kLeft + size && cudaMalloc(&block, size) == cudaSuccess) {
        blocks_.push_back(block);
      } else {
        cudaGetLastError();
        size /= 2;
      }
    }
  }
  ~Filler() {
    for (void* block : blocks_) cudaFree(block);
  }
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;

 private:
  static constexpr size_t kLeft = size_t{8} << 20, kLeast = size_t{1} << 20;
  std::vector<void*> blocks_;
};

template <class T>
void expect_no_memory(const Result<T>& result) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kOutOfMemory) << result.error().message;
}

/// Of prompts that are far longer than what the model was trained on.
EngineOptions long_options() {
  EngineOptions options = cuda_options();
  options.ctx = 32768;
  options.chunk = 2048;
  options.batch = 64;
  options.kv_memory = uint64_t{256} << 20;
  return options;
}

// Sums and scores of searches take 100 MB for tables of the long prompt.
TEST_F(CudaOutOfMemory, GoesOnAfterLongPromptsFoundNoRoom) {
  const std::string policy =
      "csattention:mode=lists,index=64,activate=1,budget=96,window=16,sink=0,centroids=32,weights="
      "norm,backoff=false";
  const auto engine = tiny_engine(long_options());
  const Request prompt = request_of(tiny_prompt(20000, 2), 4);
  auto kept = *engine->open();
  Request request = request_of(tiny_prompt(3000), 8);
  const Logits want = logits_in(*kept, request);
  request.forced = best_tokens(want);
  answer_of(*engine, request_of(tiny_prompt(200), 2), policy);
  {
    const Filler filler;
    auto session = *engine->open(policy);
    expect_no_memory(session->generate(prompt));
  }
  expect_near(logits_in(*kept, request), want, bf16_tolerance(2));
  EXPECT_EQ(answer_of(*engine, prompt, policy).tokens.size(), 4);
  expect_near(logits_in(*kept, request), want, bf16_tolerance(2));
}

// Attention in parts takes 25 MB for so many rows of a prompt.
TEST_F(CudaOutOfMemory, PoliciesThatFoundNoRoomAreNotThere) {
  const std::string policy = "full:keys=position-free";
  EngineOptions options = cuda_options(), cpu = options;
  options.chunk = 8192;
  cpu.device = "cpu";
  const auto here = tiny_engine(options), there = tiny_engine(cpu);
  {
    const Filler filler;
    for (int i = 0; i < 2; ++i) expect_no_memory(here->open(policy));
  }
  Request request = request_of(tiny_prompt(200), 20);
  const Logits want = logits_of(*there, request, policy);
  request.forced = best_tokens(want);
  // Keys that were rounded before they are rotated are rounded once more.
  expect_near(logits_of(*here, request, policy), want, bf16_tolerance(2) * std::sqrt(1.25));
}

// Queries of all rows of the prompt take 31 MB.
TEST_F(CudaOutOfMemory, PromptsWhoseQueriesFoundNoRoomAreReadLater) {
  const std::string policy = "h2o:budget=64,observe=0";
  const auto engine = tiny_engine(long_options());
  answer_of(*engine, request_of(tiny_prompt(3000), 2), policy);
  const Request prompt = request_of(tiny_prompt(30000, 2), 4);
  auto session = *engine->open(policy);
  {
    const Filler filler;
    for (int i = 0; i < 2; ++i) expect_no_memory(session->generate(prompt));
  }
  EXPECT_EQ(answer_of(*session, prompt).tokens.size(), 4);
}

// Histories of 2^21 tokens take 134 MB.
TEST_F(CudaOutOfMemory, PenaltiesThatFoundNoRoomDisturbNoOthers) {
  EngineOptions options = cuda_options();
  options.prefix_cache = false;  // equal passes, so equal bits
  const auto engine = tiny_engine(options);
  Request request = request_of(tiny_prompt(40), 20);
  request.sampling.repeat_penalty = 1.2f;
  const Answer want = answer_of(*engine, request);
  Request longer = request;
  longer.sampling.repeat_window = 1 << 20;
  {
    const Filler filler;
    auto session = *engine->open();
    expect_no_memory(session->generate(longer));
  }
  EXPECT_EQ(answer_of(*engine, request).tokens, want.tokens);
  EXPECT_EQ(answer_of(*engine, longer).tokens, want.tokens);
}

}  // namespace
}  // namespace reprise::test
