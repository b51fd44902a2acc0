#include "methods/registry.h"

#include "methods/attention_predictor/attention_predictor.h"
#include "methods/baselines/full.h"
#include "methods/baselines/h2o.h"
#include "methods/baselines/infllm.h"
#include "methods/baselines/magicpig.h"
#include "methods/baselines/pqcache.h"
#include "methods/baselines/quest.h"
#include "methods/baselines/random.h"
#include "methods/baselines/snapkv.h"
#include "methods/baselines/sparq.h"
#include "methods/baselines/streaming.h"
#include "methods/csattention/csattention.h"
#include "methods/decorators/auto.h"
#include "methods/decorators/dense.h"
#include "methods/decorators/probe.h"
#include "methods/decorators/skim.h"
#include "methods/mac/mac.h"
#include "methods/reattention/reattention.h"

namespace reprise {

std::span<const PolicyEntry> policy_entries() {
  static const std::vector<PolicyEntry> entries = {
      policy_entry<FullPolicy, FullOptions>("full", "every visible key; exact",
                                            "Vaswani et al. 2017"),
      policy_entry<StreamingPolicy, StreamingOptions>(
          "streaming", "the first keys and a recent window; constant memory, endless generation",
          "StreamingLLM, Xiao et al. 2024"),
      policy_entry<H2oPolicy, H2oOptions>(
          "h2o", "recent tokens and those that received most attention; constant memory",
          "H2O, Zhang et al. 2023"),
      policy_entry<SnapKvPolicy, SnapKvOptions>(
          "snapkv", "prompt tokens that its last rows vote for, and every generated one",
          "SnapKV, Li et al. 2024"),
      policy_entry<QuestPolicy, QuestOptions>(
          "quest", "the pages whose keys' bounds promise the largest logits", "Tang et al. 2024"),
      policy_entry<RandomPolicy, RandomOptions>(
          "random", "random pages: the control that every selection must beat", "control"),
      policy_entry<SparqPolicy, SparqOptions>(
          "sparq", "the keys whose logits, from a few channels, are largest; a mean for the rest",
          "SparQ Attention, Ribar et al. 2024"),
      policy_entry<PqCachePolicy, PqCacheOptions>(
          "pqcache", "the keys whose product-quantised copies give the largest logits",
          "PQCache, Zhang et al. 2025"),
      policy_entry<MagicPigPolicy, MagicPigOptions>(
          "magicpig", "keys sampled by hash collisions, with unbiased weights; a large index",
          "MagicPIG, Chen et al. 2025"),
      policy_entry<InfLlmPolicy, InfLlmOptions>(
          "infllm", "a recent window and the best past blocks at one distance; prefill too",
          "InfLLM, Xiao et al. 2024"),
      policy_entry<ReAttentionPolicy, ReAttentionOptions>(
          "reattention", "voted spans of the past as if nothing lay between; context without limit",
          "ReAttention, arXiv 2407.15176"),
      policy_entry<CsAttentionPolicy, CsAttentionOptions>(
          "csattention", "the keys whose copies, coded for the prompt's queries, give large logits",
          "after CSAttention, arXiv 2604.08584"),
      policy_entry<AttentionPredictorPolicy, AttentionPredictorOptions>(
          "attention_predictor",
          "the blocks that will get attention, by a forecast from what they got",
          "after AttentionPredictor, arXiv 2502.04077"),
      policy_entry<DensePolicy, DenseOptions>(
          "dense", "keeps some layers dense for the policy on its right", "decorator"),
      policy_entry<AutoPolicy, AutoOptions>(
          "auto", "the fastest of several policies, or of full and the one on its right",
          "decorator", ""),
      policy_entry<ProbePolicy, ProbeOptions>(
          "probe", "measures what the policy on its right misses; slow", "decorator"),
      policy_entry<SkimPolicy, SkimOptions>(
          "skim", "reads prompts through a window for the policy on its right; to measure answers",
          "decorator"),
      policy_entry<MacPolicy, MacOptions>(
          "mac", "reuses attention over past keys where a query is like a recent one; decode",
          "MAC-Attention, arXiv 2604.00235"),
  };
  return entries;
}

}  // namespace reprise
