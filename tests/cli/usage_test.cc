// What the command line says about itself and about wrong usage. No model is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* kCommands[] = {"run",        "bench",    "eval",  "chat",    "inspect",
                                     "tokenize",   "policies", "fit",   "compare", "report",
                                     "completion", "index",    "train", "store",   "ask"};

void expect_usage_error(const std::vector<std::string>& arguments, const std::string& message) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, AllOf(StartsWith("reprise: "), HasSubstr(message)));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << "one line is enough";
}

TEST(Usage, HelpTeachesByExamples) {
  const Outcome all = run({"--help"});
  EXPECT_EQ(all.code, 0);
  for (const char* command : kCommands) {
    EXPECT_THAT(all.out, HasSubstr(command));
    const Outcome one = run({command, "--help"});
    EXPECT_EQ(one.code, 0) << command;
    EXPECT_THAT(one.out, HasSubstr("Examples:\n  reprise ")) << command;
    EXPECT_THAT(one.err, IsEmpty()) << command;
  }
}

TEST(Usage, Version) {
  const Outcome outcome = run({"-v"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, testing::MatchesRegex("reprise [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Usage, AFileThatIsNoValueMayBeADocument) {
  const std::string file = testing::TempDir() + "document.txt";
  std::ofstream(file) << "text";
  const char* const advice = "; documents are named with --file";
  expect_usage_error({"run", "-p", "x", "--prefill-chunk", file}, advice);
  const Outcome other = run({"run", "-p", "x", "--prefill-chunk", file + ".gone"});
  EXPECT_THAT(other.err, testing::Not(HasSubstr(advice)));
}

TEST(Usage, UnknownWordsNameTheNearest) {
  expect_usage_error({}, "which command?");
  expect_usage_error({"rnu"}, "did you mean run?");
  expect_usage_error({"--verison"}, "did you mean --version?");
  expect_usage_error({"run", "-p", "x", "--tmep", "1"}, "--tmep (did you mean --temp?)");
  expect_usage_error({"run", "-p", "x", "--top_k=4"}, "--top_k (did you mean --top-k?)");
  expect_usage_error({"run", "-p", "x", "--zzzzzz"}, "unknown option --zzzzzz; see");
  expect_usage_error({"run", "a stray text"}, "unexpected argument \"a stray text\"");
  expect_usage_error({"completion", "bsh"}, "did you mean bash?");
  expect_usage_error({"--nonsense", "run", "-p", "x"}, "--nonsense stands outside of");
  expect_usage_error({"-p", "x", "run"}, "-p stands outside of");
  expect_usage_error({"run", "-p", "x", "--", "more"}, "unexpected argument \"more\"");
  expect_usage_error({"ask", "x", "--", "more"}, "unexpected argument \"more\"");
  EXPECT_EQ(run({"completion", "--", "bash"}).code, 0);
}

TEST(Usage, BadValuesSayWhatIsAllowed) {
  expect_usage_error({"run", "-p", "x", "--temp", "-1"}, "--temp: \"-1\" is not a number from 0");
  expect_usage_error({"run", "-p", "x", "-n", "many"}, "--max-tokens: \"many\"");
  expect_usage_error({"run", "-p", "x", "-n", "0"}, "from 1 to");
  expect_usage_error({"run", "-p", "x", "--top-p", "1.5"}, "from 0 to 1");
  expect_usage_error({"run", "-p", "x", "--kv-type", "f61"}, "did you mean f16?");
  expect_usage_error({"run", "-p", "x", "--tp", "2"}, "--device cuda");
  expect_usage_error({"run", "-p", "x", "--device", "cuda", "--tp", "9"}, "from 1 to 8");
  expect_usage_error({"run", "-p", "x", "--kv-memory", "2X"}, "bytes");
  expect_usage_error({"run", "-p"}, "--prompt");
  expect_usage_error({"run", "--json=maybe"}, "--json: \"maybe\" is not true or false");
  expect_usage_error({"run", "--raw=abc"}, "--raw: \"abc\" is not true or false");
  expect_usage_error({"run", "--no-prefix-cache=abc"}, "--prefix-cache: \"abc\"");
  expect_usage_error({"bench", "--context", ""}, "--context: give lengths, as 128,2K");
  expect_usage_error({"bench", "--context", "0"}, "--context: \"0\"");
}

TEST(Usage, BenchSaysWhereItsPeerIsLeftOut) {
  const auto remarks = [](const char* context) {
    return run({"bench", "-m", "/nowhere.gguf", "--peer", "llama.cpp", "--context", context}).err;
  };
  EXPECT_THAT(remarks("2K,16K"), HasSubstr("8192 tokens and less; --peer-max"));
  EXPECT_THAT(remarks("2K,8K"), testing::Not(HasSubstr("--peer-max")));
}

TEST(Usage, ErrorsAreJsonToo) {
  const Outcome outcome = run({"run", "--json", "--topk", "4"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.json()["error"]["code"], "unknown_option");
  EXPECT_THAT(outcome.json()["error"]["message"], HasSubstr("--top-k"));
  EXPECT_EQ(run({"rnu", "--json"}).json()["error"]["code"], "invalid_argument");
  EXPECT_EQ(run({"run", "--json", "-p"}).json()["error"]["code"], "invalid_argument");
  const TemporaryFolder folder;
  const std::string config = folder.write("json.toml", "json = true\n");
  const std::vector<std::string> wrong{"run", "-n", "0"};
  const auto with = [&](const std::string& option) {
    std::vector<std::string> arguments = wrong;
    arguments.push_back(option);
    return run(arguments);
  };
  for (const Outcome& bad : {with("--json=true"), with("--config=" + config),
                             run(wrong, {.env = {{"REPRISE_JSON", "1"}}}),
                             run(wrong, {.env = {{"REPRISE_CONFIG", config}}})})
    EXPECT_EQ(bad.json()["error"]["code"], "invalid_argument") << bad.err;
  EXPECT_EQ(run({"rnu"}, {.env = {{"REPRISE_JSON", "1"}}}).json()["error"]["code"],
            "invalid_argument");
}

TEST(Usage, AVariableThatIsNearlyAnOptionsIsTold) {
  const std::vector<std::string> policies{"policies"};
  const auto err = [&](const std::string& name, const std::vector<std::string>& arguments) {
    const Outcome outcome = run(arguments, {.env = {{name, "1"}}});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(err("REPRISE_MAX_TOKEN", policies),
              HasSubstr("REPRISE_MAX_TOKEN is no variable of any option "
                        "(did you mean REPRISE_MAX_TOKENS?)"));
  EXPECT_THAT(err("REPRISE_max_tokens", policies), HasSubstr("did you mean REPRISE_MAX_TOKENS?"));
  EXPECT_EQ(err("REPRISE_MAX_TOKEN", {"policies", "-q"}), "");
  for (const char* const right :
       {"REPRISE_MAX_TOKENS", "REPRISE_ISA", "REPRISE_PEER_PYTHON", "REPRISE_PREFIX_CACHE",
        "REPRISE_VERSION", "REPRISE_X", "REPRISE_"})
    EXPECT_EQ(err(right, policies), "") << right;
}

TEST(Usage, VariablesAndConfigurationAreCheckedAsFlagsAre) {
  const TemporaryFolder folder;
  const Outcome variable = run({"run", "-p", "x"}, {.env = {{"REPRISE_CTX", "abc"}}});
  EXPECT_EQ(variable.code, 2);
  EXPECT_THAT(variable.err, HasSubstr("REPRISE_CTX: ctx: \"abc\""));

  const std::string wrong_key = folder.write("key.toml", "max_tokns = 3\n");
  expect_usage_error({"run", "-p", "x", "--config", wrong_key},
                     "max-tokns (did you mean max-tokens?)");
  const std::string wrong_value = folder.write("value.toml", "[run]\ntemp = \"hot\"\n");
  expect_usage_error({"run", "-p", "x", "--config", wrong_value}, wrong_value + ": temp: \"hot\"");
  const std::string wrong_section = folder.write("section.toml", "[rnu]\ntemp = 1\n");
  expect_usage_error({"run", "-p", "x", "--config", wrong_section},
                     wrong_section + ": unknown section [rnu] (did you mean run?)");
  const std::string wrong_place = folder.write("place.toml", "[eval]\ntemp = 1\n");
  expect_usage_error({"run", "-p", "x", "--config", wrong_place}, "in [eval]");
  const std::string repeatable = folder.write("list.toml", "[eval]\npolicy = \"streming\"\n");
  const std::vector<std::string> eval{"eval",  "--tasks",         "ppl", "-m", "random:tiny",
                                      "--out", folder.file("out")};
  const Outcome configured = run(eval, {.env = {{"REPRISE_CONFIG", repeatable}}});
  EXPECT_THAT(configured.err, HasSubstr("did you mean streaming?"));
  EXPECT_THAT(run(eval, {.env = {{"REPRISE_POLICY", "streming"}}}).err,
              HasSubstr("did you mean streaming?"));
  EXPECT_EQ(run({"run", "-p", "x", "--config", folder.file("absent.toml")}).code, 1);
}

TEST(Usage, AnEmptyFileHasNoTokens) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("empty.txt")).close();
  const auto count = [&](const std::string& file, const std::string& input) {
    return run({"tokenize", "-m", "random:tiny", "-f", file, "--count"}, {.input = input});
  };
  EXPECT_EQ(count(folder.file("empty.txt"), "").out, "0\n");
  EXPECT_EQ(count("-", "").out, "0\n");
}

TEST(Usage, AnEmptyValueIsNotTheNextWord) {
  const Outcome counted = run({"tokenize", "-m", "random:tiny", "-p", "x", "--prompt=", "--count"});
  EXPECT_THAT(counted.err, HasSubstr("there is no text"));
  for (const std::string text : {"a=", "--x=", "--count="}) {
    EXPECT_EQ(run({"tokenize", "-m", "random:tiny", "--prompt=" + text, "--count"}).code, 0);
    EXPECT_EQ(run({"tokenize", "-m", "random:tiny", "-p", text, "--count"}).code, 0) << text;
  }
}

TEST(Usage, FileNamesSendNoEscapes) {
  EXPECT_THAT(run({"run", "-f", "\x1b[31mred"}).err, HasSubstr("\\x1b[31mred"));
}

TEST(Usage, Policies) {
  const Outcome text = run({"policies"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("full: "), HasSubstr("streaming: ")));
  auto json = run({"policies", "--json"}).json();
  std::set<std::string> names;
  for (const auto& policy : json["policies"]) {
    names.insert(policy["name"]);
    EXPECT_FALSE(policy["source"].get<std::string>().empty());
    for (const auto& option : policy["options"]) EXPECT_TRUE(option.contains("default"));
  }
  EXPECT_TRUE(names.count("full") == 1 && names.count("streaming") == 1);
}

TEST(Usage, CompletionKnowsEveryCommandAndOption) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome outcome = run({"completion", shell});
    EXPECT_EQ(outcome.code, 0);
    for (const char* command : kCommands) EXPECT_THAT(outcome.out, HasSubstr(command)) << shell;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("temp"), HasSubstr("q8_0"))) << shell;
  }
  const TemporaryFolder folder;
  const std::string script = folder.write("completion.bash", run({"completion", "bash"}).out);
  const std::string ask = "source " + script +
                          "; COMP_WORDS=(reprise run --kv-type q); COMP_CWORD=3; _reprise;"
                          " echo \"${COMPREPLY[@]}\"";
  const Outcome completed = run({"-c", ask}, {.program = "/bin/bash"});
  EXPECT_EQ(completed.out, "q8_0\n") << completed.err;
}

