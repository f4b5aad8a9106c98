// y = x W^T + b for weights in float32, int8 and int4, laid out in panels of 16 columns.
//
// A product of few rows is bound by reading W: a panel is read once, in the order in which it lies, and the sums stay in registers.
// With many rows a panel stays in the nearest cache while tiles of rows pass by. The bits of a row do not depend on
// the other rows.
//
// Integer products are exact. A row of x is rounded to int8 with one scale (or one for each group of inputs), weights to int8 with
// one scale per column (or per column and group). A weight w is stored as the unsigned number w + offset, because the instructions
// multiply unsigned by signed bytes: sum_k (w_k + offset) x_k - offset sum_k x_k = sum_k w_k x_k. Four products of bytes are added in
// 32 bits (VNNI, dot product of ARM) or, where the processor has no such instruction, after widening both factors to 16 bits: AVX2's
// own product of bytes (vpmaddubsw) would saturate its sums of 16 bits.

#pragma once

#include <float.h>
#include <math.h>
#include <string.h>

#include <algorithm>
#include <bit>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#include "threads.h"
#include "vectors.h"

constexpr long CHUNK_PANELS = 4;    // panels of a chunk of work
constexpr long BLOCK = 192;  // rows that stay in the cache while the panels pass by
constexpr long CHUNK = 512;  // float32 products that are added up before they join the rest: long sums would lose digits
constexpr long INT_TILE_ROWS = std::min(TILE_ROWS, 8l);  // rows of a tile of integers: more do not stay in registers (GCC 12)
constexpr long GGUF_GROUP = 32;  // inputs of a group in a GGUF file: loops over so many are unrolled
constexpr long PREFETCH_STEPS = 16;   // for a single row, the weights of so many steps later are fetched now
constexpr long PREFETCH_BYTES = 8192;  // the same for integers: farther than processors look ahead by themselves

enum WeightType : long { FLOAT32, INT8, INT4 };

struct Linear {           // x W^T + b
    const void* panels;   // float32 (out / 16, in, 16); int8 (out / 16, in / 4, 16, 4); int4 (out / 16, in / 8, 16, 4), see Int4
    const float* scales;  // int8, int4: (out / 16, groups, 16); null for float32
    const float* bias;    // (out), like the last panel filled up with 0
    long in, out, type;
    long group;  // inputs that share a scale, a multiple of 8; all of them if it is >= in
};

static inline long up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline long groups_of(const Linear& l) { return l.type == FLOAT32 ? 0 : (l.in + l.group - 1) / l.group; }

// --- rows of x in int8

struct QuantizedRows {        // rows of x as the integer products read them
    int8_t* x;          // (rows, in rounded up to 8), filled up with 0
    float* scales;      // (rows, groups)
    int32_t* sums;      // (rows, groups): sum of x over a group
    static long width(const Linear& l) { return up(l.in, 8); }
    static long bytes(const Linear& l, long rows) {
        return l.type == FLOAT32 ? 0 : rows * (width(l) + groups_of(l) * (sizeof(float) + sizeof(int32_t)));
    }
    QuantizedRows(const Linear& l, long rows, void* room)
        : x((int8_t*)room), scales((float*)(x + rows * width(l))), sums((int32_t*)(scales + rows * groups_of(l))) {}
};

// x (n) / scale to the nearest integer, scale = max |x| / 127. An infinite or undefined number makes the scale, and so the result,
// undefined. Without its sign a number compares as its bits do, as whole numbers, and the infinite and undefined ones are the largest.
__attribute__((always_inline)) static inline void quantize_group(const float* x, long n, int8_t* to, float* scale, int32_t* total) {
    int32_t highest = 0, infinite = 0x7f800000, sum = 0;
#pragma omp simd reduction(max : highest)
    for (long i = 0; i < n; i++) {
        int32_t bits = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
        highest = bits > highest ? bits : highest;
    }
    float most = std::bit_cast<float>(highest), rate = most > 1e-30f && highest < infinite ? 127 / most : 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) {
        int32_t whole = (int32_t)(x[i] * rate + copysignf(0.5f, x[i]));
        to[i] = (int8_t)whole;
        sum += whole;
    }
    *scale = highest < infinite ? most / 127 : NAN;
    *total = sum;
}

