#include "reprise/library.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <type_traits>

#include "base/try.h"
#include "engine/chunk_context.h"
#include "engine/engine_impl.h"
#include "fusion/fuser.h"
#include "methods/registry.h"
#include "store/chunk_store.h"
#include "text/utf8.h"

namespace reprise {
namespace {

ChunkIdentity identity_of(const Engine::Impl& engine, const ChunkContext& context) {
  // bf12 holds the numbers of bf16 but for the smallest: an engine with either takes the other's
  // chunks.
  const bool packed = engine.kv.layout().type == kernels::KvType::kBF12;
  const auto type = packed ? kv_type_name(kernels::KvType::kBF16) : engine.options.kv_type;
  std::string numerics =
      fmt::format("{};{};{}", numerics_of(engine.options), context.version(), type);
  if (engine.options.device != "cpu") numerics += fmt::format(";{}", engine.options.device);
  const bool narrow = kernels::rounds_to_bf16(engine.kv.layout().type);
  const ModelConfig& config = engine.model->config();
  return {{engine.model->fingerprint(), engine.tokenizer->fingerprint(),
           XXH3_64bits(numerics.data(), numerics.size())},
          narrow ? kernels::KvType::kBF16 : kernels::KvType::kF32,
          config.n_layer,
          config.n_kv_head,
          config.head_dim};
}

/// However it has keys stored (kDensePrefill is one of these keys).
bool reads_prompts_whole(const Policy& policy) { return policy.prefill_key().starts_with("full:"); }

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

struct Library::Impl {
  Impl(Engine::Impl& owner, ChunkStore chunks, const LibraryOptions& how, BlockCodec form,
       std::unique_ptr<FusionDevice> computes)
      : engine(owner),
        store(std::move(chunks)),
        options(how),
        codec(form),
        context(*owner.tokenizer, owner.prompts, how.store_lead),
        identity(identity_of(owner, context)),
        device(std::move(computes)),
        fuser(*device) {}

  Engine::Impl& engine;
  ChunkStore store;
  LibraryOptions options;
  BlockCodec codec;
  ChunkContext context;
  ChunkIdentity identity;
  std::unique_ptr<FusionDevice> device;
  Fuser fuser;

  ChunkTokens in_context(std::span<const int32_t> tokens) const {
    return {context.tokens(), tokens};
  }

  /// Of the largest chunk or prompt that this process has seen, as those are measured better; 0:
  /// none.
  double row_ms = 0;
  uint64_t measured_size = 0;

  /// size: rows, but for those that only the first of several passes has.
  void computed(uint64_t size, uint64_t rows, double ms) {
    if (size < measured_size || rows == 0) return;
    measured_size = size;
    row_ms = ms / static_cast<double>(rows);
  }
  /// What a row takes, by computing a chunk alone if nothing is known yet: twice, since the first
  /// pass of a process has much to set up. Of passes that fail nothing is known.
  double measured_row_ms(std::span<const int32_t> tokens) {
    for (int pass = 0; pass < 2 && measured_size == 0; ++pass) {
      SequenceKv kv(engine.kv);
      const auto start = std::chrono::steady_clock::now();
      if (!device->read_chunk(identity, {{}, tokens}, kv)) break;
      if (pass == 1) computed(tokens.size(), tokens.size(), ms_since(start));
    }
    return row_ms;
  }
  /// A store that cannot be read has no chunks.
  std::optional<StoredChunk> find(std::span<const int32_t> tokens) {
    auto found = store.find(identity, in_context(tokens));
    if (!found) return std::nullopt;
    return std::move(*found);
  }

