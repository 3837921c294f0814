# Run by CPack between installing and packing: the files of libgradsync-dev that are libgradsync<ABI>'s.
file(GLOB ours ${CPACK_TEMPORARY_DIRECTORY}/library/usr/lib/libgradsync.so.* ${CPACK_TEMPORARY_DIRECTORY}/library/usr/lib/*/libgradsync.so.*)
if(ours)
  file(REMOVE ${ours})
endif()
