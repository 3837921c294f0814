cmake_minimum_required(VERSION 3.25)
# The include table of the layout and the one-door rule. Reads every #include and fails on a wrong arrow.
#   cmake -DSOURCE_DIR=… -P layers.cmake
set(may_core core)
set(may_rpc core rpc)
set(may_kernels core kernels)
set(may_gradsync core kernels gradsync)
set(may_worker core rpc kernels gradsync worker)
set(may_coordinator core rpc coordinator)
set(may_api core rpc api)
# The one file that hosts the API inside the coordinator's process.
set(may_file_coordinator_main.c core rpc coordinator api)

# door;header pattern;files that may include it
set(doors
  "zmq\\.h|rpc/"
  "json-c/|rpc/"
  "sqlite3\\.h|coordinator/job_store.c"
  "microhttpd\\.h|api/http_server.c"
  "curl/curl\\.h|api/cli/http_client.c"
  "cblas\\.h|kernels/cpu/matmul.c"
  "xxhash\\.h|core/digest.c"
  "sodium\\.h|rpc/keys.c"
  "hwloc\\.h|worker/topology.c"
  "nccl\\.h|gradsync/comm/nccl_library.c"
  "cuda[a-z0-9_]*\\.h|kernels/cuda/"
  "cublas[A-Za-z0-9_]*\\.h|kernels/cuda/"
)

set(errors 0)
set(checked 0)
foreach(folder core rpc kernels gradsync worker coordinator api)
  file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/${folder}/*.c ${SOURCE_DIR}/${folder}/*.h
       ${SOURCE_DIR}/${folder}/*.cu ${SOURCE_DIR}/${folder}/*.cuh ${SOURCE_DIR}/${folder}/*.cc)
  foreach(file IN LISTS files)
    math(EXPR checked "${checked} + 1")
    string(REPLACE "/" "_" file_key ${file})
    set(allowed ${may_${folder}} ${may_file_${file_key}})
    file(STRINGS ${SOURCE_DIR}/${file} includes REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS includes)
      if(line MATCHES "\"([^\"]+)\"")
        set(path ${CMAKE_MATCH_1})
        string(REGEX REPLACE "/.*" "" target ${path})
        if(NOT path MATCHES "/" )
          message(SEND_ERROR "${file}: \"${path}\" is included without its folder")
          math(EXPR errors "${errors} + 1")
        elseif(NOT target IN_LIST allowed)
          message(SEND_ERROR "${file}: ${folder} may not include ${target} (\"${path}\")")
          math(EXPR errors "${errors} + 1")
        elseif(NOT EXISTS ${SOURCE_DIR}/${path} AND NOT path MATCHES "\\.inc$")
          message(SEND_ERROR "${file}: \"${path}\" does not exist")
          math(EXPR errors "${errors} + 1")
        endif()
      elseif(line MATCHES "<([^>]+)>")
        set(path ${CMAKE_MATCH_1})
        foreach(door IN LISTS doors)
          string(REGEX REPLACE "\\|.*" "" header ${door})
          string(REGEX REPLACE ".*\\|" "" home ${door})
          if(path MATCHES "^${header}")
            string(FIND ${file} ${home} at)
            if(NOT at EQUAL 0)
              message(SEND_ERROR "${file}: <${path}> belongs to ${home} alone")
              math(EXPR errors "${errors} + 1")
            endif()
          endif()
        endforeach()
      endif()
    endforeach()
  endforeach()
endforeach()
if(errors EQUAL 0)
  message(STATUS "${checked} files keep to the map")
endif()
