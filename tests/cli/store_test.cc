// Documents in a store and answers from them, on a made-up model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 60; ++i) {
      first_ += "The keeper of lighthouse " + std::to_string(i) + " keeps bees.\n";
      second_ += "Bread number " + std::to_string(i) + " needs butter.\n";
    }
    files_ = {folder_.write("bees.txt", first_), folder_.write("bread.txt", second_)};
  }
  std::vector<std::string> in_store(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--store", store_, "-m", "random:tiny", "--ctx", "8K"});
    return arguments;
  }
  Outcome add() const { return run(in_store({"store", "add", files_[0], files_[1], "--json"})); }

  TemporaryFolder folder_;
  std::string store_ = folder_.file("store"), first_, second_;
  std::vector<std::string> files_;
};

TEST_F(StoreTest, AddsListsVerifiesAndRemoves) {
  const Outcome added = add();
  ASSERT_EQ(added.code, 0) << added.err;
  const int chunks = added.json()["added"];
  EXPECT_GT(chunks, 2);
  EXPECT_EQ(add().json()["known"], chunks);
  EXPECT_EQ(run(in_store({"store", "list", "--json"})).json()["chunks"].size(), chunks);
  EXPECT_THAT(run(in_store({"store", "list"})).out, HasSubstr("bees.txt part 1: "));
  EXPECT_THAT(
      run(in_store({"store", "list"})).out,
      testing::ContainsRegex("model [0-9a-f]{16} \\([0-9]+ layers, [0-9]+ KV heads of [0-9]+ "
                             "dims, bf16\\), --store-lead passage: [0-9]+ chunks, "));
  EXPECT_EQ(run(in_store({"store", "verify"})).code, 0);
  EXPECT_EQ(run(in_store({"store", "rm", files_[1], "--json"})).code, 0);
  const Outcome collected = run(in_store({"store", "gc", "--json"}));
  EXPECT_GT(collected.json()["freed_bytes"], 0);
  EXPECT_THAT(run(in_store({"store", "list"})).out, testing::Not(HasSubstr("bread.txt")));
}

TEST_F(StoreTest, VerifyFindsDamageAndGcDropsIt) {
  ASSERT_EQ(add().code, 0);
  std::fstream(store_ + "/seg-00000001.kv", std::ios::in | std::ios::out | std::ios::binary)
      .seekp(9000)
      .put('x')
      .put('y');
  const Outcome bad = run(in_store({"store", "verify", "--json"}));
  EXPECT_EQ(bad.code, 1);
  EXPECT_EQ(bad.json()["damaged"], 1);
  EXPECT_EQ(run(in_store({"store", "gc"})).code, 0);
  EXPECT_EQ(run(in_store({"store", "verify"})).code, 0);
  EXPECT_EQ(add().json()["added"], 1);
  EXPECT_EQ(run(in_store({"store", "verify", "--rebuild"})).code, 0);
}

TEST_F(StoreTest, WhatCannotBeReadIsNotCalledDamaged) {
  ASSERT_EQ(add().code, 0);
  const std::string segment = store_ + "/seg-00000001.kv", aside = store_ + "/aside";
  std::filesystem::rename(segment, aside);
  std::filesystem::create_directory(segment);
  const Outcome listed = run(in_store({"store", "list", "--json"}));
  EXPECT_EQ(listed.json()["chunks"][0]["codec"], "unreadable");
  std::filesystem::remove(segment);
  std::filesystem::rename(aside, segment);
  EXPECT_EQ(run(in_store({"store", "verify"})).code, 0);
}

