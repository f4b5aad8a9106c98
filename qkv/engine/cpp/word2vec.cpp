// The word2vec training step of reference.py with SIMD and several threads without locks (Hogwild: Niu et al. 2011).
//
// The output rows of a position (a word and its negative samples, or the nodes on its path) are copied to a contiguous buffer that
// stays in the L1 cache for all neighbours; their gradients are accumulated there and added at the end. The rows of the next
// position are drawn and prefetched during the current one.

#include <math.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

struct Work {  // the layout of Word2VecStruct in engine/native.py
    const int* ids;
    const long *firsts, *ends;  // of each sentence in ids
    long sentences, place;      // position of ids[0] in the whole text
    float *input, *output;      // (words, stride), (rows, stride)
    long rows, width, stride;
    const uint32_t* keep;    // (words)
    const uint32_t* coins;   // of the alias table (words); null: no negative samples
    const int* others;
    long words, negative, window;
    const long* starts;   // of the Huffman tree; null: none. Without samples and tree: softmax
    const int* nodes;
    const float* labels;
    bool mean;               // CBOW: predict from the mean of the neighbours
    uint64_t seed;
    double rate, slope;      // learning rate at `place`, and its change per word
    long workers;
    double loss;             // out: the sum of losses
    long count;              // out: the number of predictions
};

EXPORT_SIZE(Work)

