#include "core/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gs_library {
    void *handle;
    char what[32];
    char file[256];
};

// dlerror's text, or words where it has none.
static const char *take_loader_error(void) {
    const char *text = dlerror();
    return text ? text : "the loader gives no reason";
}

static gs_status load_file(gs_library *library, const char *file) {
    snprintf(library->file, sizeof library->file, "%s", file);
    library->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library->handle) return gs_ok();
    return gs_error(GS_UNAVAILABLE, "%s: %s", library->what, take_loader_error());
}

static gs_status load_first(gs_library *library, const gs_library_options *options) {
    const char *named = options->variable ? getenv(options->variable) : NULL;
    if (named && *named)
        return gs_status_prefix(load_file(library, named), "%s", options->variable);
    gs_status first = gs_error(GS_UNAVAILABLE, "%s: no file to load", library->what);
    for (size_t i = 0; options->file_names[i]; i++) {
        gs_status status = load_file(library, options->file_names[i]);
        if (status.code == GS_OK) return status;
        if (i == 0) first = status;
    }
    return first;
}

gs_status gs_library_open(gs_library **out, const gs_library_options *options) {
    gs_library *library = calloc(1, sizeof *library);
    if (!library) return gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", options->what);
    snprintf(library->what, sizeof library->what, "%s", options->what);
    gs_status status = load_first(library, options);
    if (status.code) {
        free(library);
        return status;
    }
    *out = library;
    return gs_ok();
}

void gs_library_close(gs_library *library) {
    if (!library) return;
    dlclose(library->handle);  // counts down; RTLD_NODELETE keeps it
    free(library);
}

gs_status gs_library_load(const gs_library *library, const gs_library_symbol *symbols,
                          size_t num_symbols) {
    const char *missing = NULL;
    for (size_t i = 0; i < num_symbols; i++) {
        void *address = dlsym(library->handle, symbols[i].name);
        memcpy(symbols[i].pointer, &address, sizeof address);
        if (!address && !symbols[i].optional && !missing) missing = symbols[i].name;
    }
    if (!missing) return gs_ok();
    for (size_t i = 0; i < num_symbols; i++) memset(symbols[i].pointer, 0, sizeof(void *));
    return gs_error(GS_UNIMPLEMENTED, "%s: %s has no %s", library->what, library->file, missing);
}

const char *gs_library_file(const gs_library *library) {
    return library->file;
}
