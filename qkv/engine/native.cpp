// A cached step of a Transformer's decoder, written for the processor.
//
// Almost all of its time is products of a few rows with matrices that do not fit into the cache: `tile` reads each matrix
// once, in the order in which it lies, and keeps the sums in registers. Each row gets the same bits whatever other rows
// stand beside it. Compiled on first use by native.py, whose structures mirror those here; nothing knows Python or torch.

#include <math.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "vectors.h"

constexpr long WIDE = 16;    // columns of a panel: two registers
constexpr long TALL = 6;     // rows of a tile: 6 x 2 sums, 2 registers of weights and 1 of x fill the 16 there are
constexpr long PARTY = 4;    // panels that a single row takes at once: two sums alone would wait for each other
constexpr long BLOCK = 192;  // rows that stay in the cache while the panels pass by
constexpr long CHUNK = 512;  // products that are added up before they join the rest: long sums would lose digits
constexpr long AHEAD = 16;   // for a single row, the weights of so many steps later are fetched now

struct Linear {           // x W^T + b
    const float* panels;  // (out / WIDE, in, WIDE), the last one filled with 0
    const float* bias;    // (out), filled up in the same way
    long in, out;
};

struct Norm {  // none if weight is null; layer norm, or RMS norm if bias is null
    const float* weight;
    const float* bias;
    float eps;
};

struct Residual {  // after(x + last(... first(before(x))))
    Norm before, after;
    Linear first, last;
};

struct Block {
    Residual attention, cross, feedforward;  // no cross-attention if its panels are null
};

struct Decoder {
    const Block* blocks;
    long layers, width, heads, key_heads, head_width, activation;
    float scale;
    Norm norm;
};

struct Pass {  // T more tokens of each of R rows
    float* x;  // (R, T, width): read, and the result
    long rows, tokens, past;
    float* written;        // (layers, lanes, key heads, places, 2, D): keys and values of the tokens so far
    long lanes, places;
    const long* lane;      // (R, past + T): where each row finds each token; null = row r in lane r
    const bool* real;      // (R, past + T): which tokens count; null = all
    const float* memory;   // (sentences, layers, key heads, source, 2, D)
    long sentences, source;
    const bool* source_real;  // (sentences, source); null = all
};

EXPORT_SIZE(Linear)
EXPORT_SIZE(Norm)
EXPORT_SIZE(Residual)
EXPORT_SIZE(Block)
EXPORT_SIZE(Decoder)
EXPORT_SIZE(Pass)

// --- y = x W^T + b

