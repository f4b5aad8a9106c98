// Vectors of floats: what all kernels share.

#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>

// For a check against the structures of Python: sizeof_T() returns the size of T.
#define EXPORT_SIZE(T) \
    extern "C" long sizeof_##T() { return sizeof(T); }

constexpr int OUT_OF_MEMORY = 1;  // what a kernel returns where 0 is success; an exception must not leave a parallel region

constexpr long WIDE = 16;  // columns of a panel, the unit of all matrix products

#if defined(__AVX512F__)
constexpr long LANES = 16;  // floats in a register
constexpr long TALL = 12;   // rows of a tile: with two panels 24 sums, of 32 registers
constexpr long PAIR = 2;    // panels of a tile
#else
constexpr long LANES = 8;
constexpr long TALL = 6;  // 6 x 2 sums, 2 registers of weights and 1 of x fill the 16 there are
constexpr long PAIR = 1;
#endif
constexpr long PARTS = WIDE / LANES;  // registers of a row of a panel
typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef float LooseVec __attribute__((vector_size(4 * LANES), aligned(4)));

typedef float Eight __attribute__((vector_size(32)));              // one AVX2 register; other processors use two or four
typedef float Loose __attribute__((vector_size(32), aligned(4)));  // the same at any address

// e^x = 2^n e^r: n the whole number nearest to x / ln 2, e^r by its series (|r| < 0.35, so eight terms are exact enough).
// For x <= 0; what is too small for a float, -infinity too, gives 0; NaN stays NaN.
static Eight exponential(Eight x) {
    typedef int Bits __attribute__((vector_size(32)));
    const Eight zero = {}, lowest = zero - 87.0f;
    Eight bounded = x > lowest ? x : lowest;
    Bits n = __builtin_convertvector(bounded * 1.44269504f - 0.5f, Bits);  // cut towards 0
    Eight whole = __builtin_convertvector(n, Eight);
    Eight r = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;  // ln 2 in two parts, the first without rounding
    Eight series = 1 / 5040.0f * r + 1 / 720.0f;
    for (float term : {1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 0.5f, 1.0f, 1.0f}) series = series * r + term;
    Bits power = (n + 127) << 23;  // 2^n as the bits of a float
    Eight result = x > lowest ? series * (Eight)power : zero;
    return x == x ? result : x;
}

static float total(Eight x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }

static float dot(const float* a, const float* b, long n) {
    Eight sums = {};
    long i = 0;
    for (; i + 8 <= n; i += 8) {
        Eight left = *(const Loose*)(a + i), right = *(const Loose*)(b + i);
        sums += left * right;
    }
    float sum = total(sums);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}
