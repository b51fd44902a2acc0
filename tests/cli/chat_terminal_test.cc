// `reprise chat` as its user types at a terminal, with a made-up model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char *kLeft = "\x1b[D", *kUp = "\x1b[A", *kBackspace = "\x7f", *kToStart = "\x01",
                     *kEnter = "\r", *kInterrupt = "\x03", *kEnd = "\x04",
                     *kPrompt = "\x1b[?2004h> ";  // pastes are marked from then on

class ChatTerminalTest : public testing::Test {
 protected:
  std::vector<std::string> chat(const std::vector<std::string>& options) const {
    std::vector<std::string> arguments{"chat", "-m", "random:tiny", "--ctx", "16M"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return arguments;
  }
  Launch at_terminal() const {
    return {.env = {{"XDG_STATE_HOME", folder_.file("state")}}, .terminal = true};
  }
  /// Types keys at the first or at the next prompt.
  static void type_first(Process& process, const std::string& keys, const char* prompt = kPrompt) {
    ASSERT_TRUE(process.wait_for_output(prompt));
    ASSERT_TRUE(process.wait_for_reading());
    process.type(keys);
  }
  static void type_next(Process& process, const std::string& keys) { type_first(process, keys); }
  /// Types each of the lines at a prompt, then Ctrl-D.
  Outcome converse(const std::vector<std::string>& lines) const {
    Process process(chat({"-n", "4", "--json"}), at_terminal());
    type_first(process, lines[0]);
    for (size_t i = 1; i < lines.size(); ++i) type_next(process, lines[i]);
    type_next(process, kEnd);
    return process.finish();
  }
  /// The questions in the JSON that the program ends with, after what was typed.
  static std::vector<std::string> questions(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.out;
    const auto json = nlohmann::json::parse(outcome.out.substr(outcome.out.find("{\r\n")));
    std::vector<std::string> list;
    for (const auto& message : json["messages"])
      if (message["role"] == "user") list.push_back(message["content"]);
    EXPECT_EQ(json["turns"].size(), list.size()) << "each was answered";
    return list;
  }

  TemporaryFolder folder_;
};

TEST_F(ChatTerminalTest, LinesAreEdited) {
  const std::string inside = std::string("Helpo") + kLeft + kBackspace + "l" + kEnter;
  const std::string start = std::string("orld") + kToStart + "W" + kEnter;
  const std::string letter = std::string("Zo\u00eb") + kBackspace + "e" + kEnter;
  EXPECT_THAT(questions(converse({inside, start, letter})), ElementsAre("Hello", "World", "Zoe"));
}

TEST_F(ChatTerminalTest, TalksInTwoWindowsAreBothKept) {
  const std::string file = folder_.file("talk.kv");
  const std::vector<std::string> options = {"-n", "4", "--json", "--session", file};
  Process first(chat(options), at_terminal());
  type_first(first, "Hello\r");
  type_next(first, "");  // it was answered
  EXPECT_EQ(run(chat(options), {.input = "Good day\n"}).code, 0);
  first.type(kEnd);
  const Outcome outcome = first.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("this talk goes to " + file + ".2"));
  const auto question = [&](const std::string& session) {
    const Outcome kept = run(chat({"--json", "--session", session}));
    return kept.code == 0 ? kept.json()["messages"][0]["content"].get<std::string>() : kept.err;
  };
  EXPECT_EQ(question(file), "Good day");
  EXPECT_EQ(question(file + ".2"), "Hello");
}

// As in containers, which often name none.
TEST_F(ChatTerminalTest, LettersNeedNoLocale) {
  Launch launch = at_terminal();
  launch.env["LC_ALL"] = "C";
  Process process(chat({"-n", "4", "--json"}), launch);
  type_first(process, "Zo\u00eb\r");
  type_next(process, kEnd);
  EXPECT_THAT(questions(process.finish()), ElementsAre("Zo\u00eb"));
}