static void quantize_row(const Linear& l, const float* x, const QuantizedRows& to, long row) {
    long width = QuantizedRows::width(l), groups = groups_of(l), group = std::min(l.group, l.in);
    int8_t* out = to.x + row * width;
    float* scales = to.scales + row * groups;
    int32_t* sums = to.sums + row * groups;
    memset(out + l.in, 0, width - l.in);
    for (long g = 0, from = 0; g < groups; g++, from += group) {
        long n = std::min(group, l.in - from);
        if (n == GGUF_GROUP) quantize_group(x + from, GGUF_GROUP, out + from, scales + g, sums + g);
        else quantize_group(x + from, n, out + from, scales + g, sums + g);
    }
}

typedef int32_t UnalignedInts __attribute__((vector_size(4 * LANES), aligned(4)));

// --- sixteen sums of 32 bits: those of a row of a panel. add_products: += the sum over j < 4 of w[c][j] (16, 4) and x[j], which are
// given as one number of 32 bits

#if defined(__AVX512VNNI__)
typedef __m512i Ints;
typedef __m512i Bytes;
static inline Ints ints(int32_t all) { return _mm512_set1_epi32(all); }
static inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
static inline Ints add_products(Ints sums, Bytes w, int32_t x) { return _mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(x)); }
static inline void store(Ints x, int32_t* to) { _mm512_storeu_si512(to, x); }
static inline Bytes load_bytes(const uint8_t* from) { return _mm512_loadu_si512(from); }
static inline Bytes low_nibbles(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
static inline Bytes high_nibbles(Bytes x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
constexpr int32_t INT8_OFFSET = 128;
#elif defined(__AVX2__)
struct Ints {
    __m256i low, high;
};
typedef Ints Bytes;
static inline Ints ints(int32_t all) { return {_mm256_set1_epi32(all), _mm256_set1_epi32(all)}; }
static inline Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
static inline __m256i add_half(__m256i sums, __m256i w, __m256i even, __m256i odd) {  // even and odd numbers of x in 16 bits
    __m256i a = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), even);
    return _mm256_add_epi32(sums, _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_srli_epi16(w, 8), odd)));
}
static inline Ints add_products(Ints sums, Bytes w, int32_t x) {
    __m256i all = _mm256_set1_epi32(x), even = _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8), odd = _mm256_srai_epi16(all, 8);
    return {add_half(sums.low, w.low, even, odd), add_half(sums.high, w.high, even, odd)};
}
static inline void store(Ints x, int32_t* to) {
    _mm256_storeu_si256((__m256i*)to, x.low);
    _mm256_storeu_si256((__m256i*)to + 1, x.high);
}
static inline Bytes load_bytes(const uint8_t* from) {
    return {_mm256_loadu_si256((const __m256i*)from), _mm256_loadu_si256((const __m256i*)from + 1)};
}
static inline Bytes low_nibbles(Bytes x) {
    return {_mm256_and_si256(x.low, _mm256_set1_epi8(15)), _mm256_and_si256(x.high, _mm256_set1_epi8(15))};
}
static inline Bytes high_nibbles(Bytes x) { return low_nibbles({_mm256_srli_epi16(x.low, 4), _mm256_srli_epi16(x.high, 4)}); }
constexpr int32_t INT8_OFFSET = 128;
#elif defined(__ARM_FEATURE_DOTPROD)
struct Ints {
    int32x4_t quarter[4];
};
struct Bytes {
    int8x16_t quarter[4];
};
static inline Ints ints(int32_t all) { return {vdupq_n_s32(all), vdupq_n_s32(all), vdupq_n_s32(all), vdupq_n_s32(all)}; }
static inline Ints add(Ints a, const Ints& b) {
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) a.quarter[i] = vaddq_s32(a.quarter[i], b.quarter[i]);
    return a;
}
static inline Ints add_products(Ints sums, const Bytes& w, int32_t x) {
    int8x16_t all = vreinterpretq_s8_s32(vdupq_n_s32(x));
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) sums.quarter[i] = vdotq_s32(sums.quarter[i], w.quarter[i], all);
    return sums;
}
static inline void store(const Ints& x, int32_t* to) {
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) vst1q_s32(to + 4 * i, x.quarter[i]);
}
// signed products: w + 128 becomes w again, which needs no offset
static inline Bytes load_bytes(const uint8_t* from) {
    Bytes x;
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) x.quarter[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from + 16 * i), vdupq_n_u8(128)));
    return x;
}
static inline Bytes low_nibbles(Bytes x) {  // the highest bit, which load_bytes has changed, is not among them
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) x.quarter[i] = vandq_s8(x.quarter[i], vdupq_n_s8(15));
    return x;
}
static inline Bytes high_nibbles(Bytes x) {
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        uint8x16_t original = veorq_u8(vreinterpretq_u8_s8(x.quarter[i]), vdupq_n_u8(128));
        x.quarter[i] = vreinterpretq_s8_u8(vshrq_n_u8(original, 4));
    }
    return x;
}
constexpr int32_t INT8_OFFSET = 0;
#else
struct Ints {
    int32_t at[PANEL_WIDTH];
};
struct Bytes {
    uint8_t at[64];
};
static inline Ints ints(int32_t all) {
    Ints x;
    std::fill(x.at, x.at + PANEL_WIDTH, all);
    return x;
}
static inline Ints add(Ints a, const Ints& b) {
    for (int c = 0; c < PANEL_WIDTH; c++) a.at[c] += b.at[c];
    return a;
}
static inline Ints add_products(Ints sums, const Bytes& w, int32_t x) {
    int8_t bytes[4];
    memcpy(bytes, &x, 4);
    for (int c = 0; c < PANEL_WIDTH; c++)
        for (int j = 0; j < 4; j++) sums.at[c] += (int32_t)w.at[4 * c + j] * bytes[j];
    return sums;
}
static inline void store(const Ints& x, int32_t* to) { memcpy(to, x.at, sizeof x.at); }
static inline Bytes load_bytes(const uint8_t* from) {
    Bytes x;
    memcpy(x.at, from, sizeof x.at);
    return x;
}
static inline Bytes low_nibbles(Bytes x) {
    for (uint8_t& one : x.at) one &= 15;
    return x;
}
static inline Bytes high_nibbles(Bytes x) {
    for (uint8_t& one : x.at) one >>= 4;
    return x;
}
constexpr int32_t INT8_OFFSET = 128;
#endif

