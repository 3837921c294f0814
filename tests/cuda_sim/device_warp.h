// Warps and atomics for the software machine; part of device_syntax.h.
#ifndef TESTS_CUDA_SIM_DEVICE_WARP_H
#define TESTS_CUDA_SIM_DEVICE_WARP_H
#pragma GCC system_header

// Waits until all lanes of the mask are here; the last one runs `together` over what they brought.
void gs_sim_meet(unsigned mask, void *mine,
                 void (*together)(void *const *lanes, unsigned mask, void (*with)()),
                 void (*with)(), gs_sim_place place);
unsigned gs_sim_lane();
unsigned gs_sim_alive_mask();
[[noreturn]] void gs_sim_refuse(const char *why, gs_sim_place place);

// Each lane passes its own struct. When all lanes of the mask have arrived, `together` runs once
// over the pointers of all (NULL: not in the mask), then all go on.
template <typename T>
inline void gs_sim_warp(unsigned mask, T *mine, void (*together)(T *const lanes[32], unsigned mask),
                        const char *what = "warp operation", const char *file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
    auto call = [](void *const *lanes, unsigned present, void (*with)()) {
        T *typed[32];
        for (int i = 0; i < 32; i++) typed[i] = static_cast<T *>(lanes[i]);
        reinterpret_cast<void (*)(T *const *, unsigned)>(with)(typed, present);
    };
    gs_sim_meet(mask, mine, call, reinterpret_cast<void (*)()>(together), {what, file, line});
}

// Every lane sees what all lanes brought; lanes outside the mask leave their place untouched.
template <typename T>
inline void gs_sim_exchange(unsigned mask, const T &mine, T all[32], const char *what = "exchange",
                            const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    struct lane {
        const T *in;
        T *out;
    } self = {&mine, all};
    gs_sim_warp<lane>(
        mask, &self,
        [](lane *const lanes[32], unsigned) {
            for (int to = 0; to < 32; to++) {
                for (int from = 0; lanes[to] && from < 32; from++) {
                    if (lanes[from]) lanes[to]->out[from] = *lanes[from]->in;
                }
            }
        },
        what, file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, const char *file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
    gs_sim_meet(mask, nullptr, nullptr, nullptr, {"__syncwarp", file, line});
}

template <typename T> struct gs_sim_shuffle {
    T value, result;
    unsigned source;  // a lane
};

// A lane that reads one outside the mask gets bits that nobody meant.
template <typename T>
inline T gs_sim_shuffle_from(unsigned mask, T value, unsigned source, gs_sim_place place) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8,
                  "shuffles move 2, 4 or 8 bytes");
    static_assert(std::is_trivially_copyable_v<T>, "shuffles move bits");
    gs_sim_shuffle<T> self = {value, value, source};
    gs_sim_warp<gs_sim_shuffle<T>>(
        mask, &self,
        [](gs_sim_shuffle<T> *const lanes[32], unsigned) {
            for (int to = 0; to < 32; to++) {
                if (!lanes[to]) continue;
                const gs_sim_shuffle<T> *from = lanes[lanes[to]->source];
                if (from)
                    lanes[to]->result = from->value;
                else
                    memset(static_cast<void *>(&lanes[to]->result), 0xff, sizeof(T));
            }
        },
        place.what, place.file, place.line);
    return self.result;
}

inline void gs_sim_check_width(int width, gs_sim_place place) {
    if (width < 1 || width > 32 || (width & (width - 1)))
        gs_sim_refuse("the width is not a power of two", place);
}

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                     const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    gs_sim_place place = {"__shfl_sync", file, line};
    gs_sim_check_width(width, place);
    unsigned w = static_cast<unsigned>(width), lane = gs_sim_lane();
    return gs_sim_shuffle_from(
        mask, value, (lane & ~(w - 1)) | (static_cast<unsigned>(source) & (w - 1)), place);
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    gs_sim_place place = {"__shfl_up_sync", file, line};
    gs_sim_check_width(width, place);
    unsigned lane = gs_sim_lane(), within = lane & (static_cast<unsigned>(width) - 1);
    return gs_sim_shuffle_from(mask, value, within < delta ? lane : lane - delta, place);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                          const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    gs_sim_place place = {"__shfl_down_sync", file, line};
    gs_sim_check_width(width, place);
    unsigned w = static_cast<unsigned>(width), lane = gs_sim_lane(), within = lane & (w - 1);
    return gs_sim_shuffle_from(mask, value, delta >= w || within + delta >= w ? lane : lane + delta,
                               place);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                         const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    gs_sim_place place = {"__shfl_xor_sync", file, line};
    gs_sim_check_width(width, place);
    unsigned w = static_cast<unsigned>(width), lane = gs_sim_lane();
    unsigned source = lane ^ static_cast<unsigned>(bits);
    // A later segment than one's own is out of reach.
    if (source >= (lane & ~(w - 1)) + w) source = lane;
    return gs_sim_shuffle_from(mask, value, source & 31u, place);
}

