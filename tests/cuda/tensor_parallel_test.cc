// Devices that share a model, held against one device alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/device_testing.h"
#include "cuda/engine_testing.h"
#include "kernels/cuda/nccl.h"

namespace reprise::test {
namespace {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// Partial sums are added in another order, in f32; what is rounded to bf16 after that may then be
// rounded the other way, so that errors are at most those of two computations in bf16.
double tolerance() { return bf16_tolerance(2); }

class TensorParallel : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count() < 2) GTEST_SKIP() << device_count() << " CUDA devices, not 2";
  }
  static EngineOptions shared() {
    EngineOptions options = cuda_options();
    options.tp = 2;
    return options;
  }
};

TEST_F(TensorParallel, LogitsAreThoseOfOneDevice) {
  for (const std::string type : {"bf16", "f16", "fp8"}) {
    EngineOptions one = cuda_options(), two = shared();
    one.kv_type = two.kv_type = type;
    const auto alone = tiny_engine(one), together = tiny_engine(two);
    for (const size_t length : {1, 15, 16, 17, 64, 65, 200, 700}) {  // chunks of 64
      Request request = request_of(tiny_prompt(length), 20);
      const Logits want = logits_of(*alone, request);
      request.forced = best_tokens(want);
      const Logits got = logits_of(*together, request);
      expect_near(got, want, type == "fp8" ? fp8_tolerance(2) : tolerance());
      ASSERT_EQ(got.front().size(), want.front().size());
    }
  }
}

// Where the answers part, the two tokens' logits must be nearly equal.
TEST_F(TensorParallel, GreedyAnswersAreThoseOfOneDevice) {
  const auto alone = tiny_engine(cuda_options()), together = tiny_engine(shared());
  for (const size_t length : {5, 100, 131}) {
    const Request request = request_of(tiny_prompt(length), 100);
    const Answer got = answer_of(*together, request), want = answer_of(*alone, request);
    ASSERT_EQ(got.tokens.size(), want.tokens.size());
    const auto differs =
        std::mismatch(got.tokens.begin(), got.tokens.end(), want.tokens.begin()).first;
    const auto same = static_cast<size_t>(differs - got.tokens.begin());
    if (same == got.tokens.size()) continue;
    const auto logits = logits_of(*alone, request)[same];
    const auto [least, most] = std::minmax_element(logits.begin(), logits.end());
    const float margin = logits[static_cast<size_t>(want.tokens[same])] -
                         logits[static_cast<size_t>(got.tokens[same])];
    EXPECT_LT(margin, tolerance() * (*most - *least))
        << "prompt of " << length << ": token " << same << " is " << got.tokens[same]
        << " instead of " << want.tokens[same];
  }
}

TEST_F(TensorParallel, TokensChosenAreThoseOfTheGatheredLogits) {
  const auto engine = tiny_engine(shared());
  for (const size_t length : {5, 100, 131}) {
    const Request request = request_of(tiny_prompt(length), 100);
    EXPECT_EQ(answer_of(*engine, request).tokens, best_tokens(logits_of(*engine, request)));
  }
  Request drawn = request_of(tiny_prompt(60), 30);
  drawn.sampling.temp = 1.0f;
  drawn.sampling.top_p = 0.95f;
  drawn.sampling.repeat_penalty = 1.2f;
  drawn.sampling.seed = 11;
  EXPECT_EQ(answer_of(*engine, drawn).tokens, answer_of(*engine, drawn).tokens);
}

// More sequences than narrow products compute, with prompts that are still being read.
TEST_F(TensorParallel, BatchesAreComputedTogether) {
  const auto alone = tiny_engine(cuda_options()), together = tiny_engine(shared());
  for (const size_t count : {3, 20}) {
    std::vector<Request> requests;
    std::vector<Logits> rows(count);
    std::vector<std::unique_ptr<Session>> sessions;
    for (uint32_t i = 0; i < count; ++i) {
      requests.push_back(request_of(tiny_prompt(10 + 13 * i, i), 10 + i));
      requests[i].forced = best_tokens(logits_of(*alone, requests[i]));
      Request request = requests[i];
      request.on_logits = [&row = rows[i]](std::span<const float> logits) {
        row.emplace_back(logits.begin(), logits.end());
      };
      sessions.push_back(*together->open());
      ASSERT_TRUE(together->submit(*sessions.back(), request, [](Result<Answer> answer) {
        ASSERT_TRUE(answer) << answer.error().message;
      }));
    }
    while (together->step()) continue;
    for (uint32_t i = 0; i < count; ++i) {
      expect_near(rows[i], logits_of(*alone, requests[i]), tolerance());
    }
  }
}

TEST_F(TensorParallel, ForksKeepTheirOwnKeys) {
  const auto alone = tiny_engine(cuda_options()), together = tiny_engine(shared());
  auto parent = *together->open();
  ASSERT_TRUE(parent->generate(request_of(tiny_prompt(100), 4)));
  for (uint32_t i = 0; i < 3; ++i) {
    const auto fork = parent->fork();
    auto prompt = tiny_prompt(100);
    const auto more = tiny_prompt(40, 7 + i);
    prompt.insert(prompt.end(), more.begin(), more.end());
    Request request = request_of(prompt, 8);
    const Logits want = logits_of(*alone, request);
    request.forced = best_tokens(want);
    Logits rows;
    request.on_logits = [&](std::span<const float> logits) {
      rows.emplace_back(logits.begin(), logits.end());
    };
    const auto answer = fork->generate(request);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_GE(answer->counters.reused_tokens, 96u);
    expect_near(rows, want, tolerance());
  }
}