// 64 bytes of a panel: four inputs of sixteen columns
struct Int8 {
    static constexpr long inputs = 4;
    static constexpr int32_t offset = INT8_OFFSET;
    template <int rows, int panels>
    __attribute__((always_inline)) static inline void step(Ints (&sums)[rows][panels], const uint8_t* w, long panel, const int8_t* x, long width) {
#pragma GCC unroll 16
        for (int p = 0; p < panels; p++) {
            Bytes weights = load_bytes(w + p * panel);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                int32_t four;
                memcpy(&four, x + r * width, 4);
                sums[r][p] = add_products(sums[r][p], weights, four);
            }
        }
    }
};

// 64 bytes of a panel: eight inputs of sixteen columns, w + 8 in four bits; the first four inputs in the low halves of the bytes
struct Int4 {
    static constexpr long inputs = 8;
    static constexpr int32_t offset = 8;
    template <int rows, int panels>
    __attribute__((always_inline)) static inline void step(Ints (&sums)[rows][panels], const uint8_t* w, long panel, const int8_t* x, long width) {
#pragma GCC unroll 16
        for (int p = 0; p < panels; p++) {
            Bytes weights = load_bytes(w + p * panel), low = low_nibbles(weights), high = high_nibbles(weights);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                int32_t four[2];
                memcpy(four, x + r * width, 8);
                sums[r][p] = add_products(sums[r][p], low, four[0]);
                sums[r][p] = add_products(sums[r][p], high, four[1]);
            }
        }
    }
};

// totals (rows, panels, 16) = the sums over one group of inputs of `rows` rows and some panels. With few rows, `ways` steps go on
// side by side: one sum after the other would wait for its predecessor.
template <class Type, int rows, int panels, int ways>
__attribute__((always_inline)) static inline void group_sums(const uint8_t* w, long panel, const int8_t* x, long width, long inputs,
                                                             const int32_t* sums_of_x, long groups, int32_t* totals) {
    Ints sums[rows][panels];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int p = 0; p < panels; p++) sums[r][p] = ints(-Type::offset * sums_of_x[r * groups]);
    long steps = (inputs + Type::inputs - 1) / Type::inputs, s = 0;
    if (ways > 1) {
        Ints more[ways > 1 ? ways - 1 : 1][rows][panels] = {};
        for (; s + ways <= steps; s += ways) {
            const uint8_t* now = w + 64 * s;
            if (rows == 1)
#pragma GCC unroll 16
                for (int way = 0; way < ways; way++) __builtin_prefetch(now + 64 * way + PREFETCH_BYTES);
            Type::step(sums, now, panel, x + s * Type::inputs, width);
#pragma GCC unroll 16
            for (int way = 1; way < ways; way++)
                Type::step(more[way - 1], now + 64 * way, panel, x + (s + way) * Type::inputs, width);
        }
#pragma GCC unroll 16
        for (int way = 0; way < ways - 1; way++)
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
                for (int p = 0; p < panels; p++) sums[r][p] = add(sums[r][p], more[way][r][p]);
    }
    for (; s < steps; s++) Type::step(sums, w + 64 * s, panel, x + s * Type::inputs, width);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int p = 0; p < panels; p++) store(sums[r][p], totals + (r * panels + p) * PANEL_WIDTH);
}

