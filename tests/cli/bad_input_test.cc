// Wrong files and texts: one clear line, the right exit code, nothing half-done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/process.h"
#include "formats/gguf_builder.h"

namespace reprise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

void expect_failure(const std::vector<std::string>& arguments, const std::string& code,
                    const std::string& message, int exit_code = 1) {
  std::vector<std::string> with_json = arguments;
  with_json.emplace_back("--json");
  const Outcome outcome = run(with_json);
  EXPECT_EQ(outcome.code, exit_code) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(StartsWith("reprise: "), HasSubstr(message)));
  auto json = nlohmann::json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  EXPECT_EQ(json["error"]["code"], code) << outcome.err;
}

TEST(BadModel, Missing) {
  expect_failure({"run", "-p", "x", "-m", "no-such.gguf"}, "file_not_found", "no-such.gguf");
  expect_failure({"inspect", "-m", "no-such.gguf"}, "file_not_found", "no-such.gguf");
  expect_failure({"inspect", "no-such.gguf"}, "file_not_found", "no-such.gguf");
  expect_failure({"run", "-p", "x", "-m", "smolm2"}, "file_not_found", "did you mean smollm2?");
  expect_failure({"run", "-p", "x", "-m", ""}, "file_not_found", "names no model");
  const TemporaryFolder folder;
  const std::string file = folder.write("weights.gguf", "");
  expect_failure({"run", "-p", "x", "-m", folder.file("")}, "file_not_found", file);
}

TEST(BadTraining, SaysWhatIsMissing) {
  expect_failure({"train", "speech"}, "invalid_argument", "`reprise train predictor` does", 2);
  expect_failure({"train"}, "invalid_argument", "say what to train", 2);
  expect_failure({"train", "predictor"}, "invalid_argument", "--text FILE", 2);
  expect_failure({"train", "predictor", "--text", "no-such.txt", "-o", "/no-such/out"},
                 "file_unwritable", "/no-such/out: --out could not be saved there");
  const TemporaryFolder folder;
  const std::string text = folder.write("text.txt", std::string(5000, 'a'));
  expect_failure({"train", "predictor", "-m", "random:tiny", "--text", text, "--length", "1024",
                  "-o", folder.file("net")},
                 "unsupported", "from layer 2 on reads every key");
  expect_failure(
      {"train", "predictor", "-m", "random:tiny", "--text", text, "-o", folder.file("net")},
      "invalid_argument", "--length 4096: the model was trained on 2048 tokens", 2);
  expect_failure({"train", "predictor", "--text", text, "-o", text}, "invalid_argument",
                 "is read, too", 2);
  expect_failure({"train", "predictor", "--text", "x", "-o", "x", "--rows", "4"},
                 "invalid_argument", "5 rows at least", 2);
  expect_failure({"train", "predictor", "--text", "x", "-o", "x", "--form", "other"},
                 "invalid_argument", "residual", 2);
}

TEST(BadModel, DefaultNotFetchedSaysHowToFetchIt) {
  const TemporaryFolder cache;
  const Outcome outcome = run({"run", "-p", "x"}, {.env = {{"XDG_CACHE_HOME", cache.file("")}}});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("make model"));
}

TEST(BadModel, DefaultWithoutHomeIsNowhere) {
  const Outcome outcome = run({"run", "-p", "x"}, {.env = {{"XDG_CACHE_HOME", ""}, {"HOME", ""}}});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("HOME"), HasSubstr("--model")));
}

TEST(BadModel, Truncated) {
  const TemporaryFolder folder;
  const std::string whole = small_gguf().build();
  const std::string path = folder.write("cut.gguf", whole.substr(0, whole.size() - 20));
  expect_failure({"run", "-p", "x", "-m", path}, "truncated", path);
  expect_failure({"fit", "-m", path}, "truncated", path);
}

TEST(BadModel, WrongMagic) {
  const TemporaryFolder folder;
  const std::string path = folder.write("page.gguf", "<!DOCTYPE html><html>not found</html>");
  expect_failure({"run", "-p", "x", "-m", path}, "bad_magic", path);
}