TEST_F(ChatTerminalTest, PastedLinesAreOneQuestion) {
  const std::string paste = "\x1b[200~one\rtwo\nthree\r\x1b[201~";
  EXPECT_THAT(questions(converse({paste + "!\r", "\x1b[200~\x1b[201~Next\r"})),
              ElementsAre("one\ntwo\nthree!", "Next"));
}

TEST_F(ChatTerminalTest, APasteMayHaveTheLineBreaksOfWindows) {
  EXPECT_THAT(questions(converse({"\x1b[200~one\r\ntwo\r\n\r\nthree\r\n\x1b[201~\r"})),
              ElementsAre("one\ntwo\n\nthree"));
}

TEST_F(ChatTerminalTest, ACommandMayBePastedOverSeveralLines) {
  const std::string paste = "\x1b[200~/system\rBe\rbrief.\x1b[201~\r";
  const Outcome outcome = converse({paste, "\x1b[200~/qiut\rsoon\x1b[201~\r", "Hello\r"});
  EXPECT_THAT(questions(outcome), ElementsAre("Hello"));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("\"Be\\nbrief.\""),
                                 HasSubstr("unknown command /qiut (did you mean /quit?); ")));
}

TEST_F(ChatTerminalTest, PastesAreMarkedOnlyWhileALineIsTyped) {
  Process process(chat({"-n", "16M"}), at_terminal());
  type_first(process, "Hello\r");
  ASSERT_TRUE(process.wait_for_output("\x1b[?2004l"));
  ASSERT_TRUE(process.wait_for_output("<|")) << "a token of the model that is no text";
  process.type(kInterrupt);
  type_next(process, kEnd);
  ASSERT_TRUE(process.wait_for_output("\x1b[?2004l"));
  EXPECT_EQ(process.finish().code, 0);
}

TEST_F(ChatTerminalTest, KeysOfViAreAsViHasThem) {
  folder_.write(".editrc", "bind -v\n");
  Launch launch = at_terminal();
  launch.env["HOME"] = folder_.file("");
  Process process(chat({"-n", "4", "--json"}), launch);
  type_first(process, "Hello\x1b\x30iX\r", "> ");
  type_first(process, kEnd, "\n> ");
  const Outcome outcome = process.finish();
  EXPECT_THAT(questions(outcome), ElementsAre("XHello"));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("\x1b[?2004h")));
}

TEST_F(ChatTerminalTest, LinesThatAreNotEditedHaveNoMarks) {
  folder_.write(".editrc", "edit off\n");
  Launch launch = at_terminal();
  launch.env["HOME"] = folder_.file("");
  Process process(chat({"-n", "4", "--json"}), launch);
  ASSERT_TRUE(process.wait_for_output("> "));
  process.type("Hello\n");
  ASSERT_TRUE(process.wait_for_output("\n> "));
  process.type(kEnd);
  const Outcome outcome = process.finish();
  EXPECT_THAT(questions(outcome), ElementsAre("Hello"));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("\x1b[?2004h")));
}

TEST_F(ChatTerminalTest, ADocumentMayBeTypedWhereTheOutputIsAPipe) {
  Launch launch = at_terminal();
  launch.program = "/bin/sh";
  std::string words = REPRISE_BINARY;
  for (const std::string& word : chat({"-n", "4", "--json", "-f", "-"})) words += " " + word;
  Process process({"-c", words + " | cat"}, launch);
  process.type("A text.\n\x04Hello\n\x04");
  EXPECT_THAT(questions(process.finish()), ElementsAre("A text.\n\n\nHello"));
}

TEST_F(ChatTerminalTest, TheLineIsThereAgainAfterASuspension) {
  Process process(chat({"-n", "4", "--json"}), at_terminal());
  type_first(process, "Hello");
  ASSERT_TRUE(process.wait_for_output("Hello"));
  process.type("\x1a");  // without a shell that could go on, it does at once
  ASSERT_TRUE(process.wait_for_output("> Hello"));
  process.type("!\r");
  type_next(process, kEnd);
  EXPECT_THAT(questions(process.finish()), ElementsAre("Hello!"));
}

