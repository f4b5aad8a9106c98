// Vectors of floats: what all kernels share.

#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>

// For a check against the structures of Python: sizeof_T() returns the size of T.
#define EXPORT_SIZE(T) \
    extern "C" long sizeof_##T() { return sizeof(T); }

constexpr int OUT_OF_MEMORY = 1, OUT_OF_RANGE = 2;  // what a kernel returns where 0 is success; an exception must not leave a parallel region

constexpr long PANEL_WIDTH = 16;  // columns of a panel, the unit of all matrix products

#if defined(__AVX512F__)
constexpr long LANES = 16;  // floats in a register
constexpr long TILE_ROWS = 12;   // rows of a tile: with two panels 24 sums, of 32 registers
constexpr long TILE_PANELS = 2;    // panels of a tile
#else
constexpr long LANES = 8;
constexpr long TILE_ROWS = 6;  // 6 x 2 sums, 2 registers of weights and 1 of x fill the 16 there are
constexpr long TILE_PANELS = 1;
#endif
constexpr long PANEL_VECTORS = PANEL_WIDTH / LANES;  // registers of a row of a panel
typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef float UnalignedVec __attribute__((vector_size(4 * LANES), aligned(4)));

typedef float Float8 __attribute__((vector_size(32)));              // one AVX2 register; other processors use two or four
typedef float UnalignedFloat8 __attribute__((vector_size(32), aligned(4)));  // the same at any address

// e^x = 2^n e^r: n the whole number nearest to x / ln 2, e^r by its series (|r| < 0.35, so eight terms are exact enough).
// For x <= 0; what is too small for a float, -infinity too, gives 0; NaN stays NaN.
static Float8 exponential(Float8 x) {
    typedef int Bits __attribute__((vector_size(32)));
    const Float8 zero = {}, lowest = zero - 87.0f;
    Float8 bounded = x > lowest ? x : lowest;
    Bits n = __builtin_convertvector(bounded * 1.44269504f - 0.5f, Bits);  // cut towards 0
    Float8 whole = __builtin_convertvector(n, Float8);
    Float8 r = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;  // ln 2 in two parts, the first without rounding
    Float8 series = 1 / 5040.0f * r + 1 / 720.0f;
    for (float term : {1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 0.5f, 1.0f, 1.0f}) series = series * r + term;
    Bits power = (n + 127) << 23;  // 2^n as the bits of a float
    Float8 result = x > lowest ? series * (Float8)power : zero;
    return x == x ? result : x;
}

static float total(Float8 x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }

static float dot(const float* a, const float* b, long n) {
    Float8 sums = {};
    long i = 0;
    for (; i + 8 <= n; i += 8) {
        Float8 left = *(const UnalignedFloat8*)(a + i), right = *(const UnalignedFloat8*)(b + i);
        sums += left * right;
    }
    float sum = total(sums);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}