// `rows` of x against part of some panels: y[r][c] += sum_k x[r][k] panel[k][c], k < depth. Rows of x are `in` apart, so are
// panels in steps of WIDE; rows of y are `out` apart. Meanwhile a share of what comes next, one in `share`, is fetched.
template <int rows, int panels = 1>
static void tile(const float* x, long in, long depth, const float* panel, float* y, long out, const float* next, long share) {
    Eight sums[rows][panels][2] = {};
    for (long k = 0; k < depth; k++) {
        for (int p = 0; p < panels; p++) {
            const float* weights = panel + (p * in + k) * WIDE;
            Eight left = *(const Loose*)weights, right = *(const Loose*)(weights + 8);
            __builtin_prefetch(next + p * in * WIDE + k * share, 0, 2);  // into the second cache
            for (int r = 0; r < rows; r++) {
                float one = x[r * in + k];
                Eight all = {one, one, one, one, one, one, one, one};
                sums[r][p][0] += all * left;
                sums[r][p][1] += all * right;
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panels; p++)
            for (int half = 0; half < 2; half++) *(Loose*)(y + r * out + p * WIDE + 8 * half) += sums[r][p][half];
}

static void tile_of(long rows, const float* x, long in, long depth, const float* panel, float* y, long out,
                    const float* next, long share) {
    switch (rows) {
        case 1: return tile<1>(x, in, depth, panel, y, out, next, share);
        case 2: return tile<2>(x, in, depth, panel, y, out, next, share);
        case 3: return tile<3>(x, in, depth, panel, y, out, next, share);
        case 4: return tile<4>(x, in, depth, panel, y, out, next, share);
        case 5: return tile<5>(x, in, depth, panel, y, out, next, share);
        case 6: return tile<6>(x, in, depth, panel, y, out, next, share);
    }
}

// One panel for all rows, in tiles of nearly equal height: a CHUNK of it stays in the nearest cache while all rows pass by.
static void column(const float* x, long rows, long in, const float* panel, const float* bias, float* y, long out, bool add) {
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < WIDE; c++) y[r * out + c] = bias[c] + (add ? y[r * out + c] : 0);
    long tiles = (rows + TALL - 1) / TALL, share = (WIDE + tiles - 1) / tiles;
    for (long k = 0; k < in; k += CHUNK) {
        long depth = std::min(CHUNK, in - k);
        const float* part = panel + k * WIDE;
        for (long t = 0, r = 0; t < tiles; t++) {
            long height = rows / tiles + (t < rows % tiles);
            tile_of(height, x + r * in + k, in, depth, part, y + r * out, out, part + depth * (WIDE + t * share), share);
            r += height;
        }
    }
}

// PARTY panels for a single row.
static void party(const float* x, long in, const float* panels, const float* bias, float* y, bool add) {
    for (long c = 0; c < PARTY * WIDE; c++) y[c] = bias[c] + (add ? y[c] : 0);
    for (long k = 0; k < in; k += CHUNK) {
        const float* part = panels + k * WIDE;
        tile<1, PARTY>(x + k, in, std::min(CHUNK, in - k), part, y, 0, part + AHEAD * WIDE, WIDE);
    }
}

// Columns `from` to `end` of all rows; the last panel may be narrower than WIDE.
static void columns(const Linear& l, const float* x, long rows, float* y, bool add, long from, long end) {
    if (rows == 1 && end - from == PARTY * WIDE)
        return party(x, l.in, l.panels + from * l.in, l.bias + from, y + from, add);
    for (long c = from; c + WIDE <= end; c += WIDE)
        column(x, rows, l.in, l.panels + c * l.in, l.bias + c, y + c, l.out, add);
    if (long rest = end % WIDE) {
        float whole[BLOCK * WIDE];  // rows <= BLOCK
        column(x, rows, l.in, l.panels + (end - rest) * l.in, l.bias + end - rest, whole, WIDE, false);
        for (long r = 0; r < rows; r++)
            for (long c = 0; c < rest; c++) {
                float& to = y[r * l.out + end - rest + c];
                to = whole[r * WIDE + c] + (add ? to : 0);
            }
    }
}

// y (rows, out) = x W^T + b, or with `add` y += x W^T + b. All functions from here on are called by all threads together.
static void product(const Linear& l, const float* x, long rows, float* y, bool add = false) {
    for (long r = 0; r < rows; r += BLOCK) {
#pragma omp for schedule(static) nowait
        for (long c = 0; c < l.out; c += PARTY * WIDE)
            columns(l, x + r * l.in, std::min(BLOCK, rows - r), y + r * l.out, add, c, std::min(c + PARTY * WIDE, l.out));
    }
#pragma omp barrier
}

// --- softmax(q K^T scale) V for one query per row and head

static Eight eight(const float* x, long count) {  // the first `count` of eight numbers, -infinity for the rest
    Eight all = Eight{} - INFINITY;
    if (count >= 8) return *(const Loose*)x;
    for (long i = 0; i < count; i++) all[i] = x[i];
    return all;
}

static float highest(const float* x, long n) {
    Eight most = Eight{} - INFINITY;
    for (long i = 0; i < n; i += 8) {
        Eight some = eight(x + i, n - i);
        most = some > most ? some : most;
    }
    float one = most[0];
    for (int i = 1; i < 8; i++) one = std::max(one, most[i]);
    return one;
}

// scores (n, a multiple of 8) -> exp(score - highest), and their sum
static float exponentials(float* scores, long n) {
    float most = highest(scores, n);
    Eight sums = {};
    for (long i = 0; i < n; i += 8) sums += *(Loose*)(scores + i) = exponential(*(Loose*)(scores + i) - most);
    return total(sums);
}

// x - log(sum of exp x) in each row of (rows, width), in place
extern "C" void log_softmax(float* x, long rows, long width) {
#pragma omp parallel for schedule(static)
    for (long r = 0; r < rows; r++) {
        float *row = x + r * width, most = highest(row, width);
        double sum = 0;
        for (long from = 0; from < width; from += 8 * CHUNK) {
            Eight sums = {};
            for (long i = from; i < std::min(from + 8 * CHUNK, width); i += 8)
                sums += exponential(eight(row + i, width - i) - most);
            sum += total(sums);
        }
        float all = most + (float)log(sum);
        for (long i = 0; i < width; i++) row[i] -= all;
    }
}

// out (D) = softmax(q K^T scale) V. A key (D) and its value (D) stand together, those of the next place behind them;
// `lane_of` says at which multiple of `distance` a place is found, negative = not to be seen.
template <class LaneOf>
static void look(const float* query, const float* keys, long distance, long length, const Decoder& d, LaneOf lane_of,
                 std::vector<float>& scores, float* out) {
    long width = d.head_width;
    scores.assign((length + 7) / 8 * 8, -INFINITY);
    for (long s = 0; s < length; s++) {
        long lane = lane_of(s);
        if (lane >= 0) scores[s] = d.scale * dot(query, keys + lane * distance + 2 * s * width, width);
    }
    float sum = exponentials(scores.data(), scores.size());
    std::fill(out, out + width, 0.0f);
    for (long s = 0; s < length; s++) {
        float weight = scores[s] / sum;
        if (weight == 0) continue;
        const float* value = keys + lane_of(s) * distance + (2 * s + 1) * width;
        for (long i = 0; i < width; i++) out[i] += weight * value[i];
    }
}

// query (R * T, stride) begins with the heads' queries -> out (R * T, H D)
static void look_back(const Decoder& d, const Pass& p, long layer, const float* query, long stride, float* out,
                      std::atomic<int>& failed) {
    long length = p.past + p.tokens, head_size = 2 * p.places * d.head_width, lane_size = d.key_heads * head_size;
    const float* keys = p.written + layer * p.lanes * lane_size;
    std::vector<float> scores;
#pragma omp for schedule(static)
    for (long at = 0; at < p.rows * p.tokens * d.heads; at++) {
        long i = at / d.heads, head = at % d.heads, row = i / p.tokens, own = p.past + i % p.tokens;
        auto lane_of = [&](long s) -> long {  // a padded token sees itself, so that nobody sees nothing
            if (p.real && !p.real[row * length + s] && s != own) return -1;
            return p.lane ? p.lane[row * length + s] : row;
        };
        try {
            look(query + i * stride + head * d.head_width, keys + head * d.key_heads / d.heads * head_size, lane_size,
                 own + 1, d, lane_of, scores, out + at * d.head_width);
        } catch (const std::exception&) {
            failed = OUT_OF_MEMORY;
        }
    }
}

// query (R * T, H D) -> out (R * T, H D); all rows of a sentence look at its one memory
static void look_at_source(const Decoder& d, const Pass& p, long layer, const float* query, float* out,
                           std::atomic<int>& failed) {
    long head_size = 2 * p.source * d.head_width, layer_size = d.key_heads * head_size;
    long share = p.rows * p.tokens / p.sentences;
    std::vector<float> scores;
#pragma omp for schedule(static)
    for (long at = 0; at < p.rows * p.tokens * d.heads; at++) {
        long sentence = at / d.heads / share, head = at % d.heads * d.key_heads / d.heads;
        auto lane_of = [&](long s) { return p.source_real && !p.source_real[sentence * p.source + s] ? -1 : sentence; };
        try {
            look(query + at * d.head_width, p.memory + layer * layer_size + head * head_size, d.layers * layer_size,
                 p.source, d, lane_of, scores, out + at * d.head_width);
        } catch (const std::exception&) {
            failed = OUT_OF_MEMORY;
        }
    }
}

// The new keys and values go to their places; each row writes into the lane of its own number.
static void keep(const Decoder& d, const Pass& p, long layer, const float* query_key_value, long stride) {
    long width = d.head_width, kinds = 2 * d.key_heads;
#pragma omp for schedule(static)
    for (long at = 0; at < p.rows * p.tokens * kinds; at++) {
        long i = at / kinds, kind = at % kinds / d.key_heads, head = at % d.key_heads;  // keys first, then values
        const float* from = query_key_value + i * stride + (d.heads + at % kinds) * width;
        long lane = (layer * p.lanes + i / p.tokens) * d.key_heads + head, place = p.past + i % p.tokens;
        std::copy(from, from + width, p.written + ((lane * p.places + place) * 2 + kind) * width);
    }
}

// --- norms and activations

static void normed(const Norm& n, const float* x, long rows, long width, float* y) {
#pragma omp for schedule(static)
    for (long r = 0; r < rows; r++) {
        const float* from = x + r * width;
        float *to = y + r * width, mean = 0, square = 0;
#pragma omp simd reduction(+ : mean)
        for (long c = 0; c < width; c++) mean += from[c];
        mean = n.bias ? mean / width : 0;
#pragma omp simd reduction(+ : square)
        for (long c = 0; c < width; c++) square += (from[c] - mean) * (from[c] - mean);
        float rate = 1 / sqrtf(square / width + n.eps);
        for (long c = 0; c < width; c++) to[c] = (from[c] - mean) * rate * n.weight[c] + (n.bias ? n.bias[c] : 0);
    }
}

template <class Function>
static void each(float* x, long count, Function f) {
#pragma omp for simd schedule(static)
    for (long i = 0; i < count; i++) x[i] = f(x[i]);
}

static void activate(float* x, long count, long kind) {
    switch (kind) {
        case 0: return each(x, count, [](float v) { return v > 0 ? v : 0; });                           // relu
        case 1: return each(x, count, [](float v) { return v / (1 + expf(-v)); });                      // silu
        case 2: return each(x, count, [](float v) { return v * 0.5f * (1 + erff(v * 0.70710678f)); });  // gelu
        case 3: return each(x, count, [](float v) {                                                     // gelu-tanh
            return v * 0.5f * (1 + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
        });
    }
}

// --- the whole

// after(x + last(inner(first(before(x))))), `inner` from `wide` to `narrow`
template <class Inner>
static void residual(const Residual& r, float* x, long rows, float* space, float* wide, const float* narrow, Inner inner) {
    if (r.before.weight) normed(r.before, x, rows, r.first.in, space);
    product(r.first, r.before.weight ? space : x, rows, wide);
    inner();
    product(r.last, narrow, rows, x, true);
    if (r.after.weight) normed(r.after, x, rows, r.first.in, x);
}

// 0, or OUT_OF_MEMORY with a result that has no meaning
extern "C" int decode(const Decoder* decoder, const Pass* pass) {
    const Decoder& d = *decoder;
    const Pass& p = *pass;
    long rows = p.rows * p.tokens, widest = d.width;
    for (long l = 0; l < d.layers; l++)
        widest = std::max({widest, d.blocks[l].attention.first.out, d.blocks[l].feedforward.first.out});
    std::unique_ptr<float[]> room(new (std::nothrow) float[rows * (d.width + widest + d.heads * d.head_width)]);
    if (!room) return OUT_OF_MEMORY;
    std::atomic<int> failed{0};
    float *space = room.get(), *wide = space + rows * d.width, *mixed = wide + rows * widest;
#pragma omp parallel
    {
        for (long l = 0; l < d.layers; l++) {
            const Block& b = d.blocks[l];
            residual(b.attention, p.x, rows, space, wide, mixed, [&] {
                keep(d, p, l, wide, b.attention.first.out);
                look_back(d, p, l, wide, b.attention.first.out, mixed, failed);
            });
            if (b.cross.first.panels)
                residual(b.cross, p.x, rows, space, wide, mixed, [&] { look_at_source(d, p, l, wide, mixed, failed); });
            residual(b.feedforward, p.x, rows, space, wide, wide,
                     [&] { activate(wide, rows * b.feedforward.first.out, d.activation); });
        }
        if (d.norm.weight) normed(d.norm, p.x, rows, d.width, p.x);
    }
    return failed;
}

// x (rows, in) -> y (rows, out)
extern "C" void linear(const Linear* l, const float* x, long rows, float* y) {
#pragma omp parallel
    product(*l, x, rows, y);
}
