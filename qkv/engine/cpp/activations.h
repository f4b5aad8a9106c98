// Activations, eight numbers at a time.

#pragma once

#include "vectors.h"

enum ActivationType : long { RELU, SILU, GELU, GELU_TANH, TANH, IDENTITY };

static Float8 magnitude(Float8 x) { return x > 0 ? x : -x; }

// 1 / (1 + e^-x), the exponential taken where it cannot overflow
static Float8 sigmoid(Float8 x) {
    const Float8 one = Float8{} + 1;
    Float8 small = exponential(-magnitude(x));
    return (x > 0 ? one : small) / (one + small);
}

// Abramowitz and Stegun 1964, 7.1.26: wrong by at most 1.5e-7
static Float8 error_function(Float8 x) {
    Float8 size = magnitude(x), t = 1 / (1 + 0.3275911f * size), series = Float8{} + 1.061405429f;
    for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) series = series * t + term;
    Float8 result = 1 - series * t * exponential(-size * size);
    return x > 0 ? result : -result;
}

// sqrt(2 / pi) (x + 0.044715 x^3), doubled: GPT-2's GELU is x sigmoid of it
static Float8 gelu_argument(Float8 x) { return 2 * 0.7978845608f * x * (1 + 0.044715f * x * x); }

static Float8 activation(Float8 x, long type) {
    switch (type) {
        case RELU: return x < 0 ? Float8{} : x;  // keeps what is not a number
        case SILU: return x * sigmoid(x);
        case GELU: return x * 0.5f * (1 + error_function(x * 0.70710678f));
        case GELU_TANH: return x * sigmoid(gelu_argument(x));
        case TANH: return 2 * sigmoid(2 * x) - 1;
        default: return x;
    }
}

// y (n) = f(x), or f(x) * factor; y may be x
static void activate(const float* x, const float* factor, float* y, long n, long type) {
    long whole = n / 8 * 8;
    for (long i = 0; i < whole; i += 8) {
        Float8 result = activation(*(const UnalignedFloat8*)(x + i), type);
        *(UnalignedFloat8*)(y + i) = factor ? result * *(const UnalignedFloat8*)(factor + i) : result;
    }
    if (whole == n) return;
    Float8 rest = {};
    for (long i = whole; i < n; i++) rest[i - whole] = x[i];
    rest = activation(rest, type);
    for (long i = whole; i < n; i++) y[i] = rest[i - whole] * (factor ? factor[i] : 1);
}
