// REPRISE_TRY(auto x, f()) binds the value or returns the error; REPRISE_CHECK(f()) for Status.
#pragma once

#include "reprise/error.h"

#define REPRISE_CONCAT_(a, b) a##b
#define REPRISE_CONCAT(a, b) REPRISE_CONCAT_(a, b)

#define REPRISE_TRY_(tmp, decl, expr)                                          \
  auto&& tmp = (expr);                                                         \
  if (!tmp) return ::tl::unexpected<::reprise::Error>(std::move(tmp.error())); \
  decl = std::move(*tmp)

#define REPRISE_TRY(decl, ...) \
  REPRISE_TRY_(REPRISE_CONCAT(reprise_try_, __COUNTER__), decl, (__VA_ARGS__))

#define REPRISE_CHECK(...)                                                          \
  do {                                                                              \
    if (auto reprise_status = (__VA_ARGS__); !reprise_status)                       \
      return ::tl::unexpected<::reprise::Error>(std::move(reprise_status.error())); \
  } while (0)
