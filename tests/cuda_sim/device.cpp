// Devices, versions and errors of the runtime. A device looks like an H200 with less memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "tests/cuda_sim/call.h"
#include "tests/cuda_sim/memory.h"

namespace sim {

static size_t parse_bytes(const char *text, size_t otherwise) {
    if (!text || !text[0]) return otherwise;
    char *end;
    double number = strtod(text, &end);
    if (*end == 'k' || *end == 'K') number *= 1 << 10;
    if (*end == 'm' || *end == 'M') number *= 1 << 20;
    if (*end == 'g' || *end == 'G') number *= 1 << 30;
    return static_cast<size_t>(number);
}

static void make_uuid(unsigned char uuid[16], int ordinal) {
    memcpy(uuid, "gradsync-sim\0\0\0", 15);
    uuid[15] = static_cast<unsigned char>(ordinal);
}

static std::string uuid_text(int ordinal) {
    unsigned char uuid[16];
    make_uuid(uuid, ordinal);
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        char digits[4];
        snprintf(digits, sizeof digits, "%02x", uuid[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) text += "-";
        text += digits;
    }
    return text;
}

// As the driver reads CUDA_VISIBLE_DEVICES: up to the first word that names nothing, or one twice.
static std::vector<int> visible_devices(int num_devices) {
    std::vector<int> visible;
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; !list && i < num_devices; i++) visible.push_back(i);
    std::string words = list ? list : "";
    for (size_t at = 0; list && at < words.size();) {
        size_t comma = words.find(',', at);
        std::string word = words.substr(at, comma == std::string::npos ? comma : comma - at);
        at = comma == std::string::npos ? words.size() : comma + 1;
        int found = -1;
        for (int i = 0; i < num_devices; i++) {
            bool by_uuid = word.size() > 4 && uuid_text(i).compare(0, word.size(), word) == 0;
            if (word == std::to_string(i) || by_uuid) found = i;
        }
        for (int other : visible) {
            if (other == found) return {};
        }
        if (found < 0) break;
        visible.push_back(found);
    }
    return visible;
}

static machine *start_machine() {
    machine *self = new machine();
    const char *mode = getenv("CUDA_SIM_MODE"), *seed = getenv("CUDA_SIM_SEED");
    const char *count = getenv("CUDA_SIM_DEVICES"), *driver = getenv("CUDA_SIM_DRIVER");
    if (mode && strcmp(mode, "async") == 0)
        self->mode = ASYNC_MODE;
    else if (mode && mode[0] && strcmp(mode, "strict") != 0) {
        fprintf(stderr, "cuda_sim: CUDA_SIM_MODE '%s' is neither \"strict\" nor \"async\"\n", mode);
        exit(1);
    }
    if (seed) self->seed = strtoull(seed, nullptr, 10);
    self->no_driver = driver && strcmp(driver, "none") == 0;
    std::vector<int> visible = visible_devices(count && count[0] ? atoi(count) : 1);
    if (self->no_driver) visible.clear();
    for (int ordinal : visible) {
        self->devices.push_back(std::make_unique<device_state>());
        self->devices.back()->ordinal = ordinal;
    }
    memory_start(static_cast<int>(visible.size()),
                 parse_bytes(getenv("CUDA_SIM_MEMORY"), size_t(4) << 30),
                 self->mode == STRICT_MODE);
    return self;
}

machine &the_machine() {
    static machine *self = start_machine();
    return *self;
}

int &current_device() {
    static thread_local int device = 0;
    return device;
}

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t keep_error(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

call::call() : self(the_machine()), hold(self.lock), device(current_device()), error(cudaSuccess) {
    if (self.no_driver)
        error = cudaErrorInsufficientDriver;
    else if (self.devices.empty())
        error = cudaErrorNoDevice;
    else
        error = state().broken;
}

cudaError_t call::check_safe() {
    return error ? error : capture_forbid_unsafe(self);
}

cudaError_t call::wait(const std::vector<completion_ptr> &wanted) {
    self.counters.host_waits++;
    machine_run(self, hold, wanted, UNTIL_DONE);
    return state().broken;
}

}  // namespace sim

