// A cached step of a Transformer's decoder, written for the processor.
//
// Almost all of its time is products of a few rows with matrices that do not fit into the cache: `tile` reads each matrix
// once, in the order in which it lies, and keeps the sums in registers. Each row gets the same bits whatever other rows
// stand beside it. Compiled on first use by native.py, whose structures mirror those here; nothing knows Python or torch.

#include <math.h>

#include <algorithm>
#include <memory>
#include <vector>

typedef float Eight __attribute__((vector_size(32)));              // one AVX2 register; other processors use two or four
typedef float Loose __attribute__((vector_size(32), aligned(4)));  // the same at any address

constexpr long WIDE = 16;    // columns of a panel: two registers
constexpr long TALL = 6;     // rows of a tile: 6 x 2 sums, 2 registers of weights and 1 of x fill the 16 there are
constexpr long PARTY = 4;    // panels that a single row takes at once: two sums alone would wait for each other
constexpr long BLOCK = 192;  // rows that stay in the cache while the panels pass by
constexpr long CHUNK = 256;  // products that are added up before they join the rest: long sums would lose digits
constexpr long AHEAD = 32;   // the weights of so many steps later are fetched now

struct Linear {           // x W^T + b
    const float* panels;  // (out / WIDE, in, WIDE), the last one filled with 0
    const float* bias;    // (out)
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
    float* written;        // (layers, 2, lanes, key heads, places, head width): keys and values of the tokens so far
    long lanes, places;
    const long* lane;      // (R, past + T): where each row finds each token; null = row r in lane r
    const bool* real;      // (R, past + T): which tokens count; null = all
    const float* memory;   // (sentences, layers, 2, key heads, source, head width)
    long sentences, source;
    const bool* source_real;  // (sentences, source); null = all
};

// --- y = x W^T + b

// `rows` of x against panels (depth, WIDE) of weights: y[r][c] += sum_k x[r][k] panel[k][c].
template <int rows, int panels = 1>
static void tile(const float* x, long depth, const float* panel, float* y, long stride) {
    for (long from = 0; from < depth; from += CHUNK) {
        Eight sums[rows][panels][2] = {};
        for (long k = from; k < std::min(from + CHUNK, depth); k++) {
            for (int p = 0; p < panels; p++) {
                const float* weights = panel + (p * depth + k) * WIDE;
                Eight left = *(const Loose*)weights, right = *(const Loose*)(weights + 8);
                __builtin_prefetch(weights + AHEAD * WIDE);
                for (int r = 0; r < rows; r++) {
                    float one = x[r * depth + k];
                    Eight all = {one, one, one, one, one, one, one, one};
                    sums[r][p][0] += all * left;
                    sums[r][p][1] += all * right;
                }
            }
        }
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < panels; p++)
                for (int half = 0; half < 2; half++) *(Loose*)(y + r * stride + p * WIDE + 8 * half) += sums[r][p][half];
    }
}

static void tile_of(long rows, const float* x, long depth, const float* panel, float* y, long stride) {
    switch (rows) {
        case 1: return tile<1>(x, depth, panel, y, stride);
        case 2: return tile<2>(x, depth, panel, y, stride);
        case 3: return tile<3>(x, depth, panel, y, stride);
        case 4: return tile<4>(x, depth, panel, y, stride);
        case 5: return tile<5>(x, depth, panel, y, stride);
        case 6: return tile<6>(x, depth, panel, y, stride);
    }
}

// One panel for all rows, in tiles of nearly equal height; the last panel may be narrower than WIDE.
static void column(const float* x, long rows, long depth, const float* panel, float* y, long width, long stride) {
    long tiles = (rows + TALL - 1) / TALL;
    for (long t = 0, r = 0; t < tiles; t++) {
        long height = rows / tiles + (t < rows % tiles);
        if (width == WIDE) {
            tile_of(height, x + r * depth, depth, panel, y + r * stride, stride);
        } else {
            float whole[TALL * WIDE] = {};
            tile_of(height, x + r * depth, depth, panel, whole, WIDE);
            for (long i = 0; i < height; i++)
                for (long c = 0; c < width; c++) y[(r + i) * stride + c] += whole[i * WIDE + c];
        }
        r += height;
    }
}

