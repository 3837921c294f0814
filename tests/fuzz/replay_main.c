// Fuzzing without clang, as an ordinary test: runs a target over every file of a corpus directory,
// then over seeded random mutations of them. The same seed gives the same inputs.
//
//   fuzz_x CORPUS_DIR [MUTATIONS [SEED]]
//
// When a mutation ends the process, its input is in ./crash-<target>; run the target with a
// directory that holds only that file to see it again.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/random.h"
#include "tests/fuzz/fuzz.h"

#define MAX_SEEDS 256
#define MAX_BYTES ((size_t)1 << 16)

typedef struct input {
    uint8_t *data;
    size_t bytes;
} input;

typedef struct corpus {
    input seeds[MAX_SEEDS];
    int count;
} corpus;

// What runs now, for the handler of a crash.
static const uint8_t *running;
static size_t running_bytes;
static char crash_path[256];

static void save_crash(int signal_number) {
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0) {
        ssize_t written = write(fd, running, running_bytes);
        (void)written;
        close(fd);
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void run_one(const uint8_t *data, size_t bytes) {
    // An exact copy on the heap, so that a sanitizer sees every byte read past the end.
    uint8_t *copy = malloc(bytes ? bytes : 1);
    if (!copy) abort();
    if (bytes) memcpy(copy, data, bytes);
    running = copy;
    running_bytes = bytes;
    if (LLVMFuzzerTestOneInput(copy, bytes) != 0) abort();
    free(copy);
}

static int read_corpus(corpus *all, const char *dir_path) {
    DIR *dir = opendir(dir_path);
    if (!dir) {
        perror(dir_path);
        return 2;
    }
    for (struct dirent *entry; (entry = readdir(dir)) && all->count < MAX_SEEDS;) {
        if (entry->d_name[0] == '.') continue;
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", dir_path, entry->d_name);
        FILE *file = fopen(path, "rb");
        if (!file) continue;
        input *seed = &all->seeds[all->count++];
        seed->data = malloc(MAX_BYTES);
        if (!seed->data) abort();
        seed->bytes = fread(seed->data, 1, MAX_BYTES, file);
        fclose(file);
    }
    closedir(dir);
    return 0;
}

static uint8_t *place_in(uint8_t *data, size_t bytes, uint64_t draw) {
    return data + (bytes ? draw % bytes : 0);
}

// One small change; most parsers break at lengths, counts and nesting.
static size_t mutate(uint8_t *data, size_t bytes, gs_random_key key, uint64_t at) {
    static const uint32_t words[] = {0,      1,      0x7f,       0x80,       0xff,
                                     0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff};
    static const char marks[] = "{}[]\",:0-.eE\\\n\t \x00\xff";
    uint64_t kind = gs_random_u64(key, at) % 7, draw = gs_random_u64(key, at + 1);
    uint64_t more = gs_random_u64(key, at + 2);
    size_t length;
    if (bytes == 0) kind = 4;
    switch (kind) {
    case 0:
        *place_in(data, bytes, draw) ^= (uint8_t)(1u << (more % 8));
        return bytes;
    case 1:
        *place_in(data, bytes, draw) = (uint8_t)more;
        return bytes;
    case 2:
        *place_in(data, bytes, draw) = (uint8_t)marks[more % sizeof marks];
        return bytes;
    case 3:
        length = bytes < 4 ? bytes : 4;
        memcpy(data + draw % (bytes - length + 1), &words[more % 10], length);
        return bytes;
    case 4: // some bytes come in
        length = 1 + more % 16;
        if (bytes + length > MAX_BYTES) return bytes;
        memmove(place_in(data, bytes, draw) + length, place_in(data, bytes, draw),
                bytes - (bytes ? draw % bytes : 0));
        memset(place_in(data, bytes, draw), (int)(more >> 32), length);
        return bytes + length;
    case 5: // some bytes go
        length = 1 + more % (bytes < 16 ? bytes : 16);
        draw %= bytes - length + 1;
        memmove(data + draw, data + draw + length, bytes - draw - length);
        return bytes - length;
    default:
        return draw % (bytes + 1); // the end is cut off
    }
}

static void run_mutations(const corpus *all, uint64_t count, uint64_t seed) {
    uint8_t *data = malloc(MAX_BYTES);
    if (!data) abort();
    for (uint64_t i = 0; i < count; i++) {
        gs_random_key key = {seed, i};
        const input *from = &all->seeds[gs_random_u64(key, 0) % (uint64_t)all->count];
        size_t bytes = from->bytes;
        memcpy(data, from->data, bytes);
        uint64_t changes = 1 + gs_random_u64(key, 1) % 6;
        for (uint64_t c = 0; c < changes; c++) bytes = mutate(data, bytes, key, 2 + 3 * c);
        run_one(data, bytes);
    }
    free(data);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s CORPUS_DIR [MUTATIONS [SEED]]\n", argv[0]);
        return 2;
    }
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    const char *slash = strrchr(argv[0], '/');
    snprintf(crash_path, sizeof crash_path, "crash-%s", slash ? slash + 1 : argv[0]);
    signal(SIGABRT, save_crash);
    signal(SIGSEGV, save_crash);
    signal(SIGBUS, save_crash);
    signal(SIGFPE, save_crash);

    static corpus all;
    if (read_corpus(&all, argv[1])) return 2;
    if (!all.count) {
        fprintf(stderr, "%s: empty corpus\n", argv[1]);
        return 2;
    }
    for (int i = 0; i < all.count; i++) run_one(all.seeds[i].data, all.seeds[i].bytes);
    run_mutations(&all, count, seed);
    printf("%d seeds, %llu mutations, seed %llu\n", all.count, (unsigned long long)count,
           (unsigned long long)seed);
    for (int i = 0; i < all.count; i++) free(all.seeds[i].data);
    return 0;
}