// Values behind = come from the shell as words of their own.
TEST(Usage, CompletionOffersValuesPoliciesAndActions) {
  const TemporaryFolder folder;
  const std::string script = folder.write("completion.bash", run({"completion", "bash"}).out);
  const auto complete = [&](const std::string& line) {
    const std::string ask = "source " + script + "; COMP_WORDS=(" + line +
                            "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _reprise;"
                            " echo \"${COMPREPLY[@]}\"";
    return run({"-c", ask}, {.program = "/bin/bash"}).out;
  };
  EXPECT_EQ(complete("reprise run --policy stre"), "streaming\n");
  EXPECT_EQ(complete("reprise ask --fusion cache"), "cacheblend\n");
  EXPECT_EQ(complete("reprise run --device = cu"), "cuda\n");
  EXPECT_EQ(complete("reprise run --device ="), "cpu cuda\n");
  EXPECT_EQ(complete("reprise store v"), "verify\n");
  EXPECT_EQ(complete("reprise completion ''"), "bash zsh fish\n");
  EXPECT_EQ(complete("reprise store add v"), "\n") << "files, which are the shell's";
}

TEST(Usage, ConfigurationIsAnyFileThatCanBeRead) {
  const TemporaryFolder folder;
  const auto code = [](const std::string& config) {
    return run({"completion", "--config", config}).code;
  };
  EXPECT_EQ(code("/dev/null"), 0) << "none at all";
  EXPECT_EQ(code(folder.write("mark.toml", "\xef\xbb\xbfquiet = true\n")), 0);
  EXPECT_EQ(code(folder.file("")), 1);
  const std::string texts = "# all\nprompt = \"a # b\\tc\" # text\nmodel = 'random:tiny'\n";
  const Outcome counted = run({"tokenize", "--json", "--config", folder.write("t.toml", texts)});
  EXPECT_EQ(
      counted.json()["tokens"].size(),
      run({"tokenize", "-m", "random:tiny", "-p", "a # b\tc", "--json"}).json()["tokens"].size())
      << counted.err;
  const Outcome wrong = run({"completion", "--config", folder.write("w.toml", "\nmodel = tiny\n")});
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("w.toml: line 2"), HasSubstr("quotes")));
  const Outcome list =
      run({"completion", "--config", folder.write("l.toml", "stop = [\"a\", \"b\"]\n")});
  EXPECT_THAT(list.err, HasSubstr("stop needs one value"));
  const std::string ask = std::string(REPRISE_BINARY) + " completion --config <(echo quiet = true)";
  EXPECT_EQ(run({"-c", ask}, {.program = "/bin/bash"}).code, 0);
}

