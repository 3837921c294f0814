# Each header compiles alone: what it uses, it includes. Public ones are C++17 as well.
#   cmake -DSOURCE_DIR=… -DCOMPILER=… [-DCUDA_INCLUDES=dir;…] [-DCUDNN_INCLUDES=dir] -P headers.cmake
# Headers of the CUDA half are left out where CUDA's own are not there, those that want cuDNN's where those are not.
cmake_minimum_required(VERSION 3.25)
set(errors 0)
set(checked 0)
set(cuda_options "")
foreach(folder IN LISTS CUDA_INCLUDES)
  list(APPEND cuda_options -isystem ${folder})
endforeach()
if(CUDNN_INCLUDES)
  list(APPEND cuda_options -isystem ${CUDNN_INCLUDES})
endif()
foreach(folder core rpc kernels gradsync worker coordinator api)
  file(GLOB_RECURSE headers ${SOURCE_DIR}/${folder}/*.h)
  foreach(header IN LISTS headers)
    file(STRINGS ${header} cuda REGEX "^#include [<\"](cuda|cublas|nccl\\.h|kernels/cuda/)" LIMIT_COUNT 1)
    if(cuda AND NOT CUDA_INCLUDES)
      continue()
    endif()
    file(STRINGS ${header} cudnn REGEX "^#include [<\"](cudnn|kernels/cuda/cudnn)" LIMIT_COUNT 1)
    if(cudnn AND NOT CUDNN_INCLUDES)
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

# Those that others include are C++ as well, with C linkage.
include(${SOURCE_DIR}/cmake/public_headers.cmake)
public_headers(public ${SOURCE_DIR})
foreach(header IN LISTS public)
  if(header MATCHES "^(core/abi|gradsync/(gradsync|extras))\\.h$")
    continue()  # declares nothing
  endif()
  file(STRINGS ${SOURCE_DIR}/${header} decls REGEX "^GS_(BEGIN|END)_DECLS$")
  if(NOT decls STREQUAL "GS_BEGIN_DECLS;GS_END_DECLS")
    message(SEND_ERROR "${header} is public and lacks GS_BEGIN_DECLS or GS_END_DECLS (core/abi.h)")
    math(EXPR errors "${errors} + 1")
  endif()
  # Who may call is said where the object is named.
  file(STRINGS ${SOURCE_DIR}/${header} opaque REGEX "^typedef struct gs_[a-z0-9_]+ gs_[a-z0-9_]+;")
  file(STRINGS ${SOURCE_DIR}/${header} threads REGEX "^// Threads: ")
  if(opaque AND NOT threads)
    message(SEND_ERROR "${header} is public, names an opaque object and does not say `// Threads: ` who may call")
    math(EXPR errors "${errors} + 1")
  endif()
endforeach()

set(program "")
foreach(header IN LISTS public)
  string(APPEND program "#include \"${header}\"\n")
endforeach()
string(RANDOM LENGTH 12 name)
set(program_file ${CMAKE_CURRENT_BINARY_DIR}/headers_${name}.cpp)
file(WRITE ${program_file} "${program}")
execute_process(
  COMMAND ${COMPILER} -x c++ -std=c++17 -I${SOURCE_DIR} -Wall -Wextra -Wpedantic -Wconversion -Werror
          -Wno-unused-function -fsyntax-only ${program_file}
  RESULT_VARIABLE result ERROR_VARIABLE text)
# A new option must not lie in what was padding before (core/options.h): GCC names the line that closes the struct.
execute_process(COMMAND ${COMPILER} -x c -std=c11 -I${SOURCE_DIR} -Wpadded -fsyntax-only ${program_file}
                ERROR_VARIABLE padded)
string(REGEX MATCHALL "} gs_[a-z_]*_options;" padded "${padded}")
foreach(line IN LISTS padded)
  message(SEND_ERROR "${line} ends with padding: give it a name, `char reserved[n];  // 0`")
  math(EXPR errors "${errors} + 1")
endforeach()
file(REMOVE ${program_file})
if(NOT result EQUAL 0)
  message(SEND_ERROR "the public headers are not C++17:\n${text}")
  math(EXPR errors "${errors} + 1")
endif()

if(errors EQUAL 0)
  message(STATUS "${checked} headers compile alone")
endif()
