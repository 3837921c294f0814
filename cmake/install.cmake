# What `cmake --install` puts where. Components: `library` (static and shared library, headers, CMake package,
# pkg-config) and `programs`.
#
# Headers keep their paths, below a folder of their own, since `core/` is nobody's name alone.
# Public are those of public_headers.cmake.
include(CMakePackageConfigHelpers)

set(package_version ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(package_includes ${CMAKE_INSTALL_INCLUDEDIR}/gradsync-${package_version})
set(package_cmake ${CMAKE_INSTALL_LIBDIR}/cmake/gradsync)

include(cmake/public_headers.cmake)
public_headers(public_headers ${PROJECT_SOURCE_DIR})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${public_headers})
foreach(header IN LISTS public_headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${package_includes}/${folder} COMPONENT library)
endforeach()

set_target_properties(gradsync_core PROPERTIES EXPORT_NAME core)
set_target_properties(gradsync_kernels PROPERTIES EXPORT_NAME kernels)
set(libraries gradsync gradsync_core gradsync_kernels)
if(TARGET gradsync_shared)
  list(APPEND libraries gradsync_shared)
endif()
install(TARGETS ${libraries} EXPORT gradsyncTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
  INCLUDES DESTINATION ${package_includes})
install(EXPORT gradsyncTargets NAMESPACE gradsync:: DESTINATION ${package_cmake} COMPONENT library)

configure_package_config_file(cmake/gradsyncConfig.cmake.in
  ${PROJECT_BINARY_DIR}/gradsyncConfig.cmake INSTALL_DESTINATION ${package_cmake})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gradsyncConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gradsyncConfig.cmake
  ${PROJECT_BINARY_DIR}/gradsyncConfigVersion.cmake
  DESTINATION ${package_cmake} COMPONENT library)

# Relative to where the file lies, so that a prefix may be moved or chosen at install time.
file(RELATIVE_PATH prefix_from_pc
  /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
set(pc_cuda_libs "")
set(pc_requires libxxhash)
if(GRADSYNC_BLAS)
  string(PREPEND pc_requires "openblas ")
endif()
if(gradsync_cuda STREQUAL "on")
  set(pc_cuda_libs "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -lstdc++ ")
endif()
foreach(pc gradsync gradsync-static)
  configure_file(cmake/${pc}.pc.in ${PROJECT_BINARY_DIR}/${pc}.pc @ONLY)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/gradsync.pc ${PROJECT_BINARY_DIR}/gradsync-static.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)

if(GRADSYNC_SERVICE)
  install(TARGETS gradsync-coordinator gradsync-worker gradsync-api gradsync_cli
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endif()
