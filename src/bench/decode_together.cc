#include "bench/decode_together.h"

#include <chrono>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

struct Decoding {
  size_t begun = 0;  // sequences that have their first token
  bool enough = false;
  Status status;
  std::vector<Answer> answers;
};

Request request_of(const Session& session, uint32_t max_tokens, Decoding& decoding) {
  Request request;
  const auto held = session.tokens();
  request.prompt.assign(held.begin(), held.end());
  request.prompt.push_back(held.back());
  request.max_tokens = max_tokens;
  request.ignore_end = true;
  request.on_token = [&decoding, first = true](const TokenEvent&) mutable {
    if (std::exchange(first, false)) ++decoding.begun;
    return !decoding.enough;
  };
  return request;
}

}  // namespace

Result<DecodedTogether> decode_together(Engine& engine,
                                        std::span<const std::unique_ptr<Session>> sessions,
                                        uint32_t steps, const ProgressFn& progress) {
  using Clock = std::chrono::steady_clock;
  const auto goes_on = [&] { return !progress || progress({}); };
  Decoding decoding;
  std::vector<std::unique_ptr<Session>> forks;  // last: their end cancels what refers to the rest
  const uint32_t max_tokens = tokens_together(steps, sessions.size());
  for (const auto& session : sessions) {
    forks.push_back(session->fork());
    REPRISE_CHECK(engine.submit(
        *forks.back(), request_of(*session, max_tokens, decoding), [&](Result<Answer> answer) {
          if (answer)
            decoding.answers.push_back(std::move(*answer));
          else
            decoding.status = tl::unexpected<Error>(std::move(answer.error()));
        }));
  }
  while (decoding.begun < forks.size() && goes_on() && engine.step()) continue;
  engine.step();  // the first token that all decode warms the caches
  DecodedTogether decoded;
  for (uint32_t i = 0; i < steps && goes_on(); ++i) {
    const auto start = Clock::now();
    engine.step();
    const std::chrono::duration<double, std::milli> spent = Clock::now() - start;
    decoded.step_ms.push_back(spent.count());
  }
  if (!goes_on()) return fail(ErrorCode::kCancelled, "cancelled while decoding");
  const bool all_decoded = decoding.answers.empty();
  decoding.enough = true;
  while (engine.step()) continue;
  REPRISE_CHECK(decoding.status);
  if (!all_decoded) {
    return fail(ErrorCode::kUnsupported,
                "sequences read the ends of their prompts too far apart to be timed together; give "
                "a larger --prefill-chunk or fewer --sequences");
  }
  decoded.answers = std::move(decoding.answers);
  return decoded;
}

}  // namespace reprise