TEST_F(ChatTerminalTest, ADumbTerminalGetsNoEscapes) {
  Launch launch = at_terminal();
  launch.env["TERM"] = "dumb";
  const std::string path = folder_.write("long.txt", std::string(200000, 'a'));
  Process process(chat({"-n", "4", "--prefill-chunk", "16", "-t", "1", "-f", path}), launch);
  type_first(process, "Stopped\r", "> ");
  ASSERT_TRUE(process.wait_for_output("reading the prompt"));
  process.type(kInterrupt);
  type_first(process, kEnd, "\n> ");
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("\x1b")));
}

TEST_F(ChatTerminalTest, AWindowMayChangeWhileALineIsTyped) {
  Process process(chat({"-n", "4", "--json"}), at_terminal());
  ASSERT_NO_FATAL_FAILURE(process.resize(80));
  const std::string start(60, 'x');
  type_first(process, start);
  ASSERT_TRUE(process.wait_for_output(start));
  ASSERT_NO_FATAL_FAILURE(process.resize(20));
  process.type("y");
  ASSERT_TRUE(process.wait_for_output("> " + std::string(18, 'x') + " ")) << "broken at its width";
  process.type("\r");
  type_next(process, kEnd);
  EXPECT_THAT(questions(process.finish()), ElementsAre(start + "y"));
}

TEST_F(ChatTerminalTest, HistoryComesBackAlsoInTheNextTalk) {
  const std::string again = std::string(kUp) + kUp + "!" + kEnter;
  EXPECT_THAT(questions(converse({"First\r", "Second\r", again})),
              ElementsAre("First", "Second", "First!"));
  EXPECT_THAT(questions(converse({std::string(kUp) + "?" + kEnter})), ElementsAre("First!?"));
}

TEST_F(ChatTerminalTest, InterruptAtThePromptDropsTheLineAndEndIsACleanEnd) {
  Process process(chat({"-n", "4", "--json"}), at_terminal());
  type_first(process, "nonsense");
  ASSERT_TRUE(process.wait_for_output("nonsense"));
  process.type(kInterrupt);
  type_next(process, "Hello\r");
  type_next(process, kEnd);
  EXPECT_THAT(questions(process.finish()), ElementsAre("Hello"));
}

// Signals come at all times after a key, also when the program is not waiting for the next one yet.
TEST_F(ChatTerminalTest, NoInterruptAtThePromptIsMissed) {
  Process process(chat({"-n", "4", "--json"}), at_terminal());
  type_first(process, "x");
  for (int after = 0; after < 1000; ++after) {
    if (after > 0) type_next(process, "x");
    std::this_thread::sleep_for(std::chrono::nanoseconds(after * 100));
    process.type(kInterrupt);
  }
  type_next(process, "Hello\r");
  type_next(process, kEnd);
  EXPECT_THAT(questions(process.finish()), ElementsAre("Hello"));
}

TEST_F(ChatTerminalTest, InterruptStopsTheAnswerAndNotTheProgram) {
  const std::vector<std::string> arguments =
      chat({"-n", "16M", "--session", folder_.file("talk.kv")});
  const auto stop_answer = [](Process& process) {
    ASSERT_TRUE(process.wait_for_output("<|")) << "a token of the model that is no text";
    process.type(kInterrupt);
    ASSERT_TRUE(process.wait_for_output("[stopped]"));
  };
  Process process(arguments, at_terminal());
  type_first(process, "First\r");
  stop_answer(process);
  type_next(process, "Second\r");
  stop_answer(process);
  type_next(process, kEnd);
  EXPECT_EQ(process.finish().code, 0);

  std::vector<std::string> said = arguments;
  said.emplace_back("--json");
  const auto messages = run(said).json()["messages"];
  ASSERT_EQ(messages.size(), 4u) << messages;
  EXPECT_EQ(messages[0]["content"], "First");
  EXPECT_THAT(messages[1]["content"], HasSubstr("<|"));
  EXPECT_EQ(messages[2]["content"], "Second");
  EXPECT_THAT(messages[3]["content"], HasSubstr("<|"));
}

