#include "eval/run/scope.h"

#include "base/try.h"
#include "reprise/options.h"

namespace reprise::eval {

Result<Scope> Scope::parse(std::string_view text) {
  constexpr std::string_view kTail = "tail:";
  if (text == "decode") return Scope{};
  if (text == "teacher") return Scope{.generates = false};
  if (!text.starts_with(kTail))
    return fail(ErrorCode::kInvalidArgument,
                "--scope: \"{}\" is not decode, teacher or tail:N (as tail:32)", text);
  Scope scope;
  text.remove_prefix(kTail.size());
  REPRISE_CHECK(parse_option({"scope tail", "", "tokens", 1, 1 << 20}, text, scope.tail));
  return scope;
}

}  // namespace reprise::eval
