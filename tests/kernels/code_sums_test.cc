// Code sums of every instruction set against plain loops; they are exact.
#include "kernels/code_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/isa.h"

namespace reprise::kernels {
namespace {

class CodeSums : public IsaTest<> {};

INSTANTIATE_TEST_SUITE_P(Isas, CodeSums,
                         ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx));

/// Random codes and tables with entries up to `largest`; blocks lie side by side in runs of stride.
struct Case {
  Case(size_t planes, size_t blocks, size_t rows, unsigned largest, size_t stride = kCodeBlock)
      : codes((blocks * kCodeBlock + stride - 1) / stride * stride * planes),
        tables(rows * planes * 32),
        planes_(planes),
        stride_(stride),
        blocks_(blocks),
        rows_(rows) {
    std::mt19937 random(static_cast<unsigned>(planes * 1000 + blocks * 10 + rows));
    for (size_t i = 0; i < planes; ++i) {
      if (i % 5 != 2) used.push_back(static_cast<uint16_t>(i));
    }
    for (size_t i = 0; i < blocks; ++i) pointers.push_back(&codes[place(0, i * kCodeBlock)]);
    for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random());
    for (uint8_t& entry : tables) {
      entry = static_cast<uint8_t>(largest == 0 ? 127 : random() % (largest + 1));
    }
  }
  CodeSumsArgs args(std::vector<uint16_t>& out, size_t stride) const {
    out.assign(rows_ * stride, 7);
    return {planes_, pointers.data(), stride_,    blocks_, used,
            rows_,   tables.data(),   out.data(), stride};
  }
  unsigned sum(size_t row, size_t key) const {
    unsigned sum = 0;
    for (const size_t plane : used) {
      const uint8_t* table = &tables[(row * planes_ + plane) * 32];
      const uint8_t byte = codes[place(plane, key)];
      sum += table[byte % 16u] + table[16 + byte / 16];
    }
    return sum;
  }

  size_t place(size_t plane, size_t key) const {
    return (key / stride_ * planes_ + plane) * stride_ + key % stride_;
  }

  std::vector<uint8_t> codes, tables;
  std::vector<const uint8_t*> pointers;
  std::vector<uint16_t> used;

 private:
  size_t planes_, stride_, blocks_, rows_;
};

TEST_P(CodeSums, AddTheNamedEntries) {
  for (const size_t planes : {1, 2, 8, 9, 256}) {
    for (const size_t blocks : {0, 1, 2, 3, 4, 5}) {
      for (const size_t rows : {1, 2, 3, 4, 5, 9}) {
        const size_t stride = rows % 2 == 0 ? 4 * kCodeBlock : kCodeBlock;
        const unsigned largest = blocks % 2 == 0 ? 127 : 20;  // few and many planes fit in bytes
        const Case problem(planes, blocks, rows, planes == 256 ? 0 : largest, stride);
        const size_t keys = blocks * kCodeBlock;
        std::vector<uint16_t> out;
        code_sums(problem.args(out, keys + 3));
        for (size_t i = 0; i < out.size(); ++i) {
          const size_t row = i / (keys + 3), key = i % (keys + 3);
          ASSERT_EQ(out[i], key < keys ? problem.sum(row, key) : 7u) << planes << " " << keys;
        }
      }
    }
  }
}

TEST_P(CodeSums, ReadBlocksBehindAsHintsAlone) {
  constexpr size_t kBlocks = 19, kRows = 3;
  for (const size_t stride : {kCodeBlock, 4 * kCodeBlock}) {
    const Case problem(9, kBlocks, kRows, 127, stride);
    for (const size_t blocks : {1, 4, 7, 12, 18, 19}) {
      for (const size_t next : {size_t{0}, size_t{1}, size_t{8}, kBlocks}) {
        const size_t keys = blocks * kCodeBlock;
        std::vector<uint16_t> out;
        CodeSumsArgs args = problem.args(out, keys);
        args.blocks = blocks;
        args.next = std::min(next, kBlocks - blocks);
        code_sums(args);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(out[i], problem.sum(i / keys, i % keys)) << blocks << " " << next << " " << i;
        }
      }
    }
  }
}