TEST_F(ChatTerminalTest, OtherSignalsEndTheTalkAndSaveIt) {
  const auto exit_code = [&](int signal, const char* length, const char* before) {
    const std::string path = folder_.file(std::to_string(signal) + "-" + length + ".kv");
    const std::vector<std::string> arguments = chat({"-n", length, "--session", path});
    Process process(arguments, at_terminal());
    type_first(process, "First\r");
    EXPECT_TRUE(process.wait_for_output(before));
    if (before == kPrompt) {
      EXPECT_TRUE(process.wait_for_reading());
    }
    process.signal(signal);
    const int code = process.finish().code;
    std::vector<std::string> said = arguments;
    said.emplace_back("--json");
    EXPECT_EQ(run(said).json()["messages"].size(), 2u) << signal << before;
    return code;
  };
  for (const int signal : {SIGTERM, SIGHUP}) {
    EXPECT_EQ(exit_code(signal, "4", kPrompt), 128 + signal) << "at the prompt";
    EXPECT_EQ(exit_code(signal, "16M", "<|"), 128 + signal) << "in an answer";
  }
}

TEST_F(ChatTerminalTest, WhatCannotBeSavedMayGoElsewhere) {
  const std::string other = folder_.file("other.kv");
  const auto exit_code = [&](const char* folder, const std::string& typed) {
    const std::string gone = folder_.file(folder);
    std::filesystem::create_directory(gone);
    Process process(chat({"-n", "4", "--session", gone + "/talk.kv"}), at_terminal());
    type_first(process, "First\r");
    EXPECT_TRUE(process.wait_for_output(kPrompt));
    EXPECT_TRUE(process.wait_for_reading());
    std::filesystem::remove_all(gone);
    process.type(kEnd);
    EXPECT_TRUE(process.wait_for_output("/save FILE keeps the talk elsewhere"));
    if (!typed.empty()) type_next(process, typed);
    type_next(process, kEnd);
    return process.finish().code;
  };
  EXPECT_EQ(exit_code("given up", ""), 1);
  EXPECT_EQ(exit_code("kept", "/save " + other + kEnter), 0);
  EXPECT_EQ(run(chat({"--json", "--session", other})).json()["messages"].size(), 2u);
}

TEST_F(ChatTerminalTest, InterruptWhileReadingKeepsWhatWasRead) {
  const std::string path = folder_.write("long.txt", std::string(20000, 'a'));
  Process process(chat({"-n", "4", "--json", "--prefill-chunk", "16", "-t", "1", "-f", path}),
                  at_terminal());
  type_first(process, "Stopped\r");
  ASSERT_TRUE(process.wait_for_output("reading the prompt"));
  process.type(kInterrupt);
  ASSERT_TRUE(process.wait_for_output("stopped while reading the prompt"));
  type_next(process, "Asked again\r");
  type_next(process, kEnd);
  const Outcome outcome = process.finish();
  EXPECT_THAT(questions(outcome), ElementsAre(AllOf(testing::StartsWith("aaaa"),
                                                    testing::EndsWith("\n\nAsked again"))));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("\"reused_tokens\": 0,")));
}

TEST_F(ChatTerminalTest, SavingSaysWhatItDid) {
  const std::string early = folder_.file("early.kv"), late = folder_.file("late.kv");
  const Outcome outcome = converse({"/save " + early + "\r", "Hello\r", "/save " + late + "\r"});
  EXPECT_THAT(questions(outcome), ElementsAre("Hello"));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("nothing to save yet; ask a question first"),
                                 HasSubstr("late.kv: 2 messages, ")));
  EXPECT_FALSE(std::filesystem::exists(early));
  EXPECT_TRUE(std::filesystem::exists(late));
}

TEST_F(ChatTerminalTest, AnErrorIsToldAndTheTalkGoesOn) {
  const Outcome outcome =
      converse({"/qiut\r", "/policy streming\r", "/load absent.kv\r", "Hello\r"});
  EXPECT_THAT(questions(outcome), ElementsAre("Hello"));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("did you mean /quit?"), HasSubstr("streaming"),
                                 HasSubstr("absent.kv: there is no such file")));
}

}  // namespace
}  // namespace reprise::test
