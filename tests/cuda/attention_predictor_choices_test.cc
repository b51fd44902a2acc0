// Pages that AttentionPredictor chooses on a device, step after step, against the CPU's predictor.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cuda/attention_predictor_reference.h"
#include "methods/cuda/attention_predictor.h"
#include "methods/random_net.h"

namespace reprise::test {
namespace {

// Steps of the device's policy and of the references beside it.
class Walk {
 public:
  Walk(const AttentionPredictorOptions& options, const std::shared_ptr<const ForecastNet>& net)
      : text_(options.pool == "max"),
        first_(made(options, config_, net)),
        device_(static_cast<const AttentionPredictorPolicy&>(*first_), config_),
        kv_(text_.attention.bytes()),
        q_(text_.attention.q()),
        tables_(tables_of(text_)),
        positions_(text_.positions),
        keys_(text_.keys),
        lse_(size_t{kLayers} * kRows * 4),
        exact_q_(bf16_floats(text_.attention.q())),
        out_(4 * 64),
        workspace_(paged_decode_workspace(1, 4, 2, 64)) {
    EXPECT_TRUE(device_.reserve({2, kPages, kPages}));
  }

  // Choices that rounding decided.
  uint32_t ties() const { return ties_; }
  struct Sequence {
    std::unique_ptr<Policy> policy;
    std::vector<Reference> layers;
    uint32_t row = 0;  // the next
  };
  // A prompt that ends with a row, of which the last rows are computed.
  Sequence begin(uint32_t row, uint32_t rows) {
    Sequence made{first_->fork(), {}, row};
    const AttentionPredictorPolicy& policy = first_policy();
    SequenceStep step;
    step.rows = rows;
    step.phase = kernels::Phase::kPrefill;
    step.prompt_end = kFirst + static_cast<int32_t>(row);
    plan(made, step, row - rows, 0);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Reference& own = made.layers.emplace_back(text_, policy, layer);
      read_prompt(own, layer, row, rows);
      const uint32_t net_rows = policy.network() != nullptr ? policy.network()->rows : 0;
      const uint32_t history = std::max(policy.options().history, net_rows);
      for (uint32_t i = row - std::min(rows, history); i < row; ++i) {
        own.push_whole(i);
      }
    }
    return made;
  }

