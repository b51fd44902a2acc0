// What an answer cost, in a record.
#include "eval/run/measures.h"

#include <gmock/gmock.h>

namespace reprise::eval {
namespace {

using testing::ElementsAre;
using testing::Pair;

Answer answer_with(const std::vector<std::pair<std::string, double>>& figures) {
  Answer answer;
  answer.tokens = {1, 2, 3};
  answer.counters.kv_bytes_read = 400;
  answer.counters.full_kv_bytes = 1000;
  answer.counters.index_bytes_read = 20;
  answer.counters.keys_read = 10;
  answer.counters.keys_visible = 40;
  answer.counters.select_ms = 0.5;
  answer.counters.policy = figures;
  answer.timings.prefill_ms = 7;
  answer.timings.ttft_ms = 8;
  answer.timings.tpot_p50_ms = 3;
  answer.memory.index_bytes = 64;
  return answer;
}

TEST(Measures, FiguresThatAreTimesAreNoCounters) {
  const Answer answer = answer_with({{"calibrated", 0.125},
                                     {"forecast_us", 109.0},
                                     {"build_ms", 2.5},
                                     {"update_us_p50", 10.0},
                                     {"update_us_p99", 40.0},
                                     {"hits_layer3_head5", 0.5},
                                     {"is_used", 1.0}});
  EXPECT_THAT(counters_of(answer),
              ElementsAre(Pair("kv_bytes_per_token", 200), Pair("full_kv_bytes_per_token", 500),
                          Pair("index_bytes_read_per_token", 10), Pair("keys_share", 0.25),
                          Pair("index_bytes", 64), Pair("calibrated", 0.125),
                          Pair("hits_layer3_head5", 0.5), Pair("is_used", 1.0)));
  EXPECT_THAT(timing_of(answer, true),
              ElementsAre(Pair("prefill", 7), Pair("ttft", 8), Pair("select", 0.5),
                          Pair("forecast", testing::DoubleEq(0.109)), Pair("build", 2.5),
                          Pair("update_p50", testing::DoubleEq(0.01)),
                          Pair("update_p99", testing::DoubleEq(0.04)), Pair("tpot_p50", 3)));
}

TEST(Measures, AnAnswerOfOneTokenHasDecodedNone) {
  Answer answer = answer_with({});
  answer.tokens = {1};
  EXPECT_THAT(counters_of(answer), ElementsAre(Pair("index_bytes", 64)));
  EXPECT_THAT(timing_of(answer, false),
              ElementsAre(Pair("prefill", 7), Pair("ttft", 8), Pair("select", 0.5)));
}

}  // namespace
}  // namespace reprise::eval
