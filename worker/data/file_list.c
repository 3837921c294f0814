// Which files a job's patterns name. A pattern is names of [A-Za-z0-9._-] with * for any run of
// characters, joined by '/'; no name starts with a dot, so there is no "..", and none is empty, so
// there is no absolute path.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/below.h"
#include "worker/data/dataset.h"

#define MAX_FILES 16384

static gs_status check_pattern(const char *pattern) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-*/";
    size_t good = strspn(pattern, allowed);
    if (pattern[good])
        return gs_error(GS_INVALID_ARGUMENT,
                        "file pattern \"%s\": character %zu is not a letter, digit, . _ - * or /",
                        pattern, good + 1);
    for (const char *part = pattern;; part++) {
        size_t len = strcspn(part, "/");
        if (len == 0)
            return gs_error(GS_INVALID_ARGUMENT, "file pattern \"%s\": empty or absolute path",
                            pattern);
        if (part[0] == '.')
            return gs_error(GS_INVALID_ARGUMENT,
                            "file pattern \"%s\": a name may not start with a dot", pattern);
        part += len;
        if (!*part) return gs_ok();
    }
}

static gs_status add_name(gs_file_list *list, const char *name) {
    if (list->count == MAX_FILES)
        return gs_error(GS_INVALID_ARGUMENT, "the file patterns name more than %d files",
                        MAX_FILES);
    char **names = realloc(list->names, (list->count + 1) * sizeof *names);
    if (!names) return gs_error(GS_RESOURCE_EXHAUSTED, "file list: out of memory");
    list->names = names;
    names[list->count] = strdup(name);
    if (!names[list->count]) return gs_error(GS_RESOURCE_EXHAUSTED, "file list: out of memory");
    list->count++;
    return gs_ok();
}

static gs_status match_below(gs_file_list *list, int root_fd, const char *dir, const char *rest);

// `path` exists by its name; `rest` is what the pattern still wants below it, "" when it is a file.
static gs_status take_entry(gs_file_list *list, int root_fd, const char *path, const char *rest) {
    if (!*rest) return add_name(list, path);
    return match_below(list, root_fd, path, rest);
}

static gs_status scan_dir(gs_file_list *list, int root_fd, const char *dir, const char *part,
                          const char *rest) {
    int fd;
    gs_status status = gs_open_below(&fd, root_fd, *dir ? dir : ".", O_DIRECTORY);
    // A pattern may name directories that are not there, or files: it then matches nothing.
    if (status.code == GS_NOT_FOUND) return gs_ok();
    if (status.code) return status;
    DIR *stream = fdopendir(fd);
    if (!stream) {
        close(fd);
        return gs_error_from_errno(errno, "%s", dir);
    }
    for (struct dirent *entry; !status.code && (entry = readdir(stream));) {
        if (entry->d_name[0] == '.' || fnmatch(part, entry->d_name, 0) != 0) continue;
        bool file_only = entry->d_type == DT_REG;
        bool dir_only = entry->d_type == DT_DIR;
        if (*rest ? file_only : dir_only) continue;
        char *path = NULL;
        if (asprintf(&path, "%s%s%s", dir, *dir ? "/" : "", entry->d_name) < 0)
            status = gs_error(GS_RESOURCE_EXHAUSTED, "file list: out of memory");
        else
            status = take_entry(list, root_fd, path, rest);
        free(path);
    }
    closedir(stream);
    return status;
}

static gs_status match_below(gs_file_list *list, int root_fd, const char *dir,
                             const char *pattern) {
    size_t len = strcspn(pattern, "/");
    const char *rest = pattern[len] ? pattern + len + 1 : pattern + len;
    char *part = strndup(pattern, len);
    if (!part) return gs_error(GS_RESOURCE_EXHAUSTED, "file list: out of memory");
    gs_status status = scan_dir(list, root_fd, dir, part, rest);
    free(part);
    return status;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_and_unite(gs_file_list *list) {
    if (!list->count) return;
    qsort(list->names, list->count, sizeof *list->names, compare_names);
    size_t kept = 1;
    for (size_t i = 1; i < list->count; i++) {
        if (strcmp(list->names[i], list->names[kept - 1]) == 0)
            free(list->names[i]);
        else
            list->names[kept++] = list->names[i];
    }
    list->count = kept;
}

gs_status gs_file_list_find(gs_file_list *list, const char *root, const char *const *patterns,
                            size_t num_patterns) {
    *list = (gs_file_list){0};
    if (num_patterns == 0) return gs_error(GS_INVALID_ARGUMENT, "no file pattern is given");
    int root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0) return gs_error_from_errno(errno, "data directory %s", root);

    gs_status status = gs_ok();
    for (size_t i = 0; i < num_patterns && !status.code; i++) {
        size_t before = list->count;
        status = check_pattern(patterns[i]);
        if (!status.code) status = match_below(list, root_fd, "", patterns[i]);
        if (!status.code && list->count == before)
            status = gs_error(GS_NOT_FOUND, "no file below %s matches \"%s\"", root, patterns[i]);
    }
    close(root_fd);
    if (status.code)
        gs_file_list_release(list);
    else
        sort_and_unite(list);
    return status;
}

void gs_file_list_release(gs_file_list *list) {
    if (!list) return;
    for (size_t i = 0; i < list->count; i++) free(list->names[i]);
    free(list->names);
    *list = (gs_file_list){0};
}
