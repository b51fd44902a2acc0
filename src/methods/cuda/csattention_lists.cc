#include "methods/cuda/csattention_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/try.h"
#include "kernels/cuda/page_table.h"
#include "methods/cuda/csattention.h"
#include "methods/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "choosing keys by lists";
constexpr uint32_t kTokens = kernels::cuda::kPageTokens;
constexpr size_t kProducts = size_t{1} << 25;  // that are kept at once, if those of a part are less

Status check(const CsAttentionPolicy& policy, const ModelConfig& config) {
  const CentroidListsOptions lists = lists_options(policy.options());
  const uint32_t pairs = config.head_dim / 2;
  const bool even = lists.parts <= pairs && pairs % lists.parts == 0;
  const auto refused = [&](std::string_view what) {
    return fail(ErrorCode::kUnsupported,
                "policy {}: on --device cuda csattention's lists have no {}; use --device cpu",
                policy.spec(), what);
  };
  if (lists.absent_mean) return refused("absent=mean");
  if (lists.centred) return refused("centred=true");
  if (policy.period() > 1) return refused("period above 1");
  if (!(lists.share > 0.0f)) return refused("list=0");
  if (lists.centroids > kMostCentroids) return refused("centroids above 256");
  if (policy.sink() % static_cast<int32_t>(kTokens) != 0) {
    return refused(fmt::format("sink of {} tokens (budget / 8 at most), only multiples of {}",
                               policy.sink(), kTokens));
  }
  if (!even || !has_list_dims(config.head_dim / lists.parts)) {
    return refused("parts of other than 8, 12, 16 or 32 dimensions");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DevicePolicy>> DeviceCentroidLists::create(const CsAttentionPolicy& policy,
                                                                  const ModelConfig& config) {
  REPRISE_CHECK(check(policy, config));
  return std::unique_ptr<DevicePolicy>(new DeviceCentroidLists(policy, config));
}

DeviceCentroidLists::DeviceCentroidLists(const CsAttentionPolicy& policy, const ModelConfig& config)
    : config_(config), options_(lists_options(policy.options())), rules_(code_rules(policy)) {}

Status DeviceCentroidLists::reserve(const DeviceRoom& room) {
  if (layers_.places.empty()) {
    REPRISE_CHECK(layers_.find(config_, *this));
    shape_ = {layers_.count(),  config_.n_head, config_.n_kv_head,
              config_.head_dim, options_.parts, options_.centroids};
    std::mt19937_64 random(options_.seed);
    std::vector<uint64_t> draws(options_.centroids + 1);
    for (uint64_t& draw : draws) draw = random();
    REPRISE_CHECK(upload(std::span<const uint64_t>(draws), draws_, kWhat));
  }
  rows_ = room.sequences;
  capacity_ = room.capacity;
  host_rows_.resize(rows_);
  REPRISE_CHECK(sent_rows_.reserve(rows_, kWhat));
  REPRISE_CHECK(reserve_search(uint64_t{capacity_} * kTokens));
  return reserve_side();
}

Status DeviceCentroidLists::reserve_search(uint64_t tokens) {
  const auto share =
      static_cast<uint64_t>(std::ceil(rules_.keep * static_cast<double>(tokens))) + 1;
  const uint64_t most = std::min(tokens, std::max(share, static_cast<uint64_t>(rules_.budget)));
  const size_t heads = size_t{rows_} * shape_.n_head;
  pick_capacity_ = static_cast<uint32_t>((most + kTokens - 1) / kTokens) * kTokens;
  REPRISE_CHECK(
      points_.reserve(size_t{kMostDirections} * shape_.n_kv_head * shape_.head_dim, kWhat));
  const size_t products = list_products(shape_, static_cast<uint32_t>(tokens));
  const size_t all = products * shape_.n_kv_head * shape_.parts;
  REPRISE_CHECK(products_.reserve(std::max(products, std::min(all, kProducts)), kWhat));
  REPRISE_CHECK(atoms_.reserve(heads * shape_.parts, kWhat));
  REPRISE_CHECK(sums_.reserve(heads * tokens, kWhat));
  REPRISE_CHECK(scores_.reserve(heads * tokens, kWhat));
  REPRISE_CHECK(picks_.reserve(heads * pick_capacity_, kWhat));
  REPRISE_CHECK(picked_.reserve(heads, kWhat));
  REPRISE_CHECK(lists_.reserve(size_t{rows_} * capacity_, kWhat));
  return keys_.reserve(rows_, kWhat);
}

// Side pages of a row follow one another, the same for all heads.
Status DeviceCentroidLists::reserve_side() {
  const uint32_t pages = pick_capacity_ / kTokens, n_head = shape_.n_head;
  std::vector<uint32_t> lists(size_t{rows_} * n_head * pages);
  for (size_t i = 0; i < lists.size(); ++i) {
    lists[i] = static_cast<uint32_t>(i / (size_t{n_head} * pages) * pages + i % pages);
  }
  REPRISE_CHECK(upload(std::span<const uint32_t>(lists), side_lists_, kWhat));
  const size_t tiles = size_t{rows_} * pages * n_head * 2;
  REPRISE_CHECK(side_.reserve(tiles * tile_bytes(KvType::kBF16, shape_.head_dim), kWhat));
  const size_t heads = size_t{rows_} * n_head;
  REPRISE_CHECK(side_out_.reserve(heads * shape_.head_dim, kWhat));
  REPRISE_CHECK(side_lse_.reserve(heads, kWhat));
  REPRISE_CHECK(workspace_.reserve(
      paged_decode_workspace(rows_, n_head, shape_.n_kv_head, shape_.head_dim), kWhat));
  return side_workspace_.reserve(paged_decode_workspace(rows_, n_head, n_head, shape_.head_dim),
                                 kWhat);
}

uint32_t DeviceCentroidLists::list_length(int32_t end) const {
  return static_cast<uint32_t>(std::ceil(options_.share * static_cast<float>(end)));
}

ListedRows DeviceCentroidLists::rows_from(uint32_t first, uint32_t count) const {
  ListedRows rows;
  rows.shape = shape_;
  rows.rules = rules_;
  rows.scale = config_.attention_scale;
  rows.indexes = sent_rows_.device() + first;
  rows.count = count;
  return rows;
}

Status DeviceCentroidLists::begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) {
  for (const DeviceGroup& group : rows.groups) {
    if (group.policy != this || group.first >= rows.decode_rows) continue;
    OfferNewKeysArgs args;
    args.rows = rows_from(group.first, group.count);
    point_at(rows, group, layers_, kv, args);
    REPRISE_CUDA(offer_new_keys(args, stream), "listing keys");
  }
  return {};
}

ListSearchArgs DeviceCentroidLists::search_args(const DeviceQueries& queries) const {
  ListSearchArgs args;
  args.rows = rows_from(queries.first, queries.count);
  args.rows.positions = queries.positions;
  args.rows.capacity = queries.capacity;
  args.layer = layers_.places[queries.layer];
  args.model_layer = queries.layer;
  args.pages = queries.pages;
  args.q = queries.q_exact;
  args.backoff = options_.backoff;
  args.norms = options_.norms;
  args.most_entries = list_length(static_cast<int32_t>(queries.capacity * kTokens));
  args.atoms = atoms_.data();
  args.sums = sums_.data();
  args.scores = scores_.data();
  args.picks = picks_.data();
  args.picked = picked_.data();
  args.pick_capacity = pick_capacity_;
  args.lists = lists_.data();
  args.keys = keys_.data();
  return args;
}

Status DeviceCentroidLists::attend(const DeviceQueries& queries, const DeviceResult& result,
                                   cudaStream_t stream) {
  const ListSearchArgs search = search_args(queries);
  REPRISE_CUDA(choose_listed(search, stream), kWhat);
  GatherKeysArgs gather;
  gather.kv = queries.kv;
  gather.side = {side_.data(), queries.kv.type, shape_.n_head, shape_.head_dim};
  gather.pages = queries.pages;
  gather.picks = search.picks;
  gather.picked = search.picked;
  gather.count = queries.count;
  gather.capacity = queries.capacity;
  gather.pick_capacity = pick_capacity_;
  REPRISE_CUDA(gather_keys(gather, stream), "gathering keys");
  PagedDecodeArgs read;
  read.kv = queries.kv;
  read.lists = {search.lists, nullptr, search.keys, 1, queries.capacity};
  read.batch = queries.count;
  read.n_head = shape_.n_head;
  read.q = queries.q_exact;
  read.scale = kQueryUnit;
  read.soft_cap = config_.attention_soft_cap;
  read.out = result.out;
  read.lse = result.lse;
  read.workspace = workspace_.data();
  REPRISE_CUDA(paged_decode(read, stream), "decode attention");
  read.kv = gather.side;
  read.lists = {side_lists_.data(), nullptr, search.picked, shape_.n_head,
                pick_capacity_ / kTokens};
  read.out = side_out_.data();
  read.lse = side_lse_.data();
  read.workspace = side_workspace_.data();
  REPRISE_CUDA(paged_decode(read, stream), "decode attention");
  REPRISE_CUDA(merge_partials(result.out, result.lse, side_out_.data(), side_lse_.data(),
                              queries.count * shape_.n_head, shape_.head_dim, stream),
               "merging parts");
  return {};
}

bool DeviceCentroidLists::searches(const DeviceRow& row, CodeRange* range) const {
  const CsAttentionPolicy* host = find_policy<CsAttentionPolicy>(*row.policy);
  *range = code_range(rules_, row.layer, row.position);
  const auto* index = static_cast<const DeviceListIndex*>(host->device().state.get());
  return range->chooses && index != nullptr && index->complete();
}

uint64_t DeviceCentroidLists::keys_read(const DeviceRow& row) const {
  CodeRange range;
  const auto end = static_cast<uint64_t>(row.position) + 1;
  if (!searches(row, &range)) return end;
  const auto others = static_cast<uint64_t>(rules_.sink + range.end - range.recent);
  return std::min<uint64_t>(end, others + shape_.group() * listed_picks(rules_, range));
}

uint64_t DeviceCentroidLists::index_bytes_read(const DeviceRow& row) const {
  CodeRange range;
  if (!searches(row, &range)) return 0;
  const CsAttentionPolicy* host = find_policy<CsAttentionPolicy>(*row.policy);
  const auto* index = static_cast<const DeviceListIndex*>(host->device().state.get());
  const uint64_t entries = uint64_t{shape_.n_head} * shape_.parts * index->view().stride;
  return entries * kListEntryBytes +
         uint64_t{shape_.n_kv_head} * shape_.centroids * shape_.head_dim * sizeof(float);
}

}  // namespace reprise
