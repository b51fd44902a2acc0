// Errors are values: every fallible call returns Result<T>; the library never aborts or prints.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace reprise {

/// Every way a call can fail. Tools map kInvalidArgument, kUnknownOption and kUnknownPolicy to exit
/// code 2 (usage), kCancelled to 128 and the signal's number, and the others to 1.
enum class ErrorCode {
  kInvalidArgument,       ///< an argument is outside its documented range
  kUnknownOption,         ///< no option has this name
  kUnknownPolicy,         ///< no attention policy has this name
  kFileNotFound,          ///< the path does not exist
  kFileUnreadable,        ///< the path exists but cannot be read or mapped
  kFileUnwritable,        ///< the path cannot be created, written or renamed into place
  kBadMagic,              ///< the file does not start with its format's magic bytes
  kUnsupportedVersion,    ///< the format is known, this version of it is not
  kTruncated,             ///< the file ends before what it declares
  kSizeOverflow,          ///< a size computed from numbers in the file overflows
  kBadCount,              ///< a count cannot fit in the file's length, or is out of its range
  kBadString,             ///< a string is not valid UTF-8 or holds NUL where text is expected
  kBadType,               ///< a type tag is not one the format defines, or not the one needed
  kUnsupportedType,       ///< a tensor type that exists but is not read by this engine
  kBadValue,              ///< a value is outside what its key allows
  kBadShape,              ///< a tensor's shape is impossible or not the one the model needs
  kBadOffset,             ///< a tensor's bytes are misaligned, overlapping or leave holes
  kDuplicateKey,          ///< a key or tensor name appears twice
  kMissingKey,            ///< a required metadata key is absent
  kMissingTensor,         ///< a required tensor is absent
  kTooDeep,               ///< nesting exceeds the depth limit
  kBadJson,               ///< the text is not JSON, or not the JSON that is expected here
  kUnknownArchitecture,   ///< the model names an architecture that this engine does not run
  kTokenizerMissing,      ///< the model carries no tokenizer
  kUnsupportedTokenizer,  ///< the tokenizer uses a component that this engine does not have
  kTemplateSyntax,        ///< a chat template does not parse
  kTemplateRuntime,       ///< a chat template failed while rendering (raise_exception included)
  kTemplateLimit,         ///< a chat template exceeded its depth, size or step limit
  kEmptyPrompt,           ///< there is nothing to read
  kContextExceeded,       ///< the prompt does not fit in the context
  kOutOfMemory,           ///< the memory budget or the machine has no room
  kSessionMismatch,       ///< a session file belongs to another model or other settings
  kCorrupt,               ///< a checksum does not match
  kCancelled,             ///< the caller asked to stop
  kDeviceUnavailable,     ///< the device that was asked for is not there, or it failed
  kUnsupported,           ///< a valid request that this build or model cannot serve
};

/// The enumerator's name in snake_case without the k, e.g. "bad_magic"; stable, used in --json.
std::string_view error_name(ErrorCode code);

struct Error {
  ErrorCode code;
  std::string message;  ///< one line: what was wrong, where, what to do
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
[[nodiscard]] tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format,
                                         Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace reprise
