// The /commands of `reprise chat`, in scripts of questions to a made-up model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

class ChatTest : public testing::Test {
 protected:
  static Outcome chat(const std::string& script, const std::vector<std::string>& options = {}) {
    std::vector<std::string> arguments{"chat", "-m", "random:tiny", "--ctx",
                                       "8K",   "-n", "4",           "--json"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return run(arguments, {.input = script});
  }
  /// What was said by whom, without the answers' noise.
  static std::vector<std::string> said(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<std::string> list;
    const auto json = outcome.json();
    for (const auto& message : json["messages"]) {
      const std::string role = message["role"];
      list.push_back(role == "assistant" ? role
                                         : role + ": " + message["content"].get<std::string>());
    }
    return list;
  }

  TemporaryFolder folder_;
};

TEST_F(ChatTest, HelpListsTheCommandsOfTheManual) {
  const Outcome outcome = chat("/help\n");
  EXPECT_THAT(outcome.err, HasSubstr("Ctrl-C stops an answer"));
  std::vector<std::string> commands, documented;
  std::istringstream help(outcome.err);
  const std::regex entry("  (/[a-z]+) +([A-Z]*) +[a-z].*");
  std::smatch match;
  for (std::string line; std::getline(help, line);) {
    if (!std::regex_match(line, match, entry)) continue;
    commands.push_back(match[1].str() + (match[2].length() > 0 ? " " + match[2].str() : ""));
  }
  std::ifstream manual(REPRISE_DOCS "/cli.md");
  const std::regex quoted("`(/[a-z]+[^`]*)`");
  for (std::string line; std::getline(manual, line);) {
    if (!line.starts_with("| `/")) continue;
    for (std::sregex_iterator i(line.begin(), line.end(), quoted), end; i != end; ++i)
      documented.push_back((*i)[1]);
  }
  EXPECT_THAT(commands, IsSupersetOf({"/help", "/read FILE", "/quit"}));
  EXPECT_THAT(commands, testing::UnorderedElementsAreArray(documented));
}

TEST_F(ChatTest, WhatIsAskedForIsToldQuietlyToo) {
  const Outcome outcome = chat("/help\n/stats\n", {"--quiet"});
  EXPECT_THAT(outcome.err, HasSubstr("/undo"));
  EXPECT_THAT(outcome.err, HasSubstr("policy full"));
}

TEST_F(ChatTest, UndoSaysWhenThereIsNothingToTakeBack) {
  const Outcome outcome = chat("Hello\n/undo\n/undo\n", {"--system", "Be brief."});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("no question to take back"));
  EXPECT_EQ(outcome.json()["messages"].size(), 1u) << "the system message stays";
}

TEST_F(ChatTest, QuestionsAndDocumentsDoNotShareStandardInput) {
  EXPECT_EQ(chat("Hello\n", {"-f", "-"}).code, 2);
  const Outcome outcome = chat("/read -\nHello\n");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("/read -: questions come from standard input"));
}

TEST_F(ChatTest, SpacesBehindAFileAreNotItsName) {
  const std::string path = folder_.write("a b.txt", "A text.");
  EXPECT_THAT(said(chat("/read " + path + "  \nHello\n")),
              ElementsAre("user: A text.\n\nHello", "assistant"));
}

TEST_F(ChatTest, LoadSaysWhatIsThere) {
  const std::string path = folder_.file("talk.kv");
  const Outcome outcome = chat("Hello\n/save " + path + "\n/reset\n/load " + path + "\n");
  EXPECT_THAT(outcome.err, HasSubstr("2 messages, "));
  EXPECT_THAT(outcome.err, HasSubstr("tokens restored]"));
}

TEST_F(ChatTest, ReadPutsADocumentBeforeTheNextQuestionOnly) {
  const std::string path = folder_.write("fact.txt", "Bees dance.");
  const Outcome outcome = chat("/read " + path + "\nWhy?\nAnd then?\n");
  EXPECT_THAT(said(outcome), ElementsAre("user: Bees dance.\n\nWhy?", "assistant",
                                         "user: And then?", "assistant"));
  EXPECT_THAT(outcome.err, HasSubstr("[11 bytes; ask about them]"));
  EXPECT_THAT(said(chat("/read " + path + "\n/read " + path + "\nWhy?\n")),
              ElementsAre("user: Bees dance.\n\nBees dance.\n\nWhy?", "assistant"));
  const Outcome missing = chat("/read " + folder_.file("absent.txt") + "\nWhy?\n");
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("absent.txt"));
}

TEST_F(ChatTest, ResetForgetsAllButTheSystemMessage) {
  const std::string path = folder_.write("fact.txt", "Bees dance.");
  const Outcome outcome =
      chat("Hello\n/read " + path + "\n/reset\nAgain\n", {"--system", "Be brief."});
  EXPECT_THAT(said(outcome), ElementsAre("system: Be brief.", "user: Again", "assistant"));
  EXPECT_EQ(outcome.json()["turns"].size(), 2u) << "what was answered before still counts";
}

