// The selective scan, forwards and backwards: x_t = exp(dt_t A) x_(t-1) + dt_t B_t u_t, y_t = C_t x_t.
//
// Float8 channels go along the text together, each with its N states, which never leave the nearest cache: torch would write
// (tokens, N, channels) numbers to memory several times over. The way forwards leaves a mark of x at every STRETCH tokens; the
// way back goes from mark to mark and forms what lies between again.

#include <string.h>

#include <memory>
#include <vector>

#include "vectors.h"

constexpr long STRETCH = 16;

struct Scan {
    const float *u, *step, *decay, *enter, *leave, *first;  // u, dt (B, T, I), A (N, I), B, C (B, T, N), x before (B, N, I)
    float *y, *last, *marks;                                // (B, T, I), x after (B, N, I), (B, T / STRETCH, N, I)
    long rows, tokens, width, states;
    const float *dy, *dlast;  // gradients, for the way back
    float *du, *dstep, *ddecay, *denter, *dleave, *dfirst;  // ddecay (B, N, I): of each row by itself
};

static Float8 at(const float* x) { return *(const UnalignedFloat8*)x; }
static void put(float* x, Float8 value) { *(UnalignedFloat8*)x = value; }
static long stretches(const Scan& s) { return (s.tokens + STRETCH - 1) / STRETCH; }

// What the token t of a row does to eight channels from i on.
struct Token {
    Float8 u, step;
    const float *enter, *leave;
    Token(const Scan& s, long row, long t, long i) {
        long token = row * s.tokens + t;
        u = at(s.u + token * s.width + i), step = at(s.step + token * s.width + i);
        enter = s.enter + token * s.states, leave = s.leave + token * s.states;
    }
};

static void forwards(const Scan& s, long row, long i) {
    std::vector<float> x(8 * s.states);
    for (long n = 0; n < s.states; n++) put(&x[8 * n], at(s.first + (row * s.states + n) * s.width + i));
    for (long t = 0; t < s.tokens; t++) {
        if (t % STRETCH == 0) {
            float* mark = s.marks + (row * stretches(s) + t / STRETCH) * s.states * s.width + i;
            for (long n = 0; n < s.states; n++) put(mark + n * s.width, at(&x[8 * n]));
        }
        Token now(s, row, t, i);
        Float8 input = now.step * now.u, y = {};
        for (long n = 0; n < s.states; n++) {
            Float8 new_x = exponential(now.step * at(s.decay + n * s.width + i)) * at(&x[8 * n]) + input * now.enter[n];
            put(&x[8 * n], new_x);
            y += new_x * now.leave[n];
        }
        put(s.y + (row * s.tokens + t) * s.width + i, y);
    }
    for (long n = 0; n < s.states; n++) put(s.last + (row * s.states + n) * s.width + i, at(&x[8 * n]));
}

struct Workspace {  // what one thread needs on the way back
    std::vector<float> x, fade, dx, denter, dleave;
    explicit Workspace(const Scan& s)
        : x(8 * s.states * (STRETCH + 1)), fade(8 * s.states * STRETCH), dx(8 * s.states),
          denter(8 * s.states * s.tokens), dleave(8 * s.states * s.tokens) {}
};

// x before and after each token of a stretch, and how much of it was left
static void again(const Scan& s, long row, long i, long from, long end, Workspace& room) {
    const float* mark = s.marks + (row * stretches(s) + from / STRETCH) * s.states * s.width + i;
    for (long n = 0; n < s.states; n++) put(&room.x[8 * n], at(mark + n * s.width));
    for (long t = from; t < end; t++) {
        Token now(s, row, t, i);
        Float8 input = now.step * now.u;
        float *before = &room.x[8 * s.states * (t - from)], *after = before + 8 * s.states;
        float* fade = &room.fade[8 * s.states * (t - from)];
        for (long n = 0; n < s.states; n++) {
            Float8 left = exponential(now.step * at(s.decay + n * s.width + i));
            put(fade + 8 * n, left);
            put(after + 8 * n, left * at(before + 8 * n) + input * now.enter[n]);
        }
    }
}

