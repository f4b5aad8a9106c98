// All layers of a Transformer in one call: T more tokens of a decoder with a KV cache, or an encoder's pass over whole texts.
//
// The structures mirror those of native.py; nothing here knows Python or torch. Almost all of the time is spent in matrix products
// (linear.h); loops are shared out by a Team of threads (threads.h).

#include <memory>
#include <vector>

#include "activations.h"
#include "attention.h"
#include "linear.h"

struct Norm {  // none if weight is null
    const float* weight;
    const float* bias;  // may be null
    float eps;
    bool centred;  // layer norm; otherwise RMS norm
};

struct Residual {  // after(x + last(... first(before(x))))
    Norm before, after;
    Linear first, last;
};

struct Block {
    Residual attention, cross, feedforward;  // no cross-attention if its panels are null
    float scale;
    long window, n_global;  // window 0: every query sees all keys; otherwise those at most so far away, and the first n_global
    bool gated;             // first of the feed-forward layer has gate and value side by side
    bool parallel;          // attention and feed-forward layer read the same norm
};

struct Stack {
    const Block* blocks;
    long layers, width, heads, key_heads, head_width, activation;
    Norm norm;
};

struct Pass {  // T more tokens of each of R rows
    float* x;  // (R, T, width): read, and the result
    long rows, tokens, past, threads;
    float* cache;  // (layers, slots, key heads, capacity, 2, D): keys and values so far; null: whole texts, nothing is kept
    long slots, capacity;
    const long* slot;       // (R, past + T): where each row finds each token; null = row r in slot r
    const bool* real;       // (R, past + T): which tokens count; null = all
    const long* positions;  // (R, past + T): among the real tokens, for windows; null = as they stand
    const float* memory;    // (sentences, layers, key heads, source, 2, D)
    long sentences, source;
    const bool* source_real;    // (sentences, source); null = all
    const float *cosine, *sine;  // (R or 1, T, D / 2): rotary positions; null = none
    long rotation_row;           // from one row to the next, 0 = the same for all
    bool interleaved;            // neighbours are rotated as pairs, otherwise numbers that are half a head apart
    const float* bias;           // (R or 1, heads, T, past + T), added to the scaled scores; null = none
    long bias_row;
    const long* spans;  // (n, 3): row, first token and end of the texts, where nothing is kept
    long n_spans;
    bool causal;
};

EXPORT_SIZE(Linear)
EXPORT_SIZE(Norm)
EXPORT_SIZE(Residual)
EXPORT_SIZE(Block)
EXPORT_SIZE(Stack)
EXPORT_SIZE(Pass)

// body(i) for all i < count, in chunks that are large enough to amortise their claims
template <class Body>
static void each_item(const Team& team, long count, const Body& body) {
    long chunks = std::min(count, 16 * team.threads());
    team.each(chunks, [&](long chunk) {
        for (long i = chunk * count / chunks; i < (chunk + 1) * count / chunks; i++) body(i);
    });
}

// --- softmax

static Float8 load_float8(const float* x, long count) {  // the first `count` of eight numbers, -infinity for the rest
    Float8 all = Float8{} - INFINITY;
    if (count >= 8) return *(const UnalignedFloat8*)x;
    for (long i = 0; i < count; i++) all[i] = x[i];
    return all;
}

static float highest(const float* x, long n) {
    Float8 most = Float8{} - INFINITY;
    for (long i = 0; i < n; i += 8) {
        Float8 some = load_float8(x + i, n - i);
        most = some > most ? some : most;
    }
    float one = most[0];
    for (int i = 1; i < 8; i++) one = std::max(one, most[i]);
    return one;
}

// scores (n, a multiple of 8) -> exp(score - highest), and their sum
static float softmax_numerators(float* scores, long n) {
    float most = highest(scores, n);
    Float8 sums = {};
    for (long i = 0; i < n; i += 8) sums += *(UnalignedFloat8*)(scores + i) = exponential(*(UnalignedFloat8*)(scores + i) - most);
    return total(sums);
}

