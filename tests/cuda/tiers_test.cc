// KV beside the device's memory: in the host's and on disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "attention/cuda/device_policy.h"
#include "cuda/engine_testing.h"
#include "kernels/cuda/page_copy.h"
#include "kernels/cuda/split_memory.h"

namespace reprise::test {
namespace {

using kernels::cuda::SplitMemory;

constexpr uint64_t kTokenBytes = 1024;  // of the tiny model with heads of 64, in bf16

std::vector<unsigned char> fetch(const std::byte* from, size_t bytes) {
  std::vector<unsigned char> host(bytes);
  EXPECT_EQ(cudaMemcpy(host.data(), from, bytes, cudaMemcpyDefault), cudaSuccess);
  return host;
}

std::vector<unsigned char> noise(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> values(bytes);
  for (auto& value : values) value = static_cast<unsigned char>(random());
  return values;
}

const std::string kReAttention = "reattention:stride=1,sink=8,local=64,span=8,spans=6,activate=80";

/// What is known of a sequence beside its pages stays where it is, wherever those go.
const std::vector<std::string>& selectors() {
  static const std::vector<std::string> policies = {
      "full:keys=position-free",
      "quest:budget=64",
      kReAttention,
      "reattention:sink=8,local=64,span=8,spans=6,activate=80,stride=0,lead=1.1,gate=0.3",
      "dense:first=1+" + kReAttention,
      "csattention:activate=1,budget=128,window=32",
      "mac:min_context=0,window=16,band=16,sink=4,align=4,tau=0.1,max_error=0",
      "mac:min_context=0,window=16,band=16,sink=4,align=4,tau=0.1,max_error=0+quest:budget=64"};
  return policies;
}

class CudaTiers : public CudaEngine {};

TEST_F(CudaTiers, OneRangeOfAddressesHasDeviceAndHostMemory) {
  for (const size_t page : {12288, 65536, 8704}) {  // whole steps of 2 MB, and not
    const uint32_t device = 700, host = 900;
    SplitMemory memory;
    const auto status = memory.reserve(device * page, host * page);
    ASSERT_TRUE(status) << status.error().message;
    const size_t bytes = (device + host) * page;
    EXPECT_EQ(fetch(memory.data(), bytes), std::vector<unsigned char>(bytes)) << page;
    const auto values = noise(bytes, 1);
    ASSERT_EQ(cudaMemcpy(memory.data(), values.data(), bytes, cudaMemcpyDefault), cudaSuccess);
    std::vector<uint32_t> reads, writes;
    std::vector<unsigned char> want = values;
    for (uint32_t i = 0; i < 600; ++i) {
      if (i % 3 == 2) continue;
      reads.push_back(i % 3 == 0 ? device + i : i);
      writes.push_back(i % 3 == 0 ? i : device + i);
      std::copy_n(&values[reads.back() * page], page, &want[writes.back() * page]);
    }
    kernels::cuda::DeviceArray<uint32_t> read_ids(reads), write_ids(writes);
    ASSERT_EQ(kernels::cuda::copy_pages(memory.data(), page, read_ids.get(), write_ids.get(),
                                        static_cast<uint32_t>(reads.size()), nullptr),
              cudaSuccess);
    EXPECT_EQ(fetch(memory.data(), bytes), want) << page;
  }
}

TEST_F(CudaTiers, CopiesUseTheBus) {
  constexpr uint32_t kPages = 4096;
  constexpr size_t kPage = 65536;  // of Llama-3.1-8B in bf16
  SplitMemory memory;
  ASSERT_TRUE(memory.reserve(kPages * kPage, kPages * kPage));
  std::vector<uint32_t> device(kPages), host(kPages);
  for (uint32_t i = 0; i < kPages; ++i) {
    device[i] = (i * 1237) % kPages;
    host[i] = kPages + (i * 2741) % kPages;
  }
  const kernels::cuda::DeviceArray<uint32_t> device_ids(device), host_ids(host);
  for (const bool up : {false, true}) {
    cudaEvent_t start = nullptr, end = nullptr;
    cudaEventCreate(&start);
    cudaEventCreate(&end);
    float ms = 0;
    for (int round = 0; round < 2; ++round) {  // the first one warms up
      cudaEventRecord(start);
      ASSERT_EQ(
          kernels::cuda::copy_pages(memory.data(), kPage, up ? host_ids.get() : device_ids.get(),
                                    up ? device_ids.get() : host_ids.get(), kPages, nullptr),
          cudaSuccess);
      cudaEventRecord(end);
      ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
      cudaEventElapsedTime(&ms, start, end);
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    const double gb_s = kPages * kPage / (ms * 1e6);
    std::printf("pages %s host memory: %.1f GB/s\n", up ? "from" : "to", gb_s);
    EXPECT_GT(gb_s, 2.0);  // a quarter of the slowest bus that there is on such machines
  }
}

TEST_F(CudaTiers, PagesThatNoKernelCopiesAreRefused) {
  EXPECT_EQ(kernels::cuda::copy_pages(nullptr, 40, nullptr, nullptr, 1, nullptr),
            cudaErrorInvalidValue);
}

/// Where rows differ first; empty when they are the same bit by bit.
std::string difference(const Logits& got, const Logits& want) {
  if (got.size() != want.size()) return "another number of rows";
  for (size_t row = 0; row < got.size(); ++row) {
    for (size_t i = 0; i < got[row].size(); ++i) {
      if (got[row][i] == want[row][i]) continue;
      return "row " + std::to_string(row) + ", logit " + std::to_string(i) + ": " +
             std::to_string(got[row][i]) + ", not " + std::to_string(want[row][i]);
    }
  }
  return {};
}

struct Tiering {
  const char* name;
  uint64_t device, host, disk;  // tokens
};

EngineOptions options_of(const Tiering& tiers) {
  EngineOptions options = cuda_options();
  options.kv_memory = tiers.device * kTokenBytes;
  options.kv_host = tiers.host * kTokenBytes;
  if (tiers.disk > 0) options.kv_disk = scratch_folder();
  options.kv_disk_size = tiers.disk * kTokenBytes;
  return options;
}

void print(const char* what, const KvTiers& kv) {
  const auto tokens = [](uint64_t bytes) { return bytes / kTokenBytes; };
  std::printf("%s: tokens in memory %zu, host %zu (in %zu, out %zu), disk %zu (in %zu, out %zu)\n",
              what, size_t{tokens(kv.memory.bytes)}, size_t{tokens(kv.host.bytes)},
              size_t{tokens(kv.host.moved_in_bytes)}, size_t{tokens(kv.host.moved_out_bytes)},
              size_t{tokens(kv.disk.bytes)}, size_t{tokens(kv.disk.moved_in_bytes)},
              size_t{tokens(kv.disk.moved_out_bytes)});
}

class CudaTiersOf : public CudaTiers, public testing::WithParamInterface<Tiering> {};
INSTANTIATE_TEST_SUITE_P(Tiers, CudaTiersOf,
                         testing::Values(Tiering{"host", 800, 8000, 0},
                                         Tiering{"disk", 800, 0, 8000},
                                         Tiering{"both", 800, 700, 8000}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(CudaTiersOf, PrefixesComeBackAsTheyWere) {
  std::vector<std::string> policies = selectors();
  policies.insert(policies.end(), {"full", "streaming:window=128"});
  for (const std::string& policy : policies) {
    const auto ample = tiny_engine(cuda_options()), small = tiny_engine(options_of(GetParam()));
    KvTiers tiers;
    uint64_t reused = 0;
    for (int round = 0; round < 3; ++round) {
      for (uint32_t seed = 0; seed < 4; ++seed) {
        Request request = request_of(tiny_prompt(600 + 10 * seed, seed), 24);
        request.forced = best_tokens(logits_of(*ample, request, policy));
        const Logits want = logits_of(*ample, request, policy);
        logits_of(*small, request, policy);
        EXPECT_EQ(difference(logits_of(*small, request, policy), want), "")
            << policy << ", round " << round << ", prompt " << seed;
        const Answer answer = answer_of(*small, request, policy);
        EXPECT_EQ(answer.counters.reused_tokens,
                  answer_of(*ample, request, policy).counters.reused_tokens)
            << policy;
        reused += answer.counters.reused_tokens;
        tiers = answer.memory.kv;
      }
    }
    print(policy.c_str(), tiers);
    EXPECT_LE(tiers.memory.bytes, GetParam().device * kTokenBytes);
    EXPECT_EQ(tiers.lost_pages, 0u);
    if (policy == "streaming:window=128" || reused == 0) continue;  // nothing waits to come back
    const KvTier& below = GetParam().host > 0 ? tiers.host : tiers.disk;
    EXPECT_GT(below.moved_in_bytes, 1000 * kTokenBytes);
    EXPECT_GT(below.moved_out_bytes, 1000 * kTokenBytes);
  }
}

TEST_P(CudaTiersOf, IdleSessionsGoOnWhereTheyWere) {
  for (const std::string type : {"bf16", "fp8"}) {
    EngineOptions options = options_of(GetParam()), with_room = cuda_options();
    options.prefix_cache = with_room.prefix_cache = false;
    options.kv_type = with_room.kv_type = type;
    const auto ample = tiny_engine(with_room), small = tiny_engine(options);
    std::vector<std::unique_ptr<Session>> here, there;
    std::vector<std::vector<int32_t>> prompts;
    for (uint32_t i = 0; i < 4; ++i) {
      here.push_back(*small->open());
      there.push_back(*ample->open());
      prompts.push_back(tiny_prompt(500, i));
    }
    for (int turn = 0; turn < 3; ++turn) {
      for (uint32_t i = 0; i < 4; ++i) {
        const auto got = here[i]->generate(request_of(prompts[i], 20));
        const auto want = there[i]->generate(request_of(prompts[i], 20));
        ASSERT_TRUE(got) << got.error().message;
        ASSERT_TRUE(want) << want.error().message;
        EXPECT_EQ(got->tokens, want->tokens) << type << ", session " << i << ", turn " << turn;
        EXPECT_EQ(got->counters.reused_tokens, want->counters.reused_tokens);
        prompts[i].insert(prompts[i].end(), got->tokens.begin(), got->tokens.end());
        const auto more = tiny_prompt(9, 50 + i);
        prompts[i].insert(prompts[i].end(), more.begin(), more.end());
        if (turn == 2 && i == 3) print(type.c_str(), got->memory.kv);
      }
    }
  }
}

TEST_P(CudaTiersOf, IdleSessionsOfSelectorsGoOnWhereTheyWere) {
  EngineOptions options = options_of(GetParam()), with_room = cuda_options();
  options.prefix_cache = with_room.prefix_cache = false;
  for (const std::string& policy : selectors()) {
    const auto ample = tiny_engine(with_room), small = tiny_engine(options);
    std::vector<std::unique_ptr<Session>> here, there;
    for (uint32_t i = 0; i < 3; ++i) {
      here.push_back(*small->open(policy));
      there.push_back(*ample->open(policy));
    }
    for (uint32_t turn = 0; turn < 3; ++turn) {
      for (uint32_t i = 0; i < 3; ++i) {
        const auto held = there[i]->tokens();
        std::vector<int32_t> prompt(held.begin(), held.end());
        const auto more = tiny_prompt(turn == 0 ? 500 : 30, 10 * turn + i);
        prompt.insert(prompt.end(), more.begin(), more.end());
        const auto got = here[i]->generate(request_of(prompt, 20));
        const auto want = there[i]->generate(request_of(prompt, 20));
        ASSERT_TRUE(got) << got.error().message;
        ASSERT_TRUE(want) << want.error().message;
        EXPECT_EQ(got->tokens, want->tokens) << policy << ", session " << i << ", turn " << turn;
        EXPECT_EQ(got->counters.reused_tokens, want->counters.reused_tokens) << policy;
      }
    }
  }
}

TEST_F(CudaTiers, ASequenceLargerThanDeviceMemoryIsReadInPlace) {
  std::vector<std::string> policies = selectors();
  policies.emplace_back("full");
  for (const std::string type : {"bf16", "f16", "fp8"}) {
    EngineOptions options = options_of({"", 250, 4000, 0}), with_room = cuda_options();
    options.kv_type = with_room.kv_type = type;
    const uint64_t token_bytes = type == "fp8" ? kTokenBytes / 2 : kTokenBytes;
    for (const std::string& policy : policies) {
      const auto ample = tiny_engine(with_room), small = tiny_engine(options);
      Request request = request_of(tiny_prompt(1500), 40);
      request.forced = best_tokens(logits_of(*ample, request, policy));
      const Logits want = logits_of(*ample, request, policy);
      logits_of(*small, request, policy);
      EXPECT_EQ(difference(logits_of(*small, request, policy), want), "") << type << " " << policy;
      // Tokens chosen on the device: captured steps, started ahead.
      request.forced.clear();
      const Answer answer = answer_of(*small, request, policy);
      EXPECT_EQ(answer.tokens, answer_of(*ample, request, policy).tokens) << type << " " << policy;
      EXPECT_LE(answer.memory.kv.memory.bytes, 250 * kTokenBytes);
      EXPECT_GT(answer.memory.kv.host.bytes, 1000 * token_bytes);
    }
  }
}

struct HotCase {
  const char* policy;
  const char* prefetch;
  uint64_t hot;  // tokens
};

class CudaHotPages : public CudaTiers, public testing::WithParamInterface<HotCase> {
 protected:
  static EngineOptions options() {
    EngineOptions options = options_of({"", 250, 6000, 0});
    options.kv_hot = GetParam().hot * kTokenBytes;
    options.kv_prefetch = GetParam().prefetch;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(
    Modes, CudaHotPages,
    testing::Values(HotCase{"quest:budget=128", "none", 400},
                    HotCase{"quest:budget=128", "layer", 400},
                    HotCase{"quest:budget=128", "layer-once", 400},
                    HotCase{"quest:budget=128", "token", 400},
                    HotCase{"quest:budget=256", "token", 100},
                    HotCase{"dense:first=1+quest:budget=128", "token", 400},
                    HotCase{"csattention:activate=1,budget=128,window=32", "none", 400},
                    HotCase{"csattention:activate=1,budget=128,window=32", "layer", 400},
                    HotCase{"csattention:activate=1,budget=128,window=32", "token", 400},
                    HotCase{"csattention:activate=1,budget=256,window=32", "layer", 100},
                    HotCase{"dense:first=1+csattention:activate=1,budget=256", "token", 100},
                    HotCase{"attention_predictor:budget=128,period=0", "none", 400},
                    HotCase{"attention_predictor:budget=128,period=0", "layer", 400},
                    HotCase{"attention_predictor:budget=128,period=0", "layer-once", 400},
                    HotCase{"attention_predictor:budget=128,period=0", "token", 400},
                    HotCase{"attention_predictor:budget=256,period=0", "token", 100}),
    [](const auto& test) {
      std::string name = test.param.prefetch;
      std::erase(name, '-');
      return name + std::to_string(test.index);
    });

TEST_P(CudaHotPages, TextIsTheSameWhereverPagesLie) {
  for (const std::string type : {"bf16", "fp8"}) {
    EngineOptions with_room = cuda_options(), small_options = options();
    with_room.kv_type = small_options.kv_type = type;
    const auto ample = tiny_engine(with_room), small = tiny_engine(small_options);
    const std::string policy = GetParam().policy;
    Request request = request_of(tiny_prompt(1500), 100);
    request.forced = best_tokens(logits_of(*ample, request, policy));
    logits_of(*small, request, policy);  // both have the prefix now
    EXPECT_EQ(difference(logits_of(*small, request, policy), logits_of(*ample, request, policy)),
              "")
        << type;
    request.forced.clear();
    const Answer answer = answer_of(*small, request, policy);
    EXPECT_EQ(answer.tokens, answer_of(*ample, request, policy).tokens) << type;
    const KvPaging paging = answer.counters.paging;
    std::printf("%s: hits %zu, in place %zu, brought %zu: %.3f\n", type.c_str(),
                size_t{paging.hits}, size_t{paging.fetched}, size_t{paging.prefetched},
                paging.hit_rate());
    const bool none = small_options.kv_prefetch == "none";
    EXPECT_EQ(paging.hits + paging.fetched > 0, !none);
    EXPECT_EQ(paging.hits > 0 && paging.prefetched > 0, !none);
    EXPECT_LE(answer.memory.kv.memory.bytes, 250 * kTokenBytes);
  }
}

TEST_P(CudaHotPages, PagesChangeHandsBetweenSequences) {
  const auto ample = tiny_engine(cuda_options()), small = tiny_engine(options());
  const auto run = [](Engine& engine, uint32_t seed) {
    std::vector<std::vector<int32_t>> answers(5);
    std::vector<std::unique_ptr<Session>> sessions;
    for (uint32_t i = 0; i < answers.size(); ++i) {
      sessions.push_back(*engine.open(GetParam().policy));
      // The first two share a beginning, and pages.
      EXPECT_TRUE(engine.submit(
          *sessions[i], request_of(tiny_prompt(600 + 9 * i, i < 2 ? seed : seed + i), 30 + 7 * i),
          [&answers, i](Result<Answer> answer) {
            ASSERT_TRUE(answer) << answer.error().message;
            answers[i] = answer->tokens;
          }));
    }
    while (engine.step()) continue;
    return answers;
  };
  for (uint32_t round = 0; round < 4; ++round) {
    EXPECT_EQ(run(*small, 10 * round), run(*ample, 10 * round)) << round;
  }
  print("hot", answer_of(*small, request_of(tiny_prompt(20), 2)).memory.kv);
}

// More layers than policies are asked about at once, and not a multiple of them.
TEST_F(CudaTiers, HotPagesOfManyLayers) {
  constexpr uint32_t kLayers = 2 * DevicePolicy::kPredictedLayers + 3;
  for (const std::string prefetch : {"layer", "token"}) {
    EngineOptions with_room = cuda_options();
    with_room.model = tiny_model({.head_dim = 64, .layers = kLayers});
    EngineOptions options = with_room;
    options.kv_memory = 250 * kTokenBytes * kLayers / 2;
    options.kv_host = 6000 * kTokenBytes * kLayers / 2;
    options.kv_hot = 400 * kTokenBytes * kLayers / 2;
    options.kv_prefetch = prefetch;
    const auto ample = tiny_engine(with_room), small = tiny_engine(options);
    for (const std::string policy : {"attention_predictor:budget=128,period=0",
                                     "attention_predictor:budget=192,layers=3:128/9:64"}) {
      const Request request = request_of(tiny_prompt(1500), 100);
      const auto want = answer_of(*ample, request, policy).tokens;
      for (int run = 0; run < 3; ++run) {
        EXPECT_EQ(answer_of(*small, request, policy).tokens, want) << prefetch << " " << policy;
      }
    }
  }
}

TEST_F(CudaTiers, HotPagesNeedRoomInEveryLayer) {
  EngineOptions options = options_of({"", 250, 4000, 0});
  options.kv_hot = 1;
  const auto few = Engine::load(options);
  ASSERT_FALSE(few);
  EXPECT_NE(few.error().message.find("--kv-hot"), std::string::npos) << few.error().message;
  options = options_of({"", 250, 0, 0});
  options.kv_hot = 400 * kTokenBytes;
  EXPECT_FALSE(Engine::load(options));
}

TEST_F(CudaTiers, RequestsOfABatchAreNotDisturbed) {
  const Tiering tiers = {"", 900, 900, 6000};
  const auto ample = tiny_engine(cuda_options()), small = tiny_engine(options_of(tiers));
  const auto run = [](Engine& engine) {
    for (uint32_t seed = 20; seed < 26; ++seed) {  // fills the tiers
      answer_of(engine, request_of(tiny_prompt(400, seed), 4));
    }
    std::vector<std::vector<int32_t>> answers(8);
    std::vector<std::unique_ptr<Session>> sessions;
    for (uint32_t i = 0; i < answers.size(); ++i) {
      sessions.push_back(*engine.open());
      EXPECT_TRUE(engine.submit(*sessions[i], request_of(tiny_prompt(150, 20 + i), 10 + 7 * i),
                                [&answers, i](Result<Answer> answer) {
                                  ASSERT_TRUE(answer) << answer.error().message;
                                  answers[i] = answer->tokens;
                                }));
    }
    while (engine.step()) continue;
    return answers;
  };
  for (int round = 0; round < 3; ++round) EXPECT_EQ(run(*small), run(*ample)) << round;
  print("batch", answer_of(*small, request_of(tiny_prompt(20), 2)).memory.kv);
}

TEST_F(CudaTiers, SessionsAreSavedFromAllTiersAndRestoredIntoThem) {
  const std::string path = scratch_folder() + "/tiers.kv";
  Request request = request_of({}, 20);
  Logits want;
  const EngineOptions options = options_of({"", 300, 700, 4000});
  for (const std::string& policy :
       {std::string("full"), std::string("quest:budget=64"), kReAttention}) {
    {
      const auto engine = tiny_engine(options);
      auto session = *engine->open(policy);
      const auto read = session->generate(request_of(tiny_prompt(800), 1));
      ASSERT_TRUE(read) << read.error().message;
      answer_of(*engine, request_of(tiny_prompt(700, 5), 1));
      const auto saved = session->save(path, "");
      ASSERT_TRUE(saved) << saved.error().message;
    }
    const auto ample = tiny_engine(cuda_options()), small = tiny_engine(options);
    std::vector<Logits> rows(2);
    for (const bool here : {false, true}) {
      auto session = *(here ? *small : *ample).open(policy);
      const auto restored = session->restore(path);
      ASSERT_TRUE(restored) << restored.error().message;
      request.prompt = tiny_prompt(800);
      const auto more = tiny_prompt(100, 3);
      request.prompt.insert(request.prompt.end(), more.begin(), more.end());
      request.forced = tiny_prompt(20, 4);
      request.on_logits = [&](std::span<const float> logits) {
        rows[here].emplace_back(logits.begin(), logits.end());
      };
      const auto answer = session->generate(request);
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(answer->counters.reused_tokens, 800u);
    }
    EXPECT_EQ(difference(rows[1], rows[0]), "") << policy;
    // A policy that was there before the file was read knows its keys too.
    auto late = *ample->open(policy);
    ASSERT_TRUE(late->generate(request_of(tiny_prompt(800), 1)));
    Request again = request;
    Logits computed;
    again.on_logits = [&](std::span<const float> logits) {
      computed.emplace_back(logits.begin(), logits.end());
    };
    ASSERT_TRUE(late->generate(again));
    EXPECT_EQ(difference(computed, rows[0]), "") << policy;
  }
}

}  // namespace
}  // namespace reprise::test
