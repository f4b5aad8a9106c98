// Which of the libraries this processor can run. Compiled without any instruction set beyond the processor family's own.

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

extern "C" const char* best_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return "portable";
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    return wide ? "avx512" : "avx2";
#elif defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & (1ul << 20) ? "dotprod" : "portable";  // HWCAP_ASIMDDP
#elif defined(__aarch64__) && defined(__APPLE__)
    return "dotprod";  // every Apple silicon has it
#else
    return "portable";
#endif
}
