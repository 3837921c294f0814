# Tests of the software machine itself; included by tests/CMakeLists.txt.
function(cuda_sim_test name)
  gradsync_test(test_cuda_sim_${name} LABEL cuda_sim
    SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/cuda_sim/test_${name}.cpp LIBS cuda_sim ${ARGN})
  set_property(GLOBAL APPEND PROPERTY gradsync_device_tests test_cuda_sim_${name})
  target_compile_options(test_cuda_sim_${name} PRIVATE -O1
    "SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/cuda_sim/device_syntax.h")
endfunction()

cuda_sim_test(block)
cuda_sim_test(cublaslt cublaslt_sim)
cuda_sim_test(graph)
cuda_sim_test(memory)
cuda_sim_test(stream)
foreach(name graph stream)
  add_test(NAME test_cuda_sim_${name}_async COMMAND test_cuda_sim_${name})
  set_tests_properties(test_cuda_sim_${name}_async PROPERTIES LABELS cuda_sim TIMEOUT 60
    ENVIRONMENT CUDA_SIM_MODE=async)
endforeach()
