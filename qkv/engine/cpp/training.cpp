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
        Workspace room;
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
static void weights_backward(const Attention& a, const Span& s, long head, const Panels& p, long from, long count, float* weights,
                  float* changes) {
    long step = up(s.tokens), wide = up(visible_keys(a, s, from + count - 1));
    const float *dout = s.of(a.dout, head), *out = s.of(a.out, head), *sums = s.sums(a, head);
    compute_scores(a, s, from, count, s.of(a.query, head), a.query.token, p.keys_along, weights, step);
    compute_scores(a, s, from, count, dout, a.dout.token, p.values_along, changes, step);
    for (long r = 0; r < count; r++) {
        float *w = weights + r * step, *c = changes + r * step;
        long keys = visible_keys(a, s, from + r);
        weights_of(w, keys, wide, a.scale, sums[from + r]);
        float own = dot(dout + (from + r) * a.dout.token, out + (from + r) * a.out.token, a.width);
        for (long k = 0; k < up(keys); k += 8) {
            UnalignedFloat8 *change = (UnalignedFloat8*)(c + k), weight = *(UnalignedFloat8*)(w + k);
            *change = weight * (*change - own) * a.scale;
        }
        for (long k = up(keys); k < wide; k++) c[k] = 0;
    }
}

static void attend_head_backward(const Attention& a, const Span& s, long head, const Panels& p, float* dkey, float* dvalue,
                                 Workspace& room) {
    long step = up(s.tokens), D = a.width, most = std::min(BLOCK, s.tokens);
    float *weights = room.of(3, most * step), *changes = room.of(4, most * step);
    float *queries = room.of(5, most * D), *douts = room.of(6, most * D);
    for (long from = 0; from < s.tokens; from += BLOCK) {
        long count = std::min(BLOCK, s.tokens - from), keys = visible_keys(a, s, from + count - 1);
        weights_backward(a, s, head, p, from, count, weights, changes);
        weighted_sum(a, s, from, count, changes, step, p.keys_across, s.of(a.dquery, head), a.dquery.token);
        pack_panels(s.of(a.query, head) + from * a.query.token, a.query.token, count, D, queries);
        pack_panels(s.of(a.dout, head) + from * a.dout.token, a.dout.token, count, D, douts);
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
        Workspace room;
#pragma omp for schedule(dynamic)
        for (long at = 0; at < a.n * a.key_heads; at++) try {
            Span s(a, at / a.key_heads);
            long head = at % a.key_heads, size = up(s.tokens) * a.width;
            float *keys_along = room.of(0, size), *values_along = room.of(1, size), *keys_across = room.of(2, size);
            pack_transposed(s.of(a.key, head), a.key.token, s.tokens, a.width, keys_along);
            pack_transposed(s.of(a.value, head), a.value.token, s.tokens, a.width, values_along);
            pack_panels(s.of(a.key, head), a.key.token, s.tokens, a.width, keys_across);
            float *dkey = s.of(a.dkey, head), *dvalue = s.of(a.dvalue, head);
            for (long t = 0; t < s.tokens; t++) {
                memset(dkey + t * a.dkey.token, 0, a.width * sizeof(float));
                memset(dvalue + t * a.dvalue.token, 0, a.width * sizeof(float));
            }
            Panels p{keys_along, values_along, keys_across};
            for (long g = 0; g < group; g++) attend_head_backward(a, s, head * group + g, p, dkey, dvalue, room);
        } catch (const std::exception&) {
            failed = OUT_OF_MEMORY;
        }
    }
    return failed;
}

// --- the activation of GPT-2, x (1 + tanh u) / 2 = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)

template <bool back>
static Float8 gelu(Float8 x, Float8 dy) {
    constexpr float rate = 2 * 0.7978845608f, cube = 0.044715f;
    const Float8 one = Float8{} + 1;
    Float8 square = x * x, z = rate * x * (one + cube * square);
    Float8 small = exponential(z > 0 ? -z : z);  // taken where it cannot overflow
    Float8 gate = (z > 0 ? one : small) / (one + small);
    return back ? dy * gate * (one + x * (one - gate) * rate * (one + 3 * cube * square)) : x * gate;
}

template <bool back>
static void gelu_all(const float* x, const float* dy, float* y, long count) {
    long whole = count / 8 * 8;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < whole; i += 8)
        *(UnalignedFloat8*)(y + i) = gelu<back>(*(const UnalignedFloat8*)(x + i), *(const UnalignedFloat8*)(dy + i));
    Float8 rest = {}, drest = {};
    for (long i = whole; i < count; i++) rest[i - whole] = x[i], drest[i - whole] = dy[i];
    rest = gelu<back>(rest, drest);
    for (long i = whole; i < count; i++) y[i] = rest[i - whole];
}

extern "C" void gelu_tanh(const float* x, float* y, long count) { gelu_all<false>(x, x, y, count); }

extern "C" void gelu_tanh_back(const float* x, const float* dy, float* dx, long count) { gelu_all<true>(x, dy, dx, count); }
