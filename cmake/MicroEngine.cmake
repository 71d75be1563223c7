# Compiler settings for the whole project, and the functions that make its targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

option(ME_SANITIZE "Build with the address and undefined-behaviour sanitizers" OFF)
option(ME_CUDA "Build the CUDA targets where a CUDA compiler is found" ON)
option(ME_WERROR "Treat warnings as errors" ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1")
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# No contraction: a*b+c rounds twice wherever the source does not say fma, so that results do not
# depend on what the optimiser saw.
add_library(me_options INTERFACE)
target_compile_options(me_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -ffp-contract=off
    -Wno-maybe-uninitialized  # GCC 12 and 13 warn falsely inside std::vector and std::variant
    $<$<BOOL:${ME_WERROR}>:-Werror>>
  # Relaxed: constexpr functions of the shared headers and of the standard library run on the device.
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra $<$<BOOL:${ME_WERROR}>:-Werror=all-warnings>>)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(me_options INTERFACE _GLIBCXX_ASSERTIONS)
endif()
if(ME_SANITIZE)
  target_compile_options(me_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
    -Wno-error>)  # GCC warns falsely about instrumented code; the other builds are strict
  target_link_options(me_options INTERFACE -fsanitize=address,undefined)
endif()

# me_include_only(target scope): `target` sees the headers of its own folder and of the folders it
# links, and no others, so that an arrow drawn the wrong way does not compile. Each target's include
# directory holds one link, to its folder, under the folder's path in the project.
function(me_include_only target scope)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(root ${PROJECT_BINARY_DIR}/include/${target})
  get_filename_component(parent ${root}/${folder} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${root}/${folder} SYMBOLIC)
  target_include_directories(${target} ${scope} ${root})
endfunction()

# me_add_library(name SOURCES ... [LINK ...] [PRIVATE_LINK ...]): the library of the current folder.
# LINK is for what its headers include.
function(me_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC ${arg_LINK} PRIVATE me_options ${arg_PRIVATE_LINK})
  me_include_only(${name} PUBLIC)
endfunction()

# me_cuda_sources(target SOURCES...): CUDA kernels of a library, where this build has CUDA.
function(me_cuda_sources target)
  if(ME_WITH_CUDA)
    target_sources(${target} PRIVATE ${ARGN})
    target_link_libraries(${target} PRIVATE ops_cuda)
  endif()
endfunction()

# me_sm90_sources(target SOURCES...): the same for kernels that want the instructions of compute
# capability 9.0 alone (sm_90a: wgmma). The build fails where one spills registers or serialises wgmma.
function(me_sm90_sources target)
  if(ME_WITH_CUDA)
    add_library(${target}_sm90 OBJECT ${ARGN})
    set_target_properties(${target}_sm90 PROPERTIES CUDA_ARCHITECTURES OFF
      CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/ptxas_check")
    target_compile_options(${target}_sm90 PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:--generate-code=arch=compute_90a,code=sm_90a>)
    target_link_libraries(${target}_sm90 PRIVATE me_options ops_cuda)
    target_include_directories(${target}_sm90 PRIVATE
      $<TARGET_PROPERTY:${target},INTERFACE_INCLUDE_DIRECTORIES>)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_sm90>)
    target_link_libraries(${target} PRIVATE ops_cuda)
  endif()
endfunction()

# me_add_test(name [BACKENDS] SOURCES ... LINK ...): a GoogleTest program whose cases CTest lists one
# by one. With BACKENDS, which wants the harness of tests/ops, all of them run once more on a GPU, as
# the one test cuda.NAME (each process of its own would make a CUDA context of its own); where there
# is no GPU it is skipped. Suites named Cuda... run there only.
function(me_add_test name)
  cmake_parse_arguments(arg "BACKENDS" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_compile_definitions(${name} PRIVATE ME_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    ME_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE me_options ${arg_LINK})
  set(filter "")
  if(NOT arg_BACKENDS)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  else()
    target_link_libraries(${name} PRIVATE test_main GTest::gtest)
    set(filter TEST_FILTER "-*Cuda*")
    if(ME_WITH_CUDA)
      add_test(NAME cuda.${name} COMMAND ${name})
      set_tests_properties(cuda.${name} PROPERTIES TIMEOUT 600 LABELS gpu
        ENVIRONMENT ME_TEST_BACKEND=cuda SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\] every test")
    endif()
  endif()
  gtest_discover_tests(${name} NO_PRETTY_VALUES ${filter} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 300)
endfunction()
