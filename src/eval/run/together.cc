#include "eval/run/together.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/try.h"

namespace reprise::eval {
namespace {

struct Slot {
  bool reading = true;
  std::optional<Result<Answer>> answer;
  std::unique_ptr<Session> session;  // last: its end cancels the request that refers to the rest
};

Status start(Engine& engine, PolicyRequest&& asked, Slot& slot) {
  REPRISE_TRY(slot.session, engine.open(asked.policy));
  Request request = std::move(asked.request);
  request.on_logits = [&slot, inner = std::move(request.on_logits)](std::span<const float> logits) {
    slot.reading = false;
    if (inner) inner(logits);
  };
  return engine.submit(*slot.session, std::move(request),
                       [&slot](Result<Answer> answer) { slot.answer = std::move(answer); });
}

}  // namespace

Result<std::vector<Result<Answer>>> answer_together(Engine& engine,
                                                    std::vector<PolicyRequest> requests,
                                                    const std::function<bool()>& go_on) {
  std::vector<Slot> slots(requests.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    if (Status status = start(engine, std::move(requests[i]), slot); !status)
      slot.answer = tl::unexpected<Error>(status.error());
    while (slot.reading && !slot.answer) {
      engine.step();
      if (!go_on()) return fail(ErrorCode::kCancelled, "cancelled");
    }
  }
  while (engine.step())
    if (!go_on()) return fail(ErrorCode::kCancelled, "cancelled");
  std::vector<Result<Answer>> answers;
  answers.reserve(slots.size());
  for (Slot& slot : slots) answers.push_back(std::move(*slot.answer));
  return answers;
}

}  // namespace reprise::eval