// The same as a function of its own: within a larger one GCC 12 moves the sums of many rows from register to register at every step.
template <class Type, int rows, int panels>
__attribute__((noinline)) static void group_sums_of_many(const uint8_t* w, long panel, const int8_t* x, long width, long inputs,
                                                         const int32_t* sums_of_x, long groups, int32_t* totals) {
    group_sums<Type, rows, panels, 1>(w, panel, x, width, inputs, sums_of_x, groups, totals);
}

// y (rows, panels x 16) = x W^T + b for `rows` rows of x and the panels from `column` on. Groups have `size` inputs, or if it is 0 as
// many as in `l`.
template <class Type, int rows, int panels, int ways, long size = 0>
static void tile_integers(const Linear& l, const QuantizedRows& x, long row, long column, float* y, long step, bool add) {
    long width = QuantizedRows::width(l), groups = groups_of(l), panel = up(l.in, Type::inputs) / Type::inputs * 64;
    long group = size ? size : std::min(l.group, l.in);
    const float* scales = l.scales + column * groups;
    const uint8_t* w = (const uint8_t*)l.panels + column / PANEL_WIDTH * panel;
    Vec total[rows][panels][PANEL_VECTORS] = {};
    for (long g = 0, from = 0; g < groups; g++, from += group) {
        int32_t whole[rows][panels][PANEL_WIDTH];
        constexpr auto sum = ways > 1 ? group_sums<Type, rows, panels, ways> : group_sums_of_many<Type, rows, panels>;
        sum(w + from / Type::inputs * 64, panel, x.x + row * width + from, width, size ? size : std::min(group, l.in - from),
            x.sums + row * groups + g, groups, whole[0][0]);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
            for (int p = 0; p < panels; p++)
#pragma GCC unroll 16
                for (int i = 0; i < PANEL_VECTORS; i++)
                    total[r][p][i] += __builtin_convertvector(*(UnalignedInts*)(whole[r][p] + i * LANES), Vec) * x.scales[(row + r) * groups + g] *
                                      *(UnalignedVec*)(scales + (p * groups + g) * PANEL_WIDTH + i * LANES);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int p = 0; p < panels; p++)
#pragma GCC unroll 16
            for (int i = 0; i < PANEL_VECTORS; i++) {
                long c = p * PANEL_WIDTH + i * LANES;
                UnalignedVec* to = (UnalignedVec*)(y + r * step + c);
                Vec result = total[r][p][i] + *(UnalignedVec*)(l.bias + column + c);
                *to = add ? *to + result : result;
            }
}

template <class Type, int panels>
static void tile_integers_of(long rows, const Linear& l, const QuantizedRows& x, long row, long column, float* y, long step, bool add) {
    switch (rows) {
        case 1:
            if (l.group == GGUF_GROUP && l.in % GGUF_GROUP == 0)
                return tile_integers<Type, 1, panels, 4, GGUF_GROUP>(l, x, row, column, y, step, add);
            return tile_integers<Type, 1, panels, 4>(l, x, row, column, y, step, add);
        case 2: return tile_integers<Type, 2, panels, 4 / TILE_PANELS>(l, x, row, column, y, step, add);
        case 3: return tile_integers<Type, 3, panels, 2>(l, x, row, column, y, step, add);
        case 4: return tile_integers<Type, 4, panels, 2>(l, x, row, column, y, step, add);
        case 5: return tile_integers<Type, 5, panels, 1>(l, x, row, column, y, step, add);
        case 6: return tile_integers<Type, 6, panels, 1>(l, x, row, column, y, step, add);
#if defined(__AVX512F__)
        case 7: return tile_integers<Type, 7, panels, 1>(l, x, row, column, y, step, add);
        case 8: return tile_integers<Type, 8, panels, 1>(l, x, row, column, y, step, add);
#endif
    }
}

