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
message(STATUS "${num_files} files")
