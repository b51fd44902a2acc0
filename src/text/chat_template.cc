#include "text/chat_template.h"

#include "base/try.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace reprise {

struct ChatTemplate::Impl {
  std::string source;  // the tree has views into it
  TemplateLimits limits;
  jinja::Body body;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, const TemplateLimits& limits) {
  if (source.size() > limits.max_source || source.size() > UINT32_MAX) {
    return fail(ErrorCode::kTemplateLimit, "the chat template has {} bytes; the limit is {}",
                source.size(), limits.max_source);
  }
  auto impl = std::make_unique<Impl>();
  impl->source = jinja::normalize_newlines(source);
  impl->limits = limits;
  REPRISE_TRY(impl->body, jinja::parse(impl->source, limits));
  return ChatTemplate(std::move(impl));
}

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& context, int64_t now) const {
  if (!context.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "the context of a chat template must be an object");
  }
  return jinja::Interpreter(impl_->limits, now, impl_->source, context).render(impl_->body);
}

}  // namespace reprise