TEST_P(CodeSums, FindTheLargestOfPages) {
  for (const size_t planes : {1, 8, 256}) {
    for (const size_t blocks : {0, 1, 2, 3, 5}) {
      for (const size_t rows : {1, 3, 4, 5, 6}) {
        const size_t stride = rows % 2 == 0 ? 4 * kCodeBlock : kCodeBlock;
        const Case problem(planes, blocks, rows, planes == 256 ? 0 : 127, stride);
        const size_t pages = 16 * blocks;
        std::vector<uint16_t> out;
        code_page_tops(problem.args(out, pages + 1));
        for (size_t i = 0; i < out.size(); ++i) {
          const size_t row = i / (pages + 1), page = i % (pages + 1);
          unsigned top = page < pages ? 0 : 7;
          for (size_t key = 16 * page; page < pages && key < 16 * page + 16; ++key) {
            top = std::max(top, problem.sum(row, key));
          }
          ASSERT_EQ(out[i], top) << planes << " " << pages << " " << rows;
        }
      }
    }
  }
}

TEST_P(CodeSums, BecomeLogits) {
  std::vector<uint16_t> sums(100);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<uint16_t>(i * 661);
  for (const size_t n : {0, 1, 7, 8, 16, 31, 99}) {
    std::vector<float> logits(100, -1.0f);
    code_logits(sums.data(), n, 0.5f, 0.25f, logits.data());  // both exact
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(logits[i], 0.5f + 0.25f * static_cast<float>(sums[i]));
    EXPECT_EQ(logits[n], -1.0f);  // nothing is written behind them
  }
}

TEST_P(CodeSums, LogitsDoNotDependOnHowManyThereAre) {
  std::vector<uint16_t> sums(40);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<uint16_t>(i * 1637);
  std::vector<float> all(sums.size()), one(1);
  code_logits(sums.data(), sums.size(), -3.1f, 0.0137f, all.data());
  for (size_t i = 0; i < sums.size(); ++i) {
    code_logits(&sums[i], 1, -3.1f, 0.0137f, one.data());
    EXPECT_EQ(one[0], all[i]) << i;
  }
}

TEST_P(CodeSums, TablesHoldProductsToHalfAStep) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const std::vector<uint32_t> whole = {0, 2, 4, 10, 12};
  for (const size_t parts : {1, 2, 3, 4}) {
    const size_t dim = 12, rows = 3, planes = (parts + 1) / 2;
    std::vector<float> centroids(dim * 16), q(rows * dim), low(rows), step(rows),
        spans(rows * parts);
    for (float& x : centroids) x = normal(random);
    for (float& x : q) x = normal(random);
    std::vector<uint8_t> tables(rows * planes * 32, 9);
    code_tables({parts, whole.data(), centroids.data(), rows, q.data(), dim, tables.data(),
                 low.data(), step.data(), spans.data()});
    for (size_t row = 0; row < rows; ++row) {
      double lowest = 0.0, span = 0.0;
      for (size_t part = 0; part < parts; ++part) {
        double products[16] = {};
        for (size_t i = 0; i < 16; ++i) {
          for (size_t d = whole[part]; d < whole[part + 1]; ++d) {
            products[i] += double{q[row * dim + d]} * centroids[d * 16 + i];
          }
        }
        const auto [least, most] = std::minmax_element(products, products + 16);
        for (size_t i = 0; i < 16; ++i) {
          const double entry = tables[(row * planes * 2 + part) * 16 + i] * double{step[row]};
          EXPECT_NEAR(entry, products[i] - *least, 0.501 * step[row]) << part << " " << i;
        }
        EXPECT_NEAR(spans[row * parts + part], *most - *least, 1e-5);
        lowest += *least;
        span = std::max(span, *most - *least);
      }
      EXPECT_NEAR(low[row], lowest, 1e-5);
      EXPECT_NEAR(step[row], span / 127, 1e-6);
      for (size_t i = parts * 16; i < planes * 32; ++i) {
        EXPECT_EQ(tables[row * planes * 32 + i], 0);
      }
    }
  }
}

}  // namespace
}  // namespace reprise::kernels