// Long options at the start of lines that begin so.
std::set<std::string> long_options(const std::string& text, const std::string& line_start) {
  std::set<std::string> options;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(line_start)) continue;
    const size_t explanation = std::min(line.find("  ", 2), line.find(" | "));
    line.resize(std::min(line.size(), explanation));
    for (size_t at = line.find("--"); at != std::string::npos; at = line.find("--", at)) {
      const size_t end =
          std::min(line.size(), line.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at));
      if (end > at + 2) options.insert(line.substr(at, end - at));
      at = end;
    }
  }
  return options;
}

// docs/cli.md has one "## command" section for each, with its options in a table.
TEST(Usage, DocumentationListsEveryOption) {
  std::ifstream file(REPRISE_DOCS "/cli.md");
  std::stringstream content;
  content << file.rdbuf();
  for (const char* command : kCommands) {
    const std::string head = std::string("\n## ") + command + "\n";
    const size_t start = content.str().find(head);
    ASSERT_NE(start, std::string::npos) << command;
    const std::string section =
        content.str().substr(start, content.str().find("\n## ", start + 1) - start);
    EXPECT_EQ(long_options(section, "| `"), long_options(run({command, "--help"}).out, "  -"))
        << command;
  }
}

TEST(Usage, PolicyReferenceIsWhatTheOptionsSay) {
  std::ifstream file(REPRISE_DOCS "/policies.md");
  std::stringstream content;
  content << file.rdbuf();
  EXPECT_NE(content.str().find(run({"policies", "--markdown"}).out), std::string::npos)
      << "docs/policies.md is out of date; `make docs` writes it";
}

}  // namespace
}  // namespace reprise::test
