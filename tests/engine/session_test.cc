#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/answers.h"
#include "engine/tiny_model.h"

namespace reprise {
namespace {

using test::request_of;
using test::tiny_engine;
using test::tiny_options;
using test::tiny_prompt;

class SessionFile : public ::testing::TestWithParam<const char*> {};

TEST_P(SessionFile, RestoredKvAnswersAsTheLiveOneWould) {
  EngineOptions options = tiny_options();
  options.kv_type = GetParam();
  const std::string path = test::scratch_folder() + "/" + GetParam();
  const auto engine = tiny_engine(options);
  auto session = *engine->open();
  auto prompt = tiny_prompt(150);
  const Answer first = *session->generate(request_of(prompt));
  ASSERT_TRUE(session->save(path, "note"));
  prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
  prompt.push_back(65);
  const Answer live = *session->generate(request_of(prompt));

  const auto later = tiny_engine(options);
  auto restored = *later->open();
  const auto note = restored->restore(path);
  ASSERT_TRUE(note) << note.error().message;
  EXPECT_EQ(*note, "note");
  const Answer again = *restored->generate(request_of(prompt));
  EXPECT_EQ(again.counters.reused_tokens, live.counters.reused_tokens);
  EXPECT_EQ(again.tokens, live.tokens);
}

TEST(SessionFile, NothingIsReplacedUnderARunningRequest) {
  const std::string path = test::scratch_folder() + "/other";
  const auto engine = tiny_engine(tiny_options());
  const auto other = *engine->open(), alone = *engine->open(), session = *engine->open();
  ASSERT_TRUE(other->generate(request_of(tiny_prompt(40, 3))));
  ASSERT_TRUE(other->save(path, ""));
  const Request request = request_of(tiny_prompt(60));
  const std::vector<int32_t> want = alone->generate(request)->tokens;
  std::vector<int32_t> got;
  ASSERT_TRUE(engine->submit(*session, request, [&](const auto& answer) { got = answer->tokens; }));
  for (int i = 0; i < 3; ++i) engine->step();
  const auto truncated = session->truncate(10);
  const auto restored = session->restore(path);
  ASSERT_FALSE(truncated || restored);
  EXPECT_EQ(truncated.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(restored.error().code, ErrorCode::kInvalidArgument);
  while (engine->step()) continue;
  EXPECT_EQ(got, want);
}

TEST(SessionKvType, IsThatOfAFileOfTheModel) {
  const std::string path = test::scratch_folder() + "/typed.kv";
  for (const std::string type : {"f16", "q8_0", "f32"}) {
    EngineOptions options = tiny_options();
    options.kv_type = type;
    {
      const auto engine = tiny_engine(options);
      auto session = *engine->open();
      test::answer_of(*session, test::request_of(test::tiny_prompt(40), 2));
      ASSERT_TRUE(session->save(path, ""));
    }
    options.kv_type = kAutoKvType;
    const std::string own = tiny_engine(options)->info().kv_type;
    options.kv_type_of = path;
    {
      const auto engine = tiny_engine(options);
      EXPECT_EQ(engine->info().kv_type, type);
      EXPECT_TRUE((*engine->open())->restore(path)) << type;
    }
    options.model = test::tiny_model({80});
    EXPECT_EQ(tiny_engine(options)->info().kv_type, "bf16") << "a file of another model";
    options.model = tiny_options().model;
    options.kv_type_of = path + ".none";
    EXPECT_EQ(tiny_engine(options)->info().kv_type, own);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SessionFile,
                         ::testing::Values("bf16", "bf12", "f16", "f32", "q8_0"));

TEST(SessionFile, AnotherPolicyOrTypeIsAMismatchAndLeavesTheSessionAlone) {
  const std::string path = test::scratch_folder() + "/mismatch";
  const auto engine = tiny_engine();
  auto session = *engine->open();
  ASSERT_TRUE(session->generate(request_of(tiny_prompt(60))));
  ASSERT_TRUE(session->save(path, ""));
  auto other = *engine->open("streaming");
  EXPECT_EQ(other->restore(path).error().code, ErrorCode::kSessionMismatch);
  EngineOptions options = tiny_options();
  options.kv_type = "f32";
  const auto wide = tiny_engine(options);
  EXPECT_EQ((*wide->open())->restore(path).error().code, ErrorCode::kSessionMismatch);
  const size_t held = session->tokens().size();
  EXPECT_EQ(session->restore(path + ".none").error().code, ErrorCode::kFileNotFound);
  EXPECT_EQ(session->tokens().size(), held);
}

TEST(SessionFile, AnIndexIsKeptWithItsKeys) {
  const std::string path = test::scratch_folder() + "/index";
  const char* spec = "csattention:budget=128";
  const auto engine = tiny_engine();
  auto session = *engine->open(spec);
  auto prompt = tiny_prompt(1500);
  ASSERT_TRUE(session->generate(request_of(prompt)));
  ASSERT_TRUE(session->save(path, "note"));
  prompt.resize(1450);  // before the end of the prompt that made the index
  prompt.push_back(65);
  auto forked = session->fork();
  const Answer live = *session->generate(request_of(prompt));
  EXPECT_EQ(live.counters.reused_tokens, 1450u);
  EXPECT_EQ(forked->generate(request_of(prompt))->tokens, live.tokens);

  const auto later = tiny_engine();
  auto restored = *later->open(spec);
  EXPECT_EQ(*restored->restore(path), "note");
  const Answer again = *restored->generate(request_of(prompt));
  EXPECT_EQ(again.counters.reused_tokens, 1450u);
  EXPECT_EQ(again.tokens, live.tokens);
  EXPECT_EQ(again.counters.keys_read, live.counters.keys_read);
  auto other = *later->open("csattention:budget=128,bits=3");
  EXPECT_EQ(other->restore(path).error().code, ErrorCode::kSessionMismatch);
}

// Of a memory that has room for one: the session's own, which the restored ones replace.
TEST(SessionFile, RingsAreRestoredIntoTheRoomThatTheSessionHolds) {
  const std::string path = test::scratch_folder() + "/rings";
  const std::string rings = "mac:min_context=0,window=64,band=16,sink=4,guard=false";
  const auto engine = tiny_engine();
  const auto prompt = tiny_prompt(300);
  const auto measured = *engine->open(rings);
  const uint64_t one = measured->generate(request_of(prompt))->memory.index_bytes;
  auto session = *engine->open(rings + ",ring_memory=" + std::to_string(one * 3 / 2));
  const Answer first = *session->generate(request_of(prompt));
  EXPECT_EQ(first.memory.index_bytes, one);
  ASSERT_TRUE(session->save(path, ""));
  ASSERT_TRUE(session->restore(path));
  std::vector<int32_t> next(session->tokens().begin(), session->tokens().end());
  next.push_back(65);
  const Answer again = *session->generate(request_of(next));
  EXPECT_EQ(again.memory.index_bytes, one);
  EXPECT_EQ(again.counters.reused_tokens, next.size() - 1);  // no window is read anew
}

TEST(SessionFile, StreamingSessionsKeepTheirHoles) {
  const std::string path = test::scratch_folder() + "/holes";
  const auto engine = tiny_engine();
  auto session = *engine->open("streaming:window=32");
  auto prompt = tiny_prompt(200);
  const Answer first = *session->generate(request_of(prompt));
  ASSERT_TRUE(session->save(path, ""));
  prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
  const Answer live = *session->generate(request_of(prompt));
  auto restored = *engine->open("streaming:window=32");
  ASSERT_TRUE(restored->restore(path));
  EXPECT_EQ(restored->generate(request_of(prompt))->tokens, live.tokens);
}

TEST(SessionFile, AnUnwritablePathIsAnError) {
  const auto engine = tiny_engine();
  auto session = *engine->open();
  ASSERT_TRUE(session->generate(request_of(tiny_prompt(20))));
  EXPECT_EQ(session->save("/nonexistent/folder/file", "").error().code, ErrorCode::kFileUnwritable);
}

}  // namespace
}  // namespace reprise
