// Intrinsics and cache-hinted accesses for the software machine; part of device_syntax.h. The `_rn`
// forms are the host's operations, which round to nearest too (files are compiled without
// contraction); the fast forms (__expf, rsqrtf …) are the exact ones: a device's last bits are
// another thing.
#ifndef TESTS_CUDA_SIM_DEVICE_MATH_H
#define TESTS_CUDA_SIM_DEVICE_MATH_H
#pragma GCC system_header

template <typename A, typename B>
constexpr std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>,
                           std::common_type_t<A, B>>
min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return static_cast<T>(std::fmin(static_cast<T>(a), static_cast<T>(b)));
    else
        return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <typename A, typename B>
constexpr std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>,
                           std::common_type_t<A, B>>
max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return static_cast<T>(std::fmax(static_cast<T>(a), static_cast<T>(b)));
    else
        return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

template <typename To, typename From> inline To gs_sim_same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x) {
    return gs_sim_same_bits<unsigned>(x);
}
inline int __float_as_int(float x) {
    return gs_sim_same_bits<int>(x);
}
inline float __uint_as_float(unsigned x) {
    return gs_sim_same_bits<float>(x);
}
inline float __int_as_float(int x) {
    return gs_sim_same_bits<float>(x);
}
inline long long __double_as_longlong(double x) {
    return gs_sim_same_bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return gs_sim_same_bits<double>(x);
}

inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __frcp_rn(float a) {
    return 1.0f / a;
}
inline float __fsqrt_rn(float a) {
    return std::sqrt(a);
}
inline float __fmaf_rn(float a, float b, float c) {
    return std::fma(a, b, c);
}
inline double __dadd_rn(double a, double b) {
    return a + b;
}
inline double __dsub_rn(double a, double b) {
    return a - b;
}
inline double __dmul_rn(double a, double b) {
    return a * b;
}
inline double __ddiv_rn(double a, double b) {
    return a / b;
}
inline double __dsqrt_rn(double a) {
    return std::sqrt(a);
}
inline double __fma_rn(double a, double b, double c) {
    return std::fma(a, b, c);
}

inline float rsqrtf(float x) {
    return 1.0f / std::sqrt(x);
}
inline double rsqrt(double x) {
    return 1.0 / std::sqrt(x);
}
inline float __frsqrt_rn(float x) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
}
inline float __expf(float x) {
    return std::exp(x);
}
inline float __exp10f(float x) {
    return std::pow(10.0f, x);
}
inline float __logf(float x) {
    return std::log(x);
}
inline float __log2f(float x) {
    return std::log2(x);
}
inline float __powf(float x, float y) {
    return std::pow(x, y);
}
inline float __sinf(float x) {
    return std::sin(x);
}
inline float __cosf(float x) {
    return std::cos(x);
}
inline float __tanhf(float x) {
    return std::tanh(x);
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __saturatef(float x) {
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}

// Conversions saturate on a device; what does not fit is 0 for a NaN, else the nearest end.
template <typename To, typename From> inline To gs_sim_to_integer(From x) {
    if (std::isnan(x)) return 0;
    constexpr To low =
        std::is_signed_v<To> ? static_cast<To>(To(1) << (sizeof(To) * 8 - 1)) : To(0);
    constexpr To high = static_cast<To>(~low);
    if (x <= static_cast<From>(low)) return low;
    if (x >= static_cast<From>(high)) return high;
    return static_cast<To>(x);
}
inline int __float2int_rn(float x) {
    return gs_sim_to_integer<int>(std::nearbyint(x));
}
inline int __float2int_rz(float x) {
    return gs_sim_to_integer<int>(x);
}
inline int __float2int_rd(float x) {
    return gs_sim_to_integer<int>(std::floor(x));
}
inline int __float2int_ru(float x) {
    return gs_sim_to_integer<int>(std::ceil(x));
}
inline unsigned __float2uint_rn(float x) {
    return gs_sim_to_integer<unsigned>(std::nearbyint(x));
}
inline unsigned __float2uint_rz(float x) {
    return gs_sim_to_integer<unsigned>(x);
}
inline long long __double2ll_rn(double x) {
    return gs_sim_to_integer<long long>(std::nearbyint(x));
}
inline long long __double2ll_rz(double x) {
    return gs_sim_to_integer<long long>(x);
}
inline float __int2float_rn(int x) {
    return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x) {
    return static_cast<float>(x);
}
inline float __ll2float_rn(long long x) {
    return static_cast<float>(x);
}
inline float __ull2float_rn(unsigned long long x) {
    return static_cast<float>(x);
}
inline double __ll2double_rn(long long x) {
    return static_cast<double>(x);
}
inline double __ull2double_rn(unsigned long long x) {
    return static_cast<double>(x);
}
inline float __double2float_rn(double x) {
    return static_cast<float>(x);
}

inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __clz(unsigned x) {
    return x ? __builtin_clz(x) : 32;
}
inline int __clzll(unsigned long long x) {
    return x ? __builtin_clzll(x) : 64;
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __mulhi(int a, int b) {
    return static_cast<int>((static_cast<long long>(a) * b) >> 32);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(
        ((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >>
                                 (shift & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned which = selector >> (4 * i) & 15u;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (which & 7u))) & 255u;
        if (which & 8u) byte = byte & 128u ? 255u : 0u;
        result |= byte << (8 * i);
    }
    return result;
}

// Hints for caches that are not here.
template <typename T> inline T __ldg(const T *at) {
    return *at;
}
template <typename T> inline T __ldca(const T *at) {
    return *at;
}
template <typename T> inline T __ldcg(const T *at) {
    return *at;
}
template <typename T> inline T __ldcs(const T *at) {
    return *at;
}
template <typename T> inline T __ldlu(const T *at) {
    return *at;
}
template <typename T> inline T __ldcv(const T *at) {
    return *static_cast<const volatile T *>(at);
}
template <typename T, typename V> inline void __stcg(T *at, V value) {
    *at = value;
}
template <typename T, typename V> inline void __stcs(T *at, V value) {
    *at = value;
}
template <typename T, typename V> inline void __stwb(T *at, V value) {
    *at = value;
}
template <typename T, typename V> inline void __stwt(T *at, V value) {
    *at = value;
}

#endif