  void step(Sequence& sequence) {
    const uint32_t row = sequence.row++;
    SequenceStep step;
    step.rows = 1;
    plan(sequence, step, row, 1);
    begin_pass(row);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE("row " + std::to_string(row) + ", layer " + std::to_string(layer));
      attend(sequence.layers[layer], layer, row);
    }
    DeviceQueries all = queries_of(sequence.layers[0], 0, row);
    all.layer_rows = kRows;
    all.lse = lse_.get() + sequence.layers[0].q_row(row) * 4;
    ASSERT_TRUE(device_.learn(all, kLayers, nullptr));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE("after row " + std::to_string(row) + ", layer " + std::to_string(layer));
      Reference& own = sequence.layers[layer];
      DeviceRead read;
      ASSERT_TRUE(device_.predict(queries_of(own, layer, row), std::span(&read, 1), nullptr));
      read_lists(read, own, row + 1, own.choose(row + 1, false));
    }
  }

 private:
  const AttentionPredictorPolicy& first_policy() const {
    return static_cast<const AttentionPredictorPolicy&>(*first_);
  }
  static std::unique_ptr<Policy> made(const AttentionPredictorOptions& options,
                                      const ModelConfig& config,
                                      const std::shared_ptr<const ForecastNet>& net) {
    if (net == nullptr) return *AttentionPredictorPolicy::create(options, config);
    return std::make_unique<AttentionPredictorPolicy>(options, config, net);
  }
  // Every layer has the same table.
  static std::vector<uint32_t> tables_of(const Text& text) {
    std::vector<uint32_t> tables;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      tables.insert(tables.end(), text.table.begin(), text.table.end());
    }
    return tables;
  }
  void begin_pass(uint32_t row) {
    const DeviceGroup group = {0, 1, &device_};
    DeviceRows rows;
    rows.rows = rows.decode_rows = rows.table_rows = 1;
    rows.positions = positions_.get() + row;
    rows.tables = tables_.get();
    rows.capacity = kPages;
    rows.groups = {&group, 1};
    EXPECT_TRUE(device_.begin(rows, kv(), nullptr));
  }
  void attend(Reference& own, uint32_t layer, uint32_t row) {
    const DeviceQueries queries = queries_of(own, layer, row);
    const bool calibrates = own.calibrates(row);
    const auto want = own.choose(row, calibrates);
    DeviceRead read;
    ASSERT_TRUE(device_.select(queries, read, nullptr));
    const auto got = read_lists(read, own, row, want);
    read_keys(read, own.q_row(row));
    if (calibrates) own.push_whole(row);
    if (!calibrates) own.push_read(row, got);
  }
  // As the executor does, which tells what it saw of pages.
  void read_keys(const DeviceRead& read, size_t row) {
    PagedDecodeArgs args;
    args.kv = kv();
    args.lists = read.lists;
    args.batch = 1;
    args.n_head = 4;
    args.q = exact_q_.get() + row * 4 * 64;
    args.scale = kQueryUnit;
    args.out = out_.get();
    args.lse = lse_.get() + row * 4;
    args.workspace = workspace_.get();
    args.page_logs = read.page_logs;
    args.page_peaks = read.page_peaks;
    ASSERT_EQ(paged_decode(args, nullptr), cudaSuccess);
  }
  void plan(const Sequence& sequence, const SequenceStep& step, uint32_t row, uint32_t decoding) {
    Row first;
    first.position = kFirst + static_cast<int32_t>(row);
    const DeviceGroup group = {0, 1, &device_};
    const Policy* acting = sequence.policy.get();
    DevicePlan plan;
    plan.rows = {&first, 1};
    plan.steps = {&step, 1};
    plan.groups = {&group, 1};
    plan.acting = {&acting, 1};
    plan.decode_rows = decoding;
    EXPECT_TRUE(device_.plan(plan, nullptr));
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  PagedKv kv() const { return {kv_.get(), KvType::kBF16, 2, 64}; }
  // Of some rows, counted over all layers.
  void upload(const std::vector<float>& lse, size_t first, size_t rows) {
    EXPECT_EQ(cudaMemcpy(lse_.get() + first * 4, lse.data() + first * 4, rows * 4 * sizeof(float),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  DeviceQueries queries_of(const Reference& own, uint32_t layer, uint32_t row) const {
    DeviceQueries queries;
    queries.layer = layer;
    queries.n_head = 4;
    queries.count = 1;
    queries.positions = positions_.get() + row;
    queries.keys = keys_.get() + row;
    queries.pages = tables_.get() + size_t{layer} * kPages;
    queries.capacity = kPages;
    queries.q = bf16(q_) + size_t{own.q_row(row)} * 4 * 64;
    queries.kv = kv();
    return queries;
  }
  void read_prompt(const Reference& own, uint32_t layer, uint32_t row, uint32_t rows) {
    std::vector<float> lse(size_t{kLayers} * kRows * 4);
    for (uint32_t i = row - rows; i < row; ++i) {
      std::vector<uint32_t> all((static_cast<size_t>(kFirst) + i) / 16 + 1);
      std::iota(all.begin(), all.end(), 0u);
      const auto one = own.lse(i, {all, all});
      for (size_t j = 0; j < lse.size(); ++j) lse[j] += one[j];
    }
    const uint32_t first = own.q_row(row - rows);
    upload(lse, first, rows);
    DevicePrompt prompt;
    prompt.layer = layer;
    prompt.rows = {0, rows, kFirst + static_cast<int32_t>(row - rows)};
    prompt.positions = positions_.get() + row - rows;
    prompt.pages = tables_.get();
    prompt.capacity = kPages;
    prompt.q = bf16(q_) + size_t{first} * 4 * 64;
    prompt.lse = lse_.get() + size_t{first} * 4;
    prompt.kv = kv();
    EXPECT_TRUE(device_.after_prefill(prompt, nullptr));
  }
  // Pages that a row reads on the device: those of the CPU, or as good ones where forecasts of a
  // network are nearly equal.
  std::vector<std::vector<uint32_t>> read_lists(const DeviceRead& read, Reference& own,
                                                uint32_t row,
                                                const std::vector<std::vector<uint32_t>>& want) {
    std::vector<std::vector<uint32_t>> numbers;
    for (uint32_t head = 0; head < want.size(); ++head) {
      std::vector<uint32_t>& got = numbers.emplace_back(want[head].size());
      int32_t keys = 0;
      EXPECT_EQ(cudaMemcpy(&keys, read.lists.keys + head, 4, cudaMemcpyDeviceToHost), cudaSuccess);
      const auto position = static_cast<uint32_t>(kFirst) + row;
      EXPECT_EQ(keys, static_cast<int32_t>((got.size() - 1) * 16 + position % 16 + 1));
      EXPECT_EQ(cudaMemcpy(got.data(), read.lists.pages + size_t{head} * read.lists.capacity,
                           got.size() * 4, cudaMemcpyDeviceToHost),
                cudaSuccess);
      for (uint32_t& page : got) {
        const auto at = std::ranges::find(text_.table, page);
        EXPECT_NE(at, text_.table.end());
        page = at == text_.table.end() ? 0 : static_cast<uint32_t>(at - text_.table.begin());
      }
      if (got == want[head]) continue;
      EXPECT_TRUE(first_policy().network() != nullptr);
      EXPECT_TRUE(std::ranges::is_sorted(got));
      EXPECT_LE(own.lost(row, head, want[head], got), 0.0);
      ++ties_;
    }
    return numbers;
  }

  ModelConfig config_ = small_config();
  Text text_;
  std::unique_ptr<Policy> first_;
  DeviceAttentionPredictor device_;
  DeviceArray<uint8_t> kv_;
  DeviceArray<uint16_t> q_;
  DeviceArray<uint32_t> tables_;
  DeviceArray<int32_t> positions_, keys_;
  DeviceArray<float> lse_, exact_q_, out_;
  DeviceArray<char> workspace_;
  uint32_t ties_ = 0;
};

struct Choices {
  uint32_t period;
  const char *calibrate, *pool, *layers;
  float factor;
  uint32_t network = 0;  // rows that it sees; 0: there is none
  bool published = false;
};

class AttentionPredictorChoices : public testing::TestWithParam<Choices> {};
INSTANTIATE_TEST_SUITE_P(Options, AttentionPredictorChoices,
                         testing::Values(Choices{0, "scores", "sum", "none", 0.7f},
                                         Choices{5, "scores", "sum", "none", 0.7f},
                                         Choices{5, "scores", "max", "1:224", 0.9f},
                                         Choices{7, "dense", "sum", "0:96", 0.5f},
                                         Choices{6, "dense", "max", "none", 0.7f},
                                         Choices{0, "scores", "max", "none", 0.0f},
                                         Choices{0, "scores", "sum", "none", 0.7f, 16},
                                         Choices{5, "scores", "max", "none", 0.7f, 24},
                                         Choices{7, "dense", "sum", "none", 0.7f, 16},
                                         Choices{5, "dense", "max", "none", 0.7f, 64, true},
                                         Choices{5, "scores", "max", "none", 0.7f, 24, true}));

TEST_P(AttentionPredictorChoices, AreThoseOfTheCpuOverStepsAndSequences) {
  REPRISE_NEEDS_DEVICE();
  AttentionPredictorOptions options;
  options.budget = 160;
  options.period = GetParam().period;
  options.calibrate = GetParam().calibrate;
  options.pool = GetParam().pool;
  options.layers = GetParam().layers;
  options.factor = GetParam().factor;
  options.history = 20;
  std::shared_ptr<const ForecastNet> net;
  if (GetParam().network > 0) {
    net = std::make_shared<const ForecastNet>(
        random_net(GetParam().network, GetParam().published, kFaint));
  }
  Walk walk(options, net);
  const auto go = [&](Walk::Sequence& sequence, int steps) {
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) walk.step(sequence);
  };
  auto one = walk.begin(40, 40);
  go(one, 20);
  auto fork = walk.begin(60, 25);
  go(fork, 10);
  go(one, 30);                      // its averages are still there
  auto third = walk.begin(75, 24);  // in the place of the fork's
  go(third, 40);
  // Of 800. To a published network blocks that few rows read look nearly alike.
  EXPECT_LE(walk.ties(), GetParam().published ? 600u : 40u);
}

}  // namespace
}  // namespace reprise::test
