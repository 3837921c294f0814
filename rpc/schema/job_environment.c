#include "rpc/schema/job_environment.h"

#include <stdio.h>
#include <string.h>

#define ENVIRONMENT "/environment"
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"

const gs_field gs_job_variable_fields[] = {
    {"name", .type = GS_FIELD_STRING, .offset = offsetof(gs_job_variable, name),
     .capacity = sizeof((gs_job_variable *)0)->name, .required = true, .pattern = "^[A-Za-z_][A-Za-z0-9_]*$",
     .help = "Name of the variable; those of loaders, of libraries that load others, and of gradsync itself are refused."},
    {"value", .type = GS_FIELD_STRING, .offset = offsetof(gs_job_variable, value),
     .capacity = sizeof((gs_job_variable *)0)->value, .help = "Its value, for everybody who sees the job."},
    {"secret", .type = GS_FIELD_STRING, .offset = offsetof(gs_job_variable, secret),
     .capacity = sizeof((gs_job_variable *)0)->secret, .pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
     .help = "Instead of a value: the name of a file in the worker's --secrets directory that holds it."},
    {0},
};

bool gs_job_secret_may_be(const char *name) {
    size_t length = strlen(name);
    return length && length < sizeof((gs_job_variable *)0)->secret && name[0] != '.' &&
           strspn(name, LETTERS DIGITS "._-") == length;
}

static bool ends_with(const char *name, const char *end) {
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

// What names a file or what is to be loaded, whoever's it is: a list of names is always behind the libraries that read them.
static bool names_a_file(const char *name) {
    return ends_with(name, "_FILE") || ends_with(name, "PATH") || strstr(name, "PLUGIN") || strstr(name, "LIBRARIES") ||
           ends_with(name, "_LIBRARY");
}

// Who loads code or writes files by a variable's word: the loader, the C library, sanitizers, drivers and what they load.
static bool is_refused(const char *name) {
    static const char *const families[] = {"LD_",    "GLIBC_", "MALLOC_", "GRADSYNC_", "CUDA_", "NVIDIA_", "HWLOC_",
                                           "ASAN_",  "UBSAN_", "LSAN_",   "TSAN_",     "GCOV_", "LLVM_",   "OMPI_",
                                           "DYLD_",  "XDG_",   "NVTX_",    "IBV_",   "RDMAV_", "UCX_",    "FI_",
                                           "OPAL_",  "PMIX_",  "OPENSSL_", "CUBLAS", "CUDNN_",
                                           "OMP_TOOL", "OCL_", "OPENCL_", "ZE_", "ZES_",   "ZET_",    "MLX", NULL};
    static const char *const names[] = {"PATH",      "HOME",    "SHELL",   "ENV",           "BASH_ENV",
                                        "TMPDIR",    "LOCPATH", "NLSPATH", "GCONV_PATH",    "HOSTALIASES",
                                        "LOCALDOMAIN", "RES_OPTIONS", "RANK", "OPENBLAS_NUM_THREADS",
                                        "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "SSLKEYLOGFILE", NULL};
    for (size_t i = 0; families[i]; i++)
        if (strncmp(name, families[i], strlen(families[i])) == 0) return true;
    for (size_t i = 0; names[i]; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return names_a_file(name) || (strncmp(name, "NCCL_", 5) == 0 && (strstr(name, "PATH") || strcmp(name, "NCCL_NET") == 0));
}

bool gs_job_variable_may_be(const char *name) {
    size_t length = strlen(name);
    return length && length < sizeof((gs_job_variable *)0)->name && strspn(name, LETTERS DIGITS "_") == length &&
           !strchr(DIGITS, name[0]) && !is_refused(name);
}

static void refuse(gs_field_errors *errors, int index, const char *member, const char *code, const char *why) {
    char pointer[64];
    snprintf(pointer, sizeof pointer, ENVIRONMENT "/%d%s", index, member);
    gs_field_errors_add(errors, pointer, code, NULL, "%s", why);
}

void gs_job_spec_check_environment(const gs_job_spec *spec, gs_field_errors *errors) {
    if (gs_field_errors_lie_in(errors, ENVIRONMENT)) return;
    for (int i = 0; i < spec->num_variables; i++) {
        const gs_job_variable *variable = &spec->environment[i];
        if (!gs_job_variable_may_be(variable->name))
            refuse(errors, i, "/name", "not_applicable", "a job may not set this variable");
        if (*variable->secret && *variable->value)
            refuse(errors, i, "/secret", "not_applicable", "a variable has a value or a secret, not both");
        for (int k = 0; k < i; k++)
            if (strcmp(spec->environment[k].name, variable->name) == 0)
                refuse(errors, i, "/name", "not_applicable", "this variable is there twice");
    }
}