// Every device chooses for its own heads; where bounds of pages are nearly equal it may choose
// differently, so the median row is compared.
TEST_F(TensorParallel, PoliciesReadWhatTheyReadOnOneDevice) {
  const auto alone = tiny_engine(cuda_options()), together = tiny_engine(shared());
  for (const std::string policy :
       {"streaming:sink=4,window=64", "quest:budget=64", "quest:budget=512"}) {
    Request request = request_of(tiny_prompt(300), 40);
    const Logits want = logits_of(*alone, request, policy);
    request.forced = best_tokens(want);
    const Counters here = answer_of(*together, request, policy).counters;
    const Counters there = answer_of(*alone, request, policy).counters;
    EXPECT_EQ(here.keys_read, there.keys_read) << policy;
    EXPECT_EQ(here.kv_bytes_read, there.kv_bytes_read) << policy;
    EXPECT_EQ(here.index_bytes_read, there.index_bytes_read) << policy;
    const Logits got = logits_of(*together, request, policy);
    ASSERT_EQ(got.size(), want.size());
    std::vector<double> distances;
    for (size_t i = 0; i < got.size(); ++i) distances.push_back(distance(got[i], want[i]));
    std::sort(distances.begin(), distances.end());
    EXPECT_LT(distances[distances.size() / 2], tolerance()) << policy;
  }
}

// A file holds whole pages, so the number of devices may change.
TEST_F(TensorParallel, SessionFilesAreThoseOfOneDevice) {
  const std::string path = scratch_folder() + "/shared.kv";
  const auto prompt = tiny_prompt(130);
  for (const uint32_t from : {1, 2}) {
    EngineOptions writing = cuda_options(), reading = cuda_options();
    writing.tp = from;
    reading.tp = 3 - from;
    {
      const auto engine = tiny_engine(writing);
      const auto session = *engine->open();
      ASSERT_TRUE(session->generate(request_of(prompt, 1)));
      const auto saved = session->save(path, "note");
      ASSERT_TRUE(saved) << saved.error().message;
    }
    const auto engine = tiny_engine(reading);
    const auto session = *engine->open();
    const auto note = session->restore(path);
    ASSERT_TRUE(note) << note.error().message;
    Request request = request_of(tiny_prompt(133), 20);
    const auto fresh = tiny_engine(cuda_options());
    const Logits want = logits_of(*fresh, request);
    request.forced = best_tokens(want);
    Logits got;
    request.on_logits = [&](std::span<const float> logits) {
      got.emplace_back(logits.begin(), logits.end());
    };
    const auto answer = session->generate(request);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->counters.reused_tokens, 130u);
    expect_near(got, want, tolerance());
  }
}

TEST_F(TensorParallel, KvMovesOnEveryDevice) {
  constexpr uint64_t kTokenBytes = 1024;  // of the tiny model, on both devices together
  EngineOptions options = shared();
  options.kv_memory = 1000 * kTokenBytes;
  options.kv_host = 4000 * kTokenBytes;
  const auto ample = tiny_engine(shared()), small = tiny_engine(options);
  KvTiers tiers;
  for (const std::string policy : {"full", "quest:budget=64"}) {
    for (uint32_t seed = 0; seed < 8; ++seed) {
      Request request = request_of(tiny_prompt(600, seed % 4), 20);
      request.forced = best_tokens(logits_of(*ample, request, policy));
      EXPECT_EQ(logits_of(*small, request, policy), logits_of(*ample, request, policy))
          << policy << ", prompt " << seed;
      tiers = answer_of(*small, request, policy).memory.kv;
    }
  }
  EXPECT_GT(tiers.host.moved_in_bytes, 1000 * kTokenBytes);
  EXPECT_GT(tiers.host.moved_out_bytes, 1000 * kTokenBytes);
}

TEST_F(TensorParallel, SaysWhatCannotBeShared) {
  EngineOptions options = shared();
  options.tp = 3;  // 2 KV heads
  const auto loaded = Engine::load(options);
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message, device_count() < 3
                                          ? testing::HasSubstr("2 CUDA devices were found")
                                          : testing::HasSubstr("4 query heads and 2 KV heads"));
}

TEST_F(TensorParallel, AutoTakesWhatCanBeShared) {
  const auto engine = tiny_engine(shared());
  EXPECT_TRUE(engine->open("auto")) << "mac, one of its policies, runs on one device";
  EXPECT_FALSE(engine->open("auto:among=mac"));
}

TEST(TensorParallelHere, NcclIsLoadedOrItsAbsenceIsTold) {
  const auto nccl = kernels::cuda::Nccl::load();
  if (nccl) {
    EXPECT_TRUE(nccl->check(kernels::cuda::Nccl::kSuccess, "nothing"));
    const Status failed = nccl->check(4, "a call");  // an invalid argument, in every version
    ASSERT_FALSE(failed);
    EXPECT_THAT(failed.error().message,
                testing::HasSubstr("a call failed: NCCL says \"invalid arg"));
    return;
  }
  EXPECT_EQ(nccl.error().code, ErrorCode::kDeviceUnavailable);
  EXPECT_THAT(nccl.error().message, testing::HasSubstr("install libnccl2"));
}

TEST(TensorParallelHere, TooFewDevicesAreCounted) {
  if (!kernels::cuda::has_device()) GTEST_SKIP() << "no CUDA device";
  if (device_count() >= 8) GTEST_SKIP() << "8 devices and more";
  EngineOptions options = cuda_options();
  options.tp = 8;
  const auto loaded = Engine::load(options);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kDeviceUnavailable);
  EXPECT_THAT(loaded.error().message,
              testing::HasSubstr("--tp 8: " + std::to_string(device_count()) + " CUDA device"));
}

}  // namespace
}  // namespace reprise::test