  /// A pass within the one that called back would overwrite what that one computes.
  Status check_idle() const {
    if (!engine.scheduler.stepping()) return {};
    return fail(ErrorCode::kInvalidArgument,
                "a callback of a request cannot use a library; add and fuse when Engine::step has "
                "returned");
  }
  /// Once more where it has no memory and running requests can do with less.
  template <class Compute>
  std::invoke_result_t<Compute> with_room(const Compute& compute) {
    auto done = compute();
    const bool full = !done && done.error().code == ErrorCode::kOutOfMemory;
    return full && engine.scheduler.page_out() ? compute() : std::move(done);
  }
  /// KV of a chunk, as it is stored. That of what it is read after stays in the prefix cache.
  Result<std::vector<std::byte>> read(const ChunkTokens& chunk);
  using Found = std::vector<std::optional<StoredChunk>>;
  /// The prompt's chunks where they lie in it, and where they are stored if stored is set; found
  /// keeps these.
  FusedPrompt look_up(const PartedPrompt& prompt, std::span<const int32_t> tokens, bool stored,
                      Found& found, FusionReport& report);
  /// Tells the store and the report what a fusion cost and found.
  void account(const Fused& fused, FusionReport& report);
};

Result<std::vector<std::byte>> Library::Impl::read(const ChunkTokens& chunk) {
  REPRISE_TRY(auto policy, create_policy(policy_entries(), "full", engine.model->config()));
  Sequence sequence(engine.kv, std::move(policy));
  engine.kv.promise(0);  // to a pass that is over
  engine.scheduler.take_prefix(sequence, chunk.context);
  const int32_t known = sequence.kv.length();
  const auto start = std::chrono::steady_clock::now();
  REPRISE_TRY(auto blocks,
              with_room([&] { return device->read_chunk(identity, chunk, sequence.kv); }));
  const auto rows = static_cast<uint64_t>(sequence.kv.length() - known);
  computed(chunk.tokens.size(), rows, ms_since(start));
  sequence.kv.truncate(static_cast<int32_t>(chunk.context.size()));
  sequence.tokens.assign(chunk.context.begin(), chunk.context.end());
  sequence.prefilled = sequence.tokens.size();
  engine.scheduler.keep_prefix(sequence);
  sequence.kv.rest();
  return blocks;
}

FusedPrompt Library::Impl::look_up(const PartedPrompt& prompt, std::span<const int32_t> tokens,
                                   bool stored, Found& found, FusionReport& report) {
  const auto start = std::chrono::steady_clock::now();
  const uint64_t fetched_before = store.fetched();
  FusedPrompt fused;
  fused.tokens = tokens;
  fused.question = static_cast<int32_t>(prompt.head.size());
  for (const auto& chunk : prompt.chunks) {
    found.push_back(stored ? find(chunk) : std::nullopt);
    if (stored && !found.back()) ++report.missing_chunks;
    const int32_t begin = fused.question;
    fused.question += static_cast<int32_t>(chunk.size());
    fused.chunks.push_back({begin, fused.question, nullptr});
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i]) fused.chunks[i].stored = &*found[i];
  }
  report.chunks = found.size();
  report.fetched_chunks = store.fetched() - fetched_before;
  report.look_up_ms = ms_since(start);
  const bool any = stored && report.missing_chunks < report.chunks;
  if (any && options.store_load == "auto") {
    const auto by_size = [](const auto& a, const auto& b) { return a.size() < b.size(); };
    fused.row_ms = measured_row_ms(*std::ranges::max_element(prompt.chunks, by_size));
  }
  return fused;
}

void Library::Impl::account(const Fused& fused, FusionReport& report) {
  for (const StoredChunk* chunk : fused.damaged) {
    static_cast<void>(store.drop(*chunk));  // what stays there is found damaged again
  }
  const FusionCost& cost = fused.cost;
  // Rows that read less say nothing of full prefill.
  const uint64_t rows = cost.computed_rows + cost.recomputed_rows;
  if (cost.few_rows == 0) computed(rows, rows, cost.compute_ms);
  report.loaded_chunks = cost.loaded_chunks;
  report.rounded_chunks = cost.rounded_chunks;
  report.damaged_chunks = cost.damaged_chunks;
  report.slow_chunks = cost.slow_chunks;
  report.reading_ms = cost.reading_ms;
  report.computing_ms = cost.computing_ms;
  report.loaded_rows = cost.loaded_rows;
  report.recomputed_rows = cost.recomputed_rows;
  report.mean_position = cost.mean_position;
  report.computed_rows = cost.computed_rows;
  report.loaded_bytes = cost.loaded_bytes;
  report.wait_ms = cost.wait_ms;
  report.place_ms = cost.place_ms;
  report.select_ms = cost.select_ms;
}

