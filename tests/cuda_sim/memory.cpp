#include "tests/cuda_sim/memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "tests/cuda_sim/block.h"
#include "tests/cuda_sim/stream.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace sim {

static const size_t grain = 256;  // what cudaMalloc's pointers are aligned to
static const unsigned char end_mark = 0xe7;
static const size_t most_filled = 64 << 20;
static const size_t huge_page = 2 << 20;  // rights of many small pages change slowly
// Changing rights may take so much of a process's time, and a fifth of it after that.
static const int64_t free_guard_ns = 500000000;

struct region {
    char *base = nullptr;
    size_t used = 0;                  // bytes of allocations
    size_t high = 0;                  // what was ever allocated lies below
    std::map<size_t, size_t> blocks;  // offset -> bytes asked for
};

struct pinned {
    size_t bytes;
    int device;
    bool registered;
};

// Never destroyed: device work may still run when the process ends.
static struct memory_state {
    std::mutex lock;
    std::vector<region> regions;
    size_t bytes_each = 0;
    bool guarded = false;
    int num_open = 0;
    bool is_open = false;
    int64_t started_ns = 0, guard_ns = 0;  // what changing rights took
    std::map<char *, pinned> pins;
    struct sigaction before = {};
} &state = *new memory_state;

static size_t span(size_t bytes) {
    return (bytes + grain - 1) / grain * grain + grain;  // with the mark behind it
}

static void protect(int rights) {
    int64_t begin_ns = now_ns();
    for (region &each : state.regions) {
        size_t bytes = (each.high + huge_page - 1) / huge_page * huge_page;
        if (bytes && mprotect(each.base, bytes, rights)) abort();
    }
    state.is_open = rights != PROT_NONE;
    state.guard_ns += now_ns() - begin_ns;
}

void memory_open() {
    std::lock_guard<std::mutex> hold(state.lock);
    if (state.guarded && !state.is_open) protect(PROT_READ | PROT_WRITE);
    state.num_open++;
}

void memory_close() {
    std::lock_guard<std::mutex> hold(state.lock);
    state.num_open--;
    if (!state.guarded || state.num_open) return;
    if (state.guard_ns < free_guard_ns + (now_ns() - state.started_ns) / 5) protect(PROT_NONE);
}

static void print(const char *text) {
    ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written;
}

// Runs in a signal handler: reads what it needs without the lock, for a last word.
static void explain_fault(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    char *address = static_cast<char *>(info->si_addr);
    const char *kernel = running_kernel();
    char text[512];
    bool ours = false;
    for (size_t i = 0; i < state.regions.size(); i++) {
        const region &each = state.regions[i];
        if (address < each.base || address >= each.base + state.bytes_each) continue;
        size_t offset = static_cast<size_t>(address - each.base);
        auto next = each.blocks.upper_bound(offset);
        ours = true;
        if (next == each.blocks.begin()) {
            snprintf(text, sizeof text,
                     "cuda_sim: %s touched device memory at %p, where nothing is allocated\n",
                     kernel[0] ? kernel : "host", info->si_addr);
        } else {
            --next;
            snprintf(text, sizeof text,
                     "cuda_sim: %s touched device memory at %p, byte %zu of an allocation of %zu\n",
                     kernel[0] ? kernel : "host", info->si_addr, offset - next->first,
                     next->second);
        }
    }
    if (!ours && kernel[0]) {
        snprintf(text, sizeof text, "cuda_sim: kernel %s touched address %p, which is nobody's\n",
                 kernel, info->si_addr);
        ours = true;
    }
    if (ours) print(text);
    // The instruction runs again, into whoever was here before us.
    sigaction(signal_number, &state.before, nullptr);
}

void memory_start(int num_devices, size_t bytes_each, bool guarded) {
    state.bytes_each = (bytes_each + huge_page - 1) / huge_page * huge_page;
    state.guarded = guarded;
    state.started_ns = now_ns();
    for (int i = 0; i < num_devices; i++) {
        void *base = mmap(nullptr, state.bytes_each + huge_page,
                          guarded ? PROT_NONE : PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
            fprintf(stderr,
                    "cuda_sim: no address space for a device of %zu bytes (CUDA_SIM_MEMORY)\n",
                    bytes_each);
            exit(1);
        }
        uintptr_t aligned =
            (reinterpret_cast<uintptr_t>(base) + huge_page - 1) / huge_page * huge_page;
        state.regions.emplace_back();
        state.regions.back().base = reinterpret_cast<char *>(aligned);
        madvise(state.regions.back().base, state.bytes_each, MADV_DONTDUMP);
        madvise(state.regions.back().base, state.bytes_each, MADV_HUGEPAGE);
    }
    struct sigaction action = {};
    action.sa_sigaction = explain_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &state.before);
}

static bool find_gap(const region &self, size_t *offset, size_t wanted) {
    size_t at = 0;
    for (const auto &block : self.blocks) {
        if (block.first - at >= wanted) break;
        at = block.first + span(block.second);
    }
    *offset = at;
    return at + wanted <= state.bytes_each;
}

