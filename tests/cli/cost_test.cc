// What a run takes, counted in bytes and keys.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "cli/process.h"

namespace reprise::test {
namespace {

constexpr uint64_t kMega = 1'000'000;

nlohmann::json run_json(const std::vector<std::string>& arguments) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.json();
}

TEST(Cost, DoesNotFollowTheContextLimit) {
  const auto under = [](const char* limit) {
    return run_json({"run", "-m", "random:tiny", "--raw", "-p", "The quick brown fox", "-n", "64",
                     "-t", "2", "--json", "--ctx", limit});
  };
  const auto small = under("4K"), large = under("16M");
  EXPECT_EQ(small["tokens"], large["tokens"]);
  for (const char* counter : {"keys_visible", "keys_read", "kv_bytes_read", "index_bytes_read"})
    EXPECT_EQ(small["counters"][counter], large["counters"][counter]) << counter;
  EXPECT_GT(small["counters"]["kv_bytes_read"], 0);
  EXPECT_EQ(small["memory"]["kv_bytes"], large["memory"]["kv_bytes"]);
  // A byte for each token of the larger limit would be 16 MB.
  EXPECT_LT(large["memory"]["peak_rss"], small["memory"]["peak_rss"].get<uint64_t>() + 8 * kMega);
}

TEST(Cost, PeakMemoryIsTheModelTheKvAndLittleMore) {
  const auto model = real_model();
  if (!model) GTEST_SKIP() << "the default model is not there; `make model` fetches it";
  if (!std::string(REPRISE_SANITIZERS).empty())
    GTEST_SKIP() << "sanitizers take memory of their own";
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 250; ++i) text += "Item " + std::to_string(i * 7919 % 10007) + ". ";
  const std::string path = folder.write("long.txt", text);
  for (const std::vector<std::string>& prompt :
       {std::vector<std::string>{"-p", "Hello"}, std::vector<std::string>{"-f", path}}) {
    std::vector<std::string> arguments{"run", "-m", *model, "-n", "2", "-t", "2", "--json"};
    arguments.insert(arguments.end(), prompt.begin(), prompt.end());
    const auto memory = run_json(arguments)["memory"];
    const uint64_t needed = std::filesystem::file_size(*model) + memory["kv_bytes"].get<uint64_t>();
    EXPECT_GT(memory["peak_rss"], memory["kv_bytes"]);
    EXPECT_LE(memory["peak_rss"], needed + 200 * kMega);
  }
}

}  // namespace
}  // namespace reprise::test
