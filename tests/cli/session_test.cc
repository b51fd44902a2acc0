// What `--session FILE` keeps and never destroys, with a made-up model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class SessionTest : public testing::Test {
 protected:
  Outcome with_session(std::vector<std::string> arguments, const std::string& script = "") const {
    arguments.insert(arguments.end(),
                     {"-m", "random:tiny", "--ctx", "8K", "--session", session_, "--json"});
    return run(arguments, {.input = script});
  }
  Outcome chat(const std::string& script, const std::vector<std::string>& options = {}) const {
    std::vector<std::string> arguments{"chat", "-n", "4"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return with_session(arguments, script);
  }
  static nlohmann::json said(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.json()["messages"];
  }
  std::string bytes() const {
    std::stringstream content;
    content << std::ifstream(session_, std::ios::binary).rdbuf();
    return content.str();
  }
  void damage(size_t at) const {
    std::fstream(session_, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(at))
        .put('\xff');
  }

  TemporaryFolder folder_;
  std::string session_ = folder_.file("talk.kv");
};

TEST_F(SessionTest, AConversationOutlivesEverySetting) {
  const auto before = said(chat("My name is Ada.\n"));
  ASSERT_EQ(before.size(), 2u);
  const std::vector<std::vector<std::string>> settings = {
      {"--policy", "streaming:sink=4,window=64"}, {"--kv-type", "f16"}, {"--precision", "f32"}};
  size_t messages = before.size();
  for (const auto& setting : settings) {
    const Outcome other = chat("And mine?\n", setting);
    EXPECT_THAT(other.err, HasSubstr("everything is read again"));
    messages += 2;
    ASSERT_EQ(said(other).size(), messages) << setting[0];
    EXPECT_EQ(said(other)[1], before[1]);
    EXPECT_EQ(other.json()["turns"][0]["counters"]["reused_tokens"], 0);
    EXPECT_EQ(said(chat("", setting)).size(), messages) << "and it was saved with its KV";
  }
}

TEST_F(SessionTest, ItsKvTypeIsTakenUnlessOneIsNamed) {
  for (const std::string type : {"f16", "bf16", "bf12"}) {
    std::remove(session_.c_str());
    said(chat("My name is Ada.\n", {"--kv-type", type}));
    const Outcome next = chat("And mine?\n");
    EXPECT_THAT(next.err, Not(HasSubstr("read again"))) << type;
    EXPECT_GT(next.json()["turns"][0]["counters"]["reused_tokens"], 0) << type;
  }
}

TEST_F(SessionTest, AConversationLargerThanMemoryIsKept) {
  const std::string long_question(3000, 'a');
  ASSERT_EQ(said(chat(long_question + "\n")).size(), 2u);
  const Outcome small = chat("And then?\n", {"--kv-memory", "1M"});
  EXPECT_THAT(small.err, HasSubstr("everything is read again"));
  EXPECT_EQ(said(chat("")).size(), 2u);
}

TEST_F(SessionTest, DamageCostsReadingAgainOrNothing) {
  const auto before = said(chat("My name is Ada.\n"));
  damage(bytes().size() - 100);  // keys and values
  const Outcome again = chat("And mine?\n");
  EXPECT_THAT(again.err, HasSubstr("everything is read again"));
  EXPECT_EQ(said(again).size(), 4u);
  EXPECT_EQ(said(again)[1], before[1]);

  damage(bytes().find("Ada"));
  const std::string broken = bytes();
  const Outcome refused = chat("Hello\n");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("left as it is"));
  EXPECT_EQ(refused.json()["error"]["code"], "corrupt");
  EXPECT_EQ(bytes(), broken);
}

TEST_F(SessionTest, RunLeavesWhatOtherSettingsSaved) {
  const std::string document = folder_.write("doc.txt", "Bees dance.");
  const std::vector<std::string> policy = {"--policy", "streaming:sink=4,window=64"};
  const auto ask = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"run", "-f", document, "-p", "Why?", "-n", "4"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return with_session(arguments);
  };
  ASSERT_EQ(ask(policy).code, 0);
  const std::string saved = bytes();
  for (const auto& setting : std::vector<std::vector<std::string>>{{}, {"--precision", "f32"}}) {
    const Outcome other = ask(setting);
    EXPECT_EQ(other.code, 0) << other.err;
    EXPECT_THAT(other.err, HasSubstr("read again and not saved, the file stays as it is"));
    EXPECT_EQ(bytes(), saved);
  }
  const Outcome same = ask(policy);
  EXPECT_THAT(same.err, Not(HasSubstr("read again")));
  EXPECT_GT(same.json()["counters"]["reused_tokens"], 10);
}

