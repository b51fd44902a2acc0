// The commands at work on the default model. Skipped when it was not fetched (`make model`).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ModelTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = real_model();
    if (!path) GTEST_SKIP() << "the default model is not there; `make model` fetches it";
    model_ = *path;
  }
  /// Arguments with the model and few threads added.
  std::vector<std::string> with_model(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"-m", model_});
    return arguments;
  }
  /// About words * 1.3 tokens of text that does not repeat.
  static std::string document(size_t words) {
    std::string text;
    for (size_t i = 0; i < words; ++i) text += "Item " + std::to_string(i * 7919 % 10007) + ". ";
    return text;
  }

  std::string model_;
  TemporaryFolder folder_;
};

TEST_F(ModelTest, ATrainedNetworkForecastsForItsModelAlone) {
  const std::string text = folder_.write("doc.txt", document(800)), net = text + ".safetensors";
  const Outcome trained =
      run(with_model({"train", "predictor", "--text", text, "--length", "1024", "--passages", "4",
                      "--epochs", "1", "-o", net, "--json"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto json = nlohmann::json::parse(trained.out);
  const auto recovery = json["recovery"];
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(recovery["network"][i], 0.5);
    EXPECT_GE(recovery["best blocks"][i].get<double>() + 1e-3,
              recovery["network"][i].get<double>());
  }
  const std::string policy = "attention_predictor:budget=128,file=" + net;
  const std::string asked = folder_.write("asked.txt", document(100));
  const std::vector<std::string> ask = {
      "run", "-f", asked, "-p", "How many items?", "-n", "4", "-c", "8K", "--policy", policy};
  const Outcome answer = run(with_model(ask));
  EXPECT_EQ(answer.code, 0) << answer.err;
  std::vector<std::string> other = ask;
  other.insert(other.end(), {"-m", "random:tiny"});
  const Outcome refused = run(other);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(net), HasSubstr("trained for")));
}

TEST_F(ModelTest, TextsThatAreTooShortToTrainOnAreNotRecorded) {
  const std::string text = folder_.write("doc.txt", document(800)), net = text + ".safetensors";
  const std::string test = folder_.write("short.txt", "too short");
  const auto train = [&](const std::string& length, const std::string& tested) {
    const Outcome outcome = run(with_model(
        {"train", "predictor", "--text", text, "--length", length, "--test", tested, "-o", net}));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, testing::Not(HasSubstr("recording")));
    return outcome.err;
  };
  EXPECT_THAT(train("8192", text), HasSubstr("no text holds 4 passages of 8192 tokens"));
  EXPECT_THAT(train("1024", test), HasSubstr("short.txt holds no passage of 1024 tokens"));
}

TEST_F(ModelTest, TrainingStopsWhereItIsInterrupted) {
  const std::string text = folder_.write("doc.txt", document(800)), net = text + ".safetensors";
  Process process(with_model({"train", "predictor", "--text", text, "--length", "1024",
                              "--passages", "4", "-o", net}),
                  {});
  ASSERT_TRUE(process.wait_for_errors("to learn from"));
  process.interrupt();
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_THAT(outcome.err,
              testing::ContainsRegex("stopped while training: [0-9,]+ of 2,000 steps"));
  EXPECT_FALSE(std::ifstream(net).good());
}