TEST(BadModel, UnsupportedTensorType) {
  const TemporaryFolder folder;
  ByteWriter bytes;
  bytes.raw("GGUF").u32(3).u64(1).u64(0);
  bytes.str("w").u32(1).u64(256).u32(16).u64(0);  // 16: IQ2_XXS, which ggml has and we have not
  bytes.align(32).zeros(66);
  const std::string path = folder.write("iq2.gguf", bytes.bytes());
  expect_failure({"run", "-p", "x", "-m", path}, "unsupported_type", path);
}

TEST(BadModel, UnknownArchitectureNamesItselfAndTheKnown) {
  const TemporaryFolder folder;
  GgufBuilder builder;
  builder.add("general.architecture", "cartoon");
  const std::string path = folder.write("cartoon.gguf", builder.build());
  expect_failure({"inspect", "-m", path}, "unknown_architecture", "cartoon");
  expect_failure({"run", "-p", "x", "-m", path}, "unknown_architecture", "llama");
}

TEST(BadModel, NoTokenizer) {
  const TemporaryFolder folder;
  GgufBuilder builder;
  builder.add("general.architecture", "llama");
  const std::string path = folder.write("mute.gguf", builder.build());
  expect_failure({"tokenize", "-p", "x", "-m", path}, "tokenizer_missing", path);
}

TEST(BadDevice, IsToldBeforeAnyWork) {
  const Launch hidden = {.env = {{"CUDA_VISIBLE_DEVICES", ""}}};
  const Outcome outcome = run({"run", "-p", "x", "-m", "random:tiny", "--device", "cuda"}, hidden);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--device cpu"));
  expect_failure({"run", "-p", "x", "-m", "random:tiny", "--kv-type", "fp8"}, "unsupported",
                 "--device cuda");
}

TEST(BadPrompt, Empty) {
  const TemporaryFolder folder;
  expect_failure({"run"}, "empty_prompt", "-p TEXT");
  expect_failure({"run", "-f", folder.write("empty.txt", "")}, "empty_prompt", "prompt is empty");
  expect_failure({"tokenize"}, "empty_prompt", "there is no text");
}

TEST(BadPrompt, FileProblems) {
  const TemporaryFolder folder;
  expect_failure({"run", "-f", folder.file("absent.txt")}, "file_not_found", "absent.txt");
  expect_failure({"run", "-f", folder.file("")}, "file_unreadable", "directory");
  expect_failure({"run", "-f", ""}, "file_not_found", "names no file");
  expect_failure({"run", "-f", "/dev/zero"}, "file_unreadable", "/dev/zero: more than 1 GiB");
}

TEST(BadPrompt, InvalidUtf8NamesTheByte) {
  const TemporaryFolder folder;
  const std::string path = folder.write("latin1.txt", "caf\xe9 noir");
  expect_failure({"run", "-f", path}, "bad_string", "latin1.txt: byte 3 (0xe9)");
  expect_failure({"run", "-p", "caf\xe9"}, "bad_string", "--prompt: byte 3");
  expect_failure({"tokenize", "-p", "caf\xe9"}, "bad_string", "--prompt: byte 3");
  expect_failure({"tokenize", "-f", path}, "bad_string", "latin1.txt: byte 3 (0xe9)");
  EXPECT_EQ(run({"tokenize", "-f", path, "--lossy", "-m", "random:tiny"}).code, 0);
  expect_failure({"run", "-p", "x", "--system", "\xff"}, "bad_string", "--system");
}

TEST(BadPrompt, MoreTextThanATemplateTakesSaysSo) {
  const TemporaryFolder folder;
  const std::string path = folder.write("long.txt", std::string((64 << 20) + 1, ' '));
  expect_failure({"run", "-f", path, "-p", "x", "-m", "random:tiny"}, "template_limit",
                 "leave the template out with --raw");
}

