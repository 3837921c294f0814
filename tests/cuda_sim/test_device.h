// For the tests of the software machine: arrays on the device, and cases that run in a child
// process because what they do ends the device's life, or the process.
#ifndef TESTS_CUDA_SIM_TEST_DEVICE_H
#define TESTS_CUDA_SIM_TEST_DEVICE_H

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

inline void must(cudaError_t error, const char *what) {
    if (!error) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(error));
    abort();
}

template <typename T> struct device_array {
    T *data = nullptr;
    size_t count;

    explicit device_array(size_t number) : count(number) {
        must(cudaMalloc(reinterpret_cast<void **>(&data), count * sizeof(T)), "cudaMalloc");
    }
    explicit device_array(const std::vector<T> &host) : device_array(host.size()) {
        must(cudaMemcpy(data, host.data(), count * sizeof(T), cudaMemcpyHostToDevice),
             "cudaMemcpy");
    }
    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;
    ~device_array() { cudaFree(data); }

    std::vector<T> download() const {
        std::vector<T> host(count);
        must(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
        return host;
    }
};

// On the legacy stream.
template <typename... P, typename... A>
void start(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
           A... args) {
    must(gs_sim_start(name, kernel, grid, block, shared, nullptr, args...), name);
}

struct child_case {
    const char *name;
    int (*run)();
};

inline bool is_child(int argc, char **argv, const child_case *cases, size_t num_cases, int *code) {
    if (argc < 2) return false;
    *code = 125;
    for (size_t i = 0; i < num_cases; i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) *code = cases[i].run();
    }
    return true;
}

struct child_end {
    int code;          // of the exit; 256 + the signal that killed it
    std::string said;  // on stderr
};

// This program again, with the case's name. What AddressSanitizer has to report of it is for whoever started it.
inline child_end run_child(const char *name, const char *environment = "") {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) abort();
    self[length] = 0;
    std::string command =
        "ASAN_OPTIONS=\"$ASAN_OPTIONS:log_path=stderr\" " + std::string(environment) + " exec '" + self + "' " + name + " 2>&1 >/dev/null";
    FILE *child = popen(command.c_str(), "r");
    if (!child) abort();
    child_end end;
    char text[1024];
    for (size_t got; (got = fread(text, 1, sizeof text, child)) > 0;) end.said.append(text, got);
    int status = pclose(child);
    end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
    fputs(end.said.c_str(), stderr);
    return end;
}

#endif