TEST_F(StoreTest, GoesOnWithoutADamagedIndex) {
  ASSERT_EQ(add().code, 0);
  const auto damage = [&] { std::ofstream(store_ + "/index.db") << std::string(5000, 'x'); };
  const std::string told = "reprise: the index of '" + store_ + "' was damaged and was made again";
  const std::vector<std::string> ask = in_store({"ask", "Who keeps bees?", "-n", "2", "--json"});
  damage();
  const Outcome answered = run(ask);
  EXPECT_EQ(answered.code, 0) << answered.err;
  EXPECT_GT(answered.json()["fusion"]["loaded_chunks"], 0);
  EXPECT_THAT(answered.err, HasSubstr(told));
  EXPECT_THAT(run(ask).err, testing::Not(HasSubstr("reprise: ")));
  damage();
  const Outcome verified = run(in_store({"store", "verify", "--json"}));
  EXPECT_EQ(verified.code, 1);
  EXPECT_EQ(verified.json()["index_damaged"], true);
  EXPECT_THAT(verified.err, HasSubstr(told));
  damage();
  const Outcome listed = run(in_store({"store", "list", "--json"}));
  EXPECT_GT(listed.json()["chunks"].size(), 2u);
  EXPECT_THAT(listed.err, HasSubstr(told));
}

// What was removed stays so when the index is made again.
TEST_F(StoreTest, RemovedDocumentsDoNotComeBack) {
  ASSERT_EQ(add().code, 0);
  ASSERT_EQ(run(in_store({"store", "rm", files_[1]})).code, 0);
  EXPECT_EQ(run(in_store({"store", "verify", "--rebuild"})).code, 0);
  EXPECT_THAT(run(in_store({"store", "list"})).out,
              AllOf(HasSubstr("bees.txt"), testing::Not(HasSubstr("bread.txt"))));
}

TEST_F(StoreTest, ShowsNamesThatTerminalsWouldObey) {
  const std::string file = folder_.write("a\x1b[31m\xc2\x9b\xff.txt", first_);
  ASSERT_EQ(run(in_store({"store", "add", file, "--json"})).code, 0);
  const std::string shown = "a\\x1b[31m\\xc2\\x9b\\xff.txt";
  EXPECT_THAT(run(in_store({"store", "list"})).out, HasSubstr(shown));
  EXPECT_THAT(run(in_store({"ask", "Who keeps bees?", "-n", "2"})).err, HasSubstr(shown));
  std::fstream(store_ + "/seg-00000001.kv", std::ios::in | std::ios::out | std::ios::binary)
      .seekp(110)
      .put('x')
      .put('y');
  EXPECT_THAT(run(in_store({"ask", "Who keeps bees?", "-n", "2"})).err,
              AllOf(HasSubstr("damaged"), HasSubstr(shown), testing::Not(HasSubstr("\x1b"))));
}

TEST_F(StoreTest, FormsOfChunks) {
  const auto add_as = [&](const std::string& codec) {
    return run(in_store({"store", "add", files_[0], "--store-codec", codec, "--json"}));
  };
  const auto live_bytes = [&] {
    return run(in_store({"store", "list", "--json"})).json()["live_bytes"].get<int>();
  };
  const int chunks = add_as("q8_0").json()["added"];
  const int rounded = live_bytes();
  EXPECT_THAT(run(in_store({"store", "list"})).out, HasSubstr(", q8_0"));
  const auto asked = run(in_store({"ask", "Who keeps bees?", "-n", "4", "--json"})).json();
  EXPECT_EQ(asked["fusion"]["rounded_chunks"], asked["fusion"]["chunks"]);
  EXPECT_EQ(add_as("zstd").json()["added"], chunks);  // exact: computed again
  EXPECT_NE(live_bytes(), rounded);
  EXPECT_EQ(add_as("none").json()["known"], chunks);
  EXPECT_EQ(run(in_store({"store", "verify"})).code, 0);
  const Outcome wrong = add_as("zst");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean zstd?"));
}

