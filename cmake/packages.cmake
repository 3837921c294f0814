# Debian packages by CPack, of a build of the preset release:
#   deploy/build.sh release product library && (cd build/release && cpack -G DEB)
# gradsync (the command line), gradsync-coordinator (with gradsync-api), gradsync-worker, libgradsync<ABI>, libgradsync-dev. What
# each depends on dpkg-shlibdeps finds; services are installed and not started, for their settings come first.
set(unit_dir lib/systemd/system)
set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
set(systemd ${PROJECT_SOURCE_DIR}/deploy/systemd)

# package_component(COMPONENT PACKAGE): what every package holds.
function(package_component component package)
  set(docs share/doc/${package})
  install(FILES ${debian}/copyright DESTINATION ${docs} COMPONENT ${component} EXCLUDE_FROM_ALL)
  # A native package's changelog, compressed as policy wants it; without a time, so that the same sources give the same bytes.
  set(changelog ${PROJECT_BINARY_DIR}/debian/${package}/changelog)
  file(CONFIGURE OUTPUT ${changelog} CONTENT
"${package} (${PROJECT_VERSION}) stable; urgency=medium

  * See the history of the sources.

 -- ${CPACK_PACKAGE_CONTACT}  Thu, 01 Jan 2026 00:00:00 +0000
")
  execute_process(COMMAND gzip -9nfk ${changelog})
  install(FILES ${changelog}.gz DESTINATION ${docs} COMPONENT ${component} EXCLUDE_FROM_ALL)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_FILE_NAME DEB-DEFAULT PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS ON PARENT_SCOPE)
endfunction()

# service_scripts(COMPONENT SERVICES SETTINGS): its scripts, with the names of its services in them.
function(service_scripts component services settings)
  set(made ${PROJECT_BINARY_DIR}/debian/${component})
  set(SERVICES "${services}")
  foreach(script postinst prerm postrm)
    configure_file(${debian}/${script}.in ${made}/${script} @ONLY FILE_PERMISSIONS
      OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  endforeach()
  list(TRANSFORM settings PREPEND /etc/gradsync/)
  list(JOIN settings "\n" lines)
  file(CONFIGURE OUTPUT ${made}/conffiles CONTENT "${lines}\n")
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA
    "${made}/postinst;${made}/prerm;${made}/postrm;${made}/conffiles" PARENT_SCOPE)
endfunction()

set(CPACK_PACKAGE_CONTACT "The maintainers of gradsync <maintainers@gradsync.example>")
package_component(cli gradsync)
package_component(coordinator gradsync-coordinator)
package_component(worker gradsync-worker)
package_component(shared libgradsync${gradsync_ABI})
package_component(library libgradsync-dev)

install(TARGETS gradsync_cli RUNTIME DESTINATION bin COMPONENT cli EXCLUDE_FROM_ALL)
install(TARGETS gradsync-coordinator gradsync-api RUNTIME DESTINATION bin COMPONENT coordinator EXCLUDE_FROM_ALL)
install(TARGETS gradsync-worker RUNTIME DESTINATION bin COMPONENT worker EXCLUDE_FROM_ALL)
install(FILES ${systemd}/gradsync-coordinator.service ${systemd}/gradsync-api.service DESTINATION ${unit_dir} COMPONENT coordinator EXCLUDE_FROM_ALL)
install(FILES ${systemd}/gradsync-worker.service DESTINATION ${unit_dir} COMPONENT worker EXCLUDE_FROM_ALL)
install(TARGETS gradsync-share-checkpoints RUNTIME DESTINATION lib/gradsync COMPONENT worker EXCLUDE_FROM_ALL)
install(FILES ${systemd}/gpu.conf DESTINATION share/doc/gradsync-worker/examples COMPONENT worker EXCLUDE_FROM_ALL)
foreach(component coordinator worker)
  install(FILES ${systemd}/sysusers.conf DESTINATION lib/sysusers.d RENAME gradsync-${component}.conf COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(FILES ${PROJECT_SOURCE_DIR}/docs/operations.md ${PROJECT_SOURCE_DIR}/docs/security.md
    DESTINATION share/doc/gradsync-${component} COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
install(FILES ${systemd}/coordinator.json ${systemd}/api.json DESTINATION /etc/gradsync COMPONENT coordinator EXCLUDE_FROM_ALL)
install(FILES ${systemd}/worker.json DESTINATION /etc/gradsync COMPONENT worker EXCLUDE_FROM_ALL)
service_scripts(coordinator "gradsync-coordinator gradsync-api" "coordinator.json;api.json")
service_scripts(worker gradsync-worker worker.json)
# The component "library" with what others are built with; of it the files that programs need when they run are a package of
# their own, and are taken out of this one when it is packed.
install(TARGETS gradsync_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP COMPONENT shared EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gradsync)
set(CPACK_PACKAGE_VENDOR gradsync)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each has its own
set(CPACK_PACKAGE_HOMEPAGE_URL "https://gradsync.example")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL cli coordinator worker shared library)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENT_CLI_DESCRIPTION "Distributed data-parallel training: the command line
Submits, watches, scales and stops training jobs of a gradsync coordinator, and
starts a coordinator with workers on one machine (gradsync up).")
set(CPACK_COMPONENT_COORDINATOR_DESCRIPTION "Distributed data-parallel training: the coordinator
Owns jobs, membership and bucket plans of a training cluster, and serves the
HTTP API with metrics for Prometheus. With it comes gradsync-api, the HTTP API
alone. Its services are installed and not started.")
set(CPACK_COMPONENT_WORKER_DESCRIPTION "Distributed data-parallel training: the worker
Offers slots of a machine to a gradsync coordinator and runs a trainer process
in each. Its service is installed and not started.")
set(CPACK_COMPONENT_SHARED_DESCRIPTION "Distributed data-parallel training: the library
Makes many processes take the same optimizer step: buckets, collectives,
reducer, sharded optimizers. This package holds the shared library.")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "Distributed data-parallel training: files to build with
Makes many processes take the same optimizer step: buckets, collectives,
reducer, sharded optimizers. This package holds headers, static libraries, the
CMake package and pkg-config files.")
# Whoever makes users: systemd where it runs, else its program alone.
foreach(component COORDINATOR WORKER)
  set(CPACK_DEBIAN_${component}_PACKAGE_DEPENDS "systemd-standalone-sysusers | systemd-sysusers")
  set(CPACK_DEBIAN_${component}_PACKAGE_RECOMMENDS gradsync)
endforeach()
set(CPACK_DEBIAN_CLI_PACKAGE_DEPENDS ca-certificates)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS OFF)
# Of the static libraries: what a program of theirs is linked with.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS "libgradsync${gradsync_ABI} (= ${PROJECT_VERSION}), libxxhash-dev, libopenblas-dev")
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package_parts.cmake)
set(CPACK_DEBIAN_SHARED_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_SHARED_PACKAGE_CONTROL_EXTRA ${debian}/triggers)
include(CPack)
