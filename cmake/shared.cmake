# libgradsync.so: core, kernels and library in one, of the objects that the static libraries are made of. Its names
# are those of gradsync/exports.txt; everything else stays inside (core/abi.h, tests/exports.py).
set(exports_file ${PROJECT_SOURCE_DIR}/gradsync/exports.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${exports_file})
file(STRINGS ${exports_file} exports REGEX "^gs_")
list(JOIN exports ";\n    " exports)
set(exports_map ${PROJECT_BINARY_DIR}/gradsync.map)
file(CONFIGURE OUTPUT ${exports_map} CONTENT
"GRADSYNC_${gradsync_ABI} {
  global:
    ${exports};
  local: *;
};
")

# gradsync_add_shared(NAME FOLDER PARTS): PARTS are the kernels' libraries of objects.
function(gradsync_add_shared name folder parts)
  add_library(${name} SHARED
    $<TARGET_OBJECTS:gradsync_core> $<TARGET_OBJECTS:gradsync_kernels> $<TARGET_OBJECTS:gradsync>)
  foreach(part IN LISTS parts)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${part}>)
  endforeach()
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME gradsync EXPORT_NAME shared LINKER_LANGUAGE C
    VERSION ${PROJECT_VERSION} SOVERSION ${gradsync_ABI}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${folder}
    LINK_DEPENDS ${exports_map})
  target_link_libraries(${name} PRIVATE Threads::Threads m ${CMAKE_DL_LIBS} PkgConfig::XXHASH)
  if(gradsync_cuda STREQUAL "on")
    target_link_libraries(${name} PRIVATE CUDA::cudart_static stdc++)
  endif()
  target_link_options(${name} PRIVATE -Wl,--version-script=${exports_map} -Wl,-Bsymbolic-functions)
  if(NOT GRADSYNC_SANITIZE)  # a sanitizer's names come with the program
    target_link_options(${name} PRIVATE -Wl,-z,defs)
  endif()
endfunction()

gradsync_add_shared(gradsync_shared lib "${gradsync_kernel_parts}")
# What an embedder builds and installs: --component library.
add_custom_target(library DEPENDS gradsync gradsync_shared)
if(GRADSYNC_BLAS)
  target_link_libraries(gradsync_shared PRIVATE PkgConfig::OPENBLAS)
  # As GRADSYNC_BLAS=OFF makes it, of the same objects but one: for tests.
  set(plain_parts ${gradsync_kernel_parts})
  list(TRANSFORM plain_parts REPLACE "^gradsync_kernels_blas$" gradsync_kernels_plain)
  gradsync_add_shared(gradsync_shared_plain lib/plain "${plain_parts}")
  set_target_properties(gradsync_shared_plain PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
