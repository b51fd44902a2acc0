// Which rows of a fused prompt are computed again: the methods by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reprise/options.h"

namespace reprise {

inline OptionSpec ratio_option() {
  return {"ratio", "part of the chunks' rows that is computed again", "", 0, 1};
}

/// A3, arXiv 2511.17560: the rows of the chunks that the question attends to in early layers.
struct A3Options {
  float ratio = 0.15f;
  std::string keys = "stored";
  std::string scores = "heads";
  uint32_t layer = 0;
  uint32_t first = 4;
  uint32_t pool = 1;
  uint32_t window = 256;
  float reads = 0.25f;
  uint32_t near = 512;
};

/// The choice of the paper: layer 1, exact keys, all heads as one vector, scores averaged over
/// neighbours.
struct PublishedA3 {
  float ratio = 0.15f;
  explicit operator A3Options() const { return {ratio, "exact", "joint", 1, 0, 5, 256, 1}; }
};

template <class Visitor>
void visit_options(PublishedA3& o, Visitor&& visit) {
  visit(ratio_option(), o.ratio);
}

template <class Visitor>
void visit_options(A3Options& o, Visitor&& visit) {
  visit(ratio_option(), o.ratio);
  visit(
      OptionSpec{"keys",
                 "what the question is held against: stored keys, or exact ones, which cost every "
                 "row the layers before (as published)",
                 "", 0, 0, "stored|exact"},
      o.keys);
  visit(OptionSpec{"scores",
                   "heads: weights of every head, times norms of values, in the second half of the "
                   "layers up to `layer`; joint: of all heads as one vector, in `layer` alone (as "
                   "published)",
                   "", 0, 0, "heads|joint"},
        o.scores);
  visit(OptionSpec{"layer",
                   "the last one where the question's attention is read (1 as published); 0 = a "
                   "quarter of the layers",
                   "", 0, 4096},
        o.layer);
  visit(OptionSpec{"first", "of the rows, so many are every chunk's first ones", "tokens", 0, 4096},
        o.first);
  visit(
      OptionSpec{"pool", "scores are averaged over so many neighbours; 1 = off", "tokens", 1, 255},
      o.pool);
  visit(OptionSpec{"window", "rows of the question that score, the last ones", "tokens", 1, 65536},
        o.window);
  visit(OptionSpec{"reads",
                   "rows computed again read this part of the rows of other chunks, those that the "
                   "question attends to most, no fewer than ratio; 1 = all, as with keys=exact",
                   "", 0, 1},
        o.reads);
  visit(OptionSpec{"near", "and so many rows right before their own chunk", "tokens", 0, 1 << 20},
        o.near);
}

/// CacheBlend (Yao et al. 2025): the rows whose values in layer 1 differ most from stored ones.
struct CacheBlendOptions {
  float ratio = 0.15f;
};

template <class Visitor>
void visit_options(CacheBlendOptions& o, Visitor&& visit) {
  visit(ratio_option(), o.ratio);
}

/// LegoLink (EPIC, Hu et al. 2024): the first rows of every chunk.
struct LegoLinkOptions {
  uint32_t first = 16;
};

template <class Visitor>
void visit_options(LegoLinkOptions& o, Visitor&& visit) {
  visit(OptionSpec{"first", "rows of every chunk that are computed again", "tokens", 0, 1 << 20},
        o.first);
}

struct NoFusion {};   // every row is computed
struct FullReuse {};  // chunks keep the positions at which they were read
struct Pie {};        // PIE (He et al. 2024): only positions are recovered
template <class Visitor>
void visit_options(NoFusion&, Visitor&&) {}
template <class Visitor>
void visit_options(FullReuse&, Visitor&&) {}
template <class Visitor>
void visit_options(Pie&, Visitor&&) {}

using FusionMethod =
    std::variant<NoFusion, FullReuse, Pie, LegoLinkOptions, CacheBlendOptions, A3Options>;

/// "a3:ratio=0.2". kInvalidArgument names the methods that there are; kUnknownOption.
Result<FusionMethod> parse_fusion(std::string_view spec);

}  // namespace reprise