std::vector<int32_t> PartedPrompt::tokens() const {
  std::vector<int32_t> tokens = head;
  for (const auto& chunk : chunks) tokens.insert(tokens.end(), chunk.begin(), chunk.end());
  tokens.insert(tokens.end(), question.begin(), question.end());
  return tokens;
}

Library::Library(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Library::Library(Library&&) noexcept = default;
Library::~Library() = default;

Result<Library> Library::open(Engine& engine, const LibraryOptions& options, bool create) {
  if (options.store.empty()) {
    return fail(ErrorCode::kInvalidArgument, "name the store's folder with --store DIR");
  }
  REPRISE_CHECK(validate(options));
  REPRISE_TRY(const BlockCodec codec, parse_codec(options.store_codec));
  REPRISE_TRY(auto store, ChunkStore::open(options.store, create, {.bytes = options.store_size}));
  if (!options.store_remote.empty()) {
    const RemoteOptions how = {.timeout = std::chrono::milliseconds(options.store_timeout)};
    REPRISE_TRY(auto remote, RemoteStore::open(options.store_remote, how));
    store.share_through(std::move(remote));
  }
  REPRISE_TRY(auto device, engine.impl().backend->fusion(options.store_memory));
  return Library(
      std::make_unique<Impl>(engine.impl(), std::move(store), options, codec, std::move(device)));
}

std::vector<std::vector<int32_t>> Library::cut(std::string_view text) const {
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string_view::npos) return {};
  const Tokenizer& tokenizer = *impl_->engine.tokenizer;
  // A blank line ends every document, so that the next one does not go on in its last sentence.
  const std::vector<int32_t> tokens =
      tokenizer.encode(fmt::format("{}\n\n", text.substr(0, end + 1)), {.add_special = false});
  const size_t most = impl_->options.chunk_tokens;
  const auto ends_line = [&](size_t at) {
    return tokenizer.token_bytes(tokens[at]).ends_with('\n');
  };
  std::vector<std::vector<int32_t>> chunks;
  for (size_t begin = 0; begin < tokens.size();) {
    size_t stop = std::min(begin + most, tokens.size());
    if (stop < tokens.size()) {
      size_t line = stop;
      while (line > begin + most / 2 && !ends_line(line - 1)) --line;
      if (line > begin + most / 2) stop = line;
    }
    chunks.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                        tokens.begin() + static_cast<std::ptrdiff_t>(stop));
    begin = stop;
  }
  return chunks;
}

Result<bool> Library::add(std::string_view document, uint32_t part,
                          std::span<const int32_t> tokens) {
  REPRISE_CHECK(impl_->check_idle());
  if (tokens.empty()) return fail(ErrorCode::kEmptyPrompt, "{}: no tokens to keep", document);
  const ChunkTokens chunk = impl_->in_context(tokens);
  REPRISE_CHECK(impl_->engine.scheduler.check_tokens(chunk.context));  // a GPU does not
  REPRISE_CHECK(impl_->engine.scheduler.check_tokens(tokens));
  if (chunk.context.size() + tokens.size() > impl_->engine.info.context) {
    return fail(ErrorCode::kContextExceeded,
                "{} part {}: a chunk of {} tokens has no room behind the {} that it is read after, "
                "as the context holds {}; lower --chunk-tokens or raise --ctx",
                document, part + 1, tokens.size(), chunk.context.size(),
                impl_->engine.info.context);
  }
  REPRISE_TRY(const auto there, impl_->store.find(impl_->identity, chunk));
  if (there && there->record().codec.serves(impl_->codec)) {
    impl_->store.share(*there);
    return false;
  }
  REPRISE_TRY(const auto blocks, impl_->read(chunk));
  const std::string text = replace_invalid_utf8(impl_->engine.tokenizer->decode(tokens));
  return impl_->store.add(impl_->identity, chunk, {std::string(document), part, text}, blocks,
                          impl_->codec);
}

