# CUDA is optional: without nvcc everything else is built.
include(CheckLanguage)

# The part of a layer that lies in src/NAME/cuda, where there is CUDA.
function(reprise_cuda_layer name)
  if(NOT REPRISE_HAS_CUDA)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/cuda/*.cu
                                      ${CMAKE_SOURCE_DIR}/src/${name}/cuda/*.cc)
  set(cuda_warnings -Xcompiler=-Wall,-Wextra)
  set(cxx_errors)
  if(REPRISE_WERROR)
    set(cuda_warnings -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
    set(cxx_errors -Werror)
  endif()
  add_library(reprise_${name}_cuda STATIC ${sources})
  set_target_properties(reprise_${name}_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(reprise_${name}_cuda PUBLIC ${CMAKE_SOURCE_DIR}/include
                                                         ${CMAKE_SOURCE_DIR}/src)
  target_compile_features(reprise_${name}_cuda PUBLIC cxx_std_20)
  target_compile_options(reprise_${name}_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 ${cuda_warnings}>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow ${cxx_errors}>)
  target_link_libraries(reprise_${name}_cuda PUBLIC ${ARG_DEPS} CUDA::cudart_static)
endfunction()

if(REPRISE_CUDA STREQUAL "AUTO")
  check_language(CUDA)
elseif(REPRISE_CUDA)
  set(CMAKE_CUDA_COMPILER nvcc)
endif()
if(NOT REPRISE_CUDA OR NOT CMAKE_CUDA_COMPILER)
  set(REPRISE_HAS_CUDA FALSE)
  return()
endif()

set(REPRISE_HAS_CUDA TRUE)
if(NOT CMAKE_CUDA_ARCHITECTURES)
  # Ampere and later by the code of 8.0; 9.0a has Hopper's own instructions.
  set(CMAKE_CUDA_ARCHITECTURES 80 90a)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
