// What every operation needs while a template is rendered: its budget and the makers of values.
#pragma once

#include <span>

#include "text/chat_template.h"
#include "text/jinja/value.h"

namespace reprise::jinja {

class Runtime {
 public:
  Runtime(const TemplateLimits& limits, int64_t now);
  virtual ~Runtime() = default;

  const TemplateLimits& limits() const { return limits_; }
  Budget& budget() { return budget_; }
  int64_t now() const { return now_; }  ///< seconds since the epoch

  /// Makers of heap values; they pay the budget. Errors: kTemplateLimit.
  Result<Value> text(std::string text, bool markup = false);
  Result<Value> undefined(std::string hint);
  Result<Value> sequence(Flavour flavour, std::vector<Value> items);
  /// Later entries replace earlier ones of an equal key, unless the keys are known to be distinct.
  /// Errors: also kTemplateRuntime for a key that Python cannot hash.
  Result<Value> dict(std::vector<std::pair<Value, Value>> entries, bool distinct = false);
  /// A namespace that lives as long as the rendering.
  Result<Value> name_space();
  /// Keeps an object alive until the rendering ends.
  template <class T>
  T& keep(std::unique_ptr<T> object) {
    T& kept = *object;
    kept_.push_back(std::move(object));
    return kept;
  }

  /// Pays for a look at every character of a text, compared with so many bytes one by one.
  Status scan(std::string_view text, size_t compared = 0);
  /// Pays for the search for a text in another.
  Status search(std::string_view text, std::string_view needle);
  /// One pass over a value as a for loop makes it: the elements, keys or characters. Consumes a
  /// generator. Errors: kTemplateRuntime when it is not iterable.
  Result<std::vector<Value>> iterate(const Value& value);
  /// Python's len(). Errors: kTemplateRuntime.
  Result<int64_t> length(const Value& value);
  /// value[key] with Jinja's fallback to attributes; undefined when there is none.
  Result<Value> item(const Value& value, const Value& key);
  /// value.name with Jinja's fallback to items; undefined when there is none.
  virtual Result<Value> attribute(const Value& value, std::string_view name) = 0;
  /// The entry of a dict, or null. Pays for the search.
  Result<const Value*> find(const Dict& dict, const Value& key);

 protected:
  TemplateLimits limits_;
  Budget budget_;
  int64_t now_;
  std::vector<std::unique_ptr<Object>> kept_;
};

/// Collects text against the budget; what does not fit is dropped and finish() fails.
class TextBuilder {
 public:
  explicit TextBuilder(Runtime& runtime)
      : runtime_(runtime), room_(runtime.budget().bytes_left()) {}

  void append(std::string_view piece) {
    if (overflow_ || piece.size() > room_ - text_.size()) {
      overflow_ = true;
    } else {
      text_ += piece;
    }
  }
  void append(size_t count, std::string_view piece);  ///< count times
  bool overflow() const { return overflow_; }
  const std::string& view() const { return text_; }
  Result<Value> finish(bool markup = false);
  Result<std::string> take();

 private:
  Runtime& runtime_;
  size_t room_;
  bool overflow_ = false;
  std::string text_;
};

/// Python's hash(): fails for what contains a list or dict.
Status check_hashable(const Value& value);
tl::unexpected<Error> type_error(std::string_view operation, const Value& value);

}  // namespace reprise::jinja
