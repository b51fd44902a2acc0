// Ctrl-C while the program waits for others: for a reader of its output, for a writer of its input.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;

TEST(Interrupt, OfAnAnswerThatWaitsForItsReaderIsACleanStop) {
  Process process({"run", "-m", "random:tiny", "--ctx", "16M", "-n", "16M", "-p", "x"}, {});
  process.wait_until_stuck();
  process.interrupt();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the signal comes while it waits
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("[stopped]"));
  EXPECT_TRUE(outcome.out.ends_with("\n"));
}

TEST(Interrupt, WhileTextIsCutIsNoSuccess) {
  const Outcome outcome =
      run({"tokenize", "-m", "random:tiny", "-p", "some text"}, {.pending_interrupt = true});
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "reprise: stopped while cutting the text into tokens: 9 B of 9 B\n");
}

TEST(Interrupt, EndsFitBetweenItsMeasurements) {
  const Outcome outcome =
      run({"fit", "-m", "random:tiny", "--memory", "1G", "--policy", "csattention"},
          {.pending_interrupt = true});
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.out, "");
}

TEST(Interrupt, EndsWaitingForTheWriterOfAPipe) {
  const TemporaryFolder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Process process({"run", "-m", "random:tiny", "-f", pipe}, {});
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  int writer = -1;
  while ((writer = open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit) << "the program does not open it";
    std::this_thread::yield();
  }
  process.interrupt();
  const Outcome outcome = process.finish();
  close(writer);
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "reprise: stopped\n");
}

}  // namespace
}  // namespace reprise::test