// x - log(sum of exp x) in each row of (rows, width), in place
extern "C" void log_softmax(float* x, long rows, long width, long threads) {
    each_item(Team(threads), rows, [&](long r) {
        float *row = x + r * width, most = highest(row, width);
        double sum = 0;
        for (long from = 0; from < width; from += 8 * CHUNK) {
            Float8 sums = {};
            for (long i = from; i < std::min(from + 8 * CHUNK, width); i += 8)
                sums += exponential(load_float8(row + i, width - i) - most);
            sum += total(sums);
        }
        float all = most + (float)log(sum);
        for (long i = 0; i < width; i++) row[i] -= all;
    });
}

// --- attention of single queries

#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else  // GCC before 12
typedef int Order __attribute__((vector_size(32)));
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, Order{__VA_ARGS__})
#endif

// The sums of the numbers of eight vectors: in three steps, pairs of them are mixed and added
static Float8 sums_of(const Float8 (&x)[8]) {
    Float8 two[4], four[2];
    for (int i = 0; i < 4; i++)
        two[i] = SHUFFLE(x[2 * i], x[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) + SHUFFLE(x[2 * i], x[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int i = 0; i < 2; i++)
        four[i] = SHUFFLE(two[2 * i], two[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                  SHUFFLE(two[2 * i], two[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return SHUFFLE(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

constexpr long PREFETCHED_KEYS = 16;  // keys, with their values, that are fetched ahead

// scores (n, rounded up to 8) = q . k scale for keys (D) at `offsets`, eight at a time
static void score_keys(const float* query, const float* keys, const long* offsets, long n, long width, float scale, float* scores) {
    long whole = width / 8 * 8;
    for (long s = 0; s < n; s += 8) {
        const float* key[8];
        Float8 sums[8] = {};
        for (int j = 0; j < 8; j++) {
            key[j] = keys + offsets[std::min(s + j, n - 1)];
            const float* later = keys + offsets[std::min(s + j + PREFETCHED_KEYS, n - 1)];
            for (long i = 0; i < 2 * width; i += 16) __builtin_prefetch(later + i);
        }
        for (long i = 0; i < whole; i += 8) {
            Float8 some = *(const UnalignedFloat8*)(query + i);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) sums[j] += some * *(const UnalignedFloat8*)(key[j] + i);
        }
        Float8 found = sums_of(sums);
        for (long i = whole; i < width; i++)
            for (int j = 0; j < 8; j++) found[j] += query[i] * key[j][i];
        *(UnalignedFloat8*)(scores + s) = found * scale;
    }
    std::fill(scores + n, scores + up(n, 8), -INFINITY);
}

// out (8 x parts) = sum of weights[s] values[s] for a part of the numbers of a head
template <int parts>
static void add_values(const float* weights, const float* values, const long* offsets, long n, float* out) {
    Float8 sums[parts] = {};
    for (long s = 0; s < n; s++) {
        if (weights[s] == 0) continue;  // 0 times what is not a number must be 0
        const float* value = values + offsets[s];
#pragma GCC unroll 8
        for (int i = 0; i < parts; i++) sums[i] += weights[s] * *(const UnalignedFloat8*)(value + 8 * i);
    }
#pragma GCC unroll 8
    for (int i = 0; i < parts; i++) *(UnalignedFloat8*)(out + 8 * i) = sums[i];
}

// out (D) = softmax(q K^T scale + bias) V for one query of one head. `offsets` (n): where the key of each token is; its value (D)
// stands behind it. `bias`, by the `indices` (n) of the tokens, may be null.
static void attend_one(const float* query, const float* keys, const long* offsets, long n, long width, float scale, const float* bias,
                       const long* indices, float* out) {
    thread_local std::vector<float> scores;
    scores.resize(up(n, 8));
    score_keys(query, keys, offsets, n, width, scale, scores.data());
    if (bias)
        for (long s = 0; s < n; s++) scores[s] += bias[indices[s]];
    float sum = softmax_numerators(scores.data(), scores.size());
    for (long s = 0; s < n; s++) scores[s] /= sum;
    const float* values = keys + width;
    long i = 0;
    for (; i + 64 <= width; i += 64) add_values<8>(scores.data(), values + i, offsets, n, out + i);
    for (; i + 8 <= width; i += 8) add_values<1>(scores.data(), values + i, offsets, n, out + i);
    for (; i < width; i++) {
        out[i] = 0;
        for (long s = 0; s < n; s++)
            if (scores[s] != 0) out[i] += scores[s] * values[offsets[s] + i];
    }
}

// The tokens that a query sees: which they are, and where their keys are
struct Visible {
    std::vector<long> indices, offsets;
};

struct Run {  // one call: the network, the tokens, the threads, and whether an allocation failed
    const Stack& stack;
    const Pass& pass;
    const Team& team;
    std::atomic<int> failed{0};

    template <class Body>
    void each_guarded(long count, const Body& body) {
        each_item(team, count, [&](long i) {
            try {
                body(i);
            } catch (const std::exception&) {
                failed = OUT_OF_MEMORY;
            }
        });
    }
};

// The tokens that token `own` of a row sees. A padded one sees itself if `always`, so that every query sees something.
static void find_visible_tokens(const Stack& d, const Pass& p, const Block& b, long row, long own, bool always, Visible& found) {
    long length = p.past + p.tokens, slot_size = d.key_heads * 2 * p.capacity * d.head_width;
    const long *positions = p.positions ? p.positions + row * length : nullptr, *slots = p.slot ? p.slot + row * length : nullptr;
    const bool* real = p.real ? p.real + row * length : nullptr;
    long place = positions ? positions[own] : own;
    found.indices.resize(own + 1), found.offsets.resize(own + 1);
    long n = 0;
    for (long s = 0; s <= own; s++) {
        if (real && !real[s] && !(always && s == own)) continue;
        long other = positions ? positions[s] : s;
        if (b.window && place - other > b.window && other >= b.n_global && place >= b.n_global) continue;
        found.indices[n] = s;
        found.offsets[n++] = (slots ? slots[s] : row) * slot_size + 2 * s * d.head_width;
    }
    found.indices.resize(n), found.offsets.resize(n);
}

constexpr long MIN_BLOCK_QUERIES = 16;  // real queries of a row from which blocks of them are computed together

// Whether the queries of a row are computed in blocks. It must not depend on other rows: each must get the same bits in any batch.
static bool in_blocks(const Run& run, long layer, long row) {
    const Pass& p = run.pass;
    if (run.stack.head_width % PANEL_WIDTH || run.stack.blocks[layer].window || p.tokens < MIN_BLOCK_QUERIES) return false;
    if (!p.real) return true;
    const bool* real = p.real + row * (p.past + p.tokens) + p.past;
    return std::count(real, real + p.tokens, true) >= MIN_BLOCK_QUERIES;
}

// query (R * T, stride) begins with the heads' queries -> out (R * T, H D), one query at a time
static void attend_single(Run& run, long layer, const float* query, long stride, float* out) {
    const Stack& d = run.stack;
    const Pass& p = run.pass;
    const Block& b = d.blocks[layer];
    long length = p.past + p.tokens, head_size = 2 * p.capacity * d.head_width, rows = p.rows * p.tokens;
    const float* keys = p.cache + layer * p.slots * d.key_heads * head_size;
    long heads_per_task = rows >= 4 * run.team.threads() ? d.heads : 1;  // heads of a row that one thread computes
    run.each_guarded(rows * d.heads / heads_per_task, [&](long at) {
        thread_local Visible visible;
        long i = at * heads_per_task / d.heads, row = i / p.tokens, first = at * heads_per_task % d.heads;
        if (in_blocks(run, layer, row)) return;
        find_visible_tokens(d, p, b, row, p.past + i % p.tokens, true, visible);
        for (long head = first; head < first + heads_per_task; head++) {
            const float* bias = p.bias ? p.bias + row * p.bias_row + (head * p.tokens + i % p.tokens) * length : nullptr;
            attend_one(query + i * stride + head * d.head_width, keys + head * d.key_heads / d.heads * head_size,
                       visible.offsets.data(), visible.offsets.size(), d.head_width, b.scale, bias, visible.indices.data(),
                       out + (i * d.heads + head) * d.head_width);
        }
    });
}

// query (R * T, H D) -> out (R * T, H D); all rows of a sentence attend to its one memory
static void attend_source(Run& run, long layer, const float* query, float* out) {
    const Stack& d = run.stack;
    const Pass& p = run.pass;
    long head_size = 2 * p.source * d.head_width, layer_size = d.key_heads * head_size, rows = p.rows * p.tokens;
    long share = rows / p.sentences, heads_per_task = rows >= 4 * run.team.threads() ? d.heads : 1;
    run.each_guarded(rows * d.heads / heads_per_task, [&](long at) {
        thread_local std::vector<long> offsets;
        long i = at * heads_per_task / d.heads, sentence = i / share;
        const bool* real = p.source_real ? p.source_real + sentence * p.source : nullptr;
        offsets.clear();
        for (long s = 0; s < p.source; s++)
            if (!real || real[s]) offsets.push_back(2 * s * d.head_width);
        for (long head = at * heads_per_task % d.heads, end = head + heads_per_task; head < end; head++)
            attend_one(query + (i * d.heads + head) * d.head_width,
                       p.memory + (sentence * d.layers + layer) * layer_size + head * d.key_heads / d.heads * head_size,
                       offsets.data(), offsets.size(), d.head_width, d.blocks[layer].scale, nullptr, nullptr,
                       out + (i * d.heads + head) * d.head_width);
    });
}

// --- attention of many queries

// (R, T, stride) and (R, T, H D) for the kernel of attention.h
static attention::Attention describe(const Run& run, long layer, const float* query_key_value, long stride, float* out) {
    const Stack& d = run.stack;
    const Pass& p = run.pass;
    long width = d.head_width;
    float* all = const_cast<float*>(query_key_value);  // the kernel has one type for what it reads and what it writes
    attention::Heads query{all, p.tokens * stride, width, stride}, key = query, value = query;
    key.at += d.heads * width, value.at += (d.heads + d.key_heads) * width;
    return {query, key, value, {out, p.tokens * d.heads * width, width, d.heads * width}, nullptr, p.spans, p.n_spans, p.tokens,
            d.heads, d.key_heads, width, d.blocks[layer].scale, p.causal, p.past + p.tokens, p.bias, p.bias_row, {}, {}, {}, {}};
}

// Whole texts, without a cache
static void attend_texts(Run& run, long layer, const float* query_key_value, long stride, float* out) {
    attention::Attention a = describe(run, layer, query_key_value, stride, out);
    run.team.each(a.n * a.key_heads, [&](long at) {
        thread_local attention::Workspace room;
        try {
            attention::attend_span(a, at, room);
        } catch (const std::exception&) {
            run.failed = OUT_OF_MEMORY;
        }
    });
}

// Many queries of a row and the heads that share one key head: the visible keys and values are copied into panels
static void attend_row(Run& run, const attention::Attention& a, long layer, long row, long key_head) {
    thread_local attention::Workspace room;
    thread_local Visible visible;
    thread_local std::vector<long> counts;
    const Stack& d = run.stack;
    const Pass& p = run.pass;
    long width = d.head_width, head_size = 2 * p.capacity * width, group = d.heads / d.key_heads;
    find_visible_tokens(d, p, d.blocks[layer], row, p.past + p.tokens - 1, false, visible);
    long n = visible.indices.size(), size = attention::up(n) * width;
    counts.resize(p.tokens);
    for (long t = 0, k = 0; t < p.tokens; t++) {  // a padded query sees the real tokens before it: counts must not decrease
        while (k < n && visible.indices[k] <= p.past + t) k++;
        counts[t] = k;
    }
    const float* keys = p.cache + (layer * p.slots * d.key_heads + key_head) * head_size;
    float *transposed = room.of(0, size), *values = room.of(1, size), *table = room.of(2, attention::QUERY_BLOCK * attention::up(n));
    attention::pack_transposed(keys, visible.offsets.data(), n, width, transposed);
    attention::pack_panels(keys + width, visible.offsets.data(), n, width, values);
    attention::Span span(row, 0, p.tokens, n);
    span.counts = counts.data(), span.indices = visible.indices.data();
    for (long g = 0; g < group; g++) attention::attend_queries(a, span, key_head * group + g, transposed, values, table);
}

static void attend_blocks(Run& run, long layer, const float* query_key_value, long stride, float* out) {
    if (run.pass.tokens < MIN_BLOCK_QUERIES) return;
    attention::Attention a = describe(run, layer, query_key_value, stride, out);
    run.each_guarded(run.pass.rows * a.key_heads, [&](long at) {
        if (in_blocks(run, layer, at / a.key_heads)) attend_row(run, a, layer, at / a.key_heads, at % a.key_heads);
    });
}

// --- positions and cache

static void rotate(const Pass& p, long row, long token, float* x, long width) {
    long half = width / 2;
    const float *cosine = p.cosine + row * p.rotation_row + token * half, *sine = p.sine + row * p.rotation_row + token * half;
    for (long i = 0; i < half; i++) {
        float &a = x[p.interleaved ? 2 * i : i], &b = x[p.interleaved ? 2 * i + 1 : half + i], first = a;
        a = first * cosine[i] - b * sine[i];
        b = first * sine[i] + b * cosine[i];
    }
}

// Rotate queries and keys, and write new keys and values to the cache: row r to slot r.
static void write_cache(Run& run, long layer, float* query_key_value, long stride) {
    const Stack& d = run.stack;
    const Pass& p = run.pass;
    if (!p.cosine && !p.cache) return;
    long width = d.head_width;
    each_item(run.team, p.rows * p.tokens, [&](long i) {
        float* heads = query_key_value + i * stride;
        long row = i / p.tokens, token = i % p.tokens;
        if (p.cosine)
            for (long h = 0; h < d.heads + d.key_heads; h++) rotate(p, row, token, heads + h * width, width);
        if (!p.cache) return;
        for (long h = 0; h < 2 * d.key_heads; h++) {  // keys first, then values
            long kind = h / d.key_heads, slot = (layer * p.slots + row) * d.key_heads + h % d.key_heads;
            const float* from = heads + (d.heads + h) * width;
            std::copy(from, from + width, p.cache + ((slot * p.capacity + p.past + token) * 2 + kind) * width);
        }
    });
}

// --- norms

static void normalize(const Team& team, const Norm& n, const float* x, long rows, long width, float* y) {
    each_item(team, rows, [&](long r) {
        const float* from = x + r * width;
        float *to = y + r * width, mean = 0, square = 0;
        if (n.centred) {
#pragma omp simd reduction(+ : mean)
            for (long c = 0; c < width; c++) mean += from[c];
            mean /= width;
        }
#pragma omp simd reduction(+ : square)
        for (long c = 0; c < width; c++) square += (from[c] - mean) * (from[c] - mean);
        float rate = 1 / sqrtf(square / width + n.eps);
        for (long c = 0; c < width; c++) to[c] = (from[c] - mean) * rate * n.weight[c];
        if (n.bias)
            for (long c = 0; c < width; c++) to[c] += n.bias[c];
    });
}

// --- layers

struct Buffers {
    std::unique_ptr<char[]> memory;
    float *normed, *wide, *inner;
    void* rounded;

    // (rows, width), (rows, widest first layer), (rows, widest input of a last layer), and the rows that integer products read
    bool allocate(const Stack& d, long rows) {
        long wide_size = d.width, inner_size = d.heads * d.head_width, bytes = 0;
        for (long l = 0; l < d.layers; l++)
            for (const Residual* r : {&d.blocks[l].attention, &d.blocks[l].cross, &d.blocks[l].feedforward}) {
                wide_size = std::max(wide_size, r->first.out);
                inner_size = std::max(inner_size, r->last.in);
                bytes = std::max({bytes, QuantizedRows::bytes(r->first, rows), QuantizedRows::bytes(r->last, rows)});
            }
        long floats = rows * (d.width + wide_size + inner_size);
        memory.reset(new (std::nothrow) char[floats * sizeof(float) + bytes + 64]);
        if (!memory) return false;
        normed = (float*)memory.get(), wide = normed + rows * d.width, inner = wide + rows * wide_size;
        rounded = inner + rows * inner_size;
        return true;
    }
};

// x = after(x + last(inner)), where `compute` makes `inner` of before(x)
template <class Compute>
static void residual(Run& run, const Residual& r, float* x, long rows, const Buffers& b, Compute compute, bool normed = false) {
    long width = run.stack.width;
    if (r.before.weight && !normed) normalize(run.team, r.before, x, rows, width, b.normed);
    compute(r.before.weight || normed ? b.normed : x);
    product(run.team, r.last, b.inner, rows, x, b.rounded, true);
    if (r.after.weight) normalize(run.team, r.after, x, rows, width, x);
}

// inner = f(first(x)), or gated f(first half) * second half. The activation follows at once, while its input is in the cache.
static void feed_forward(Run& run, const Block& block, const float* x, long rows, const Buffers& b) {
    const Linear& first = block.feedforward.first;
    long width = block.feedforward.last.in, second = block.gated ? width : 0;
    bool aligned = second % PANEL_WIDTH == 0;  // otherwise the second half begins within a panel
    if (!aligned) product(run.team, first, x, rows, b.wide, b.rounded);
    Input input = aligned ? round_rows(run.team, first, x, rows, b.rounded) : Input{x, QuantizedRows(first, rows, b.rounded)};
    each_task(run.team, rows, width, [&](long row, long count, long from, long end) {
        float* wide = b.wide + row * first.out;
        if (aligned) columns(first, input, row, count, wide, false, from, end);
        if (aligned && second) columns(first, input, row, count, wide, false, second + from, second + end);
        for (long r = 0; r < count; r++, wide += first.out)
            activate(wide + from, second ? wide + second + from : nullptr, b.inner + (row + r) * width + from, end - from,
                     run.stack.activation);
    });
}

static void attend(Run& run, long layer, const Buffers& b, long stride) {
    write_cache(run, layer, b.wide, stride);
    if (!run.pass.cache) return attend_texts(run, layer, b.wide, stride, b.inner);
    attend_single(run, layer, b.wide, stride, b.inner);
    attend_blocks(run, layer, b.wide, stride, b.inner);
}

static void run_block(Run& run, long layer, long rows, const Buffers& b) {
    const Block& block = run.stack.blocks[layer];
    float* x = run.pass.x;
    residual(run, block.attention, x, rows, b, [&](const float* input) {
        product(run.team, block.attention.first, input, rows, b.wide, b.rounded);
        attend(run, layer, b, block.attention.first.out);
    });
    if (block.cross.first.panels)
        residual(run, block.cross, x, rows, b, [&](const float* input) {
            product(run.team, block.cross.first, input, rows, b.wide, b.rounded);
            attend_source(run, layer, b.wide, b.inner);
        });
    auto compute = [&](const float* input) { feed_forward(run, block, input, rows, b); };
    residual(run, block.feedforward, x, rows, b, compute, block.parallel);
}

// 0, or OUT_OF_MEMORY with a result that has no meaning
extern "C" int run_stack(const Stack* stack, const Pass* pass) try {
    Team team(pass->threads);
    Run run{*stack, *pass, team};
    Buffers buffers;
    long rows = pass->rows * pass->tokens;
    if (!buffers.allocate(*stack, rows)) return OUT_OF_MEMORY;
    if (!pass->cache) std::fill(buffers.inner, buffers.inner + rows * stack->heads * stack->head_width, 0.0f);  // padding
    for (long layer = 0; layer < stack->layers; layer++) run_block(run, layer, rows, buffers);
    if (stack->norm.weight) normalize(team, stack->norm, pass->x, rows, stack->width, pass->x);
    return run.failed;
} catch (const std::exception&) {
    return OUT_OF_MEMORY;
}

// x (rows, in) -> y (rows, out)
extern "C" int linear(const Linear* l, const float* x, long rows, float* y, long threads) {
    std::unique_ptr<char[]> room;
    if (long bytes = QuantizedRows::bytes(*l, rows)) {
        room.reset(new (std::nothrow) char[bytes]);
        if (!room) return OUT_OF_MEMORY;
    }
    product(Team(threads), *l, x, rows, y, room.get());
    return 0;
}

// y (n, in) = rows `ids` of integer weights
extern "C" int weight_rows(const Linear* l, const long* ids, long n, float* y, long threads) {
    for (long i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= l->out) return OUT_OF_RANGE;
    each_item(Team(n < 16 ? 1 : threads), n, [&](long i) { weight_row(*l, ids[i], y + i * l->in); });
    return 0;
}
