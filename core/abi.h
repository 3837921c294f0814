// What every public header is wrapped in: C linkage for C++, and names that the shared library may show.
//
// Everything else is hidden (-fvisibility=hidden). Which of the names are exported is listed in
// gradsync/exports.txt, and a test compares the list with the headers and with the library.
#ifndef CORE_ABI_H
#define CORE_ABI_H

#if defined(__GNUC__)
#define GS_SHOW_NAMES _Pragma("GCC visibility push(default)")
#define GS_HIDE_NAMES _Pragma("GCC visibility pop")
#else
#define GS_SHOW_NAMES
#define GS_HIDE_NAMES
#endif

// Behind a public header's includes, and before its #endif.
#ifdef __cplusplus
#define GS_BEGIN_DECLS GS_SHOW_NAMES extern "C" {
#define GS_END_DECLS                                                                               \
    }                                                                                              \
    GS_HIDE_NAMES
#else
#define GS_BEGIN_DECLS GS_SHOW_NAMES
#define GS_END_DECLS GS_HIDE_NAMES
#endif

#endif
