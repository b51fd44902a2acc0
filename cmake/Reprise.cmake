# Flags of every target: C++20 without extensions; warnings are errors where REPRISE_WERROR is on.
# Headers of src/ are for targets of this project alone.
function(reprise_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${target} PRIVATE ${reprise_SOURCE_DIR}/include
                                               ${reprise_SOURCE_DIR}/src)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow
                                           $<$<BOOL:${REPRISE_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms on std::string: PR105651, and the same with precompiled headers.
    target_compile_options(${target} PRIVATE
      -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # One rounding more or less would depend on what a loop leaves out.
    target_compile_options(${target} PRIVATE -ffp-contract=off)
  endif()
  if(REPRISE_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${REPRISE_SANITIZE} -fno-omit-frame-pointer
                                            -fno-sanitize-recover=all)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # False alarms in the standard library where checks are compiled in.
      target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${REPRISE_SANITIZE})
  endif()
endfunction()

# Compiling them takes longer than what most sources add. Off in the preset lint, which so finds
# what a source does not include itself.
set(REPRISE_COMMON_HEADERS
    <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional>
    <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <string>
    <string_view> <utility> <vector> <fmt/format.h> <nlohmann/json.hpp> <tl/expected.hpp>)

# One static library per folder of src/. A source named *_avx2.cc, *_avx512.cc or *_amx.cc is
# compiled for that instruction set only, where the machine may have it or SIMDe makes NEON of it,
# and reached through run-time dispatch. It is optimised in every build type: an inline function
# that stays a call is a weak symbol, and of all its copies the linker may keep the one that a
# lesser machine cannot run (checked by the test isa_symbols).
function(reprise_layer name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${reprise_SOURCE_DIR}/src/${name}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/(cuda|without_cuda)/")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(avx2 -mavx2 -mfma -mf16c)
    set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16
        -mavx512vbmi -mprfchw -mprefer-vector-width=512)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC's own AVX-512 headers read values that they leave undefined on purpose (PR105593).
      list(APPEND avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()
    set(amx ${avx512} -mamx-tile -mamx-bf16 -mamx-int8)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    set(avx2 "")  # NEON, by SIMDe (src/kernels/avx2.h)
  endif()
  foreach(source ${sources})
    if(source MATCHES "_(avx2|avx512|amx)\\.cc$")
      set(isa ${CMAKE_MATCH_1})  # the next MATCHES overwrites it
      if(DEFINED ${isa})
        set_source_files_properties(${source} PROPERTIES
          COMPILE_OPTIONS "${${isa}};$<$<NOT:$<CONFIG:Release>>:-O2>"
          SKIP_PRECOMPILE_HEADERS ON)
      else()
        list(REMOVE_ITEM sources ${source})
      endif()
    endif()
  endforeach()
  add_library(reprise_${name} STATIC ${sources})
  target_include_directories(reprise_${name} PUBLIC ${reprise_SOURCE_DIR}/include)
  target_link_libraries(reprise_${name} PUBLIC ${ARG_DEPS})
  reprise_flags(reprise_${name})
  if(NOT PROJECT_IS_TOP_LEVEL)  # may become part of a shared library
    set_target_properties(reprise_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  elseif(name STREQUAL base)
    target_precompile_headers(reprise_base PRIVATE ${REPRISE_COMMON_HEADERS})
  else()
    target_precompile_headers(reprise_${name} REUSE_FROM reprise_base)
  endif()
endfunction()