inline unsigned gs_sim_ballot(unsigned mask, int predicate, gs_sim_place place) {
    struct lane {
        int predicate;
        unsigned result;
    } self = {predicate, 0};
    gs_sim_warp<lane>(
        mask, &self,
        [](lane *const lanes[32], unsigned) {
            unsigned votes = 0;
            for (unsigned i = 0; i < 32; i++)
                votes |= lanes[i] && lanes[i]->predicate ? 1u << i : 0;
            for (unsigned i = 0; i < 32; i++) {
                if (lanes[i]) lanes[i]->result = votes;
            }
        },
        place.what, place.file, place.line);
    return self.result;
}
inline unsigned __ballot_sync(unsigned mask, int predicate, const char *file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
    return gs_sim_ballot(mask, predicate, {"__ballot_sync", file, line});
}
inline int __any_sync(unsigned mask, int predicate, const char *file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
    return gs_sim_ballot(mask, predicate, {"__any_sync", file, line}) != 0;
}
inline int __all_sync(unsigned mask, int predicate, const char *file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
    return gs_sim_ballot(mask, predicate, {"__all_sync", file, line}) == mask;
}
inline unsigned __activemask() {
    return gs_sim_alive_mask();
}

// Sums of floats by atomics depend on the order of threads: there are none here.
template <typename T> inline void gs_sim_atomic_type() {
    static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                  "atomics here are for integers of 4 or 8 bytes");
}
template <typename T, typename V> inline T atomicAdd(T *at, V value) {
    gs_sim_atomic_type<T>();
    return __atomic_fetch_add(at, static_cast<T>(value), __ATOMIC_RELAXED);
}
template <typename T, typename V> inline T atomicSub(T *at, V value) {
    gs_sim_atomic_type<T>();
    return __atomic_fetch_sub(at, static_cast<T>(value), __ATOMIC_RELAXED);
}
template <typename T, typename V> inline T atomicOr(T *at, V value) {
    gs_sim_atomic_type<T>();
    return __atomic_fetch_or(at, static_cast<T>(value), __ATOMIC_RELAXED);
}
template <typename T, typename V> inline T atomicAnd(T *at, V value) {
    gs_sim_atomic_type<T>();
    return __atomic_fetch_and(at, static_cast<T>(value), __ATOMIC_RELAXED);
}
template <typename T, typename V> inline T atomicXor(T *at, V value) {
    gs_sim_atomic_type<T>();
    return __atomic_fetch_xor(at, static_cast<T>(value), __ATOMIC_RELAXED);
}
template <typename T, typename V> inline T atomicExch(T *at, V value) {
    static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "4 or 8 bytes");
    T desired = static_cast<T>(value), old;
    __atomic_exchange(at, &desired, &old, __ATOMIC_RELAXED);
    return old;
}
template <typename T, typename C, typename V> inline T atomicCAS(T *at, C compare, V value) {
    gs_sim_atomic_type<T>();
    T expected = static_cast<T>(compare);
    __atomic_compare_exchange_n(at, &expected, static_cast<T>(value), false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
    return expected;
}
template <typename T, typename V> inline T atomicMax(T *at, V value) {
    gs_sim_atomic_type<T>();
    T old = __atomic_load_n(at, __ATOMIC_RELAXED), wanted = static_cast<T>(value);
    while (old < wanted && !__atomic_compare_exchange_n(at, &old, wanted, false, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
    return old;
}
template <typename T, typename V> inline T atomicMin(T *at, V value) {
    gs_sim_atomic_type<T>();
    T old = __atomic_load_n(at, __ATOMIC_RELAXED), wanted = static_cast<T>(value);
    while (old > wanted && !__atomic_compare_exchange_n(at, &old, wanted, false, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
    return old;
}

#endif
