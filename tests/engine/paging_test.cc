// Requests whose KV does not fit in memory: most of it lies on disk while they run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <span>

#include "base/no_threads.h"
#include "engine/answers.h"
#include "engine/tiny_model.h"
#include "kv/hidden_file.h"
#include "kv/read_faults.h"
#include "kv/write_faults.h"
#include "reprise/library.h"

namespace reprise::test {
namespace {

constexpr uint32_t kLayers = 8;
constexpr uint64_t kTokenBytes = kLayers * 256;

EngineOptions ample_options() {
  EngineOptions options = tiny_options();
  options.model = tiny_model({.layers = kLayers});
  options.kv_type = "bf16";  // of kTokenBytes
  options.prefix_cache = false;
  return options;
}

EngineOptions small_options(const std::string& prefetch, uint64_t tokens = 400) {
  EngineOptions options = ample_options();
  options.kv_memory = tokens * kTokenBytes;
  options.kv_disk = scratch_folder();
  options.kv_disk_size = 16 << 20;
  options.kv_prefetch = prefetch;
  return options;
}

std::vector<float> last_logits(Session& session, Request request, Answer* answer = nullptr) {
  std::vector<float> last;
  request.on_logits = [&](std::span<const float> logits) {
    last.assign(logits.begin(), logits.end());
  };
  Answer given = answer_of(session, request);
  if (answer != nullptr) *answer = std::move(given);
  return last;
}

/// Starts early enough for short prompts, and finds alike what random text asks for.
const std::string kMac =
    "mac:min_context=0,window=64,band=32,sink=16,tau=0.1,max_error=0,guard=false";

double group_hits(const Answer& answer) {
  const auto& figures = answer.counters.policy;
  return std::map<std::string, double>(figures.begin(), figures.end()).at("mac_group_hits");
}

class EachPolicy : public testing::TestWithParam<std::string> {};

TEST_P(EachPolicy, AnswersAsFromMemory) {
  const Request request = request_of(tiny_prompt(900), 12);
  const auto ample = tiny_engine(ample_options());
  Answer answer;
  const auto want = last_logits(**ample->open(GetParam()), request, &answer);
  if (GetParam().starts_with("mac")) {
    EXPECT_GT(group_hits(answer), 0.2);
  }
  for (const std::string prefetch : {"none", "layer", "layer-once", "token"}) {
    const auto small = tiny_engine(small_options(prefetch, 250));
    auto session = *small->open(GetParam());
    EXPECT_EQ(last_logits(*session, request), want) << prefetch;
    const KvTiers kv = small->kv();
    EXPECT_LE(kv.memory.bytes, 250 * kTokenBytes);
    EXPECT_GT(kv.paging.fetched, 0u);
    EXPECT_EQ(kv.lost_pages, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Paging, EachPolicy,
    testing::Values("full", "full:keys=position-free", "quest:budget=128", "random:budget=128",
                    "attention_predictor:budget=128", "dense:first=1+quest:budget=128",
                    "attention_predictor:budget=128,calibrate=dense,period=4", "sparq:budget=128",
                    "infllm:chunk=64", "magicpig", "pqcache:budget=128", "csattention:budget=128",
                    "csattention:budget=128,unit=key,sink=5,period=4,cosine=-1",
                    "csattention:budget=128,mode=table",
                    "csattention:budget=128,mode=lists,centroids=8",
                    "reattention:stride=1,activate=128,local=64,chunk=64",
                    "reattention:activate=128,local=64,stride=0",
                    "reattention:activate=128,local=64,stride=200",
                    "reattention:stride=1,activate=128,local=64,least=0.1,interval=4",
                    "reattention:activate=128,local=64,lead=1.1,gate=0.3",
                    "reattention:activate=128,local=64,lead=1.1,agree=0.5,decode-picks=1",
                    "probe+quest:budget=128", kMac, kMac + "+quest:budget=128",
                    kMac + "+attention_predictor:budget=128", kMac + "+csattention:budget=128"));

TEST(Paging, WhatIsReadAheadNeedNotBeFetched) {
  const Request request = request_of(tiny_prompt(1500), 64);
  for (const std::string policy : {"attention_predictor:budget=128,period=0", "quest:budget=128"}) {
    std::map<std::string, KvPaging> paging;
    for (const std::string prefetch : {"none", "layer", "layer-once", "token"}) {
      const auto engine = tiny_engine(small_options(prefetch));
      paging[prefetch] = answer_of(**engine->open(policy), request).counters.paging;
    }
    EXPECT_EQ(paging["none"].prefetched, 0u);
    EXPECT_EQ(paging["none"].late, 0u);
    EXPECT_GT(paging["layer"].prefetched, 0u);
    if (policy.starts_with("attention_predictor")) {  // it knows, others guess
      EXPECT_LT(paging["token"].fetched, paging["none"].fetched / 4);
    }
    for (const auto& [mode, counts] : paging) {
      EXPECT_EQ(counts.read_bytes % kTokenBytes, 0u) << mode;
      EXPECT_EQ(counts.hits + counts.late + counts.fetched,
                paging["none"].hits + paging["none"].fetched)
          << mode;
    }
  }
}

TEST(Paging, WhatIsReusedNeedNotBeBrought) {
  const Request request = request_of(tiny_prompt(1500), 32);
  for (const std::string inner : {"+full", "+quest:budget=128"}) {
    for (const std::string prefetch : {"none", "token"}) {
      uint64_t before = 0;
      for (const std::string tau : {",tau=1", ",tau=0.1"}) {  // without reuse and with it
        const auto engine = tiny_engine(small_options(prefetch));
        const Counters counters = answer_of(*engine, request, kMac + tau + inner).counters;
        const uint64_t read = counters.paging.read_bytes;
        EXPECT_LT(read, counters.kv_bytes_read * 3 / 2) << prefetch << tau << inner;
        if (before > 0) {
          EXPECT_LT(read, before / 4) << prefetch << inner;
        }
        before = read;
      }
    }
  }
}

TEST(Paging, AnIndexChoosesWithoutThePages) {
  const Request request = request_of(tiny_prompt(1500), 48);
  for (const std::string prefetch : {"none", "token"}) {
    const auto cost_of = [&](const std::string& policy) {
      return answer_of(*tiny_engine(small_options(prefetch)), request, policy).counters;
    };
    const uint64_t full = cost_of("full").paging.read_bytes;
    for (const std::string mode : {"codes", "table", "lists,centroids=8"}) {
      const Counters counters = cost_of("csattention:budget=128,mode=" + mode);
      if (!mode.starts_with("lists")) {  // which choose single keys, from nearly all pages
        EXPECT_LT(counters.paging.read_bytes, full / 4) << prefetch << mode;
      }
      EXPECT_LT(counters.paging.read_bytes, counters.kv_bytes_read * 3 / 2) << prefetch << mode;
    }
  }
}

// The index is made while tokens are decoded, from keys that lie on disk by then.
TEST(Paging, AnswersGetTheirIndexFromDisk) {
  const Request request = request_of(tiny_prompt(240), 150);
  for (const std::string mode : {"codes", "lists,centroids=8"}) {
    const std::string policy = "csattention:budget=320,mode=" + mode;
    const auto ample = tiny_engine(ample_options());
    const auto want = last_logits(**ample->open(policy), request);
    for (const std::string prefetch : {"none", "layer", "layer-once", "token"}) {
      const auto small = tiny_engine(small_options(prefetch, 200));
      EXPECT_EQ(last_logits(**small->open(policy), request), want) << prefetch << mode;
      EXPECT_GT(small->kv().paging.fetched, 0u);
    }
  }
}

TEST(Paging, IndexesForecastTheNextLayer) {
  const Request request = request_of(tiny_prompt(1500), 48);
  for (const std::string policy :
       {"csattention:budget=128", "csattention:budget=128,period=4,cosine=-1"}) {
    std::map<std::string, KvPaging> paging;
    for (const std::string prefetch : {"none", "layer"}) {
      const auto engine = tiny_engine(small_options(prefetch));
      paging[prefetch] = answer_of(*engine, request, policy).counters.paging;
    }
    EXPECT_GT(paging["layer"].prefetched, 0u) << policy;
    EXPECT_LT(paging["layer"].fetched, paging["none"].fetched) << policy;
  }
}

TEST(Paging, NoLayerIsForecastBeforeItsBoundsAreThere) {
  const auto small = tiny_engine(small_options("layer", 450)), ample = tiny_engine(ample_options());
  const PartedPrompt prompt{{1}, {tiny_prompt(380)}, tiny_prompt(19, 5)};
  std::vector<std::vector<int32_t>> texts;
  for (Engine* engine : {ample.get(), small.get()}) {
    auto library = *Library::open(*engine, {.store = scratch_folder() + "/store"}, true);
    ASSERT_TRUE(library.add("book", 0, prompt.chunks[0]));
    auto session = *engine->open("quest:budget=64"), other = *engine->open("full");
    ASSERT_TRUE(library.fuse(*session, prompt, "pie"));
    const auto keep = [&](Result<Answer> answer) {
      ASSERT_TRUE(answer) << answer.error().message;
      texts.push_back(answer->tokens);
    };
    ASSERT_TRUE(engine->submit(*other, request_of(tiny_prompt(900, 3), 30), keep));
    for (int step = 0; step < 12; ++step) engine->step();  // what was fused goes to disk
    ASSERT_TRUE(engine->submit(*session, request_of(prompt.tokens(), 8), keep));
    while (engine->step()) {
    }
    std::ranges::sort(texts.end() - 2, texts.end());
  }
  EXPECT_EQ(std::vector(texts.begin() + 2, texts.end()),
            std::vector(texts.begin(), texts.end() - 2));
  EXPECT_GT(small->kv().paging.fetched, 0u);
}

TEST(Paging, PagesAreReadWhereTheSystemStartsNoThread) {
  const Request request = request_of(tiny_prompt(900), 12);
  const auto want = answer_of(**tiny_engine(ample_options())->open("full"), request).tokens;
  const auto small = tiny_engine(small_options("token", 250));
  const NoThreads none;
  EXPECT_EQ(answer_of(**small->open("full"), request).tokens, want);
  EXPECT_GT(small->kv().paging.fetched, 0u);
}

TEST(Paging, WhatIsBroughtOnceIsNotKept) {
  const Request request = request_of(tiny_prompt(1500), 64);
  std::map<std::string, KvPaging> paging;
  for (const std::string prefetch : {"layer", "layer-once"}) {
    const auto engine = tiny_engine(small_options(prefetch, 1200));  // more than a token reads
    const auto session = *engine->open("attention_predictor:budget=128,period=0");
    paging[prefetch] = answer_of(*session, request).counters.paging;
  }
  EXPECT_GT(paging["layer-once"].read_bytes, 2 * paging["layer"].read_bytes);
  EXPECT_GT(paging["layer-once"].prefetched, 2 * paging["layer"].prefetched);
}

// Layers that take turns to scan all keys say little about each other, nor a token about the next.
TEST(Paging, ScansInTurnsAreReadAheadAsTheyCome) {
  const Request request = request_of(tiny_prompt(1500), 48);
  const auto engine = tiny_engine(small_options("token", 1000));
  const auto session = *engine->open(
      "reattention:activate=128,local=64,chunk=64,stride=0,lead=1.1,agree=0.5,decode-picks=1");
  const KvPaging paging = answer_of(*session, request).counters.paging;
  EXPECT_GT(paging.prefetched, 1000u);
  EXPECT_LT(paging.unused, paging.prefetched / 10);
}

TEST(Paging, APromptBringsNoMoreThanItReads) {
  constexpr uint64_t kTokens = 3000;
  for (const std::string prefetch : {"none", "token"}) {
    EngineOptions options = small_options(prefetch);
    options.chunk = 64;
    const auto engine = tiny_engine(options);
    const auto session =
        *engine->open("reattention:activate=128,local=64,chunk=64,stride=0,alone=16,agree=0");
    answer_of(*session, request_of(tiny_prompt(kTokens), 1));
    const KvTiers kv = engine->kv();
    EXPECT_GT(kv.disk.bytes, kTokens / 2 * kTokenBytes) << prefetch;
    // The last rows look at every key, in one pass; others at their window, which is there.
    EXPECT_GT(kv.paging.read_bytes, kTokens / 2 * kTokenBytes) << prefetch;
    EXPECT_LT(kv.paging.read_bytes, 3 * kTokens / 2 * kTokenBytes) << prefetch;
  }
}

TEST(Paging, EveryKvTypeIsMoved) {
  for (const std::string type : {"bf12", "f16", "f32", "q8_0"}) {
    EngineOptions with_room = ample_options(), options = small_options("token", 900);
    with_room.kv_type = options.kv_type = type;
    const Request request = request_of(tiny_prompt(1500), 20);
    EXPECT_EQ(last_logits(**tiny_engine(options)->open("quest:budget=128"), request),
              last_logits(**tiny_engine(with_room)->open("quest:budget=128"), request))
        << type;
  }
}

TEST(Paging, TurnsForksAndOtherSessionsGoOn) {
  EngineOptions options = small_options("token"), with_room = ample_options();
  options.prefix_cache = with_room.prefix_cache = true;
  options.chunk = 512;  // more rows than memory has room for
  const auto ample = tiny_engine(with_room), small = tiny_engine(options);
  auto here = *small->open("quest:budget=128"), there = *ample->open("quest:budget=128");
  Request request = request_of(tiny_prompt(1000), 20);
  for (int turn = 0; turn < 3; ++turn) {
    const Answer got = answer_of(*here, request), want = answer_of(*there, request);
    EXPECT_EQ(got.tokens, want.tokens) << turn;
    EXPECT_EQ(got.counters.reused_tokens, want.counters.reused_tokens);
    const Request other = request_of(tiny_prompt(turn == 1 ? 300 : 900, 50));
    EXPECT_EQ(answer_of(**small->open(), other).tokens, answer_of(**ample->open(), other).tokens);
    EXPECT_EQ(answer_of(*here->fork(), request).tokens, answer_of(*there->fork(), request).tokens);
    request.prompt.insert(request.prompt.end(), got.tokens.begin(), got.tokens.end());
    const auto more = tiny_prompt(100, 60);
    request.prompt.insert(request.prompt.end(), more.begin(), more.end());
  }
}

TEST(Paging, ABatchIsAnsweredAsFromMemory) {
  for (const std::string prefetch : {"none", "token"}) {
    const auto ample = tiny_engine(ample_options()), small = tiny_engine(small_options(prefetch));
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::vector<int32_t>> answers(4);
    const auto request = [](uint32_t i) { return request_of(tiny_prompt(300 + 300 * i, i), 30); };
    for (uint32_t i = 0; i < 4; ++i) {
      sessions.push_back(*small->open(i % 2 == 0 ? "full" : "quest:budget=128"));
      ASSERT_TRUE(small->submit(*sessions[i], request(i), [&answers, i](Result<Answer> answer) {
        ASSERT_TRUE(answer) << answer.error().message;
        answers[i] = answer->tokens;
      }));
    }
    while (small->step()) continue;
    for (uint32_t i = 0; i < 4; ++i) {
      const auto session = *ample->open(i % 2 == 0 ? "full" : "quest:budget=128");
      EXPECT_EQ(answers[i], answer_of(*session, request(i)).tokens) << i;
    }
  }
}

TEST(Paging, DamageIsToldAndTheTextReadAgain) {
  for (const std::string prefetch : {"none", "token"}) {
    const auto ample = tiny_engine(ample_options()), small = tiny_engine(small_options(prefetch));
    auto session = *small->open("full");
    Request request = request_of(tiny_prompt(1500), 20);
    int tokens = 0;
    request.on_token = [&](const TokenEvent&) {
      const int file = hidden_file(scratch_folder());
      char byte = 0;
      for (off_t at = 3000; tokens == 5 && ::pread(file, &byte, 1, at) == 1; at += 4096) {
        byte = static_cast<char>(byte ^ 8);
        EXPECT_EQ(::pwrite(file, &byte, 1, at), 1);
      }
      ++tokens;
      return true;
    };
    const auto broken = session->generate(request);
    ASSERT_FALSE(broken) << prefetch;
    EXPECT_EQ(broken.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(broken.error().message, testing::HasSubstr("--kv-disk"));
    EXPECT_GT(small->kv().lost_pages, 0u);
    request.on_token = {};
    EXPECT_EQ(answer_of(*session, request).tokens, answer_of(**ample->open(), request).tokens);
  }
}

/// What follows when the disk cannot be read from the middle of an answer on: no token but those
/// that are right, and the whole text once it can be read again.
void expect_told(const std::string& policy, std::span<const int32_t> want,
                 const std::string& prefetch, ReadFault::Kind kind, int every) {
  SCOPED_TRACE(policy + ", " + prefetch + ", one of " + std::to_string(every));
  const auto small = tiny_engine(small_options(prefetch, 250));
  EXPECT_GE(hidden_file(scratch_folder()), 0);
  auto session = *small->open(policy);
  Request request = request_of(tiny_prompt(900), static_cast<uint32_t>(want.size()));
  std::optional<ReadFault> fault;
  std::vector<int32_t> told;
  request.on_token = [&](const TokenEvent& event) {
    told.push_back(event.token);
    if (told.size() == 5) fault.emplace(kind, every);
    return true;
  };
  const auto broken = session->generate(request);
  EXPECT_GT(fault->count(), 0);
  fault.reset();
  EXPECT_TRUE(std::equal(told.begin(), told.end(), want.begin()));
  EXPECT_LT(told.size(), want.size());
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(broken.error().message, testing::HasSubstr("--kv-disk"));
  EXPECT_GT(small->kv().lost_pages, 0u);
  request.on_token = {};
  EXPECT_THAT(answer_of(*session, request).tokens, testing::ElementsAreArray(want));
}

TEST(Paging, ADiskThatCannotBeReadIsToldAndNoTextIsWrong) {
  const auto ample = tiny_engine(ample_options());
  const std::string full = "full", forecast = "attention_predictor:budget=128";
  const auto want = answer_of(*ample, request_of(tiny_prompt(900), 20), full).tokens,
             forecast_want = answer_of(*ample, request_of(tiny_prompt(900), 20), forecast).tokens;
  for (const std::string prefetch : {"none", "token"}) {
    for (const ReadFault::Kind kind : ReadFault::failures()) {
      expect_told(forecast, forecast_want, prefetch, kind, 1);
    }
    expect_told(full, want, prefetch, ReadFault::kBroken, 50);
  }
}

/// What follows a disk's failure in the middle of an answer.
void expect_no_wrong_text(WriteFault::Kind kind, const std::string& prefetch) {
  const auto ample = tiny_engine(ample_options()), small = tiny_engine(small_options(prefetch));
  EXPECT_GE(hidden_file(scratch_folder()), 0);
  auto session = *small->open("quest:budget=128");
  Request request = request_of(tiny_prompt(1000), 300);
  const auto want = answer_of(**ample->open("quest:budget=128"), request).tokens;
  std::optional<WriteFault> fault;
  std::vector<int32_t> told;
  request.on_token = [&](const TokenEvent& event) {
    told.push_back(event.token);
    if (told.size() == 5) fault.emplace(kind);
    return true;
  };
  const auto broken = session->generate(request);
  ASSERT_GT(fault->count(), 0);
  fault.reset();
  EXPECT_TRUE(std::equal(told.begin(), told.end(), want.begin()));
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(broken.error().message, testing::HasSubstr(WriteFault::message(kind)));
  EXPECT_THAT(small->kv().disk_error, testing::HasSubstr("going on without the disk"));
  session.reset();
  const Request fits = request_of(tiny_prompt(300));
  EXPECT_EQ(answer_of(**small->open(), fits).tokens, answer_of(**ample->open(), fits).tokens);
}

TEST(Paging, ADiskThatCannotBeWrittenIsToldAndNoTextIsWrong) {
  for (const WriteFault::Kind kind : WriteFault::failures()) {
    for (const std::string prefetch : {"none", "token"}) {
      SCOPED_TRACE(prefetch + ", " + WriteFault::message(kind));
      expect_no_wrong_text(kind, prefetch);
    }
  }
}

// A prompt that needs most of the memory for a layer gets its turn, however many short ones come.
TEST(Paging, ALongPromptDoesNotStarve) {
  const auto engine = tiny_engine(small_options("none", 200));
  auto large = *engine->open();
  uint64_t read = 0;
  std::optional<Result<Answer>> answer;
  Request request = request_of(tiny_prompt(1450), 2);
  request.on_progress = [&](const Progress& progress) {
    read = progress.done;
    return true;
  };
  ASSERT_TRUE(engine->submit(*large, request, [&](Result<Answer> given) { answer = given; }));
  while (read < 1152 && engine->step()) continue;
  std::vector<std::unique_ptr<Session>> shorts;
  std::function<void(Result<Answer>)> next = [&](const Result<Answer>& given) {
    ASSERT_TRUE(given) << given.error().message;
    if (answer || shorts.size() > 24) return;
    shorts.push_back(*engine->open());
    const auto seed = static_cast<uint32_t>(shorts.size());
    ASSERT_TRUE(engine->submit(*shorts.back(), request_of(tiny_prompt(200, seed), 40), next));
  };
  next(Answer());
  for (int step = 0; step < 12; ++step) engine->step();
  next(Answer());  // two at a time, so that one answers while the other reads
  while (engine->step()) continue;
  ASSERT_TRUE(answer && *answer);
  EXPECT_LT(shorts.size(), 20u);
  EXPECT_EQ((*answer)->tokens,
            answer_of(*tiny_engine(ample_options()), request_of(tiny_prompt(1450), 2)).tokens);
}

TEST(Paging, WhatCannotBePagedOutIsWaitedFor) {
  const std::string window = "streaming:sink=4,window=150";  // most of the memory
  const Request holds = request_of(tiny_prompt(200), 120),
                large = request_of(tiny_prompt(1050), 20);
  const auto engine = tiny_engine(small_options("none", 300)), ample = tiny_engine(ample_options());
  auto first = *engine->open(window), second = *engine->open(), third = *engine->open();
  std::vector<std::vector<int32_t>> answers;
  const auto keep = [&](Result<Answer> answer) {
    ASSERT_TRUE(answer) << answer.error().message;
    answers.push_back(std::move(answer->tokens));
  };
  ASSERT_TRUE(engine->submit(*first, holds, keep));
  ASSERT_TRUE(engine->submit(*second, large, keep));
  ASSERT_TRUE(engine->submit(*third, large, keep));
  while (engine->step()) continue;
  const auto want = answer_of(*ample, large).tokens;
  EXPECT_THAT(answers, testing::ElementsAre(answer_of(*ample, holds, window).tokens, want, want));
}

// A prompt that cannot be paged out is read while a request that is paged out decodes.
TEST(Paging, PromptsBesidePagedOutAnswersChangeNothing) {
  EngineOptions options = small_options("none", 249);
  options.kv_disk_size = 1136 * kTokenBytes;
  const auto engine = tiny_engine(options), ample = tiny_engine(ample_options());
  const std::pair<const char*, Request> requests[] = {
      {"streaming:sink=4,window=120", request_of(tiny_prompt(353, 0), 55)},
      {"full", request_of(tiny_prompt(147, 0), 37)}};
  std::vector<std::unique_ptr<Session>> sessions;
  for (const auto& [policy, request] : requests) {
    const auto want = answer_of(*ample, request, policy).tokens;
    sessions.push_back(*engine->open(policy));
    ASSERT_TRUE(engine->submit(*sessions.back(), request, [want](Result<Answer> answer) {
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(answer->tokens, want);
    }));
  }
  while (engine->step()) continue;
  EXPECT_GT(engine->kv().paging.fetched, 0u);
}

TEST(Paging, ThoseThatCannotBePagedOutLeaveALongPromptItsTurn) {
  const auto engine = tiny_engine(small_options("none", 240));
  std::vector<std::unique_ptr<Session>> others;
  bool answered = false;
  std::function<void(Result<Answer>)> next = [&](const Result<Answer>& given) {
    ASSERT_TRUE(given) << given.error().message;
    if (answered || others.size() > 24) return;
    others.push_back(*engine->open("streaming:sink=4,window=70"));
    const auto length = static_cast<uint32_t>(others.size() == 1 ? 30 : 60);  // two in turns
    ASSERT_TRUE(engine->submit(*others.back(), request_of(tiny_prompt(100), length), next));
  };
  next(Answer());
  next(Answer());
  const auto large = *engine->open();
  ASSERT_TRUE(engine->submit(*large, request_of(tiny_prompt(1050), 2), [&](Result<Answer> given) {
    ASSERT_TRUE(given) << given.error().message;
    answered = true;
  }));
  while (engine->step()) continue;
  EXPECT_TRUE(answered);
  EXPECT_LT(others.size(), 16u);
}

// What policies keep of their own would take the room that a layer of the other needs.
TEST(Paging, ThoseThatCompressLeaveRoomForALayerOfOthers) {
  const Request large = request_of(tiny_prompt(900, 5), 20),
                small = request_of(tiny_prompt(300), 20);
  for (const std::string spec : {"h2o:budget=64", "snapkv:budget=64,window=16"}) {
    for (uint64_t tokens = 344; tokens <= 412; tokens += 16) {
      const auto engine = tiny_engine(small_options("none", tokens));
      const auto paged = *engine->open(), evicting = *engine->open(spec);
      size_t answers = 0;
      const auto count = [&](const Result<Answer>& answer) {
        ASSERT_TRUE(answer) << spec << ", " << tokens << ": " << answer.error().message;
        ++answers;
      };
      ASSERT_TRUE(engine->submit(*paged, large, count));
      ASSERT_TRUE(engine->submit(*evicting, small, count));
      while (engine->step()) continue;
      EXPECT_EQ(answers, 2u);
    }
  }
}

TEST(Paging, PrefixesAreGivenUpForWhatIsReadFromDisk) {
  const auto ample = tiny_engine(ample_options());
  for (const std::string prefetch : {"none", "token"}) {
    EngineOptions options = small_options(prefetch, 250);
    options.prefix_cache = true;
    options.kv_disk_size = 900 * kTokenBytes;
    const auto small = tiny_engine(options);
    for (uint32_t i = 0; i < 4; ++i) {
      const Request request = request_of(tiny_prompt(800 - 50 * i, i), 8);
      EXPECT_EQ(answer_of(*small, request).tokens, answer_of(*ample, request).tokens) << i;
    }
  }
}

TEST(Paging, MemoryAndDiskAreFilledButForOnePage) {
  const auto ample = tiny_engine(ample_options());
  for (const std::string prefetch : {"none", "token"}) {
    EngineOptions options = small_options(prefetch, 256);
    options.kv_disk_size = 512 * kTokenBytes;  // 48 blocks with memory
    for (const uint32_t length : {600u, 680u, 740u}) {
      const Request request = request_of(tiny_prompt(length), 12);
      EXPECT_EQ(answer_of(*tiny_engine(options), request).tokens,
                answer_of(*ample, request).tokens);
    }
    const auto small = tiny_engine(options);
    const auto grown = (*small->open())->generate(request_of(tiny_prompt(740), 40));
    ASSERT_FALSE(grown);
    EXPECT_THAT(grown.error().message, testing::HasSubstr("raise --kv-disk-size"));
    const auto large = (*small->open())->generate(request_of(tiny_prompt(753)));
    ASSERT_FALSE(large);
    EXPECT_THAT(large.error().message, testing::HasSubstr("(752 tokens)"));
  }
}

TEST(Paging, APassHoldsAsManyCellsAsMemoryHasRoomFor) {
  EngineOptions options = small_options("none", 250), with_room = ample_options();
  options.chunk = with_room.chunk = 512;
  const std::string spec = "reattention:activate=300,local=256,agree=0,chunk=";
  const Request request = request_of(tiny_prompt(900), 12);
  const auto small = tiny_engine(options);
  EXPECT_EQ(last_logits(**small->open(spec + "64"), request),
            last_logits(**tiny_engine(with_room)->open(spec + "64"), request));
  const auto refused = (*small->open(spec + "256"))->generate(request);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("a smaller chunk"));
}

TEST(Paging, ASessionLargerThanMemoryIsSavedAndRestored) {
  const std::string path = scratch_folder() + "/large";
  auto prompt = tiny_prompt(900);
  {
    const auto engine = tiny_engine(small_options("token"));
    auto session = *engine->open();
    const Answer first = answer_of(*session, request_of(prompt, 12));
    ASSERT_TRUE(session->save(path, "note"));
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
  }
  prompt.push_back(65);
  const auto engine = tiny_engine(small_options("token"));
  auto session = *engine->open();
  const auto note = session->restore(path);
  ASSERT_TRUE(note) << note.error().message;
  const Answer answer = answer_of(*session, request_of(prompt, 12));
  EXPECT_EQ(answer.counters.reused_tokens, 911u);
  const auto ample = tiny_engine(ample_options());
  auto other = *ample->open();
  ASSERT_TRUE(other->restore(path));
  EXPECT_EQ(answer_of(*other, request_of(prompt, 12)).tokens, answer.tokens);
}

TEST(Paging, WhatFitsStaysInMemory) {
  const auto engine = tiny_engine(small_options("token"));
  const Answer answer = answer_of(**engine->open("quest:budget=128"), request_of(tiny_prompt(300)));
  EXPECT_EQ(answer.memory.kv.disk.moved_in_bytes, 0u);
  EXPECT_EQ(answer.counters.paging.hit_rate(), 1.0);
  EXPECT_EQ(engine->kv().paging.hits, 0u);
}

TEST(Paging, SaysWhatHasNoRoom) {
  const auto engine = tiny_engine(small_options("token", 200));
  const auto layer = (*engine->open())->generate(request_of(tiny_prompt(1700)));
  ASSERT_FALSE(layer);
  EXPECT_THAT(layer.error().message, testing::HasSubstr("a layer's KV"));
  EngineOptions options = small_options("token");
  options.kv_disk_size = 800 * kTokenBytes;
  const auto both = (*tiny_engine(options)->open())->generate(request_of(tiny_prompt(1500)));
  ASSERT_FALSE(both);
  EXPECT_THAT(both.error().message, testing::HasSubstr("--kv-memory"));
}

}  // namespace
}  // namespace reprise::test