TEST_F(ChatTest, SystemStartsAgainWithItsMessage) {
  const Outcome outcome =
      chat("Hello\n/system Speak in  verse.\nAgain\n", {"--system", "Be brief."});
  EXPECT_THAT(said(outcome), ElementsAre("system: Speak in  verse.", "user: Again", "assistant"));
}

TEST_F(ChatTest, LoadGoesOnWithWhatSaveWrote) {
  const std::string path = folder_.file("talk.kv");
  const Outcome saved = chat("My name is Ada.\n/save " + path + "\nNot saved\n");
  EXPECT_EQ(said(saved).size(), 4u);
  const Outcome loaded = chat("Dropped\n/load " + path + "\nAnd mine?\n");
  EXPECT_THAT(said(loaded),
              ElementsAre("user: My name is Ada.", "assistant", "user: And mine?", "assistant"));
  EXPECT_EQ(loaded.json()["messages"][1], saved.json()["messages"][1]);
  // The KV came along: only the new turn was read.
  const auto counters = loaded.json()["turns"][1]["counters"];
  EXPECT_GE(counters["reused_tokens"], saved.json()["turns"][0]["counters"]["prompt_tokens"]);

  const Outcome missing = chat("/load " + folder_.file("absent.kv") + "\n");
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("absent.kv: there is no such file"));
  const Outcome unwritable = chat("Hello\n/save " + folder_.file("no-folder/talk.kv") + "\n");
  EXPECT_EQ(unwritable.code, 1);
  EXPECT_THAT(unwritable.err, HasSubstr("no-folder/talk.kv"));
  EXPECT_THAT(unwritable.err, testing::Not(HasSubstr("--session")));
}

TEST_F(ChatTest, NothingIsSavedThatLoadRefuses) {
  const std::string path = folder_.file("talk.kv");
  for (const char* script : {"/save ", "Hello\n/undo\n/save ", "Hello\n/reset\n/save "}) {
    const Outcome outcome = chat(script + path + "\n", {"--system", "Be brief."});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("nothing to save yet"));
  }
  EXPECT_EQ(chat("Hello\n/undo\n", {"--system", "Be brief.", "--session", path}).code, 0);
  const Outcome loaded = chat("/load " + path + "\n");
  EXPECT_EQ(loaded.code, 1);
  EXPECT_THAT(loaded.err, HasSubstr("talk.kv holds no conversation"));
}

TEST_F(ChatTest, QuestionsThatCannotBeReadAreAnError) {
  const std::string command = std::string(REPRISE_BINARY) + " chat -m random:tiny --json < /";
  const Outcome outcome = run({"-c", command}, {.program = "/bin/sh"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.json()["error"]["code"], "file_unreadable");
  EXPECT_THAT(outcome.err, HasSubstr("standard input: Is a directory"));
}

TEST_F(ChatTest, AnEmptyFileIsASessionYetToBe) {
  const std::string path = folder_.write("new.kv", "");
  const Outcome outcome = chat("Hello\n", {"--session", path});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("reprise:")));
  EXPECT_EQ(chat("Again\n", {"--session", path}).json()["messages"].size(), 4u);
}

TEST_F(ChatTest, LinesMayEndAsOnWindows) {
  EXPECT_THAT(said(chat("Hello\r\n/reset\r\nAgain\r\n/quit\r\n")),
              ElementsAre("user: Again", "assistant"));
}

TEST_F(ChatTest, PolicyReadsFewerKeysFromThenOn) {
  const std::string policy = "streaming:sink=4,window=16";
  const Outcome outcome = chat("Hello\n/policy " + policy + "\nAgain\n/stats\n");
  EXPECT_THAT(said(outcome), ElementsAre("user: Hello", "assistant", "user: Again", "assistant"));
  EXPECT_THAT(outcome.err, HasSubstr("policy " + policy));
  const auto turns = outcome.json()["turns"];
  EXPECT_EQ(turns[0]["counters"]["keys_read"], turns[0]["counters"]["keys_visible"]);
  EXPECT_LT(turns[1]["counters"]["keys_read"], turns[1]["counters"]["keys_visible"]);
  const Outcome unknown = chat("/policy streming\nHello\n");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("streaming"));
}

TEST_F(ChatTest, ACommandWithoutItsArgumentSaysWhatIsMissing) {
  for (const char* name : {"/read", "/system", "/save", "/load", "/policy"}) {
    const Outcome outcome = chat(std::string(name) + "\nHello\n");
    EXPECT_EQ(outcome.code, 2) << name;
    EXPECT_THAT(outcome.err, HasSubstr(std::string(name) + " needs "));
    EXPECT_THAT(outcome.out, Not(HasSubstr("Hello"))) << "a script ends at its first error";
  }
}

}  // namespace
}  // namespace reprise::test