// Columns `from` to `end` of all rows.
static void columns(const Linear& l, const float* x, long rows, float* y, bool add, long from, long end) {
    for (long r = 0; r < rows; r++)
        for (long c = from; c < end; c++) y[r * l.out + c] = add ? y[r * l.out + c] + l.bias[c] : l.bias[c];
    if (rows == 1 && end - from == PARTY * WIDE) return tile<1, PARTY>(x, l.in, l.panels + from * l.in, y + from, l.out);
    for (long c = from; c < end; c += WIDE)
        column(x, rows, l.in, l.panels + c * l.in, y + c, std::min(WIDE, end - c), l.out);
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

// e^x = 2^n e^r: n the whole number nearest to x / ln 2, e^r by its series (|r| < 0.35, so eight terms are exact enough).
// For x <= 0; what is too small for a float, -infinity too, gives 0.
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
    return x > lowest ? series * (Eight)power : zero;
}

static float total(Eight x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }

static float dot(const float* a, const float* b, long n) {
    Eight sums = {};
    long i = 0;
    for (; i + 8 <= n; i += 8) sums += Eight(*(const Loose*)(a + i)) * *(const Loose*)(b + i);
    float sum = total(sums);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// scores (n, a multiple of 8) -> exp(score - highest), and their sum
static float exponentials(float* scores, long n) {
    float highest = *std::max_element(scores, scores + n);
    Eight sums = {};
    for (long i = 0; i < n; i += 8) sums += *(Loose*)(scores + i) = exponential(*(Loose*)(scores + i) - highest);
    return total(sums);
}

// What a query looks at: lane, head, place and the width of a head, at these distances.
struct Keys {
    const float *key, *value;
    long lane, head, place;
};

// out (width) = softmax(q K^T scale) V over the places that `lane_of` gives a lane, negative = not to be seen.
template <class LaneOf>
static void look(const float* query, const Keys& keys, long head, long length, const Decoder& d, LaneOf lane_of,
                 std::vector<float>& scores, float* out) {
    scores.assign((length + 7) / 8 * 8, -INFINITY);
    for (long s = 0; s < length; s++) {
        long lane = lane_of(s);
        const float* key = keys.key + lane * keys.lane + head * keys.head + s * keys.place;
        if (lane >= 0) scores[s] = d.scale * dot(query, key, d.head_width);
    }
    float sum = exponentials(scores.data(), scores.size());
    std::fill(out, out + d.head_width, 0.0f);
    for (long s = 0; s < length; s++) {
        float weight = scores[s] / sum;
        if (weight == 0) continue;
        const float* value = keys.value + lane_of(s) * keys.lane + head * keys.head + s * keys.place;
        for (long i = 0; i < d.head_width; i++) out[i] += weight * value[i];
    }
}

// query (R * T, stride) begins with the heads' queries -> out (R * T, heads * head width)
static void look_back(const Decoder& d, const Pass& p, long layer, const float* query, long stride, float* out) {
    long length = p.past + p.tokens, size = p.lanes * d.key_heads * p.places * d.head_width;
    const float* key = p.written + 2 * layer * size;
    Keys keys{key, key + size, d.key_heads * p.places * d.head_width, p.places * d.head_width, d.head_width};
    std::vector<float> scores;
#pragma omp for schedule(static)
    for (long at = 0; at < p.rows * p.tokens * d.heads; at++) {
        long i = at / d.heads, head = at % d.heads, row = i / p.tokens, own = p.past + i % p.tokens;
        auto lane_of = [&](long s) -> long {  // a padded token sees itself, so that nobody sees nothing
            if (p.real && !p.real[row * length + s] && s != own) return -1;
            return p.lane ? p.lane[row * length + s] : row;
        };
        look(query + i * stride + head * d.head_width, keys, head * d.key_heads / d.heads, own + 1, d, lane_of, scores,
             out + at * d.head_width);
    }
}

static void look_at_source(const Decoder& d, const Pass& p, long layer, const float* query, float* out) {
    long size = d.key_heads * p.source * d.head_width, share = p.rows * p.tokens / p.sentences;
    const float* key = p.memory + 2 * layer * size;
    Keys keys{key, key + size, 2 * d.layers * size, p.source * d.head_width, d.head_width};
    std::vector<float> scores;
#pragma omp for schedule(static)
    for (long at = 0; at < p.rows * p.tokens * d.heads; at++) {
        long sentence = at / d.heads / share;
        auto lane_of = [&](long s) { return p.source_real && !p.source_real[sentence * p.source + s] ? -1 : sentence; };
        look(query + at * d.head_width, keys, at % d.heads * d.key_heads / d.heads, p.source, d, lane_of, scores,
             out + at * d.head_width);
    }
}

// The new keys and values go to their places; each row writes into the lane of its own number.
static void keep(const Decoder& d, const Pass& p, long layer, const float* query_key_value, long stride) {
    long width = d.head_width, kinds = 2 * d.key_heads;
#pragma omp for schedule(static)
    for (long at = 0; at < p.rows * p.tokens * kinds; at++) {
        long i = at / kinds, kind = at % kinds / d.key_heads, head = at % d.key_heads;
        const float* from = query_key_value + i * stride + (d.heads + at % kinds) * width;
        long lane = ((2 * layer + kind) * p.lanes + i / p.tokens) * d.key_heads + head;
        std::copy(from, from + width, p.written + (lane * p.places + p.past + i % p.tokens) * width);
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

static float activated(float x, long kind) {
    switch (kind) {
        case 0: return std::max(x, 0.0f);                                                           // relu
        case 1: return x / (1 + expf(-x));                                                          // silu
        case 2: return x * 0.5f * (1 + erff(x * 0.70710678f));                                      // gelu
        default: return x * 0.5f * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));          // gelu-tanh
    }
}

static void activate(float* x, long count, long kind) {
#pragma omp for schedule(static)
    for (long i = 0; i < count; i++) x[i] = activated(x[i], kind);
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

extern "C" void decode(const Decoder* decoder, const Pass* pass) {
    const Decoder& d = *decoder;
    const Pass& p = *pass;
    long rows = p.rows * p.tokens, widest = d.width;
    for (long l = 0; l < d.layers; l++)
        widest = std::max({widest, d.blocks[l].attention.first.out, d.blocks[l].feedforward.first.out});
    std::unique_ptr<float[]> room(new float[rows * (d.width + widest + d.heads * d.head_width)]);
    float *space = room.get(), *wide = space + rows * d.width, *mixed = wide + rows * widest;
#pragma omp parallel
    {
        for (long l = 0; l < d.layers; l++) {
            const Block& b = d.blocks[l];
            residual(b.attention, p.x, rows, space, wide, mixed, [&] {
                keep(d, p, l, wide, b.attention.first.out);
                look_back(d, p, l, wide, b.attention.first.out, mixed);
            });
            if (b.cross.first.panels)
                residual(b.cross, p.x, rows, space, wide, mixed, [&] { look_at_source(d, p, l, wide, mixed); });
            residual(b.feedforward, p.x, rows, space, wide, wide,
                     [&] { activate(wide, rows * b.feedforward.first.out, d.activation); });
        }
        if (d.norm.weight) normed(d.norm, p.x, rows, d.width, p.x);
    }
}

// x (rows, in) -> y (rows, out)
extern "C" void linear(const Linear* l, const float* x, long rows, float* y) {
#pragma omp parallel
    product(*l, x, rows, y);
}