TEST(BadPrompt, LongerThanTheContextSaysBothNumbersAndTheFlags) {
  const TemporaryFolder folder;
  const std::string path = folder.write("long.txt", std::string(300, 'a'));
  const std::string count = run({"tokenize", "-f", path, "--count", "-m", "random:tiny"}).out;
  EXPECT_GE(std::stoi(count), 300) << "a token is a byte";
  const std::string numbers = "the prompt has " + std::to_string(std::stoi(count)) +
                              " tokens, the context holds 256; shorten it, raise --ctx ";
  for (const std::string& part : {numbers, std::string("--policy reattention or streaming")}) {
    expect_failure({"run", "--raw", "-f", path, "-m", "random:tiny", "--ctx", "256"},
                   "context_exceeded", part);
  }
}

TEST(BadSession, UnwritablePathIsFoundBeforeAnyWork) {
  const TemporaryFolder folder;
  const std::vector<std::string> run_with_session{"run", "-p",           "x",
                                                  "-m",  "no-such.gguf", "--session"};
  for (const std::string& path : {folder.file("no-folder/talk.kv"), folder.file("")}) {
    std::vector<std::string> arguments = run_with_session;
    arguments.push_back(path);
    expect_failure(arguments, "file_unwritable", path);  // not: file_not_found of the model
  }
}

TEST(BadOutput, FullDiskAndNoOutputAreReported) {
  const Outcome closed = run({"policies"}, {.close_output = true});
  EXPECT_EQ(closed.code, 1);
  EXPECT_THAT(closed.err, HasSubstr("cannot write to standard output"));
  for (const char* words : {" policies", " --help", " run --help", " --version"}) {
    const std::string command = std::string(REPRISE_BINARY) + words + " > /dev/full";
    const Outcome full = run({"-c", command}, {.program = "/bin/sh"});
    EXPECT_EQ(full.code, 1) << words;
    EXPECT_THAT(full.err, HasSubstr("No space left")) << words;
  }
}

TEST(BadOutput, ALimitOfFileSizesIsAnError) {
  const TemporaryFolder folder;
  const std::string command = "ulimit -f 1; exec " + std::string(REPRISE_BINARY) +
                              " run -m random:tiny -p x -n 3 --session " + folder.file("s.kv");
  const Outcome outcome = run({"-c", command}, {.program = "/bin/sh"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_FALSE(outcome.out.empty());
  EXPECT_THAT(outcome.err, HasSubstr("File too large"));
}

TEST(BadOutput, WhatWasReadIsSavedWhereNobodyCanBeTold) {
  for (const std::string words : {"", " --json"}) {
    const TemporaryFolder folder;
    const std::string command = std::string(REPRISE_BINARY) + " run -m random:tiny -p x -n 3" +
                                words + " --session " + folder.file("s.kv") + " > /dev/full";
    const Outcome outcome = run({"-c", command}, {.program = "/bin/sh"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("No space left"));
    EXPECT_TRUE(std::ifstream(folder.file("s.kv")).good());
  }
}

TEST(BadOutput, WithoutStandardErrorTheWorkIsDone) {
  const std::string command = std::string(REPRISE_BINARY) + " run -m random:tiny -p x -n 3";
  for (const char* errors : {" 2>/dev/full", " 2>&-"}) {
    const Outcome outcome = run({"-c", command + errors}, {.program = "/bin/sh"});
    EXPECT_EQ(outcome.code, 0) << errors;
    EXPECT_FALSE(outcome.out.empty());
  }
}

TEST(BadInput, ClosedIsEmpty) {
  const Outcome outcome = run({"run", "-m", "random:tiny"}, {.close_input = true});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("the prompt is empty"));
}

TEST(BadOutput, GoneReaderEndsQuietly) {
  Process process({"policies"}, {});
  process.close_output();
  const Outcome outcome = process.finish();
  // Whether the text was written before the end was closed is up to the machine.
  EXPECT_TRUE(outcome.code == 1 || outcome.code == 0) << outcome.code;
  EXPECT_EQ(outcome.err, "");
}

}  // namespace
}  // namespace reprise::test