// One token on the way back: dx, the gradient of x after it, becomes that of x before it
static void back(const Scan& s, long row, long i, long t, long from, Workspace& room) {
    Token now(s, row, t, i);
    long place = (row * s.tokens + t) * s.width + i;
    Float8 dy = at(s.dy + place), input = now.step * now.u, dstep = {}, dinput = {};
    const float *before = &room.x[8 * s.states * (t - from)], *after = before + 8 * s.states;
    const float* fade = &room.fade[8 * s.states * (t - from)];
    float *denter = &room.denter[8 * s.states * t], *dleave = &room.dleave[8 * s.states * t];
    for (long n = 0; n < s.states; n++) {
        Float8 dx = at(&room.dx[8 * n]) + dy * now.leave[n], left = at(fade + 8 * n);
        put(dleave + 8 * n, at(dleave + 8 * n) + dy * at(after + 8 * n));
        put(denter + 8 * n, at(denter + 8 * n) + dx * input);
        dinput += dx * now.enter[n];
        Float8 exponent = dx * left * at(before + 8 * n);  // the gradient of dt A
        float* ddecay = s.ddecay + (row * s.states + n) * s.width + i;
        put(ddecay, at(ddecay) + exponent * now.step);
        dstep += exponent * at(s.decay + n * s.width + i);
        put(&room.dx[8 * n], dx * left);
    }
    put(s.du + place, dinput * now.step);
    put(s.dstep + place, dstep + dinput * now.u);
}

static void backwards(const Scan& s, long row, Workspace& room) {
    std::fill(room.denter.begin(), room.denter.end(), 0.0f);
    std::fill(room.dleave.begin(), room.dleave.end(), 0.0f);
    memset(s.ddecay + row * s.states * s.width, 0, s.states * s.width * sizeof(float));
    for (long i = 0; i < s.width; i += 8) {
        for (long n = 0; n < s.states; n++) put(&room.dx[8 * n], at(s.dlast + (row * s.states + n) * s.width + i));
        for (long from = (stretches(s) - 1) * STRETCH; from >= 0; from -= STRETCH) {
            long end = std::min(from + STRETCH, s.tokens);
            again(s, row, i, from, end, room);
            for (long t = end - 1; t >= from; t--) back(s, row, i, t, from, room);
        }
        for (long n = 0; n < s.states; n++) put(s.dfirst + (row * s.states + n) * s.width + i, at(&room.dx[8 * n]));
    }
    for (long k = 0; k < s.tokens * s.states; k++) {  // all channels read the same B and C
        s.denter[row * s.tokens * s.states + k] = total(at(&room.denter[8 * k]));
        s.dleave[row * s.tokens * s.states + k] = total(at(&room.dleave[8 * k]));
    }
}

EXPORT_SIZE(Scan)

// 0, or OUT_OF_MEMORY with a result that has no meaning
extern "C" int scan(const Scan* arguments) {
    const Scan& s = *arguments;
    std::atomic<int> failed{0};
#pragma omp parallel for collapse(2)
    for (long row = 0; row < s.rows; row++)
        for (long i = 0; i < s.width; i += 8) try {
                forwards(s, row, i);
            } catch (const std::exception&) {
                failed = OUT_OF_MEMORY;
            }
    return failed;
}

extern "C" int scan_back(const Scan* arguments) {
    const Scan& s = *arguments;
    std::atomic<int> failed{0};
#pragma omp parallel
    {
        std::unique_ptr<Workspace> room;
#pragma omp for
        for (long row = 0; row < s.rows; row++) try {
                if (!room) room.reset(new Workspace(s));
                backwards(s, row, *room);
            } catch (const std::exception&) {
                failed = OUT_OF_MEMORY;
            }
    }
    return failed;
}
