// Attention and GELU for learning, forwards and backwards, written for the processor.
//
// Attention goes along the queries in strips of TALL: a causal strip stops at its last key, so that the half of the table
// which nobody may see is never computed. The backward pass forms the weights again from the sums that the forward pass
// kept (Dao et al. 2022). Compiled on first use by native.py.

#include <math.h>
#include <string.h>

#include <vector>

#include "vectors.h"

constexpr long WIDE = 16;   // columns of a panel: two registers
constexpr long TALL = 6;    // rows of a strip: 6 x 2 sums, 2 registers of a panel and 1 of a row fill the 16 there are
constexpr long FEW = 24;    // queries that pass by together on the way forwards: whole strips
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
    Heads dout, dquery, dkey, dvalue;  // gradients, for the way back
};

// --- c (rows, 16) = a (rows, depth) panel (depth, 16), or with `add` c += ...

// Neighbouring rows of a are `row` apart, neighbouring columns `column`; rows of c are `step` apart.
template <int rows>
static void tile(const float* a, long row, long column, long depth, const float* panel, float* c, long step, bool add) {
    Eight sums[rows][2] = {};
    for (long k = 0; k < depth; k++, a += column, panel += WIDE) {
        Eight left = *(const Loose*)panel, right = *(const Loose*)(panel + 8);
        for (int r = 0; r < rows; r++) {
            float one = a[r * row];
            Eight all = {one, one, one, one, one, one, one, one};
            sums[r][0] += all * left;
            sums[r][1] += all * right;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) {
            Loose* to = (Loose*)(c + r * step + 8 * half);
            *to = add ? *to + sums[r][half] : sums[r][half];
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
    }
}

static long up(long n) { return (n + WIDE - 1) / WIDE * WIDE; }

// x (tokens, D) -> (D / 16, tokens, 16): the matrix behind a product whose depth is the tokens
static void across(const float* x, long step, long tokens, long width, float* to) {
    for (long d = 0; d < width; d += WIDE)
        for (long t = 0; t < tokens; t++, to += WIDE) memcpy(to, x + t * step + d, WIDE * sizeof(float));
}

// x (tokens, D) -> (tokens / 16, D, 16): its transpose behind a product whose depth is D; the last panel filled with 0
static void along(const float* x, long step, long tokens, long width, float* to) {
    memset(to, 0, up(tokens) * width * sizeof(float));
    for (long t = 0; t < tokens; t++) {
        float* column = to + t / WIDE * WIDE * width + t % WIDE;
        for (long d = 0; d < width; d++) column[d * WIDE] = x[t * step + d];
    }
}

// --- attention

EXPORT_SIZE(Heads)
EXPORT_SIZE(Attention)

struct Room {  // what one thread needs for a span; it grows and is used again
    std::vector<float> parts[7];
    float* of(int part, long size) {
        if ((long)parts[part].size() < size) parts[part].resize(size);
        return parts[part].data();
    }
};

struct Span {  // one span of one head
    long row, from, tokens;
    Span(const Attention& a, long number)
        : row(a.spans[3 * number]), from(a.spans[3 * number + 1]), tokens(a.spans[3 * number + 2] - from) {}
    float* of(const Heads& x, long head) const { return x.at + row * x.row + head * x.head + from * x.token; }
    float* sums(const Attention& a, long head) const { return a.sums + (row * a.heads + head) * a.tokens + from; }
};

static long seen(const Attention& a, const Span& s, long query) { return a.causal ? query + 1 : s.tokens; }  // keys, by a query

// The queries of a block, strip by strip: f(first query, its place in the block, how many, keys that the last one sees)
template <class Function>
static void strips(const Attention& a, const Span& s, long from, long count, Function f) {
    for (long t = 0; t < count; t += TALL) {
        long rows = std::min(TALL, count - t);
        f(from + t, t, rows, seen(a, s, from + t + rows - 1));
    }
}

// table (count, step) = x (count, D) y^T, y `along`, as far as the causal rule allows. A panel stays in the nearest cache
// while the strips pass by.
static void compare(const Attention& a, const Span& s, long from, long count, const float* x, long token, const float* y,
                    float* table, long step) {
    for (long k = 0; k < up(seen(a, s, from + count - 1)); k += WIDE)
        strips(a, s, from, count, [&](long query, long t, long rows, long keys) {
            if (k < keys) tile_of(rows, x + query * token, token, 1, a.width, y + k * a.width, table + t * step + k, step);
        });
}

// x (count, D) = table (count, keys) y (keys, D), y `across`
static void average(const Attention& a, const Span& s, long from, long count, const float* table, long step, const float* y,
                    float* x, long token) {
    for (long d = 0; d < a.width; d += WIDE)
        strips(a, s, from, count, [&](long query, long t, long rows, long keys) {
            tile_of(rows, table + t * step, step, 1, keys, y + d * s.tokens, x + query * token + d, token);
        });
}

// x (keys, D) += table (count, keys)^T y (count, D), y `across`
static void gather(const float* table, long step, long count, long keys, const float* y, long D, float* x, long token) {
    for (long d = 0; d < D; d += WIDE)
        for (long k = 0; k < keys; k += TALL)
            tile_of(std::min(TALL, keys - k), table + k, 1, step, count, y + d * count, x + k * token + d, token, true);
}

// the first `keys` of the scores s (1, wide) -> exp(scale s - shift), the others 0; returns their sum
static float weights_of(float* s, long keys, long wide, float scale, float shift) {
    Eight sums = {};
    for (long i = keys; i < up(keys); i++) s[i] = -INFINITY;
    for (long i = 0; i < up(keys); i += 8) sums += *(Loose*)(s + i) = exponential(*(Loose*)(s + i) * scale - shift);
    for (long i = up(keys); i < wide; i++) s[i] = 0;
    return total(sums);
}

static float largest(const float* s, long keys) {
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (long i = 0; i < keys; i++) most = s[i] > most ? s[i] : most;
    return most;
}

// out = softmax(q K^T scale) V for the queries of one head; `keys` along, `values` across
static void mix(const Attention& a, const Span& s, long head, const float* keys, const float* values, float* table) {
    float *out = s.of(a.out, head), *sums = s.sums(a, head);
    long step = up(s.tokens), D = a.width;
    for (long from = 0; from < s.tokens; from += FEW) {
        long count = std::min(FEW, s.tokens - from), wide = up(seen(a, s, from + count - 1));
        float share[FEW];
        compare(a, s, from, count, s.of(a.query, head), a.query.token, keys, table, step);
        for (long r = 0; r < count; r++) {
            float* row = table + r * step;
            float most = a.scale * largest(row, seen(a, s, from + r));
            float sum = weights_of(row, seen(a, s, from + r), wide, a.scale, most);
            sums[from + r] = most + logf(sum);
            share[r] = 1 / sum;
        }
        average(a, s, from, count, table, step, values, out, a.out.token);
        for (long r = 0; r < count; r++)
            for (long d = 0; d < D; d++) out[(from + r) * a.out.token + d] *= share[r];
    }
}

// 0, or OUT_OF_MEMORY with a result that has no meaning
extern "C" int attend(const Attention* attention) {
    const Attention& a = *attention;
    long group = a.heads / a.key_heads;
    std::atomic<int> failed{0};
#pragma omp parallel
    {
        Room room;
#pragma omp for schedule(dynamic)
        for (long at = 0; at < a.n * a.key_heads; at++) try {
            Span s(a, at / a.key_heads);
            long head = at % a.key_heads, size = up(s.tokens) * a.width;
            float *keys = room.of(0, size), *values = room.of(1, size), *table = room.of(2, FEW * up(s.tokens));
            along(s.of(a.key, head), a.key.token, s.tokens, a.width, keys);
            across(s.of(a.value, head), a.value.token, s.tokens, a.width, values);
            for (long g = 0; g < group; g++) mix(a, s, head * group + g, keys, values, table);
        } catch (const std::exception&) {
            failed = OUT_OF_MEMORY;
        }
    }
    return failed;
}

struct Panels {  // of one head's keys and values
    const float *keys_along, *values_along, *keys_across;
};

// The weights P and their gradient dS = P (dP - sum(dO O)) scale, for a block of queries.
static void unmix(const Attention& a, const Span& s, long head, const Panels& p, long from, long count, float* weights,
                  float* changes) {
    long step = up(s.tokens), wide = up(seen(a, s, from + count - 1));
    const float *dout = s.of(a.dout, head), *out = s.of(a.out, head), *sums = s.sums(a, head);
    compare(a, s, from, count, s.of(a.query, head), a.query.token, p.keys_along, weights, step);
    compare(a, s, from, count, dout, a.dout.token, p.values_along, changes, step);
    for (long r = 0; r < count; r++) {
        float *w = weights + r * step, *c = changes + r * step;
        long keys = seen(a, s, from + r);
        weights_of(w, keys, wide, a.scale, sums[from + r]);
        float own = dot(dout + (from + r) * a.dout.token, out + (from + r) * a.out.token, a.width);
        for (long k = 0; k < up(keys); k += 8) {
            Loose *change = (Loose*)(c + k), weight = *(Loose*)(w + k);
            *change = weight * (*change - own) * a.scale;
        }
        for (long k = up(keys); k < wide; k++) c[k] = 0;
    }
}

static void unmix_head(const Attention& a, const Span& s, long head, const Panels& p, float* dkey, float* dvalue, Room& room) {
    long step = up(s.tokens), D = a.width, most = std::min(BLOCK, s.tokens);
    float *weights = room.of(3, most * step), *changes = room.of(4, most * step);
    float *queries = room.of(5, most * D), *douts = room.of(6, most * D);
    for (long from = 0; from < s.tokens; from += BLOCK) {
        long count = std::min(BLOCK, s.tokens - from), keys = seen(a, s, from + count - 1);
        unmix(a, s, head, p, from, count, weights, changes);
        average(a, s, from, count, changes, step, p.keys_across, s.of(a.dquery, head), a.dquery.token);
        across(s.of(a.query, head) + from * a.query.token, a.query.token, count, D, queries);
        across(s.of(a.dout, head) + from * a.dout.token, a.dout.token, count, D, douts);
        gather(changes, step, count, keys, queries, D, dkey, a.dkey.token);
        gather(weights, step, count, keys, douts, D, dvalue, a.dvalue.token);
    }
}

extern "C" int attend_back(const Attention* attention) {
    const Attention& a = *attention;
    long group = a.heads / a.key_heads;
    std::atomic<int> failed{0};
#pragma omp parallel
    {
        Room room;
#pragma omp for schedule(dynamic)
        for (long at = 0; at < a.n * a.key_heads; at++) try {
            Span s(a, at / a.key_heads);
            long head = at % a.key_heads, size = up(s.tokens) * a.width;
            float *keys_along = room.of(0, size), *values_along = room.of(1, size), *keys_across = room.of(2, size);
            along(s.of(a.key, head), a.key.token, s.tokens, a.width, keys_along);
            along(s.of(a.value, head), a.value.token, s.tokens, a.width, values_along);
            across(s.of(a.key, head), a.key.token, s.tokens, a.width, keys_across);
            float *dkey = s.of(a.dkey, head), *dvalue = s.of(a.dvalue, head);
            for (long t = 0; t < s.tokens; t++) {
                memset(dkey + t * a.dkey.token, 0, a.width * sizeof(float));
                memset(dvalue + t * a.dvalue.token, 0, a.width * sizeof(float));
            }
            Panels p{keys_along, values_along, keys_across};
            for (long g = 0; g < group; g++) unmix_head(a, s, head * group + g, p, dkey, dvalue, room);
        } catch (const std::exception&) {
            failed = OUT_OF_MEMORY;
        }
    }
    return failed;
}

// --- the activation of GPT-2, x (1 + tanh u) / 2 = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)

template <bool back>
static Eight gelu(Eight x, Eight dy) {
    constexpr float rate = 2 * 0.7978845608f, cube = 0.044715f;
    const Eight one = Eight{} + 1;
    Eight square = x * x, z = rate * x * (one + cube * square);
    Eight small = exponential(z > 0 ? -z : z);  // taken where it cannot overflow
    Eight gate = (z > 0 ? one : small) / (one + small);
    return back ? dy * gate * (one + x * (one - gate) * rate * (one + 3 * cube * square)) : x * gate;
}

template <bool back>
static void gelu_all(const float* x, const float* dy, float* y, long count) {
    long whole = count / 8 * 8;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < whole; i += 8) *(Loose*)(y + i) = gelu<back>(*(const Loose*)(x + i), *(const Loose*)(dy + i));
    Eight rest = {}, drest = {};
    for (long i = whole; i < count; i++) rest[i - whole] = x[i], drest[i - whole] = dy[i];
    rest = gelu<back>(rest, drest);
    for (long i = whole; i < count; i++) y[i] = rest[i - whole];
}

extern "C" void gelu_tanh(const float* x, float* y, long count) { gelu_all<false>(x, x, y, count); }

extern "C" void gelu_tanh_back(const float* x, const float* dy, float* dx, long count) { gelu_all<true>(x, dy, dx, count); }
