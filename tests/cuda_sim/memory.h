// Memory of the devices: one reserved region for each, in which the host may not look.
//
// In strict mode a region has no access rights except while somebody holds it open for device work,
// so that a host that touches device memory faults at once, with a message. Fresh memory is 0xff,
// which is NaN to all floats. Behind each allocation are bytes that nobody may write.
#ifndef TESTS_CUDA_SIM_MEMORY_H
#define TESTS_CUDA_SIM_MEMORY_H

#include <cstddef>
#include <string>

namespace sim {

enum memory_kind { HOST_MEMORY = 0, PINNED_MEMORY, DEVICE_MEMORY };

struct memory_range {
    memory_kind kind = HOST_MEMORY;
    char *base = nullptr;  // of the allocation
    size_t bytes = 0;
    int device = 0;
    bool registered = false;  // pinned by cudaHostRegister
};

// Reserves what all devices together have. Exits with a message if the machine has no such address
// space.
void memory_start(int num_devices, size_t bytes_each, bool guarded);

bool memory_allocate(void **out, int device, size_t bytes);  // false: out of memory
bool memory_free(void *memory);                              // false: no such allocation
size_t memory_left(int device);
size_t memory_total();

bool pinned_add(void *memory, size_t bytes, int device, bool registered);
bool pinned_remove(void *memory, bool registered);

// HOST_MEMORY where nobody told us about it. An address in a device's region that is not allocated
// is DEVICE_MEMORY with 0 bytes.
memory_range memory_find(const void *address);

// Host access to all regions, for device work, counted. Any thread.
void memory_open();
void memory_close();

// "" or which allocation was written beyond its end.
std::string memory_check_ends();

struct memory_access {
    memory_access() { memory_open(); }
    ~memory_access() { memory_close(); }
    memory_access(const memory_access &) = delete;
    memory_access &operator=(const memory_access &) = delete;
};

}  // namespace sim
#endif
