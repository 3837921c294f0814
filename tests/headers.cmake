# Each header compiles alone: what it uses, it includes.
#   cmake -DSOURCE_DIR=… -DCOMPILER=… [-DCUDA_INCLUDES=dir;…] -P headers.cmake
# Headers of the CUDA half are left out where CUDA's own are not there.
cmake_minimum_required(VERSION 3.25)
set(errors 0)
set(checked 0)
set(cuda_options "")
foreach(folder IN LISTS CUDA_INCLUDES)
  list(APPEND cuda_options -isystem ${folder})
endforeach()
foreach(folder core rpc kernels gradsync worker coordinator api)
  file(GLOB_RECURSE headers ${SOURCE_DIR}/${folder}/*.h)
  foreach(header IN LISTS headers)
    file(STRINGS ${header} cuda REGEX "^#include [<\"](cuda|cublas|nccl\\.h|kernels/cuda/)" LIMIT_COUNT 1)
    if(cuda AND NOT CUDA_INCLUDES)
      continue()
    endif()
    # Per instruction set: meant to be included once for each, with GS_ISA set.
    file(STRINGS ${header} isa REGEX "GS_ISA" LIMIT_COUNT 1)
    set(define "")
    if(isa)
      set(define -DGS_ISA=baseline)
    endif()
    execute_process(
      COMMAND ${COMPILER} -std=c11 -D_GNU_SOURCE -DGRADSYNC_VERSION="test" ${define} -I${SOURCE_DIR} ${cuda_options}
              -Wall -Wextra -Werror -Wno-unused-function -fsyntax-only -x c ${header}
      RESULT_VARIABLE result ERROR_VARIABLE text)
    math(EXPR checked "${checked} + 1")
    if(NOT result EQUAL 0)
      message(SEND_ERROR "${header} does not compile alone:\n${text}")
      math(EXPR errors "${errors} + 1")
    endif()
  endforeach()
endforeach()
if(errors EQUAL 0)
  message(STATUS "${checked} headers compile alone")
endif()
