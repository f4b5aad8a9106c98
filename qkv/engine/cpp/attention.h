// Softmax attention over spans of tokens, forwards: what training and inference share.
//
// Queries are processed in strips of TILE_ROWS: a causal strip stops at its last key, so that the masked half of the scores is
// never computed.

#pragma once

#include <math.h>
#include <string.h>

#include <vector>

#include "vectors.h"

namespace attention {

constexpr long QUERY_BLOCK = 24;    // queries that pass by together on the way forwards: whole strips
constexpr long BLOCK = 48;  // and on the way back, where their weights are kept until keys and values get their gradients

struct Heads {  // (rows, heads, tokens, D): steps between neighbours; the D numbers of a token stand together
    float* at;
    long row, head, token;
};

struct Attention {
    Heads query, key, value, out;  // out (B, H, T, D)
    float* sums;                   // (B, H, T): log of the sum of exponentials
    const long* spans;             // (n, 3): row, first token, end. Tokens see each other within a span
    long n, tokens, heads, key_heads, width;
    float scale;
    bool causal;
    long length;        // S, the keys of a row: T or, with a KV cache, more
    const float* bias;  // (B or 1, H, T, S), added to the scaled scores; null = none
    long bias_row;      // from one row to the next, 0 = the same for all
    Heads dout, dquery, dkey, dvalue;  // gradients, for the way back
};

// --- c (rows, 16) = a (rows, depth) panel (depth, 16), or with `add` c += ...

// Neighbouring rows of a are `row` apart, neighbouring columns `column`; rows of c are `step` apart.
template <int rows>
static void tile(const float* a, long row, long column, long depth, const float* panel, float* c, long step, bool add) {
    Vec sums[rows][PANEL_VECTORS] = {};
    for (long k = 0; k < depth; k++, a += column, panel += PANEL_WIDTH)
#pragma GCC unroll 16
        for (int i = 0; i < PANEL_VECTORS; i++) {
            Vec some = *(const UnalignedVec*)(panel + i * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) sums[r][i] += a[r * row] * some;
        }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int i = 0; i < PANEL_VECTORS; i++) {
            UnalignedVec* to = (UnalignedVec*)(c + r * step + i * LANES);
            *to = add ? *to + sums[r][i] : sums[r][i];
        }
}

static void tile_of(long rows, const float* a, long row, long column, long depth, const float* panel, float* c, long step,
                    bool add = false) {
    switch (rows) {
        case 1: return tile<1>(a, row, column, depth, panel, c, step, add);
        case 2: return tile<2>(a, row, column, depth, panel, c, step, add);
        case 3: return tile<3>(a, row, column, depth, panel, c, step, add);
        case 4: return tile<4>(a, row, column, depth, panel, c, step, add);
        case 5: return tile<5>(a, row, column, depth, panel, c, step, add);
        case 6: return tile<6>(a, row, column, depth, panel, c, step, add);
#if defined(__AVX512F__)
        case 7: return tile<7>(a, row, column, depth, panel, c, step, add);
        case 8: return tile<8>(a, row, column, depth, panel, c, step, add);
        case 9: return tile<9>(a, row, column, depth, panel, c, step, add);
        case 10: return tile<10>(a, row, column, depth, panel, c, step, add);
        case 11: return tile<11>(a, row, column, depth, panel, c, step, add);
        case 12: return tile<12>(a, row, column, depth, panel, c, step, add);
#endif
    }
}

static long up(long n) { return (n + PANEL_WIDTH - 1) / PANEL_WIDTH * PANEL_WIDTH; }

struct Stride {  // where tokens are that lie at equal distances
    long step;
    long operator[](long token) const { return token * step; }
};

