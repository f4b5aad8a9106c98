// A thread pool for loops of a few microseconds: Team::each(n, f) calls f(0) ... f(n - 1) on several threads.
//
// Each thread has a part of a loop's indices of its own and claims them one by one, so that it reads weights as one contiguous
// stream, which the hardware's prefetch follows. Who has finished takes from the ends of the others' parts, and a loop ends when all
// indices are done, not when all threads have arrived: a descheduled thread claims none and does not delay the loop, unless it was
// stopped within one. Idle threads spin for some tens of microseconds, because the next loop usually follows at once, and then
// sleep in a futex: beside other processes they cost nothing.

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
        std::atomic<int> workers{0};  // how many of the pool's threads may take part
    };
    Loop loops[2];  // that of generation g is loops[g % 2]
    struct alignas(64) Part {
        std::atomic<uint64_t> indices{0};  // generation << 32 | first << 16 | end: what is left of it
    };
    Part parts[MAX_WORKERS + 1];  // of the caller, then of each worker
    uint64_t generation = 0;
    alignas(64) std::atomic<uint32_t> done{0};
    struct alignas(64) Signal {
        std::atomic<uint32_t> rings{0};  // changes with each loop that the worker may take part in; it sleeps on it
        std::atomic<bool> sleeping{false};
    };
    Signal signals[MAX_WORKERS];  // one for each worker: those that a loop does not need are not woken
    std::atomic<int> started{0};

    // Claim an index of a part, its first or, for another thread than its owner, its last, and run it; false if none is left. An
    // index that was claimed keeps its loop open, so what was read of the loop before the exchange succeeded belongs to it.
    bool run_index(Part& part, int thread, bool owner) {
        uint64_t left = part.indices.load(std::memory_order_acquire);
        uint32_t first = left >> 16 & 0xffff, end = left & 0xffff;
        const Loop& loop = loops[(left >> 32) % 2];
        Call call = loop.call.load(std::memory_order_relaxed);
        const void* body = loop.body.load(std::memory_order_relaxed);
        if (first == end || thread > loop.workers.load(std::memory_order_relaxed)) return false;
        if (part.indices.compare_exchange_strong(left, owner ? left + (1 << 16) : left - 1, std::memory_order_acq_rel)) {
            call(body, owner ? first : end - 1);
            done.fetch_add(1, std::memory_order_release);
        }
        return true;
    }

    // Run an index of the current loop: of the thread's own part, or when that is done of another's; false if none is left.
    bool run_any(int thread) {
        int threads = started.load(std::memory_order_relaxed) + 1;
        for (int ahead = 0; ahead < threads; ahead++)
            if (run_index(parts[(thread + ahead) % threads], thread, ahead == 0)) return true;
        return false;
    }

    void work(int worker) {
        Signal& signal = signals[worker];
        for (;;) {
            auto start = std::chrono::steady_clock::now();
            for (int idle = 1; idle % 64 || std::chrono::steady_clock::now() - start < SPIN; idle++)
                if (run_any(worker + 1)) start = std::chrono::steady_clock::now();
                else pause_briefly();
            signal.sleeping = true;
            uint32_t now = signal.rings;
            if (!run_any(worker + 1)) signal.rings.wait(now);
            signal.sleeping = false;
        }
    }

   public:
    static constexpr long MOST = 0xffff;  // indices of a loop
    std::mutex busy;  // one loop at a time

    // Make sure that there are so many threads beside the caller; fewer if the system allows no more.
    int start(int workers) {
        for (workers = workers < MAX_WORKERS ? workers : MAX_WORKERS; started < workers; started++) try {
                std::thread([this, id = started.load()] { work(id); }).detach();
            } catch (const std::exception&) {
                return started;
            }
        return workers;
    }

    void run(int workers, long count, Call call, const void* body) {
        generation++;
        Loop& loop = loops[generation % 2];
        loop.call.store(call, std::memory_order_relaxed);
        loop.body.store(body, std::memory_order_relaxed);
        loop.workers.store(workers, std::memory_order_relaxed);
        done.store(0, std::memory_order_relaxed);
        for (long thread = 0, threads = workers + 1; thread < threads; thread++) {
            uint64_t first = thread * count / threads, end = (thread + 1) * count / threads;
            parts[thread].indices.store(generation << 32 | first << 16 | end, std::memory_order_release);
        }
        for (int worker = 0; worker < workers; worker++) {
            signals[worker].rings.fetch_add(1);
            if (signals[worker].sleeping) signals[worker].rings.notify_one();
        }
        while (run_any(0)) {
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
        } else if (count <= Pool::MOST) {
            run(count, body);
        } else {  // several at a time
            long size = (count + Pool::MOST - 1) / Pool::MOST;
            run((count + size - 1) / size, [&](long block) {
                for (long i = block * size; i < std::min(count, (block + 1) * size); i++) body(i);
            });
        }
    }

    long threads() const { return workers + 1; }

   private:
    template <class Body>
    void run(long count, const Body& body) const {
        pool->run(workers, count, [](const void* body, long i) { (*(const Body*)body)(i); }, &body);
    }
};