TEST_F(SessionTest, LoadingAnotherTalkLeavesTheFilesOwn) {
  said(chat("My name is Bob.\n"));
  const std::string other = folder_.file("other.kv"), second = session_ + ".2";
  std::filesystem::rename(session_, other);
  const auto ann = said(chat("My name is Ann.\n"));
  const std::string load = "/load " + other + "\n";

  EXPECT_EQ(said(chat(load)).size(), 2u);
  EXPECT_EQ(said(chat("")), ann);
  EXPECT_FALSE(std::filesystem::exists(second)) << "nothing was asked";

  const Outcome asked = chat("And then?\n" + load + "And mine?\n");
  EXPECT_THAT(asked.err, HasSubstr("holds another talk and stays as it is"));
  const auto own = said(chat(""));
  ASSERT_EQ(own.size(), 4u) << "with what was said before";
  EXPECT_EQ(own[0], ann[0]);
  std::filesystem::rename(second, session_);
  const auto loaded = said(chat(""));
  ASSERT_EQ(loaded.size(), 4u);
  EXPECT_EQ(loaded[0]["content"], "My name is Bob.");

  const std::string reload = "/load " + session_ + "\n";
  EXPECT_EQ(said(chat("Dropped\n" + reload)).size(), 4u) << "back to what the file holds";
  EXPECT_EQ(said(chat("")), loaded);
}

TEST_F(SessionTest, AnIndexIsNotReplacedWithoutAWord) {
  const std::string document = folder_.write("doc.txt", "Bees dance.");
  ASSERT_EQ(with_session({"index", document, "--policy", "full"}).code, 0);
  const Outcome used = chat("Why?\n", {"-f", document});
  EXPECT_THAT(used.err, Not(HasSubstr("no conversation")));
  EXPECT_GT(used.json()["turns"][0]["counters"]["reused_tokens"], 10);
  ASSERT_EQ(with_session({"index", document}).code, 0);
  EXPECT_THAT(chat("Hello\n").err, HasSubstr("talk.kv holds no conversation"));
}

TEST_F(SessionTest, OtherFilesAreNotReplaced) {
  const std::string document = folder_.write("doc.txt", "Bees dance.");
  const std::vector<std::vector<std::string>> commands = {
      {"run", "-p", "x"}, {"index", document}, {"chat"}};
  for (const auto& command : commands) {
    for (const std::string& path :
         {folder_.write("report.txt", "figures"), std::string("/dev/null")}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), {"-m", "random:tiny", "--session", path});
      const Outcome outcome = run(arguments);
      EXPECT_EQ(outcome.code, 2) << command[0];
      EXPECT_THAT(outcome.err, HasSubstr(path + " is no session file; choose another name"));
    }
  }
  session_ = folder_.write("empty.kv", "");
  EXPECT_EQ(said(chat("Hello\n")).size(), 2u) << "as mktemp makes it";
  const Outcome saved = chat("/save " + document + "\n");
  EXPECT_EQ(saved.code, 2);
  EXPECT_THAT(saved.err, HasSubstr("doc.txt is no session file"));
}

TEST_F(SessionTest, APolicyThatCannotBeSavedIsRefusedBeforeReading) {
  for (const char* policy : {"snapkv", "h2o", "infllm"}) {
    const Outcome outcome = with_session({"run", "-p", "x", "--policy", policy});
    EXPECT_EQ(outcome.code, 2) << policy;
    EXPECT_EQ(outcome.json()["error"]["code"], "invalid_argument") << "one object";
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("--session"), HasSubstr(policy)));
  }
  const Outcome changed = chat("Hello\n/policy snapkv\n");
  EXPECT_EQ(changed.code, 2);
  EXPECT_EQ(said(chat("")).size(), 2u);
}

TEST_F(SessionTest, MessagesAreKeptWithoutTheirKv) {
  EXPECT_EQ(chat("Hello\n/policy streaming:window=64\n").code, 0);
  const auto kept = said(chat(""));
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0]["content"], "Hello");
}

TEST_F(SessionTest, ALookWithOtherSettingsLeavesItsKv) {
  ASSERT_EQ(chat("Hello\n").code, 0);
  const std::string before = bytes();
  const Outcome look = chat("", {"--kv-type", "f32"});
  EXPECT_EQ(said(look).size(), 2u);
  EXPECT_EQ(bytes(), before);
}