TEST_F(StoreTest, SaysWhatIsLeftOfOlderVersions) {
  const size_t chunks = add().json()["added"];
  folder_.write("bees.txt", first_.replace(first_.find("lighthouse 30"), 13, "castle thirty"));
  const auto changed = add().json();
  EXPECT_GT(changed["added"], 0);
  EXPECT_EQ(changed["added"], changed["outdated"]);
  EXPECT_EQ(changed["known"], chunks - changed["added"].get<size_t>());
  const auto listed = run(in_store({"store", "list", "--json"})).json()["chunks"];
  EXPECT_EQ(listed.size(), chunks + changed["added"].get<size_t>());
}

TEST_F(StoreTest, TellsOfFilesWithoutText) {
  const std::string empty = folder_.write("empty.txt", "");
  const Outcome added = run(in_store({"store", "add", files_[0], empty, "--json"}));
  EXPECT_EQ(added.code, 0);
  EXPECT_THAT(added.err, HasSubstr(empty + " has no text"));
  EXPECT_GT(added.json()["added"], 0);
  EXPECT_EQ(added.json()["stopped"], false);
}

TEST_F(StoreTest, SaysWhatItsLimitHasCost) {
  std::vector<std::string> arguments = {"store", "add", files_[0], "--store-size", "1M"};
  const Outcome told = run(in_store(arguments));
  EXPECT_THAT(told.err, HasSubstr(" evicted, as --store-size is 1.0 MiB"));
  std::filesystem::remove_all(store_);
  arguments.emplace_back("--json");
  const auto added = run(in_store(arguments)).json();
  EXPECT_GT(added["evicted"], 0);
  const auto there = run(in_store({"store", "list", "--json"})).json()["chunks"];
  EXPECT_EQ(added["added"].get<size_t>() - added["evicted"].get<size_t>(), there.size());
}

TEST_F(StoreTest, RemovesAllOfTheFilesOrNothing) {
  ASSERT_EQ(add().code, 0);
  const auto count = [&] {
    return run(in_store({"store", "list", "--json"})).json()["chunks"].size();
  };
  const size_t before = count();
  const Outcome wrong = run(in_store({"store", "rm", files_[0], "nothere"}));
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("nothere"), HasSubstr("store list")));
  EXPECT_EQ(count(), before);
}

TEST_F(StoreTest, TakesFilesOfAnyName) {
  folder_.write("[a,b].txt", first_);
  folder_.write("-x.txt", second_);
  const std::string command = "cd " + folder_.file("") + " && " + REPRISE_BINARY +
                              " store add --store store -m random:tiny '[a,b].txt' -- -x.txt";
  EXPECT_EQ(run({"-c", command}, {.program = "/bin/sh"}).code, 0);
  EXPECT_THAT(run(in_store({"store", "list"})).out,
              AllOf(HasSubstr("[a,b].txt part 1"), HasSubstr("-x.txt part 1")));
}

TEST_F(StoreTest, GoesOnWithoutItsServer) {
  const std::string nobody = "unix://:secret@" + folder_.file("none");
  const Outcome added =
      run(in_store({"store", "add", files_[0], "--store-remote", nobody, "--json"}));
  EXPECT_EQ(added.code, 0) << added.err;
  EXPECT_GT(added.json()["added"], 1);
  EXPECT_THAT(added.err, HasSubstr("reprise: the shared store at unix:///"));
  EXPECT_THAT(added.err, testing::Not(HasSubstr("secret")));
  EXPECT_EQ(std::count(added.err.begin(), added.err.end(), '\n'), 1);
  const Outcome answered = run(in_store({"run", "-f", files_[0], "-f", files_[1], "-p", "Who?",
                                         "-n", "4", "--store-remote", nobody, "--json"}));
  EXPECT_EQ(answered.code, 0) << answered.err;
  EXPECT_GT(answered.json()["fusion"]["missing_chunks"], 0);
  EXPECT_THAT(answered.err, HasSubstr("going on with the local store alone"));
  const Outcome wrong = run(in_store({"ask", "Who?", "--store-remote", "http://:secret@host"}));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("redis://"), testing::Not(HasSubstr("secret"))));
}