// Some panels for all rows, in tiles of nearly equal height
template <class Type>
static void column_integers(const Linear& l, const QuantizedRows& x, long row, long rows, long column, long panels, float* y, long step,
                            bool add) {
    long tiles = (rows + INT_TILE_ROWS - 1) / INT_TILE_ROWS;
    for (long t = 0, r = 0; t < tiles; t++) {
        long height = rows / tiles + (t < rows % tiles);
        if (panels == TILE_PANELS && TILE_PANELS > 1)
            tile_integers_of<Type, TILE_PANELS>(height, l, x, row + r, column, y + r * step, step, add);
        else
            tile_integers_of<Type, 1>(height, l, x, row + r, column, y + r * step, step, add);
        r += height;
    }
}

// --- float32

// y[r][c] += sum_k x[r][k] panel[k][c], k < depth. Rows of x are `in` apart, so are panels in steps of PANEL_WIDTH. Meanwhile a
// share of what comes next, one in `share`, is fetched.
template <int rows, int panels>
static void tile(const float* x, long in, long depth, const float* panel, float* y, long step, const float* next, long share) {
    Vec sums[rows][panels][PANEL_VECTORS] = {};
    for (long k = 0; k < depth; k++)
#pragma GCC unroll 16
        for (int p = 0; p < panels; p++) {
            const float* weights = panel + (p * in + k) * PANEL_WIDTH;
            __builtin_prefetch(next + p * in * PANEL_WIDTH + k * share, 0, 2);  // into the second cache
#pragma GCC unroll 16
            for (int i = 0; i < PANEL_VECTORS; i++) {
                Vec some = *(const UnalignedVec*)(weights + i * LANES);
#pragma GCC unroll 16
                for (int r = 0; r < rows; r++) sums[r][p][i] += x[r * in + k] * some;
            }
        }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int p = 0; p < panels; p++)
#pragma GCC unroll 16
            for (int i = 0; i < PANEL_VECTORS; i++) *(UnalignedVec*)(y + r * step + p * PANEL_WIDTH + i * LANES) += sums[r][p][i];
}

template <int panels>
static void tile_of(long rows, const float* x, long in, long depth, const float* panel, float* y, long step, const float* next,
                    long share) {
    switch (rows) {
        case 1: return tile<1, panels>(x, in, depth, panel, y, step, next, share);
        case 2: return tile<2, panels>(x, in, depth, panel, y, step, next, share);
        case 3: return tile<3, panels>(x, in, depth, panel, y, step, next, share);
        case 4: return tile<4, panels>(x, in, depth, panel, y, step, next, share);
        case 5: return tile<5, panels>(x, in, depth, panel, y, step, next, share);
        case 6: return tile<6, panels>(x, in, depth, panel, y, step, next, share);
#if defined(__AVX512F__)
        case 7: return tile<7, panels>(x, in, depth, panel, y, step, next, share);
        case 8: return tile<8, panels>(x, in, depth, panel, y, step, next, share);
        case 9: return tile<9, panels>(x, in, depth, panel, y, step, next, share);
        case 10: return tile<10, panels>(x, in, depth, panel, y, step, next, share);
        case 11: return tile<11, panels>(x, in, depth, panel, y, step, next, share);
        case 12: return tile<12, panels>(x, in, depth, panel, y, step, next, share);
#endif
    }
}

// Some panels for all rows: a CHUNK of them stays in the nearest cache while all rows pass by
template <int panels>
static void column_floats(const Linear& l, const float* x, long rows, long column, float* y, long step, bool add) {
    const float *bias = l.bias + column, *panel = (const float*)l.panels + column * l.in;
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < panels * PANEL_WIDTH; c++) y[r * step + c] = bias[c] + (add ? y[r * step + c] : 0);
    long tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, share = (PANEL_WIDTH + tiles - 1) / tiles;
    for (long k = 0; k < l.in; k += CHUNK) {
        long depth = std::min(CHUNK, l.in - k);
        const float* part = panel + k * PANEL_WIDTH;
        for (long t = 0, r = 0; t < tiles; t++) {
            long height = rows / tiles + (t < rows % tiles);
            const float* next = rows == 1 ? part + PREFETCH_STEPS * PANEL_WIDTH : part + depth * (PANEL_WIDTH + t * share);
            tile_of<panels>(height, x + r * l.in + k, l.in, depth, part, y + r * step, step, next, share);
            r += height;
        }
    }
}

// --- all types

struct Input {  // rows of x: as they are, or for integer weights rounded
    const float* x;
    QuantizedRows rounded;
};