TEST_F(ModelTest, ThePublishedNetworkStandsBesideOthers) {
  const std::string text = folder_.write("doc.txt", document(800));
  const auto train = [&](const std::string& out, std::vector<std::string> more) {
    std::vector<std::string> all = {"train",      "predictor", "--text",   text, "--length", "1024",
                                    "--passages", "4",         "--epochs", "1",  "-o",       out};
    all.insert(all.end(), more.begin(), more.end());
    return run(with_model(all));
  };
  const std::string plain = text + ".plain.safetensors", cnn = text + ".cnn.safetensors";
  const Outcome first = train(plain, {});
  ASSERT_EQ(first.code, 0) << first.err;
  const Outcome trained =
      train(cnn, {"--form", "published", "--rows", "8", "--compare", plain, "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto recovery = nlohmann::json::parse(trained.out)["recovery"];
  for (const char* row : {"network", "doc.txt.plain", "average 0.7", "last row", "best blocks"}) {
    EXPECT_GT(recovery[row][1], 0.3) << row;
  }
  EXPECT_NE(recovery["network"], recovery["doc.txt.plain"]);
  const std::string asked = folder_.write("asked.txt", document(100));
  const Outcome answer =
      run(with_model({"run", "-f", asked, "-p", "How many items?", "-n", "4", "-c", "8K",
                      "--policy", "attention_predictor:mode=paper,budget=256,file=" + cnn}));
  EXPECT_EQ(answer.code, 0) << answer.err;
}

TEST_F(ModelTest, AnIndexedDocumentIsNotReadAgain) {
  const std::string path = folder_.write("doc.txt", document(400)), session = path + ".kv";
  const char* policy = "csattention:budget=256";
  const Outcome index =
      run(with_model({"index", path, "--session", session, "--policy", policy, "--json"}));
  ASSERT_EQ(index.code, 0) << index.err;
  EXPECT_THAT(index.out, HasSubstr("index_share"));
  const Outcome answer = run(with_model({"run", "-f", path, "-p", "How many items?", "--session",
                                         session, "--policy", policy, "-n", "4"}));
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("reused 2,"));
  std::fstream(session, std::ios::in | std::ios::out | std::ios::binary).seekp(9000).put('x');
  const Outcome damaged = run(with_model({"run", "-f", path, "-p", "How many items?", "--session",
                                          session, "--policy", policy, "-n", "4"}));
  EXPECT_EQ(damaged.out, answer.out);
  EXPECT_THAT(damaged.err, HasSubstr("everything is read again"));
}

TEST_F(ModelTest, RunStreamsTheTextAndReportsTimings) {
  const Outcome outcome = run(with_model({"run", "-p", "What is the capital of France?"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("Paris"), testing::EndsWith("\n")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("first token after"), HasSubstr("memory")));
  const Outcome quiet = run(with_model({"run", "-p", "What is the capital of France?", "-q"}));
  EXPECT_EQ(quiet.err, "");
  EXPECT_EQ(quiet.out, outcome.out) << "greedy answers are deterministic";
}

TEST_F(ModelTest, RunJsonFollowsTheContract) {
  const Outcome outcome = run(with_model({"run", "-p", "Count to five.", "-n", "8", "--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  auto json = outcome.json();
  EXPECT_TRUE(json["text"].is_string());
  EXPECT_LE(json["tokens"].size(), 8u);
  EXPECT_TRUE(json["finish_reason"] == "length" || json["finish_reason"] == "end");
  for (const char* key : {"load_ms", "prefill_ms", "prefill_tok_s", "ttft_ms", "decode_tok_s",
                          "tpot_p50_ms", "tpot_p99_ms"})
    EXPECT_TRUE(json["timings"][key].is_number()) << key;
  EXPECT_GT(json["counters"]["prompt_tokens"], 5);
  EXPECT_GT(json["counters"]["keys_read"], 0);
  EXPECT_EQ(json["counters"]["keys_read"], json["counters"]["keys_visible"]);
  for (const char* key : {"peak_rss", "kv_bytes", "index_bytes"})
    EXPECT_TRUE(json["memory"][key].is_number()) << key;
}

TEST_F(ModelTest, FilesComeBeforeTheQuestionAndStandardInputIsAFile) {
  const std::string fact = folder_.write("fact.txt", "The password of the day is Orange.");
  const std::vector<std::string> ask{"-p", "What is the password of the day?", "-n", "24"};
  std::vector<std::string> arguments{"run", "-f", fact};
  arguments.insert(arguments.end(), ask.begin(), ask.end());
  EXPECT_THAT(run(with_model(arguments)).out, HasSubstr("Orange"));
  arguments[2] = "-";
  const Outcome piped = run(with_model(arguments), {.input = "The password of the day is Orange."});
  EXPECT_THAT(piped.out, HasSubstr("Orange"));
}

TEST_F(ModelTest, LossyReadsWhatIsNotUtf8) {
  const std::string path = folder_.write("latin1.txt", "caf\xe9 noir");
  const Outcome outcome = run(with_model({"run", "-f", path, "--lossy", "-n", "1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(ModelTest, FlagBeatsVariableBeatsConfiguration) {
  const std::string config = folder_.write("c.toml", "max-tokens = 7\n[run]\nmax_tokens = 3\n");
  const std::vector<std::string> base{"run",    "--raw",    "-p",  "1, 2, 3, 4,",
                                      "--json", "--config", config};
  EXPECT_EQ(run(with_model(base)).json()["tokens"].size(), 3u);
  const Launch variable{.env = {{"REPRISE_MAX_TOKENS", "4"}}};
  EXPECT_EQ(run(with_model(base), variable).json()["tokens"].size(), 4u);
  std::vector<std::string> flag = base;
  flag.insert(flag.end(), {"-n", "5"});
  EXPECT_EQ(run(with_model(flag), variable).json()["tokens"].size(), 5u);
}

TEST_F(ModelTest, StopTextEndsTheAnswerBeforeIt) {
  const Outcome outcome =
      run(with_model({"run", "--raw", "-p", "1, 2, 3, 4,", "--stop", "8", "--json"}));
  auto json = outcome.json();
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_THAT(json["text"], AllOf(HasSubstr("7"), testing::Not(HasSubstr("8"))));
}

TEST_F(ModelTest, MemoryBudgetIsAnError) {
  const std::string path = folder_.write("long.txt", document(400));
  const Outcome outcome = run(with_model({"run", "-f", path, "--kv-memory", "2M", "--json"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.json()["error"]["code"], "out_of_memory");
  EXPECT_THAT(outcome.err, HasSubstr("--kv-memory"));
}

TEST_F(ModelTest, UnknownPolicyNamesTheNearest) {
  const Outcome name = run(with_model({"run", "-p", "x", "--policy", "streming", "--json"}));
  EXPECT_EQ(name.code, 2);
  EXPECT_EQ(name.json()["error"]["code"], "unknown_policy");
  EXPECT_THAT(name.err, HasSubstr("streaming"));
  const Outcome option = run(with_model({"run", "-p", "x", "--policy", "streaming:snik=4"}));
  EXPECT_EQ(option.code, 2);
  EXPECT_THAT(option.err, HasSubstr("sink"));
}

TEST_F(ModelTest, InterruptWhileLoading) {
  const Outcome outcome = run(with_model({"run", "-p", "x"}), {.pending_interrupt = true});
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("stopped while loading the model"));
}

TEST_F(ModelTest, InterruptWhileReading) {
  const std::string path = folder_.write("long.txt", document(800));
  Process process(with_model({"run", "-f", path, "--prefill-chunk", "16", "-t", "1"}), {});
  ASSERT_TRUE(process.wait_for_errors("reading the prompt"));
  process.interrupt();
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("reprise: stopped while reading the prompt: "));
}

TEST_F(ModelTest, InterruptWhileIndexing) {
  const std::string path = folder_.write("doc.txt", document(300)), session = path + ".kv";
  Process process(with_model({"index", path, "--session", session, "-t", "1", "--policy",
                              "csattention:mode=lists,centroids=512,index=64,iterations=10"}),
                  {});
  ASSERT_TRUE(process.wait_for_errors("making the index"));
  process.interrupt();
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("reprise: stopped while making the index: "));
  EXPECT_FALSE(std::ifstream(session).good());
}

TEST_F(ModelTest, InterruptWhileWriting) {
  Process process(with_model({"run", "--raw", "-p", "1, 2, 3, 4,", "-n", "8000"}), {});
  ASSERT_TRUE(process.wait_for_output("6"));
  process.interrupt();
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("[stopped]"), HasSubstr("first token after")));
  EXPECT_THAT(outcome.out, testing::EndsWith("\n"));
}

TEST_F(ModelTest, GoneReaderStopsTheAnswerQuietly) {
  Process process(with_model({"run", "-q", "--raw", "-p", "1, 2, 3, 4,", "-n", "8000"}), {});
  ASSERT_TRUE(process.wait_for_output("6"));
  process.close_output();
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(ModelTest, SessionIsReusedAndDamageMeansReadingAgain) {
  const std::string path = folder_.write("doc.txt", document(200)), kv = folder_.file("s.kv");
  const std::vector<std::string> ask =
      with_model({"run", "-f", path, "-n", "8", "--json", "--session", kv, "-p", "Summarise."});
  auto first = run(ask).json();
  EXPECT_EQ(first["counters"]["reused_tokens"], 0);
  const Outcome again = run(ask);
  EXPECT_EQ(again.json()["text"], first["text"]);
  EXPECT_GT(again.json()["counters"]["reused_tokens"], 200);

  std::fstream file(kv, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  file.write("damaged!", 8);
  file.close();
  const Outcome damaged = run(ask);
  EXPECT_EQ(damaged.code, 0);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr(kv), HasSubstr("read again")));
  EXPECT_EQ(damaged.json()["text"], first["text"]);
  EXPECT_EQ(damaged.json()["counters"]["reused_tokens"], 0);
}

TEST_F(ModelTest, ChatRemembersAndObeysItsCommands) {
  const std::string kv = folder_.file("talk.kv");
  const std::vector<std::string> chat =
      with_model({"chat", "--json", "-n", "12", "--session", kv, "--system", "Be brief."});
  const std::string script =
      "My name is Ada.\nHello\n/undo\n/stats\n\n/retry\n/quit\nnever asked\n";
  const Outcome first = run(chat, {.input = script});
  ASSERT_EQ(first.code, 0) << first.err;
  auto json = first.json();
  EXPECT_EQ(json["turns"].size(), 3u);
  ASSERT_EQ(json["messages"].size(), 3u) << json["messages"];
  EXPECT_EQ(json["messages"][0]["content"], "Be brief.");
  EXPECT_EQ(json["messages"][1]["content"], "My name is Ada.");
  EXPECT_EQ(json["turns"][2]["text"], json["turns"][0]["text"]) << "greedy";
  EXPECT_GT(json["turns"][1]["counters"]["reused_tokens"], 10) << "only the new turn is read";

  const Outcome second = run(chat, {.input = "And mine?\n"});
  EXPECT_EQ(second.json()["messages"].size(), 5u);
  EXPECT_GT(second.json()["turns"][0]["counters"]["reused_tokens"], 10);
  const Outcome wrong = run(chat, {.input = "/qiut\n"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean /quit?"));
}

TEST_F(ModelTest, InspectTokenizeAndFit) {
  auto facts = run(with_model({"inspect", "--tensors", "--json"})).json();
  EXPECT_EQ(facts["model"]["layers"], 30);
  EXPECT_EQ(facts["model"]["kv_bytes_per_token"]["bf16"], 30 * 3 * 64 * 2 * 2);
  EXPECT_EQ(facts["tensors"].size(), 272u);
  EXPECT_THAT(run(with_model({"inspect"})).out, AllOf(HasSubstr("Q4_1"), HasSubstr("smollm")));

  auto tokens = run(with_model({"tokenize", "-p", "Hello <|im_end|>", "--json"})).json();
  std::string joined;
  for (const auto& token : tokens["tokens"]) joined += token["text"].get<std::string>();
  EXPECT_EQ(joined, "Hello <|im_end|>");
  auto special =
      run(with_model({"tokenize", "-p", "Hello <|im_end|>", "--parse-special", "--json"})).json();
  EXPECT_LT(special["count"], tokens["count"]);

  auto fit = run(with_model({"fit", "--memory", "512M", "--json"})).json();
  EXPECT_EQ(fit["advice"]["ctx"], 8192);
  EXPECT_EQ(fit["advice"]["policy"], "full");
  auto small = run(with_model({"fit", "--memory", "350M", "--json"})).json();
  EXPECT_LT(small["advice"]["ctx"], 8192);
}

TEST_F(ModelTest, HelloExample) {
  const Outcome outcome = run({model_}, {.input = "The ship sank off Malta in 1903. All survived.",
                                         .program = REPRISE_HELLO});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("per second"));
  EXPECT_EQ(run({"no-such.gguf"}, {.program = REPRISE_HELLO}).code, 1);
}

}  // namespace
}  // namespace reprise::test