// x (tokens, D), each token at one of the offsets -> (D / 16, tokens, 16): the matrix behind a product whose depth is the tokens
template <class Places>
static void pack_panels(const float* x, Places offsets, long tokens, long width, float* to) {
    for (long d = 0; d < width; d += PANEL_WIDTH)
        for (long t = 0; t < tokens; t++, to += PANEL_WIDTH) memcpy(to, x + offsets[t] + d, PANEL_WIDTH * sizeof(float));
}

static void pack_panels(const float* x, long step, long tokens, long width, float* to) { pack_panels(x, Stride{step}, tokens, width, to); }

// x (tokens, D) -> (tokens / 16, D, 16): its transpose behind a product whose depth is D; the last panel filled with 0
template <class Places>
static void pack_transposed(const float* x, Places offsets, long tokens, long width, float* to) {
    memset(to, 0, up(tokens) * width * sizeof(float));
    for (long t = 0; t < tokens; t++) {
        float* column = to + t / PANEL_WIDTH * PANEL_WIDTH * width + t % PANEL_WIDTH;
        for (long d = 0; d < width; d++) column[d * PANEL_WIDTH] = x[offsets[t] + d];
    }
}

static void pack_transposed(const float* x, long step, long tokens, long width, float* to) {
    pack_transposed(x, Stride{step}, tokens, width, to);
}

// --- attention

struct Workspace {  // what one thread needs for a span; it grows and is used again
    std::vector<float> parts[7];
    float* of(int part, long size) {
        if ((long)parts[part].size() < size) parts[part].resize(size);
        return parts[part].data();
    }
};

struct Span {  // queries of one row, and the keys that they see
    long row, from, tokens, keys;
    const long* counts = nullptr;   // (tokens): keys that each query sees, not decreasing; null: all, or if causal those up to its own
    const long* indices = nullptr;  // (keys): which tokens of the row they are; null: those of the queries
    Span(long row, long from, long tokens, long keys) : row(row), from(from), tokens(tokens), keys(keys) {}
    Span(const Attention& a, long number)
        : Span(a.spans[3 * number], a.spans[3 * number + 1], a.spans[3 * number + 2] - a.spans[3 * number + 1],
               a.spans[3 * number + 2] - a.spans[3 * number + 1]) {}
    float* of(const Heads& x, long head) const { return x.at + row * x.row + head * x.head + from * x.token; }
    float* sums(const Attention& a, long head) const { return a.sums + (row * a.heads + head) * a.tokens + from; }
};

// the number of keys that a query sees
static long visible_keys(const Attention& a, const Span& s, long query) {
    return s.counts ? s.counts[query] : a.causal ? query + 1 : s.keys;
}

// The queries of a block, strip by strip: f(first query, its place in the block, how many, keys that the last one sees)
template <class Function>
static void strips(const Attention& a, const Span& s, long from, long count, Function f) {
    for (long t = 0; t < count; t += TILE_ROWS) {
        long rows = std::min(TILE_ROWS, count - t);
        f(from + t, t, rows, visible_keys(a, s, from + t + rows - 1));
    }
}

// table (count, step) = x (count, D) y^T, y `pack_transposed`, as far as the causal rule allows. A panel stays in the nearest cache
// while the strips pass by.
static void compute_scores(const Attention& a, const Span& s, long from, long count, const float* x, long token, const float* y,
                    float* table, long step) {
    for (long k = 0; k < up(visible_keys(a, s, from + count - 1)); k += PANEL_WIDTH)
        strips(a, s, from, count, [&](long query, long t, long rows, long keys) {
            if (k < keys) tile_of(rows, x + query * token, token, 1, a.width, y + k * a.width, table + t * step + k, step);
        });
}

// x (count, D) = table (count, keys) y (keys, D), y `pack_panels`
static void weighted_sum(const Attention& a, const Span& s, long from, long count, const float* table, long step, const float* y,
                    float* x, long token) {
    for (long d = 0; d < a.width; d += PANEL_WIDTH)
        strips(a, s, from, count, [&](long query, long t, long rows, long keys) {
            tile_of(rows, table + t * step, step, 1, keys, y + d * s.keys, x + query * token + d, token);
        });
}

