# The libraries the project stands on. Required ones stop the configuration with the package to
# install; optional ones leave out what needs them, and me_report_left_out says so at the end.

set(ME_LEFT_OUT "" CACHE INTERNAL "")

function(me_leave_out what install)
  set(ME_LEFT_OUT "${ME_LEFT_OUT};${what}: ${install}" CACHE INTERNAL "")
endfunction()

# Prints what was left out and leaves the same lines in left-out.txt for the scripts.
function(me_report_left_out)
  set(text "")
  foreach(line IN LISTS ME_LEFT_OUT)
    if(line)
      message(STATUS "Left out: ${line}")
      string(APPEND text "Left out: ${line}\n")
    endif()
  endforeach()
  file(WRITE ${PROJECT_BINARY_DIR}/left-out.txt "${text}")
endfunction()

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)
include(GoogleTest)
find_package(Protobuf REQUIRED)  # the module: Debian's protobuf has no CMake configuration

find_package(benchmark QUIET)
if(NOT benchmark_FOUND)
  me_leave_out("the benchmarks in bench/" "install Google Benchmark (libbenchmark-dev)")
endif()

# oneDNN, for the linear kernel of the CPU. Found by hand: Debian's CMake configuration of it insists on
# OpenCL headers, which its package does not bring.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h)
find_library(DNNL_LIBRARY dnnl)
mark_as_advanced(DNNL_INCLUDE_DIR DNNL_LIBRARY)
if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
  set(ME_WITH_ONEDNN 1)
else()
  set(ME_WITH_ONEDNN 0)
  me_leave_out("linear on the CPU" "install oneDNN (libdnnl-dev)")
endif()

# Highway, for the vector loops of the CPU kernels.
find_package(hwy QUIET)
if(hwy_FOUND)
  set(ME_WITH_HIGHWAY 1)
else()
  set(ME_WITH_HIGHWAY 0)
  me_leave_out("softmax, softmax_grad and attention on the CPU" "install Highway (libhwy-dev)")
endif()

# CUDA: only the compiler and its static runtime; a machine without a GPU builds it too.
set(ME_WITH_CUDA 0)
set(ME_WITH_CUBLASLT 0)
if(ME_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Machine code for Ampere and Hopper, and PTX so that newer chips run it.
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
    endif()
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)  # not before: the checks of enable_language would want it too
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(ME_WITH_CUDA 1)
    # Its header only: the library is opened when it is wanted.
    find_path(CUBLASLT_INCLUDE_DIR cublasLt.h PATHS ${CUDAToolkit_INCLUDE_DIRS})
    mark_as_advanced(CUBLASLT_INCLUDE_DIR)
    if(CUBLASLT_INCLUDE_DIR)
      set(ME_WITH_CUBLASLT 1)
    else()
      me_leave_out("the cuBLASLt baselines" "install cuBLAS's headers (cublasLt.h) with the CUDA toolkit")
    endif()
  else()
    me_leave_out("everything for the GPU" "install the CUDA toolkit 12.4 or newer, with nvcc on PATH")
  endif()
else()
  me_leave_out("everything for the GPU" "ME_CUDA is OFF")
endif()
