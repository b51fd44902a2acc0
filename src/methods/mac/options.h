// Options of MAC-Attention.
#pragma once

#include <string>

#include "reprise/options.h"

namespace reprise {

struct MacOptions {
  std::string mode = "default";
  float tau = 0.4f;
  uint32_t window = 512;
  uint32_t band = 1024;
  uint32_t sink = 64;
  uint32_t align = 16;
  uint32_t min_context = 2048;
  std::string ring = "f32";
  uint64_t ring_memory = 0;
  std::string mixed = "full";
  std::string chain = "age";
  uint32_t max_age = 2048;
  uint32_t max_gap = 0;
  float max_error = 0.08f;
  bool lse_fix = false;
  bool guard = true;
  std::string prefill = "none";
  bool layers = false;
};

template <class Visitor>
void visit_options(MacOptions& o, Visitor&& visit) {
  visit(OptionSpec{"mode",
                   "paper: as published, that is sink=0, align=1, mixed=split, chain=free, "
                   "max_error=0, guard=false; its tau is 0.45 or 0.75, its band 128 to 512",
                   "", 0, 0, "default|paper"},
        o.mode);
  visit(OptionSpec{"tau",
                   "how alike queries must be: distance below sqrt(2 head_dim) (1 - tau); 1 turns "
                   "reuse off",
                   "", 0, 1},
        o.tau);
  visit(OptionSpec{"window", "last positions that are compared with", "tokens", 4, 1 << 16},
        o.window);
  visit(OptionSpec{"band", "keys before a position that are never part of its stored result",
                   "tokens", 0, 1 << 20},
        o.band);
  visit(OptionSpec{"sink", "first keys that are always read", "tokens", 0, 1 << 20}, o.sink);
  visit(OptionSpec{"align", "stored results end at a multiple of this", "tokens", 1, 1 << 12},
        o.align);
  visit(OptionSpec{"min_context",
                   "context from which results are reused; guard: not before that can pay",
                   "tokens", 0, 1 << 30},
        o.min_context);
  visit(OptionSpec{"ring",
                   "how results are kept: f32 with queries in bf16, or both as q8_0 in 0.4 of the "
                   "memory",
                   "", 0, 0, "f32|q8_0"},
        o.ring);
  visit(OptionSpec{"ring_memory",
                   "memory for the rings of all sequences, those without one read as without mac; "
                   "0 = on a device one for each of --batch, on a CPU no limit",
                   "bytes", 0, 0x1p50},
        o.ring_memory);
  visit(OptionSpec{"mixed",
                   "a KV head some of whose query heads match: all are computed anew, or only the "
                   "others",
                   "", 0, 0, "full|split"},
        o.mixed);
  visit(OptionSpec{"chain",
                   "results built on reused ones: always used, up to max_age, or never stored", "",
                   0, 0, "free|age|anchored"},
        o.chain);
  visit(OptionSpec{"max_age", "tokens since a reused result was last computed in full", "tokens", 1,
                   1 << 30},
        o.max_age);
  visit(OptionSpec{"max_gap", "tokens since the position that is reused; 0 = the window", "tokens",
                   0, 1 << 16},
        o.max_gap);
  visit(OptionSpec{"max_error",
                   "largest error that a reused result is supposed to bring: how far the query has "
                   "moved, for its length, times what the result may weigh; 0 = no limit",
                   "", 0, 100},
        o.max_error);
  visit(OptionSpec{"lse_fix",
                   "first-order correction of what a reused result weighs; keeps mean keys, for "
                   "which it reads keys twice; not with a soft cap"},
        o.lse_fix);
  visit(
      OptionSpec{"guard", "stop comparing in heads and layers where it takes longer than it saves"},
      o.guard);
  visit(
      OptionSpec{
          "prefill",
          "reuse: prompt rows reuse results of earlier ones, too; exploratory, with align=1, "
          "not with lse_fix; cpu",
          "", 0, 0, "none|reuse"},
      o.prefill);
  visit(OptionSpec{"layers", "figures of every layer and head too"}, o.layers);
}

}  // namespace reprise