uint64_t Library::evicted() const { return impl_->store.evicted(); }

std::string Library::take_warning() { return impl_->store.take_warning(); }

Result<std::vector<Passage>> Library::search(std::string_view query, size_t count) {
  // What is damaged is dropped, and more rows are asked for in its place.
  for (size_t wanted = count;;) {
    REPRISE_TRY(const auto rows, impl_->store.search(impl_->identity, query, wanted));
    std::vector<Passage> passages;
    for (const ChunkRow& row : rows) {
      if (passages.size() == count) break;
      REPRISE_TRY(const auto chunk, impl_->store.find(row));
      if (!chunk) continue;
      const ChunkRecord& record = chunk->record();
      passages.push_back({record.source.document, record.source.part, record.tokens,
                          record.source.text, row.score});
    }
    if (passages.size() == count || rows.size() < wanted) return passages;
    wanted += count - passages.size();
  }
}

Result<PartedPrompt> Library::chat_prompt(std::span<const Message> messages,
                                          std::vector<std::vector<int32_t>> chunks) const {
  REPRISE_TRY(auto ends, impl_->engine.prompts.build_around(messages));
  return PartedPrompt{std::move(ends.first), std::move(chunks), std::move(ends.second)};
}

Result<FusionReport> Library::fuse(Session& session, const PartedPrompt& prompt,
                                   std::string_view fusion, const ProgressFn& progress) {
  const auto start = std::chrono::steady_clock::now();
  Engine::Impl& engine = impl_->engine;
  Sequence& sequence = session.impl().sequence;
  REPRISE_CHECK(impl_->check_idle());
  REPRISE_CHECK(session.impl().check_opened_on(engine));
  REPRISE_TRY(const FusionMethod method, parse_fusion(fusion));
  const std::vector<int32_t> tokens = prompt.tokens();
  REPRISE_CHECK(check_memory(engine.kv, tokens.size()));
  REPRISE_CHECK(engine.scheduler.check(sequence, tokens));
  if (prompt.question.empty()) {
    return fail(ErrorCode::kEmptyPrompt, "there is no question behind the documents");
  }
  FusionReport report;
  report.prompt_tokens = tokens.size();
  const bool loads = !std::holds_alternative<NoFusion>(method);
  Impl::Found found;
  const FusedPrompt fused = impl_->look_up(prompt, tokens, loads, found, report);
  const int32_t question = fused.question;

  engine.kv.promise(0);  // to a pass that is over
  engine.scheduler.take_prefix(sequence, tokens);
  report.reused_rows = sequence.tokens.size();
  auto done = impl_->with_room([&] {
    return impl_->fuser.fuse(fused, method, sequence.kv, sequence.policy->position_free(),
                             progress);
  });
  sequence.kv.rest();
  if (!done) return tl::unexpected<Error>(done.error());
  const auto held = static_cast<std::ptrdiff_t>(sequence.kv.length());
  sequence.tokens.assign(tokens.begin(), tokens.begin() + held);
  if (done->cost.loaded_rows > 0) {
    sequence.exact = std::max(report.reused_rows, prompt.head.size());
  }
  sequence.policy->set_documents(static_cast<int32_t>(prompt.head.size()), question);
  // Other policies may read less for the row that these are of.
  if (reads_prompts_whole(*sequence.policy)) sequence.logits = std::move(done->logits);
  impl_->account(*done, report);
  report.computed_rows += tokens.size() - sequence.tokens.size();  // by the request
  report.total_ms = ms_since(start);
  return report;
}

}  // namespace reprise
