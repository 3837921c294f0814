# What no test may do, because such a check passes when it should not, or because tests/support has it already.
#   cmake -DSOURCE_DIR=… -P lint.cmake
cmake_minimum_required(VERSION 3.25)
set(rules
  # cmocka 1.1.5 lets NaN and infinity pass for anything.
  "assert_(float|double)_(not_)?equal\\(|assert_near of tests/support/asserts.h"
  # false for NaN, where false means that all is well
  "if \\(.*fabsf?\\(.* - .*\\) >|is_near of tests/support/near.h"
  "if \\([a-z_]+ > .*\\) fail|is_near of tests/support/near.h"
  "^static .*[ *](assert_ok|assert_near|soon|is_near)\\(|the one of tests/support"
)
# What no program may do: a status's message is for people. What it is about is its code, a gs_comm_failure, an
# argument that comes back.
set(reading "(strstr|strcasestr|strcmp|strncmp|strcasecmp|strncasecmp|strchr|strrchr|strpbrk|strspn|strcspn|memcmp|memmem|sscanf|fnmatch|regexec)")
file(GLOB_RECURSE sources ${SOURCE_DIR}/core/*.[ch] ${SOURCE_DIR}/rpc/*.[ch] ${SOURCE_DIR}/kernels/*.[ch]
     ${SOURCE_DIR}/kernels/*.cu ${SOURCE_DIR}/gradsync/*.[ch] ${SOURCE_DIR}/worker/*.[ch]
     ${SOURCE_DIR}/coordinator/*.[ch] ${SOURCE_DIR}/api/*.[ch] ${SOURCE_DIR}/examples/*.[ch])
list(LENGTH sources num_sources)
if(num_sources LESS 300)
  message(SEND_ERROR "only ${num_sources} files of the product under ${SOURCE_DIR}")
endif()
foreach(file IN LISTS sources)
  file(READ ${file} text)
  # A call may go on in the next line.
  string(REGEX MATCHALL "${reading}\\([^;{}]*[a-z_](\\.|status->)message[^a-z_]" found "${text}")
  foreach(call IN LISTS found)
    file(RELATIVE_PATH path ${SOURCE_DIR} ${file})
    message(SEND_ERROR "${path}: ${call}\n  a program reads a status's text: tell it by value")
  endforeach()
endforeach()
file(GLOB_RECURSE files ${SOURCE_DIR}/tests/*.c ${SOURCE_DIR}/tests/*.h ${SOURCE_DIR}/tests/*.cpp)
list(LENGTH files num_files)
if(num_files LESS 100)
  message(SEND_ERROR "only ${num_files} files under ${SOURCE_DIR}/tests")
endif()
list(FILTER files EXCLUDE REGEX "/tests/support/")
foreach(rule IN LISTS rules)
  string(REGEX MATCH "^(.*)[|]([^|]+)$" matched "${rule}")
  set(refused "${CMAKE_MATCH_1}")
  set(instead "${CMAKE_MATCH_2}")
  foreach(file IN LISTS files)
    file(STRINGS ${file} lines REGEX "${refused}")
    foreach(line IN LISTS lines)
      file(RELATIVE_PATH path ${SOURCE_DIR} ${file})
      string(STRIP "${line}" line)
      message(SEND_ERROR "${path}: ${line}\n  use ${instead}")
    endforeach()
  endforeach()
endforeach()
message(STATUS "${num_files} files of tests, ${num_sources} of the product")
