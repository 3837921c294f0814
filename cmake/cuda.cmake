# GRADSYNC_CUDA: what the device kernels are compiled for.
#   OFF  the CPU product
#   ON   nvcc; sm_80, sm_90 and sm_100 with PTX for what comes later, unless CMAKE_CUDA_ARCHITECTURES or
#        CUDAARCHS say otherwise; the CUDA runtime is linked statically and finds the driver at run time
#   SIM  g++, against the software CUDA machine of tests/cuda_sim: for tests on machines without a device
# cuBLASLt, cuDNN and NCCL are looked up at run time in both (kernels/cuda/cublaslt.h, cudnn.h, gradsync/comm/nccl/library.h); NCCL's
# header is needed here.
set(GRADSYNC_CUDA OFF CACHE STRING
    "CUDA kernels and the NCCL communicator: OFF, ON (nvcc) or SIM (a software machine, for tests)")
set_property(CACHE GRADSYNC_CUDA PROPERTY STRINGS OFF ON SIM)
if(GRADSYNC_CUDA STREQUAL "SIM")
  set(gradsync_cuda sim)
elseif(NOT GRADSYNC_CUDA)
  set(gradsync_cuda off)
  return()
elseif(GRADSYNC_CUDA MATCHES "^(ON|On|on|YES|Yes|yes|TRUE|True|true|1)$")
  set(gradsync_cuda on)
else()
  message(FATAL_ERROR "GRADSYNC_CUDA=${GRADSYNC_CUDA} is neither OFF, ON nor SIM")
endif()

set(cuda_roots $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
if(gradsync_cuda STREQUAL "on")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(GRADSYNC_NVCC nvcc HINTS ${cuda_roots} PATH_SUFFIXES bin)
    mark_as_advanced(GRADSYNC_NVCC)
    if(NOT GRADSYNC_NVCC)
      message(FATAL_ERROR "GRADSYNC_CUDA=ON needs nvcc of CUDA 12.8 or later: install the toolkit, set "
                          "CMAKE_CUDA_COMPILER, or build with GRADSYNC_CUDA=OFF")
    endif()
    set(CMAKE_CUDA_COMPILER ${GRADSYNC_NVCC})
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100" CACHE STRING "What nvcc compiles for")
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # By the flag: Debian 12's CMake does not know that nvcc has this standard.
  string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
    message(FATAL_ERROR "GRADSYNC_CUDA=ON needs CUDA 12.8 or later; ${CMAKE_CUDA_COMPILER} is "
                        "${CMAKE_CUDA_COMPILER_VERSION}")
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(cuda_include_dirs ${CUDAToolkit_INCLUDE_DIRS})
else()
  if(NOT GRADSYNC_TESTS)
    message(FATAL_ERROR "GRADSYNC_CUDA=SIM is a machine of the tests: it needs GRADSYNC_TESTS=ON")
  endif()
  find_path(GRADSYNC_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_roots} PATH_SUFFIXES include)
  mark_as_advanced(GRADSYNC_CUDA_INCLUDE)
  if(NOT GRADSYNC_CUDA_INCLUDE)
    message(FATAL_ERROR "GRADSYNC_CUDA=SIM needs the headers of the CUDA toolkit "
                        "(cuda_runtime_api.h), but no nvcc and no driver; or use GRADSYNC_CUDA=OFF")
  endif()
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  enable_language(CXX)
  set(cuda_include_dirs ${GRADSYNC_CUDA_INCLUDE})
endif()

find_path(GRADSYNC_NCCL_INCLUDE nccl.h HINTS $ENV{NCCL_HOME} ${cuda_include_dirs} PATH_SUFFIXES include)
mark_as_advanced(GRADSYNC_NCCL_INCLUDE)
if(NOT GRADSYNC_NCCL_INCLUDE)
  message(FATAL_ERROR "GRADSYNC_CUDA=${GRADSYNC_CUDA} needs nccl.h: install libnccl-dev, set "
                      "GRADSYNC_NCCL_INCLUDE to its folder, or build with GRADSYNC_CUDA=OFF")
endif()

# Without them attention has own kernels alone.
find_path(GRADSYNC_CUDNN_INCLUDE cudnn_graph.h HINTS $ENV{CUDNN_HOME} ${cuda_include_dirs} PATH_SUFFIXES include)
mark_as_advanced(GRADSYNC_CUDNN_INCLUDE)

include_directories(SYSTEM ${cuda_include_dirs})
if(NOT GRADSYNC_NCCL_INCLUDE IN_LIST cuda_include_dirs)
  include_directories(SYSTEM ${GRADSYNC_NCCL_INCLUDE})
endif()
add_compile_definitions(GRADSYNC_CUDA)
if(gradsync_cuda STREQUAL "sim")
  add_compile_definitions(GRADSYNC_CUDA_SIM)
endif()
