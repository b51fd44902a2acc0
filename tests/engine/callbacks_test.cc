// What callbacks may do to sessions while a pass is under way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine/answers.h"
#include "engine/tiny_model.h"

namespace reprise::test {
namespace {

struct Counted {
  std::unique_ptr<Session> session;
  int progress = 0, logits = 0, tokens = 0, done = 0;
  /// Called by each callback, with its name; the last session's is the first to be called.
  std::function<void(const std::string&)> act = [](const std::string&) {};

  void start(Engine& engine, const std::string& policy = "full") {
    session = *engine.open(policy);
    Request request = request_of(tiny_prompt(100), 6);
    request.on_progress = [this](const Progress& p) {
      ++progress;
      act(std::string(p.stage));
      return true;
    };
    request.on_logits = [this](std::span<const float>) {
      ++logits;
      act("logits");
    };
    request.on_token = [this](const TokenEvent&) {
      ++tokens;
      act("token");
      return true;
    };
    ASSERT_TRUE(engine.submit(*session, std::move(request), [this](const Result<Answer>&) {
      ++done;
      act("done");
    }));
  }
  int calls() const { return progress + logits + tokens + done; }
};

class Callback : public testing::TestWithParam<const char*> {};

// The first request ends every session, its own too, at its first, second, ... call of a kind.
TEST_P(Callback, MayEndSessions) {
  const std::string kind = GetParam();
  const std::string policy = kind == "index" ? "csattention:budget=64,observe=32" : "full";
  for (int nth = 1; nth <= 2; ++nth) {
    const auto engine = tiny_engine();
    Counted three[3];
    std::vector<int> calls;
    int seen = 0;
    three[1].act = [&](const std::string& now) {
      if (now != kind || ++seen != nth) return;
      for (Counted& each : three) each.session.reset();
      for (const Counted& each : three) calls.push_back(each.calls());
    };
    for (Counted& each : three) each.start(*engine, policy);
    while (engine->step()) continue;
    for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(three[i].calls(), calls[i]) << nth << i;
    EXPECT_EQ(calls.size(), kind == "done" && nth > 1 ? 0u : 3u);
    Counted later;  // nothing is left behind
    later.start(*engine, policy);
    while (engine->step()) continue;
    EXPECT_EQ(later.done, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Callback,
                         testing::Values("prefill", "index", "logits", "token", "done"));

TEST(Callbacks, DoNotWaitForAnswers) {
  const auto engine = tiny_engine();
  auto session = *engine->open(), other = *engine->open();
  Request request = request_of(tiny_prompt(20), 4);
  int refused = 0;
  request.on_token = [&](const TokenEvent&) {
    EXPECT_FALSE(engine->step());
    const auto answer = other->generate(request_of(tiny_prompt(20), 4));
    EXPECT_FALSE(answer);
    if (!answer && answer.error().code == ErrorCode::kInvalidArgument) ++refused;
    return true;
  };
  EXPECT_EQ(answer_of(*session, request).tokens.size(), 4u);
  EXPECT_GE(refused, 4);
  EXPECT_EQ(answer_of(*other, request_of(tiny_prompt(20), 4)).tokens.size(), 4u);
}

TEST(Callbacks, MayEndTheSessionThatWaits) {
  const auto engine = tiny_engine();
  auto session = *engine->open();
  Request request = request_of(tiny_prompt(20), 4);
  request.on_token = [&](const TokenEvent&) {
    session.reset();
    return true;
  };
  Session* const waiting = session.get();
  const auto answer = waiting->generate(request);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(answer_of(*engine, request_of(tiny_prompt(20), 4)).tokens.size(), 4u);
}

// One request runs, the other waits.
TEST(Callbacks, MayOwnTheirSessionsWhenTheEngineEnds) {
  EngineOptions options = tiny_options();
  options.batch = 1;
  auto engine = tiny_engine(options);
  int done = 0;
  std::vector<std::weak_ptr<Session>> sessions;
  for (int i = 0; i < 2; ++i) {
    std::shared_ptr<Session> session = *engine->open();
    sessions.push_back(session);
    ASSERT_TRUE(engine->submit(*session, request_of(tiny_prompt(20), 4),
                               [&done, session](const Result<Answer>&) { ++done; }));
  }
  engine->step();
  engine.reset();
  EXPECT_EQ(done, 0);
  for (const auto& session : sessions) EXPECT_TRUE(session.expired());
}

TEST(Callbacks, MayOwnWhatStartsRequestsWhenTheEngineEnds) {
  struct Last {
    Engine& engine;
    std::shared_ptr<Session> session;
    Last(Engine& of, std::shared_ptr<Session> last) : engine(of), session(std::move(last)) {}
    ~Last() {
      const std::shared_ptr<Session> kept = std::move(session);
      EXPECT_TRUE(
          engine.submit(*kept, request_of(tiny_prompt(5), 2), [kept](const Result<Answer>&) {}));
    }
  };
  EngineOptions options = tiny_options();
  options.batch = 1;
  auto engine = tiny_engine(options);
  std::shared_ptr<Session> session = *engine->open(), other = *engine->open();
  const std::weak_ptr<Session> last = other;
  const auto owned = [&] { return std::make_shared<Last>(*engine, std::move(other)); };
  ASSERT_TRUE(engine->submit(*session, request_of(tiny_prompt(20), 4),
                             [session, kept = owned()](const Result<Answer>&) {}));
  session.reset();
  engine->step();
  engine.reset();
  EXPECT_TRUE(last.expired());
}

TEST(Callbacks, MayStartRequests) {
  const auto engine = tiny_engine();
  auto session = *engine->open();
  int done = 0;
  std::function<void(Result<Answer>)> again = [&](const Result<Answer>& answer) {
    ASSERT_TRUE(answer);
    if (++done == 3) return;
    ASSERT_TRUE(engine->submit(*session, request_of(tiny_prompt(40), 3), again));
  };
  ASSERT_TRUE(engine->submit(*session, request_of(tiny_prompt(40), 3), again));
  while (engine->step()) continue;
  EXPECT_EQ(done, 3);
}

}  // namespace
}  // namespace reprise::test
