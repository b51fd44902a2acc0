#include "methods/attention_predictor/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "model/golden_model.h"

namespace reprise {
namespace {

using Flat = std::array<float, sizeof(kernels::ScoreNet) / sizeof(float)>;

const ProgressFn kGoOn = [](const Progress&) { return true; };

/// A bright block that moves right by one every second row; the rest is even.
Recording moving(uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> noise(0.0f, 0.004f);
  Recording recording;
  recording.first = 1600;
  recording.layers.resize(2);
  for (auto& layer : recording.layers) {
    size_t bright = 8 + random() % 20;
    for (size_t i = 0; i < 96; ++i) {
      ScoreRow& row = layer.emplace_back();
      row.reset(1, (1600 + i) / 16 + 1);
      float sum = 0.0f;
      for (float& score : row.scores) sum += score = noise(random);
      row.scores[bright] += 1.0f - sum;
      if (i % 2 == 1) bright = bright + 1 < 90 ? bright + 1 : 8;
    }
  }
  recording.largest = recording.layers;
  for (auto& layer : recording.largest) {
    for (ScoreRow& row : layer) {
      for (float& score : row.scores) score *= 0.5f;
    }
  }
  return recording;
}

TrainingOptions small_training() {
  TrainingOptions options;
  options.rows = 8;
  options.steps = 25;
  options.batch = 8;
  options.epochs = 6;
  options.first_layer = 0;
  options.validation.budget = {160, 32, 32};
  options.validation.warm = 16;
  return options;
}

TEST(Trainer, LearnsWhatNoAverageCanKnow) {
  std::vector<Recording> training, validation;
  for (uint32_t seed = 1; seed <= 4; ++seed) training.push_back(moving(seed));
  validation.push_back(moving(9));
  ThreadPool pool(2);
  const TrainingOptions options = small_training();
  std::vector<double> losses;
  const auto train = [&] {
    Trainer trainer(options, training, validation, pool);
    losses.clear();
    return trainer.train([&](const EpochReport& report) { losses.push_back(report.loss); }, kGoOn);
  };
  const auto net = train();
  ASSERT_TRUE(net);
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  RecoveryCase tight = options.validation;
  tight.budget = {96, 16, 16};
  const auto shared = std::make_shared<const ForecastNet>(*net);
  const double trained = closed_loop_recovery(
      validation, tight, 0, [&] { return std::make_unique<NetworkPredictor>(1, shared, 0.7f, 16); },
      pool);
  const double average = closed_loop_recovery(
      validation, tight, 0, [&] { return std::make_unique<AveragePredictor>(1, 0.7f, 16); }, pool);
  const double best = closed_loop_recovery(validation, tight, 0, {}, pool);
  EXPECT_GT(trained, average);
  EXPECT_GE(best, trained);
  // The same seed gives the same network, on any number of threads.
  ThreadPool one(1);
  Trainer again(options, training, validation, one);
  const auto same = again.train([](const EpochReport&) {}, kGoOn);
  ASSERT_TRUE(same);
  EXPECT_EQ(std::bit_cast<Flat>(same->net), std::bit_cast<Flat>(net->net));
}

// From rows of blocks' best keys alone, without the average, and saved in their units.
TEST(Trainer, LearnsAsPublished) {
  std::vector<Recording> training, validation;
  for (uint32_t seed = 1; seed <= 4; ++seed) training.push_back(moving(seed));
  validation.push_back(moving(9));
  ThreadPool pool(2);
  TrainingOptions options = small_training();
  options.published = true;
  options.epochs = 10;
  std::vector<double> losses;
  const auto net =
      Trainer(options, training, validation, pool)
          .train([&](const EpochReport& report) { losses.push_back(report.loss); }, kGoOn);
  ASSERT_TRUE(net);
  EXPECT_TRUE(net->published);
  EXPECT_EQ(net->pool, BlockPool::kMax);
  EXPECT_EQ(net->rows, options.rows);
  EXPECT_LT(losses.back(), 0.9 * losses.front());
  // What comes out is a share in its own unit, highest near where it was bright: there it is 0.4.
  NetworkPredictor predictor(1, std::make_shared<const ForecastNet>(*net), 0.7f, 5);
  const auto& rows = validation[0].largest[0];
  for (size_t i = 0; i < 41; ++i) predictor.push(rows[i]);
  const auto shares = rows[41].scores_of(0);
  const auto bright = std::ranges::max_element(shares) - shares.begin();
  std::vector<float> forecast(shares.size() - 2);
  predictor.forecast(0, 2, shares.size(), forecast.data());
  const auto highest = std::ranges::max_element(forecast);
  EXPECT_NEAR(static_cast<double>(highest - forecast.begin() + 2), static_cast<double>(bright), 3);
  EXPECT_GT(*highest, 0.05f);
  EXPECT_LT(*highest, 1.0f);
}

TEST(Recovery, HistoriesAreOfThePoolThatIsAskedFor) {
  Recording recording = moving(3);
  ThreadPool pool(1);
  RecoveryCase how;
  how.budget = {96, 32, 32};
  const auto average = [&] { return std::make_unique<AveragePredictor>(1, 0.7f, how.period); };
  const std::vector<Recording> same = {recording};
  const double want = closed_loop_recovery(same, how, 0, average, pool);
  for (auto& layer : recording.largest) {  // another attention altogether
    for (ScoreRow& row : layer) std::ranges::reverse(row.scores);
  }
  const std::vector<Recording> other = {recording};
  EXPECT_EQ(closed_loop_recovery(other, how, 0, average, pool), want);
  how.pool = BlockPool::kMax;
  EXPECT_LT(closed_loop_recovery(other, how, 0, average, pool), want);
}

TEST(Trainer, EndsWhereNothingIsGainedAndGivesTheBestNetwork) {
  const std::vector<Recording> training = {moving(1), moving(2)}, validation = {moving(9)};
  ThreadPool pool(2);
  TrainingOptions options = small_training();
  options.validation.budget = {96, 16, 16};
  options.steps = 5;
  options.epochs = 60;
  options.patience = 3;
  options.rate = 0.3f;  // far too large: it soon spoils what was learnt
  std::vector<EpochReport> reports;
  const auto net = Trainer(options, training, validation, pool)
                       .train([&](const EpochReport& told) { reports.push_back(told); }, kGoOn);
  ASSERT_TRUE(net);
  ASSERT_GT(reports.size(), options.patience);
  EXPECT_LT(reports.size(), options.epochs);
  const size_t best = reports.size() - 1 - options.patience;
  EXPECT_TRUE(reports[best].best);
  for (size_t i = 0; i < reports.size(); ++i) {
    EXPECT_LE(reports[i].recovery, reports[best].recovery);
    EXPECT_FALSE(i > best && reports[i].best) << i;
  }
  EXPECT_LT(reports.back().recovery, reports[best].recovery);  // the last one's is another network
  const auto shared = std::make_shared<const ForecastNet>(*net);
  EXPECT_EQ(closed_loop_recovery(
                validation, options.validation, 0,
                [&] {
                  return std::make_unique<NetworkPredictor>(1, shared, options.factor,
                                                            options.validation.period);
                },
                pool),
            reports[best].recovery);
}

// Layers with a window of the model's own are not recorded.
TEST(Trainer, LearnsFromLayersThatHaveRows) {
  std::vector<Recording> recordings = {moving(1), moving(2)};
  ThreadPool pool(2);
  TrainingOptions options = small_training();
  options.epochs = 1;
  const auto train = [&] {
    return Trainer(options, recordings, recordings, pool)
        .train([](const EpochReport& report) { EXPECT_GT(report.recovery, 0.0); }, kGoOn);
  };
  for (Recording& recording : recordings) recording.layers.erase(recording.layers.begin());
  const auto alone = train();
  for (Recording& recording : recordings) recording.layers.emplace(recording.layers.begin());
  for (const uint32_t first : {0u, 1u}) {
    options.first_layer = first;
    const auto net = train();
    ASSERT_TRUE(alone && net);
    EXPECT_EQ(std::bit_cast<Flat>(net->net), std::bit_cast<Flat>(alone->net)) << first;
  }
  for (const uint32_t first : {2u, 3u}) {
    options.first_layer = first;
    const auto none = train();
    ASSERT_FALSE(none) << first;
    EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  }
}

TEST(Trainer, SaysWhichModelsHaveNoLayerToLearnFrom) {
  ModelConfig config;
  config.n_layer = 4;
  config.window = {0, 0, 512, 0};
  EXPECT_TRUE(check_layers(config, 2));
  for (const auto& [layers, last] : {std::pair{4u, 512u}, std::pair{2u, 0u}, std::pair{1u, 0u}}) {
    config.n_layer = layers;
    config.window[3] = last;
    const Status status = check_layers(config, 2);
    ASSERT_FALSE(status) << layers;
    EXPECT_NE(status.error().message.find("from layer 2 on"), std::string::npos);
  }
}

TEST(Trainer, CanBeStoppedAtEveryStep) {
  const std::vector<Recording> recordings = {moving(1)};
  const TrainingOptions options = small_training();
  ThreadPool pool(2);
  for (const uint64_t last : {0u, 3u, 30u}) {
    size_t epochs = 0;
    const auto net = Trainer(options, recordings, recordings, pool)
                         .train([&](const EpochReport&) { ++epochs; },
                                [&](const Progress& progress) {
                                  EXPECT_LE(progress.done, last);
                                  EXPECT_EQ(progress.total, 150u);
                                  return progress.done < last;
                                });
    ASSERT_FALSE(net);
    EXPECT_EQ(net.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(epochs, last / options.steps);
  }
}

TEST(Recording, CanBeStoppedInAPassage) {
  const test::GoldenFolder folder(test::read_golden("llama"));
  ThreadPool pool(2);
  const auto model = *Model::load(folder.path(), pool);
  const std::vector<int32_t> tokens(600, 1);
  std::vector<uint64_t> asked;
  const auto record = [&](uint64_t last) {
    asked.clear();
    return record_attention(*model, pool, tokens, 16, false, [&](const Progress& progress) {
      asked.push_back(progress.done);
      return progress.done < last;
    });
  };
  const auto whole = record(tokens.size());
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->layers.back().size(), 16u);
  EXPECT_EQ(asked, (std::vector<uint64_t>{0, 256, 512}));
  const auto stopped = record(256);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(asked.size(), 2u);
}

TEST(Recovery, CalibrationsReadTheBest) {
  const std::vector<Recording> recordings = {moving(3)};
  ThreadPool pool(1);
  RecoveryCase how;
  how.budget = {96, 32, 32};
  const double best = closed_loop_recovery(recordings, how, 0, {}, pool);
  const auto with = [&](uint32_t period) {
    how.period = period;
    return closed_loop_recovery(
        recordings, how, 0, [&] { return std::make_unique<AveragePredictor>(1, 0.7f, period); },
        pool);
  };
  EXPECT_EQ(with(1), best) << "nothing is forecast";
  EXPECT_LT(with(0), with(2));
  EXPECT_LT(with(2), best);
}

TEST(Recovery, GrowsWithTheBudgetAndIsBoundedByTheBestBlocks) {
  const std::vector<Recording> recordings = {moving(3)};
  ThreadPool pool(1);
  double before = 0.0;
  for (const uint32_t budget : {96u, 160u, 320u, 4096u}) {
    RecoveryCase how;
    how.budget = {budget, 32, 32};
    const auto with = [&](float factor) {
      return closed_loop_recovery(
          recordings, how, 0,
          [&] { return std::make_unique<AveragePredictor>(1, factor, how.period); }, pool);
    };
    const double best = closed_loop_recovery(recordings, how, 0, {}, pool);
    EXPECT_GE(best + 1e-6, with(0.7f));
    EXPECT_GE(best + 1e-6, with(0.0f));
    EXPECT_GE(best, before);
    before = best;
  }
  EXPECT_NEAR(before, 1.0, 1e-5);
}

}  // namespace
}  // namespace reprise
