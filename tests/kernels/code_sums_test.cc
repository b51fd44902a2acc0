// Code sums of every instruction set against plain loops; they are exact.
#include "kernels/code_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/cpu.h"

namespace reprise::kernels {
namespace {

class CodeSums : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    best_ = cpu_isa();
    if (!set_cpu_isa(GetParam())) GTEST_SKIP() << "not on this machine";
  }
  void TearDown() override { set_cpu_isa(best_); }

 private:
  Isa best_ = Isa::kScalar;
};

INSTANTIATE_TEST_SUITE_P(Isas, CodeSums, ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512));

/// Random codes and tables with entries up to `largest`.
struct Case {
  Case(size_t planes, size_t keys, size_t rows, unsigned largest)
      : codes(planes), tables(rows * planes * 32), planes_(planes), keys_(keys), rows_(rows) {
    std::mt19937 random(static_cast<unsigned>(planes * 1000 + keys * 10 + rows));
    for (auto& plane : codes) {
      for (size_t i = 0; i < keys; ++i) plane.push_back(static_cast<uint8_t>(random()));
      pointers.push_back(plane.data());
    }
    for (uint8_t& entry : tables) {
      entry = static_cast<uint8_t>(largest == 0 ? 127 : random() % (largest + 1));
    }
  }
  CodeSumsArgs args(std::vector<uint16_t>& out, size_t stride) const {
    out.assign(rows_ * stride, 7);
    return {planes_, pointers.data(), keys_, rows_, tables.data(), out.data(), stride};
  }
  unsigned sum(size_t row, size_t key) const {
    unsigned sum = 0;
    for (size_t plane = 0; plane < planes_; ++plane) {
      const uint8_t* table = &tables[(row * planes_ + plane) * 32];
      sum += table[codes[plane][key] % 16u] + table[16 + codes[plane][key] / 16];
    }
    return sum;
  }

  std::vector<std::vector<uint8_t>> codes;
  std::vector<const uint8_t*> pointers;
  std::vector<uint8_t> tables;

 private:
  size_t planes_, keys_, rows_;
};

TEST_P(CodeSums, AddTheNamedEntries) {
  for (const size_t planes : {1, 2, 8, 9, 256}) {
    for (const size_t keys : {0, 1, 16, 31, 33, 64, 65, 127, 128, 129, 300}) {
      for (const size_t rows : {1, 2, 3, 4, 5, 9}) {
        const Case problem(planes, keys, rows, planes == 256 ? 0 : 127);
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

TEST_P(CodeSums, FindTheLargestOfPages) {
  for (const size_t planes : {1, 8, 256}) {
    for (const size_t pages : {0, 1, 2, 3, 4, 5, 8, 9, 20}) {
      for (const size_t rows : {1, 3, 4, 5, 6}) {
        const Case problem(planes, pages * 16, rows, planes == 256 ? 0 : 127);
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

}  // namespace
}  // namespace reprise::kernels
