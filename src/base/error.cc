#include "reprise/error.h"

namespace reprise {

std::string_view error_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kUnknownOption:
      return "unknown_option";
    case ErrorCode::kUnknownPolicy:
      return "unknown_policy";
    case ErrorCode::kFileNotFound:
      return "file_not_found";
    case ErrorCode::kFileUnreadable:
      return "file_unreadable";
    case ErrorCode::kFileUnwritable:
      return "file_unwritable";
    case ErrorCode::kBadMagic:
      return "bad_magic";
    case ErrorCode::kUnsupportedVersion:
      return "unsupported_version";
    case ErrorCode::kTruncated:
      return "truncated";
    case ErrorCode::kSizeOverflow:
      return "size_overflow";
    case ErrorCode::kBadCount:
      return "bad_count";
    case ErrorCode::kBadString:
      return "bad_string";
    case ErrorCode::kBadType:
      return "bad_type";
    case ErrorCode::kUnsupportedType:
      return "unsupported_type";
    case ErrorCode::kBadValue:
      return "bad_value";
    case ErrorCode::kBadShape:
      return "bad_shape";
    case ErrorCode::kBadOffset:
      return "bad_offset";
    case ErrorCode::kDuplicateKey:
      return "duplicate_key";
    case ErrorCode::kMissingKey:
      return "missing_key";
    case ErrorCode::kMissingTensor:
      return "missing_tensor";
    case ErrorCode::kTooDeep:
      return "too_deep";
    case ErrorCode::kBadJson:
      return "bad_json";
    case ErrorCode::kUnknownArchitecture:
      return "unknown_architecture";
    case ErrorCode::kTokenizerMissing:
      return "tokenizer_missing";
    case ErrorCode::kUnsupportedTokenizer:
      return "unsupported_tokenizer";
    case ErrorCode::kTemplateSyntax:
      return "template_syntax";
    case ErrorCode::kTemplateRuntime:
      return "template_runtime";
    case ErrorCode::kTemplateLimit:
      return "template_limit";
    case ErrorCode::kEmptyPrompt:
      return "empty_prompt";
    case ErrorCode::kContextExceeded:
      return "context_exceeded";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kSessionMismatch:
      return "session_mismatch";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kDeviceUnavailable:
      return "device_unavailable";
    case ErrorCode::kUnsupported:
      return "unsupported";
  }
  return "unknown";
}

}  // namespace reprise
