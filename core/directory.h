// Directories whose names are still there after a loss of power: what lies in one is no safer than its own name.
#ifndef CORE_DIRECTORY_H
#define CORE_DIRECTORY_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "core/status.h"

// Unless it is there. Its name is on the disk then, whoever made it.
GS_NODISCARD gs_status gs_directory_make(const char *path, mode_t mode);
// With those above it.
GS_NODISCARD gs_status gs_directory_make_path(const char *path, mode_t mode);

// PERMISSION_DENIED where one of the last `levels` names of the path is a symbolic link: what lies below a root of ours is not
// written to, read from or removed elsewhere because of a link that somebody put there. What is not there is none.
GS_NODISCARD gs_status gs_directory_refuse_links(const char *path, int levels);

// A directory that is open, and what it is called: what is done in it is done there, whatever becomes of its name meanwhile.
typedef struct gs_directory {
    int fd;          // owned
    bool is_shared;  // with its group, by the operator's word: it is set-group-ID, and the group may write in it
    char path[PATH_MAX];
} gs_directory;

// The directory of a path, from which on the last `levels` names are walked one by one: none of them is a symbolic link, also not one
// that somebody puts there meanwhile. PERMISSION_DENIED names the one that is; NOT_FOUND: one is not there. On an error there is
// nothing to close.
GS_NODISCARD gs_status gs_directory_open(gs_directory *out, const char *path, int levels);
// The one of that name in it, under the same rule.
GS_NODISCARD gs_status gs_directory_open_in(gs_directory *out, const gs_directory *parent, const char *name);
// Made unless it is there; with is_new ALREADY_EXISTS where it is. Its name is on the disk then; an error leaves none. In a shared directory it is shared
// too, as far as the umask or the right to say so lets it.
GS_NODISCARD gs_status gs_directory_make_in(gs_directory *out, const gs_directory *parent, const char *name, bool is_new);
void gs_directory_close(const gs_directory *directory);
// Whether a walk along `path` comes to this very directory. PERMISSION_DENIED: to another one, which has taken its place.
GS_NODISCARD gs_status gs_directory_confirm(const gs_directory *directory, const char *path, int levels);
GS_NODISCARD gs_status gs_directory_sync(const gs_directory *directory);

// A file by its name in an open directory, where no link is followed; or, without a directory, by a path as it stands.
typedef struct gs_file_place {
    const gs_directory *directory;
    const char *name;
} gs_file_place;

// For messages: "%s%s%s" of a place.
#define GS_PLACE "%s%s%s"
#define GS_PLACE_OF(place) \
    (place).directory ? (place).directory->path : "", (place).directory ? "/" : "", (place).name

// What the *at() calls take.
int gs_file_place_fd(gs_file_place place);
// To be called for what was made there, before it has its name: of a shared directory, the group may read it.
GS_NODISCARD gs_status gs_file_place_share(gs_file_place place, int fd);

#endif
