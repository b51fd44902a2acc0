// `reprise bench`: speed against context, against the machine's roof and against a peer.
#include "bench/bench.h"

#include <algorithm>

#include "base/try.h"
#include "bench/fusion_bench.h"
#include "cli/command.h"
#include "cli/lists.h"
#include "reprise/library.h"

namespace reprise::cli {
namespace {

class BenchCommand : public Command {
 public:
  std::string_view name() const override { return "bench"; }
  std::string_view summary() const override { return "measure prefill and decode speed"; }
  std::string_view examples() const override {
    return R"(  reprise bench                                  contexts 128, 2K and 8K
  reprise bench --context 2K,32K --policy full --policy streaming:window=1024
  reprise bench --peer llama.cpp                 in turns with llama.cpp (`make peer` installs it)
  reprise bench --sequences 8 --no-prefill       batched decoding
  reprise bench -m random:llama-3.1-8b:q8_0 --device cuda
                                                 a model's shape without its weights, on a GPU
  reprise bench -m random:llama-3.1-8b --device cuda --measure attention --peer torch
                                                 a layer's kernels beside cuDNN's and others
  reprise bench --measure fusion --context 4K --fusion a3 --fusion pie --store /tmp/chunks
                                                 the first token of prompts with stored chunks
  reprise bench --json > bench.json)";
  }
  void declare(FlagSet& flags) override {
    flags_ = &flags;
    visit_options(plan_.engine, flags);
    visit_options(plan_.bench, flags);
    flags.add({"context", "context lengths, separated by commas", "tokens"}, contexts_);
    flags.add_list({"policy", "attention policy; repeatable, the default is full"}, policies_);
    flags.add({"peer", "measured in turns; torch: the kernels that it calls", "", 0, 0,
               "llama.cpp|torch"},
              plan_.peer);
    flags.add_list({"fusion", "of --measure fusion; repeatable, the default is a3"}, fusions_);
    flags.add({"store", "folder that keeps its chunks; a temporary one if none is named", "dir"},
              plan_.store);
    flags.add({"store-memory", "measure prompts whose chunks stay in page-locked memory, too",
               "bytes", 0, 0x1p50},
              plan_.store_memory);
    flags.add({"store-codec", "how its chunks are kept", "", 0, 0, kStoreCodecs},
              plan_.store_codec);
  }
  Status run(Console& console) override {
    if (plan_.bench.measure == "fusion" && !flags_->typed("context") && contexts_ == kContexts)
      contexts_ = kFusionContexts;
    REPRISE_TRY(plan_.contexts, parse_list({"context", "", "tokens", 1, 1 << 24}, contexts_));
    if (plan_.contexts.empty())
      return fail(ErrorCode::kInvalidArgument, "--context: give lengths, as 128,2K");
    if (!policies_.empty()) plan_.policies = policies_;
    if (!fusions_.empty()) plan_.fusions = fusions_;
    if (!fusions_.empty() && plan_.bench.measure != "fusion") {
      return fail(ErrorCode::kInvalidArgument,
                  "--fusion names what --measure fusion measures; add that, or leave --fusion out");
    }
    const uint32_t longest = *std::ranges::max_element(plan_.contexts);
    if (plan_.peer == kEnginePeer && longest > plan_.bench.peer_max) {
      console.note(fmt::format("{} is measured at {} tokens and less; --peer-max takes it further",
                               kEnginePeer, plan_.bench.peer_max));
    }
    if (!console.json()) {
      plan_.on_rows = [&](const BenchReport& report, size_t first_row) {
        console.end_progress();
        // A reader that has gone is noticed by the next command; measuring has no use for it.
        static_cast<void>(console.print(bench_markdown(report, first_row)));
      };
    }
    REPRISE_TRY(const BenchReport report, run_bench(plan_, console.progress()));
    console.end_progress();
    if (console.json()) return console.print_json(bench_json(report));
    if (!report.fusion.empty()) return console.print(fusion_markdown(report));
    if (report.attention.rows.empty()) return {};
    return console.print(attention_markdown(report.attention));
  }

 private:
  BenchPlan plan_;
  static constexpr const char *kContexts = "128,2K,8K", *kFusionContexts = "2K,8K";
  const FlagSet* flags_ = nullptr;
  std::string contexts_ = kContexts;
  std::vector<std::string> policies_, fusions_;
};

}  // namespace

std::unique_ptr<Command> make_bench_command() { return std::make_unique<BenchCommand>(); }

}  // namespace reprise::cli