static uint64_t splitmix64(uint64_t x) {  // as in random.py
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static Float8 at(const float* from) { return *(const UnalignedFloat8*)from; }
static void add(float* to, Float8 x) { *(UnalignedFloat8*)to = at(to) + x; }
static Float8 all(float x) { return Float8{x, x, x, x, x, x, x, x}; }

struct Targets {  // output rows and their labels
    std::vector<int> rows;
    std::vector<float> labels;
};

class Learner {
    const Work& w;
    const long wide;  // width in whole registers; the padding is 0
    uint64_t state = 0;
    float rate = 0;
    std::vector<int> kept, spans, around;
    Targets now, next;
    std::vector<float> x, dx, u, du, scores;
    Float8 product = all(1), excess = {};  // log(prod) = sum(log) with one call
    long factors = 0;

public:
    double loss = 0;
    long count = 0;

    explicit Learner(const Work& work) : w(work), wide((work.width + 7) / 8 * 8), x(wide), dx(wide) {
        if (!w.coins && !w.starts) scores.resize(w.rows);
    }

    void sentence(long s) {
        long first = w.firsts[s], length = w.ends[s] - first;
        const int* ids = w.ids + first;
        state = splitmix64(w.seed + 0x9E3779B97F4A7C15u * (uint64_t)(w.place + first + 1));
        rate = (float)(w.rate + w.slope * first);
        kept.clear();
        for (long i = 0; i < length; i++)
            if (draw() >> 32 <= w.keep[ids[i]]) kept.push_back(ids[i]);
        long n = kept.size();
        if (n < 2) return;
        spans.resize(n);
        for (int& span : spans) span = 1 + (int)((draw() >> 32) * w.window >> 32);
        choose(kept[0], next);
        for (long t = 0; t < n; t++) {
            std::swap(now, next);
            if (t + 1 < n) choose(kept[t + 1], next);
            if (t + 1 + w.window < n) fetch(w.input + kept[t + 1 + w.window] * w.stride);
            around.clear();
            for (long j = std::max(t - spans[t], 0L); j < std::min(t + spans[t] + 1, n); j++)
                if (j != t) around.push_back(kept[j]);
            place(kept[t]);
        }
    }

private:
    uint64_t draw() { return splitmix64(state += 0x9E3779B97F4A7C15u); }

    // --- output rows

    void choose(int word, Targets& t) {
        t.rows.clear();
        t.labels.clear();
        if (w.starts) {
            t.rows.assign(w.nodes + w.starts[word], w.nodes + w.starts[word + 1]);
            t.labels.assign(w.labels + w.starts[word], w.labels + w.starts[word + 1]);
        } else if (w.coins) {
            t.rows.push_back(word);
            for (long k = 0; k < w.negative; k++) {
                uint64_t r = draw();
                uint32_t column = (r >> 32) * w.words >> 32;
                int drawn = (uint32_t)r <= w.coins[column] ? (int)column : w.others[column];
                if (drawn != word) t.rows.push_back(drawn);
            }
            t.labels.resize(t.rows.size());
            t.labels[0] = 1;
        }
        for (int row : t.rows) fetch(w.output + row * w.stride);
    }

    void fetch(const float* row) {
        for (long i = 0; i < w.width; i += 16) __builtin_prefetch(row + i);
    }

    // --- one position: its word is predicted from each group of neighbours

    void place(int word) {
        long rows = now.rows.size();
        u.resize(rows * wide);
        du.assign(rows * wide, 0);
        for (long k = 0; k < rows; k++) memcpy(&u[k * wide], w.output + now.rows[k] * w.stride, wide * sizeof(float));
        long size = w.mean ? around.size() : 1;
        for (size_t g = 0; g < around.size(); g += size) {
            gather(&around[g], size);
            if (w.coins || w.starts) {
                for (long k = 0; k < rows; k += 8) logistic(std::min(rows - k, 8L), &u[k * wide], &du[k * wide], &now.labels[k]);
            } else {
                softmax(word);
            }
            scatter(&around[g], size);
            count++;
        }
        for (long k = 0; k < rows; k++)
            for (long i = 0; i < wide; i += 8) add(w.output + now.rows[k] * w.stride + i, at(&du[k * wide + i]));
        settle();
    }

    void gather(const int* words, long n) {  // x = the mean of their input vectors, dx = 0
        memcpy(x.data(), w.input + words[0] * w.stride, wide * sizeof(float));
        for (long j = 1; j < n; j++)
            for (long i = 0; i < wide; i += 8) add(&x[i], at(w.input + words[j] * w.stride + i));
        if (n > 1)
            for (float& one : x) one /= n;
        std::fill(dx.begin(), dx.end(), 0.0f);
    }

    void scatter(const int* words, long n) {  // each gets its share of dx
        Float8 share = all(1.0f / n);
        for (long j = 0; j < n; j++)
            for (long i = 0; i < wide; i += 8) add(w.input + words[j] * w.stride + i, share * at(&dx[i]));
    }

    // --- losses; gradients are already scaled by the learning rate

    template <int K>
    void block(const float* u, float* du, const float* labels) {  // K rows and their labels
        Float8 sums[K] = {};
        for (long i = 0; i < wide; i += 8)
            for (int k = 0; k < K; k++) sums[k] += at(&x[i]) * at(u + k * wide + i);
        Float8 s = all(100), label = all(1);  // unused lanes: correct with certainty, no loss
        for (int k = 0; k < K; k++) s[k] = total(sums[k]), label[k] = labels[k];
        Float8 size = s < 0 ? -s : s, e = exponential(-size), one = all(1);
        Float8 sigma = (s < 0 ? e : one) / (one + e), error = rate * (label - sigma);
        Float8 wrong = label == 1 ? -s : s;
        product *= one + e;  // -log sigma(z) = log(1 + e^-|z|) + max(-z, 0)
        excess += wrong < 0 ? Float8{} : wrong;  // in this order NaN is kept
        if (++factors == 100) settle();
        Float8 step[K];
        for (int k = 0; k < K; k++) step[k] = all(error[k]);
        for (long i = 0; i < wide; i += 8) {
            Float8 here = at(&x[i]), change = at(&dx[i]);
            for (int k = 0; k < K; k++) {
                change += step[k] * at(u + k * wide + i);
                add(du + k * wide + i, step[k] * here);
            }
            *(UnalignedFloat8*)&dx[i] = change;
        }
    }

    void logistic(long rows, const float* u, float* du, const float* labels) {
        switch (rows) {
            case 1: return block<1>(u, du, labels);
            case 2: return block<2>(u, du, labels);
            case 3: return block<3>(u, du, labels);
            case 4: return block<4>(u, du, labels);
            case 5: return block<5>(u, du, labels);
            case 6: return block<6>(u, du, labels);
            case 7: return block<7>(u, du, labels);
            case 8: return block<8>(u, du, labels);
        }
    }

    void softmax(int word) {  // over all words
        float top = -INFINITY;
        double sum = 0;
        for (long r = 0; r < w.rows; r++) top = std::max(top, scores[r] = dot(x.data(), w.output + r * w.stride, wide));
        loss += top - scores[word];
        for (float& score : scores) sum += score = expf(score - top);
        loss += log(sum);
        for (long r = 0; r < w.rows; r++) {
            float* row = w.output + r * w.stride;
            Float8 error = all(rate * ((r == word) - (float)(scores[r] / sum)));
            for (long i = 0; i < wide; i += 8) {
                add(&dx[i], error * at(row + i));
                add(row + i, error * at(&x[i]));
            }
        }
    }

    void settle() {  // turn the product so far into a loss
        double whole = 1;
        for (int lane = 0; lane < 8; lane++) whole *= product[lane];
        loss += log(whole) + total(excess);
        product = all(1), excess = Float8{}, factors = 0;
    }
};

extern "C" void word2vec(Work* w) {
    double loss = 0;
    long count = 0;
#pragma omp parallel num_threads((int)w->workers) reduction(+ : loss, count)
    {
        Learner learner(*w);
#pragma omp for schedule(dynamic, 8) nowait
        for (long s = 0; s < w->sentences; s++) learner.sentence(s);
        loss += learner.loss;
        count += learner.count;
    }
    w->loss = loss;
    w->count = count;
}