static void column(const Linear& l, const Input& in, long row, long rows, long column, long panels, float* y, long step, bool add) {
    const float* x = in.x + row * l.in;
    if (l.type == INT8) return column_integers<Int8>(l, in.rounded, row, rows, column, panels, y, step, add);
    if (l.type == INT4) return column_integers<Int4>(l, in.rounded, row, rows, column, panels, y, step, add);
    if (panels == CHUNK_PANELS) return column_floats<CHUNK_PANELS>(l, x, rows, column, y, step, add);
    if (panels == TILE_PANELS && TILE_PANELS > 1) return column_floats<TILE_PANELS>(l, x, rows, column, y, step, add);
    return column_floats<1>(l, x, rows, column, y, step, add);
}

// Columns `from` to `end` of at most BLOCK rows; the last panel may be narrower than PANEL_WIDTH
static void columns(const Linear& l, const Input& x, long row, long rows, float* y, bool add, long from, long end) {
    // a single row of floats takes CHUNK_PANELS panels at once: the sums of one panel would wait for each other
    long most = rows == 1 && l.type == FLOAT32 ? CHUNK_PANELS : TILE_PANELS;
    if (l.type != FLOAT32 && (rows <= 4 || l.group < l.in)) most = 1;  // with groups, sums of integers and of floats need registers
    long whole = from + (end - from) / PANEL_WIDTH * PANEL_WIDTH;
    for (long c = from; c < whole;) {
        long panels = whole - c >= most * PANEL_WIDTH ? most : 1;
        column(l, x, row, rows, c, panels, y + c, l.out, add);
        c += panels * PANEL_WIDTH;
    }
    if (long rest = end - whole) {
        float last[BLOCK * PANEL_WIDTH];
        column(l, x, row, rows, whole, 1, last, PANEL_WIDTH, false);
        for (long r = 0; r < rows; r++)
            for (long c = 0; c < rest; c++) {
                float& to = y[r * l.out + whole + c];
                to = last[r * PANEL_WIDTH + c] + (add ? to : 0);
            }
    }
}

// Rows of x as a product reads them. `room`: QuantizedRows::bytes(l, rows), for integer weights.
static Input round_rows(const Team& team, const Linear& l, const float* x, long rows, void* room) {
    Input input{x, QuantizedRows(l, rows, room)};
    if (l.type == FLOAT32) return input;
    long few = std::max(1l, 4096 / l.in);
    team.each((rows + few - 1) / few, [&](long chunk) {
        for (long r = chunk * few; r < std::min(rows, (chunk + 1) * few); r++) quantize_row(l, x + r * l.in, input.rounded, r);
    });
    return input;
}

// body(first row, rows, first column, end): tasks that cover (rows, width). Neighbouring tasks read neighbouring panels.
template <class Body>
static void each_task(const Team& team, long rows, long width, const Body& body) {
    long chunk = CHUNK_PANELS * PANEL_WIDTH, chunks = (width + chunk - 1) / chunk, blocks = (rows + BLOCK - 1) / BLOCK;
    team.each(blocks * chunks, [&](long at) {
        long row = at / chunks * BLOCK, from = at % chunks * chunk;
        body(row, std::min(BLOCK, rows - row), from, std::min(from + chunk, width));
    });
}

// y (rows, out) = x W^T + b, or with `add` y += x W^T + b. `room` as in round_rows.
static void product(const Team& team, const Linear& l, const float* x, long rows, float* y, void* room, bool add = false) {
    Input input = round_rows(team, l, x, rows, room);
    each_task(team, rows, l.out, [&](long row, long count, long from, long end) {
        columns(l, input, row, count, y + row * l.out, add, from, end);
    });
}

// y (in) = row `row` of integer weights
static void weight_row(const Linear& l, long row, float* y) {
    long groups = groups_of(l), panel = l.type == INT8 ? up(l.in, 4) * PANEL_WIDTH : up(l.in, 8) * PANEL_WIDTH / 2;
    const uint8_t* w = (const uint8_t*)l.panels + row / PANEL_WIDTH * panel + row % PANEL_WIDTH * 4;
    const float* scales = l.scales + row / PANEL_WIDTH * groups * PANEL_WIDTH + row % PANEL_WIDTH;
    for (long i = 0; i < l.in; i++) {
        int32_t whole = l.type == INT8 ? w[i / 4 * 64 + i % 4] - 128 : ((w[i / 8 * 64 + i % 4] >> i / 4 % 2 * 4) & 15) - 8;
        y[i] = whole * scales[i / l.group * PANEL_WIDTH];
    }
}
