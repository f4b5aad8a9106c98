// A thread pool for loops of a few microseconds: Team::each(n, f) calls f(0) ... f(n - 1) on several threads.
//
// Threads claim shares of a loop, and it ends when all of them are done, not when all threads have arrived: a descheduled thread
// claims none and does not delay the loop, unless it was stopped within one. Idle threads spin for
// some tens of microseconds, because the next loop usually follows at once, and then sleep in a futex: beside other
// processes they cost nothing.

#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

static inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
    static constexpr int MAX_WORKERS = 63;
    static constexpr auto SPIN = std::chrono::microseconds(50);
    typedef void (*Call)(const void* body, long index);

    struct Loop {
        std::atomic<Call> call{nullptr};
        std::atomic<const void*> body{nullptr};
        std::atomic<uint32_t> count{0};
        std::atomic<int> workers{0};  // how many of the pool's threads may take part
    };
    Loop loops[2];  // that of generation g is loops[g % 2]
    alignas(64) std::atomic<uint64_t> ticket{0};  // generation << 32 | the next index
    alignas(64) std::atomic<uint32_t> done{0};
    struct alignas(64) Signal {
        std::atomic<uint32_t> rings{0};  // changes with each loop that the worker may take part in; it sleeps on it
        std::atomic<bool> sleeping{false};
    };
    Signal signals[MAX_WORKERS];  // one for each worker: those that a loop does not need are not woken
    int started = 0;

    // Claim a share of what is left of the current loop and run it. A claim keeps its loop open, so what was read of the loop before
    // the exchange succeeded belongs to it. A share is a thread's equal part of what is left: of two threads, a half, a quarter, and
    // so on. The first shares are long, so that a thread reads weights in the order in which they lie, and the last ones are short,
    // so that all threads end together.
    bool run_share(int worker) {
        uint64_t t = ticket.load(std::memory_order_acquire);
        const Loop& loop = loops[(t >> 32) % 2];
        Call call = loop.call.load(std::memory_order_relaxed);
        const void* body = loop.body.load(std::memory_order_relaxed);
        uint32_t first = (uint32_t)t, count = loop.count.load(std::memory_order_relaxed);
        int workers = loop.workers.load(std::memory_order_relaxed);
        if (first >= count || worker >= workers) return false;
        uint32_t share = std::max(1u, (count - first) / (workers + 1));
        if (ticket.compare_exchange_strong(t, t + share, std::memory_order_acq_rel)) {
            for (uint32_t i = first; i < first + share; i++) call(body, i);
            done.fetch_add(share, std::memory_order_release);
        }
        return true;
    }

    void work(int worker) {
        Signal& signal = signals[worker];
        for (;;) {
            auto start = std::chrono::steady_clock::now();
            for (int idle = 1; idle % 64 || std::chrono::steady_clock::now() - start < SPIN; idle++)
                if (run_share(worker)) start = std::chrono::steady_clock::now();
                else pause_briefly();
            signal.sleeping = true;
            uint32_t now = signal.rings;
            if (!run_share(worker)) signal.rings.wait(now);
            signal.sleeping = false;
        }
    }

   public:
    std::mutex busy;  // one loop at a time

    // Make sure that there are so many threads beside the caller; fewer if the system allows no more.
    int start(int workers) {
        for (workers = workers < MAX_WORKERS ? workers : MAX_WORKERS; started < workers; started++) try {
                std::thread([this, id = started] { work(id); }).detach();
            } catch (const std::exception&) {
                return started;
            }
        return workers;
    }

    void run(int workers, long count, Call call, const void* body) {
        uint64_t generation = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
        Loop& loop = loops[generation % 2];
        loop.call.store(call, std::memory_order_relaxed);
        loop.body.store(body, std::memory_order_relaxed);
        loop.count.store((uint32_t)count, std::memory_order_relaxed);
        loop.workers.store(workers, std::memory_order_relaxed);
        done.store(0, std::memory_order_relaxed);
        ticket.store(generation << 32, std::memory_order_release);
        for (int worker = 0; worker < workers; worker++) {
            signals[worker].rings.fetch_add(1);
            if (signals[worker].sleeping) signals[worker].rings.notify_one();
        }
        while (run_share(-1)) {
        }
        for (long spins = 0; done.load(std::memory_order_acquire) < (uint32_t)count; spins++)
            if (spins < 4000) pause_briefly();
            else std::this_thread::yield();
    }

    // The pool of this process. It is never destroyed: its threads end with the process. A forked child has none of them.
    static Pool* of_process() {
        static std::atomic<Pool*> pool{nullptr};
        static std::atomic<int> owner{0};
        static std::mutex making;
        if (owner.load() != getpid()) {
            std::lock_guard<std::mutex> lock(making);
            if (owner.load() != getpid()) {
                pool = new (std::nothrow) Pool;
                owner = getpid();
            }
        }
        return pool.load();
    }
};

// Threads for the loops of one call: the caller and `threads` - 1 of the pool, or the caller alone while the pool is in use.
class Team {
    Pool* pool = nullptr;
    int workers = 0;

   public:
    explicit Team(long threads) {
        if (threads < 2) return;
        pool = Pool::of_process();
        if (pool && !pool->busy.try_lock()) pool = nullptr;
        if (pool) workers = pool->start((int)threads - 1);
    }
    ~Team() {
        if (pool) pool->busy.unlock();
    }
    Team(const Team&) = delete;

    // body(i) for all i < count, in any order; it must not throw
    template <class Body>
    void each(long count, const Body& body) const {
        if (workers == 0 || count < 2) {
            for (long i = 0; i < count; i++) body(i);
            return;
        }
        pool->run(workers, count, [](const void* body, long i) { (*(const Body*)body)(i); }, &body);
    }

    long threads() const { return workers + 1; }
};
