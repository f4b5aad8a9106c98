// Attention and GELU for training, forwards and backwards.
//
// The backward pass computes the attention weights again from the sums that the forward pass kept (Dao et al. 2022).

#include "attention.h"

using namespace attention;

EXPORT_SIZE(Heads)
EXPORT_SIZE(Attention)

// 0, or OUT_OF_MEMORY with a result that has no meaning
extern "C" int attend(const Attention* attention) {
    const Attention& a = *attention;
    std::atomic<int> failed{0};
#pragma omp parallel
    {
        Room room;
#pragma omp for schedule(dynamic)
        for (long at = 0; at < a.n * a.key_heads; at++) try {
            attend_span(a, at, room);
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