using namespace sim;

extern "C" {

cudaError_t cudaDriverGetVersion(int *version) {
    if (!version) return keep_error(cudaErrorInvalidValue);
    *version = the_machine().no_driver ? 0 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    if (!version) return keep_error(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    if (!count) return keep_error(cudaErrorInvalidValue);
    machine &self = the_machine();
    *count = static_cast<int>(self.devices.size());
    if (self.no_driver) return keep_error(cudaErrorInsufficientDriver);
    return keep_error(self.devices.empty() ? cudaErrorNoDevice : cudaSuccess);
}

static cudaError_t check_ordinal(int device) {
    machine &self = the_machine();
    if (self.no_driver) return cudaErrorInsufficientDriver;
    if (self.devices.empty()) return cudaErrorNoDevice;
    bool known = device >= 0 && static_cast<size_t>(device) < self.devices.size();
    return known ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaSetDevice(int device) {
    cudaError_t error = check_ordinal(device);
    if (error) return keep_error(error);
    current_device() = device;
    return keep_error(the_machine().devices[static_cast<size_t>(device)]->broken);
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
    return keep_error(check_ordinal(device));
}

cudaError_t cudaGetDevice(int *device) {
    if (!device) return keep_error(cudaErrorInvalidValue);
    *device = current_device();
    return keep_error(check_ordinal(*device));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *facts, int device) {
    cudaError_t error = facts ? check_ordinal(device) : cudaErrorInvalidValue;
    if (error) return keep_error(error);
    int ordinal = the_machine().devices[static_cast<size_t>(device)]->ordinal;
    memset(facts, 0, sizeof *facts);
    snprintf(facts->name, sizeof facts->name, "software CUDA machine");
    make_uuid(reinterpret_cast<unsigned char *>(facts->uuid.bytes), ordinal);
    facts->multiProcessorCount = 48;
    facts->totalGlobalMem = memory_total();
    facts->sharedMemPerBlock = 48 << 10;
    facts->sharedMemPerBlockOptin = 227 << 10;
    facts->reservedSharedMemPerBlock = 1 << 10;
    facts->sharedMemPerMultiprocessor = 228 << 10;
    facts->regsPerBlock = facts->regsPerMultiprocessor = 64 << 10;
    facts->warpSize = 32;
    facts->maxThreadsPerBlock = 1024;
    facts->maxThreadsDim[0] = facts->maxThreadsDim[1] = 1024;
    facts->maxThreadsDim[2] = 64;
    facts->maxGridSize[0] = 0x7fffffff;
    facts->maxGridSize[1] = facts->maxGridSize[2] = 65535;
    facts->major = 9;
    facts->multiProcessorCount = 4;  // few: loops over the grid go round
    facts->maxThreadsPerMultiProcessor = 2048;
    facts->maxBlocksPerMultiProcessor = 32;
    facts->l2CacheSize = 50 << 20;
    facts->memoryBusWidth = 6144;
    facts->canMapHostMemory = facts->unifiedAddressing = facts->concurrentKernels = 1;
    facts->streamPrioritiesSupported = facts->hostRegisterSupported = 1;
    facts->canUseHostPointerForRegisteredMem = 1;
    facts->asyncEngineCount = 3;
    facts->pciBusID = ordinal + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp facts;
    cudaError_t error = value ? cudaGetDeviceProperties(&facts, device) : cudaErrorInvalidValue;
    if (error) return keep_error(error);
    const std::map<int, int> values = {
        {cudaDevAttrMaxThreadsPerBlock, facts.maxThreadsPerBlock},
        {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(facts.sharedMemPerBlock)},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(facts.sharedMemPerBlockOptin)},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor,
         static_cast<int>(facts.sharedMemPerMultiprocessor)},
        {cudaDevAttrReservedSharedMemoryPerBlock,
         static_cast<int>(facts.reservedSharedMemPerBlock)},
        {cudaDevAttrWarpSize, facts.warpSize},
        {cudaDevAttrMaxRegistersPerBlock, facts.regsPerBlock},
        {cudaDevAttrMultiProcessorCount, facts.multiProcessorCount},
        {cudaDevAttrMaxThreadsPerMultiProcessor, facts.maxThreadsPerMultiProcessor},
        {cudaDevAttrMaxBlocksPerMultiprocessor, facts.maxBlocksPerMultiProcessor},
        {cudaDevAttrComputeCapabilityMajor, facts.major},
        {cudaDevAttrComputeCapabilityMinor, facts.minor},
        {cudaDevAttrMaxGridDimX, facts.maxGridSize[0]},
        {cudaDevAttrMaxGridDimY, facts.maxGridSize[1]},
        {cudaDevAttrMaxGridDimZ, facts.maxGridSize[2]},
        {cudaDevAttrL2CacheSize, facts.l2CacheSize},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrStreamPrioritiesSupported, 1},
        {cudaDevAttrHostRegisterSupported, 1},
        {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
        {cudaDevAttrPageableMemoryAccess, 0},
        {cudaDevAttrConcurrentManagedAccess, 0},
        {cudaDevAttrManagedMemory, 0},
        {cudaDevAttrCooperativeLaunch, 0},
        {cudaDevAttrMemoryPoolsSupported, 0},
        {cudaDevAttrIntegrated, 0},
        {cudaDevAttrClockRate, 1980000},
        {cudaDevAttrMemoryClockRate, 3201000},
        {cudaDevAttrGlobalMemoryBusWidth, facts.memoryBusWidth},
        {cudaDevAttrComputeMode, cudaComputeModeDefault},
        {cudaDevAttrPciBusId, facts.pciBusID},
        {cudaDevAttrPciDeviceId, 0},
        {cudaDevAttrPciDomainId, 0},
    };
    auto found = values.find(attribute);
    if (found == values.end()) return keep_error(cudaErrorInvalidValue);
    *value = found->second;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int text_bytes, int device) {
    cudaDeviceProp facts;
    cudaError_t error =
        text && text_bytes >= 13 ? cudaGetDeviceProperties(&facts, device) : cudaErrorInvalidValue;
    if (error) return keep_error(error);
    snprintf(text, static_cast<size_t>(text_bytes), "%04x:%02x:00.0", 0,
             static_cast<unsigned>(facts.pciBusID) & 255u);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    cudaError_t error = can ? check_ordinal(device) : cudaErrorInvalidValue;
    if (!error) error = check_ordinal(peer);
    if (can) *can = 0;
    return keep_error(error);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    call here;
    if (here.error) return keep_error(here.error);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    call here;
    cudaError_t error = here.check_safe();
    if (error) return keep_error(error);
    return keep_error(here.wait(device_tails(here.self, here.device)));
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    machine &self = the_machine();
    machine_lock hold(self.lock);
    // What broke a device is told again and again.
    if (!self.devices.empty()) {
        cudaError_t broken = self.devices[static_cast<size_t>(current_device())]->broken;
        if (broken) return broken;
    }
    return last_error;
}

gs_sim_counters gs_sim_count(void) {
    machine &self = the_machine();
    machine_lock hold(self.lock);
    return self.counters;
}

const char *gs_sim_last_failure(void) {
    machine &self = the_machine();
    machine_lock hold(self.lock);
    return self.last_failure.c_str();
}

bool gs_sim_is_device_memory(const void *memory, size_t bytes) {
    memory_range found = memory_find(memory);
    if (found.kind != DEVICE_MEMORY || !found.bytes) return false;
    return bytes <=
           found.bytes - static_cast<size_t>(static_cast<const char *>(memory) - found.base);
}
}