TEST_F(SessionTest, LoadingWhatIsNoTalkLeavesTheTalk) {
  const std::string index = folder_.file("index.kv"), document = folder_.write("d.txt", "Bees.");
  ASSERT_EQ(run({"index", document, "--session", index, "-m", "random:tiny", "--ctx", "8K"}).code,
            0);
  ASSERT_EQ(chat("Hello\n").code, 0);
  const std::string before = bytes();
  const Outcome loaded = chat("/load " + index + "\n");
  EXPECT_THAT(loaded.err, HasSubstr("index.kv holds no conversation"));
  EXPECT_EQ(bytes().size(), before.size());
}

TEST_F(SessionTest, ATalkIsNotReplacedWithoutAWord) {
  ASSERT_EQ(chat("Hello\nAgain\n").code, 0);
  const std::string document = folder_.write("doc.txt", "Bees dance.");
  const Outcome indexed = with_session({"index", document});
  EXPECT_THAT(indexed.err, HasSubstr("talk.kv holds a conversation of 4 messages"));
  EXPECT_THAT(with_session({"index", document}).err, Not(HasSubstr("conversation")));
}

TEST_F(SessionTest, ItsSystemMessageIsKeptWithAWord) {
  ASSERT_EQ(chat("Hello\n", {"--system", "Be brief."}).code, 0);
  EXPECT_THAT(chat("", {"--system", "Be brief."}).err, Not(HasSubstr("--system")));
  const Outcome other = chat("", {"--system", "Be long."});
  EXPECT_THAT(other.err, HasSubstr("--system: the conversation keeps what it began with"));
  EXPECT_EQ(said(other)[0]["content"], "Be brief.");
}

TEST_F(SessionTest, AScriptThatFailsKeepsWhatWasAnswered) {
  for (const std::string& wrong : {std::string("/bogus"), "/read " + folder_.file("absent.txt")}) {
    const size_t before = std::ifstream(session_).good() ? said(chat("")).size() : 0;
    const Outcome outcome = chat("Hello\n" + wrong + "\nNever asked\n");
    EXPECT_NE(outcome.code, 0);
    const auto json = outcome.json();
    EXPECT_THAT(json["error"]["message"], HasSubstr(wrong.substr(wrong.find(' ') + 1)));
    EXPECT_EQ(json["turns"].size(), 1u);
    EXPECT_EQ(json["messages"].size(), before + 2);
    EXPECT_EQ(said(chat("")).size(), before + 2);
  }
}

// What was taken back may have been a secret.
TEST_F(SessionTest, WhatIsTakenBackIsNotKept) {
  const std::string text = "hunter2";
  std::string tokens;  // which are its bytes
  for (const char byte : text) tokens += std::string{byte, '\0', '\0', '\0'};
  const std::string question = "My word is " + text + ".\n";
  for (const char* policy : {"full", "streaming:sink=4,window=16"}) {
    for (const char* command : {"/reset", "/undo", "/system Be brief."}) {
      SCOPED_TRACE(std::string(policy) + " " + command);
      std::filesystem::remove(session_);
      said(chat("Hello\n" + question, {"--policy", policy}));
      EXPECT_THAT(bytes(), AllOf(HasSubstr(text), HasSubstr(tokens)));
      said(chat(std::string(command) + "\n", {"--policy", policy}));  // of a talk that was kept
      EXPECT_THAT(bytes(), AllOf(Not(HasSubstr(text)), Not(HasSubstr(tokens))));
      said(chat("Hello\n" + question + command + "\n", {"--policy", policy}));
      EXPECT_THAT(bytes(), AllOf(Not(HasSubstr(text)), Not(HasSubstr(tokens))));
    }
  }
}

TEST_F(SessionTest, AStopWhileReadingIsToldAndSaved) {
  const std::string path = folder_.write("long.txt", std::string(100000, 'a'));
  Process process({"run", "-m", "random:tiny", "--ctx", "16M", "-f", path, "--prefill-chunk", "16",
                   "-t", "1", "--session", session_},
                  {});
  ASSERT_TRUE(process.wait_for_errors("reading the prompt"));
  for (int i = 0; i < 20; ++i) {  // a key that is held down
    process.interrupt();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_THAT(outcome.err, HasSubstr("stopped while reading the prompt"));
  EXPECT_FALSE(bytes().empty());
}

}  // namespace
}  // namespace reprise::test