bool memory_allocate(void **out, int device, size_t bytes) {
    memory_access access;
    std::lock_guard<std::mutex> hold(state.lock);
    region &self = state.regions[static_cast<size_t>(device)];
    size_t offset;
    if (bytes > state.bytes_each || self.used + span(bytes) > state.bytes_each) return false;
    if (!find_gap(self, &offset, span(bytes))) return false;
    self.blocks[offset] = bytes;
    self.used += span(bytes);
    if (offset + span(bytes) > self.high) {
        self.high = offset + span(bytes);
        if (state.guarded) protect(PROT_READ | PROT_WRITE);
    }
    char *memory = self.base + offset;
    ASAN_UNPOISON_MEMORY_REGION(memory, span(bytes));
    if (bytes <= most_filled) memset(memory, 0xff, bytes);
    memset(memory + bytes, end_mark, span(bytes) - bytes);
    ASAN_POISON_MEMORY_REGION(memory + bytes, span(bytes) - bytes);
    *out = memory;
    return true;
}

bool memory_free(void *memory) {
    memory_access access;
    std::lock_guard<std::mutex> hold(state.lock);
    for (region &self : state.regions) {
        char *address = static_cast<char *>(memory);
        if (address < self.base || address >= self.base + state.bytes_each) continue;
        auto block = self.blocks.find(static_cast<size_t>(address - self.base));
        if (block == self.blocks.end()) return false;
        size_t bytes = span(block->second);
        ASAN_UNPOISON_MEMORY_REGION(address, bytes);
        size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        uintptr_t first = (reinterpret_cast<uintptr_t>(address) + page - 1) / page * page;
        uintptr_t last = reinterpret_cast<uintptr_t>(address + bytes) / page * page;
        if (last > first && last - first >= most_filled) {
            madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED);
        } else {
            memset(address, 0xff, bytes);  // whoever reads on gets no numbers
        }
        ASAN_POISON_MEMORY_REGION(address, bytes);
        self.used -= bytes;
        self.blocks.erase(block);
        return true;
    }
    return false;
}

size_t memory_left(int device) {
    std::lock_guard<std::mutex> hold(state.lock);
    return state.bytes_each - state.regions[static_cast<size_t>(device)].used;
}

size_t memory_total() {
    return state.bytes_each;
}

bool pinned_add(void *memory, size_t bytes, int device, bool registered) {
    std::lock_guard<std::mutex> hold(state.lock);
    char *address = static_cast<char *>(memory);
    auto next = state.pins.lower_bound(address);
    if (next != state.pins.end() && next->first < address + bytes) return false;
    if (next != state.pins.begin()) {
        --next;
        if (next->first + next->second.bytes > address) return false;
    }
    state.pins[address] = {bytes, device, registered};
    return true;
}

bool pinned_remove(void *memory, bool registered) {
    std::lock_guard<std::mutex> hold(state.lock);
    auto found = state.pins.find(static_cast<char *>(memory));
    if (found == state.pins.end() || found->second.registered != registered) return false;
    state.pins.erase(found);
    return true;
}

memory_range memory_find(const void *where) {
    std::lock_guard<std::mutex> hold(state.lock);
    char *address = static_cast<char *>(const_cast<void *>(where));
    memory_range found;
    for (size_t i = 0; i < state.regions.size(); i++) {
        const region &each = state.regions[i];
        if (address < each.base || address >= each.base + state.bytes_each) continue;
        found.kind = DEVICE_MEMORY;
        found.device = static_cast<int>(i);
        size_t offset = static_cast<size_t>(address - each.base);
        auto next = each.blocks.upper_bound(offset);
        if (next == each.blocks.begin()) return found;
        --next;
        // One past the end belongs to it too: empty tensors are there.
        if (offset > next->first + next->second) return found;
        found.base = each.base + next->first;
        found.bytes = next->second;
        return found;
    }
    auto next = state.pins.upper_bound(address);
    if (next == state.pins.begin()) return found;
    --next;
    if (address > next->first + next->second.bytes) return found;
    found.kind = PINNED_MEMORY;
    found.base = next->first;
    found.bytes = next->second.bytes;
    found.device = next->second.device;
    found.registered = next->second.registered;
    return found;
}

#if defined(__SANITIZE_ADDRESS__)
std::string memory_check_ends() {
    return "";  // the sanitizer sees the access itself
}
#else
std::string memory_check_ends() {
    static const std::string &marks_text = *new std::string(2 * grain, static_cast<char>(end_mark));
    const char *marks = marks_text.data();
    std::lock_guard<std::mutex> hold(state.lock);
    for (const region &each : state.regions) {
        for (const auto &block : each.blocks) {
            const char *end = each.base + block.first + block.second;
            size_t bytes = span(block.second) - block.second;
            if (memcmp(end, marks, bytes) == 0) continue;
            char text[160];
            snprintf(text, sizeof text,
                     "bytes behind an allocation of %zu bytes at %p were written", block.second,
                     static_cast<const void *>(each.base + block.first));
            return text;
        }
    }
    return "";
}
#endif

}  // namespace sim