TEST_F(StoreTest, RunAnswersAsWithoutAStoreWhenEverythingIsComputed) {
  ASSERT_EQ(add().code, 0);
  const auto answer = [&](const std::string& fusion) {
    const Outcome outcome =
        run(in_store({"run", "-f", files_[1], "-f", files_[0], "-p", "What needs butter?", "-n",
                      "8", "--fusion", fusion, "--json"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.json();
  };
  const auto full = answer("none");
  EXPECT_EQ(answer("a3:ratio=1")["tokens"], full["tokens"]);
  const auto fused = answer("a3");
  EXPECT_EQ(fused["fusion"]["missing_chunks"], 0);
  EXPECT_GT(fused["fusion"]["loaded_rows"], 1000);
  EXPECT_EQ(fused["fusion"]["recomputed_rows"],
            static_cast<int>(0.15 * static_cast<int>(fused["fusion"]["loaded_rows"])));
}

TEST_F(StoreTest, RunTakesDocumentsAsChunksToo) {
  ASSERT_EQ(add().code, 0);
  const auto answer = [&](const char* first, const char* second) {
    const Outcome outcome = run(in_store({"run", first, files_[0], second, files_[1], "-p",
                                          "Who keeps bees?", "-n", "8", "--json"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.json();
  };
  const auto named = answer("--file", "--file");
  EXPECT_EQ(named["fusion"]["missing_chunks"], 0);
  for (const char* first : {"--file", "--chunk"}) {
    const auto chunks = answer(first, "--chunk");
    EXPECT_EQ(chunks["tokens"], named["tokens"]);
    EXPECT_EQ(chunks["fusion"]["loaded_rows"], named["fusion"]["loaded_rows"]);
  }
}

TEST_F(StoreTest, AskReadsTheBestPassagesAndNamesThem) {
  ASSERT_EQ(add().code, 0);
  const Outcome outcome =
      run(in_store({"ask", "Which bread needs butter?", "--passages", "2", "-n", "4", "--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto sources = outcome.json()["sources"];
  ASSERT_EQ(sources.size(), 2u);
  for (const auto& source : sources) EXPECT_EQ(source["document"], files_[1]);
  EXPECT_THAT(run(in_store({"ask", "Who keeps bees?", "-n", "4"})).err, HasSubstr("[source: "));
  EXPECT_THAT(run(in_store({"ask", "xylophone"})).err, HasSubstr("no chunk of"));
}

// What the fusion computed is not said to be reused.
TEST_F(StoreTest, CountsWhatWasComputed) {
  ASSERT_EQ(add().code, 0);
  const auto answer = [&](const std::string& fusion) {
    return run(in_store(
                   {"run", "-f", files_[0], "-p", "Who?", "-n", "2", "--fusion", fusion, "--json"}))
        .json();
  };
  const auto full = answer("none");
  EXPECT_EQ(full["fusion"]["loaded_chunks"], 0);
  EXPECT_EQ(full["counters"]["reused_tokens"], 0);
  EXPECT_GT(full["timings"]["prefill_tok_s"], 0);
  const auto loaded = answer("a3");
  EXPECT_EQ(loaded["fusion"]["loaded_chunks"], loaded["fusion"]["chunks"]);
  EXPECT_EQ(
      loaded["counters"]["reused_tokens"],
      loaded["fusion"]["loaded_rows"].get<int>() - loaded["fusion"]["recomputed_rows"].get<int>());
  const Outcome told =
      run(in_store({"run", "-f", files_[0], "-p", "Who?", "-n", "2", "--fusion", "none"}));
  EXPECT_THAT(told.err, AllOf(HasSubstr("[0 of "), HasSubstr(" chunks loaded (0 B)")));
}

TEST_F(StoreTest, AskSaysWhatIsDamagedAndWhatIsTooLong) {
  ASSERT_EQ(add().code, 0);
  auto arguments = in_store({"ask", "Which bread needs butter?"});
  arguments.back() = "600";  // of context
  const Outcome longer = run(arguments);
  EXPECT_EQ(longer.code, 1);
  EXPECT_THAT(longer.err,
              AllOf(HasSubstr("the context holds 600"), HasSubstr("choose fewer --passages")));
  EXPECT_THAT(run(in_store({"ask", "Who keeps bees?", "--kv-memory", "100K"})).err,
              AllOf(HasSubstr("raise --kv-memory"), HasSubstr("fewer --passages")));
  std::fstream(store_ + "/seg-00000001.kv", std::ios::in | std::ios::out | std::ios::binary)
      .seekp(110)
      .put('x')
      .put('y');
  const Outcome damaged = run(in_store({"ask", "Who keeps bees?", "-n", "2"}));
  EXPECT_EQ(damaged.code, 0) << damaged.err;
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("damaged"), HasSubstr("1 chunk of '" + files_[0])));
}

TEST_F(StoreTest, RefusesBrokenTextAndFoldersThatAreNoStores) {
  ASSERT_EQ(add().code, 0);
  for (const char* flag : {"--system", "--stop"}) {
    EXPECT_THAT(run(in_store({"ask", "Who?", flag, "\xff"})).err, HasSubstr("is not UTF-8"));
    EXPECT_THAT(run(in_store({"run", "-p", "Who?", flag, "\xff"})).err, HasSubstr("is not UTF-8"));
  }
  const std::string other = folder_.file("other");
  std::filesystem::create_directory(other);
  EXPECT_THAT(run({"store", "list", "--store", other}).err, HasSubstr("is no store"));
  EXPECT_THAT(run({"store", "verify", "--rebuild", "--store", other + "/x"}).err,
              HasSubstr("is no folder"));
  EXPECT_TRUE(std::filesystem::is_empty(other));
  EXPECT_EQ(run(in_store({"store", "list", "--rebuild"})).code, 2);
}

TEST_F(StoreTest, SaysWhatIsWrong) {
  EXPECT_EQ(run({"store"}).code, 2);
  EXPECT_EQ(run({"store", "lst", "--store", store_}).code, 2);
  EXPECT_EQ(run({"store", "list"}).code, 2);
  EXPECT_EQ(run({"store", "add", "--store", store_}).code, 2);
  const Outcome missing = run({"store", "list", "--store", store_});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("is no folder"), HasSubstr("store add")));
  EXPECT_EQ(run(in_store({"run", "-p", "x", "--session", folder_.file("s")})).code, 2);
  const std::vector<std::string> plain = {"run", "-m", "random:tiny", "-p", "x", "-n", "1"};
  for (const std::vector<std::string>& option :
       {std::vector<std::string>{"--fusion", "a3"}, {"--store-codec", "q8_0"}, {"--chunk", "x"}}) {
    std::vector<std::string> arguments = plain;
    arguments.insert(arguments.end(), option.begin(), option.end());
    const Outcome ignored = run(arguments);
    EXPECT_EQ(ignored.code, 2);
    EXPECT_THAT(ignored.err, HasSubstr(option[0] + " is for documents in a store"));
  }
  EXPECT_EQ(run(plain, {.env = {{"REPRISE_FUSION", "pie"}}}).code, 0);
  const Launch store_of_others = {.env = {{"REPRISE_STORE", folder_.file("others")}}};
  EXPECT_EQ(run(plain, store_of_others).code, 0);
  std::vector<std::string> kept = plain;
  kept.insert(kept.end(), {"--session", folder_.file("s")});
  EXPECT_EQ(run(kept, store_of_others).code, 0);
  const Outcome none = run(in_store({"run", "-p", "x"}));
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("--chunk FILE"), HasSubstr("reprise ask")));
  EXPECT_THAT(run(in_store({"ask", "When", "does"})).err, HasSubstr("stands in quotes"));
  const Outcome typo = run({"run", "-m", "random:tiny", "-p", "x", "--fusion", "a4"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.err, HasSubstr("a3"));
}

}  // namespace
}  // namespace reprise::test