// x (keys, D) += table (count, keys)^T y (count, D), y `pack_panels`
static void gather(const float* table, long step, long count, long keys, const float* y, long D, float* x, long token) {
    for (long d = 0; d < D; d += PANEL_WIDTH)
        for (long k = 0; k < keys; k += TILE_ROWS)
            tile_of(std::min(TILE_ROWS, keys - k), table + k, 1, step, count, y + d * count, x + k * token + d, token, true);
}

// the first `keys` of the scores s (1, wide) -> exp(scale s - shift), the others 0; returns their sum
static float weights_of(float* s, long keys, long wide, float scale, float shift) {
    Float8 sums = {};
    for (long i = keys; i < up(keys); i++) s[i] = -INFINITY;
    for (long i = 0; i < up(keys); i += 8) sums += *(UnalignedFloat8*)(s + i) = exponential(*(UnalignedFloat8*)(s + i) * scale - shift);
    for (long i = up(keys); i < wide; i++) s[i] = 0;
    return total(sums);
}

static float largest(const float* s, long keys) {
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (long i = 0; i < keys; i++) most = s[i] > most ? s[i] : most;
    return most;
}

// s (keys) = scale s + bias, for the query of a head
static void add_bias(const Attention& a, const Span& s, long head, long query, float* scores, long keys) {
    const float* bias = a.bias + s.row * a.bias_row + (head * a.tokens + s.from + query) * a.length;
    for (long k = 0; k < keys; k++) scores[k] = a.scale * scores[k] + bias[s.indices ? s.indices[k] : s.from + k];
}

// out = softmax(q K^T scale + bias) V for the queries of one head; `keys` along, `values` across
static void attend_queries(const Attention& a, const Span& s, long head, const float* keys, const float* values, float* table) {
    float *out = s.of(a.out, head), *sums = a.sums ? s.sums(a, head) : nullptr, scale = a.bias ? 1 : a.scale;
    long step = up(s.keys), D = a.width;
    for (long from = 0; from < s.tokens; from += QUERY_BLOCK) {
        long count = std::min(QUERY_BLOCK, s.tokens - from), wide = up(visible_keys(a, s, from + count - 1));
        float share[QUERY_BLOCK];
        compute_scores(a, s, from, count, s.of(a.query, head), a.query.token, keys, table, step);
        for (long r = 0; r < count; r++) {
            float* row = table + r * step;
            long own = visible_keys(a, s, from + r);
            if (own == 0) {  // padding before the first real token
                std::fill(row, row + wide, 0.0f);
                share[r] = 0;
                continue;
            }
            if (a.bias) add_bias(a, s, head, from + r, row, own);
            float most = scale * largest(row, own), sum = weights_of(row, own, wide, scale, most);
            if (sums) sums[from + r] = most + logf(sum);
            share[r] = 1 / sum;
        }
        weighted_sum(a, s, from, count, table, step, values, out, a.out.token);
        for (long r = 0; r < count; r++)
            for (long d = 0; d < D; d++) out[(from + r) * a.out.token + d] *= share[r];
    }
}

// All queries of a span and of the heads that share one key head; `at` < n * key_heads. It may throw std::bad_alloc.
static void attend_span(const Attention& a, long at, Workspace& room) {
    Span s(a, at / a.key_heads);
    long head = at % a.key_heads, group = a.heads / a.key_heads, size = up(s.keys) * a.width;
    float *keys = room.of(0, size), *values = room.of(1, size), *table = room.of(2, QUERY_BLOCK * up(s.keys));
    pack_transposed(s.of(a.key, head), a.key.token, s.keys, a.width, keys);
    pack_panels(s.of(a.value, head), a.value.token, s.keys, a.width, values);
    for (long g = 0; g < group; g++) attend_queries(a, s, head * group + g, keys, values, table);
}

}  // namespace attention
