// Launches of kernels that the host's compiler built: a thread of the system for each thread of each block.
//
// Invariant: all blocks of a grid run at once. Absent: warps, which do not run in step here.

#ifndef CONSORT_GRID_HPP
#define CONSORT_GRID_HPP

#include <memory>
#include <thread>
#include <vector>

#include "device.cuh"

// A launch that runs; joined when it goes.
class Grid {
    struct BlockMemory {
        pthread_barrier_t meeting;
        consort::Shared shared;
        std::vector<consort::u64> dynamic;

        BlockMemory(unsigned threads, size_t bytes) : dynamic(bytes / 8 + 1) {
            pthread_barrier_init(&meeting, nullptr, threads);
        }
        ~BlockMemory() { pthread_barrier_destroy(&meeting); }
    };
    std::vector<std::unique_ptr<BlockMemory>> memory;
    std::vector<std::thread> running;

  public:
    template <class Parameter>
    Grid(void (*kernel)(Parameter), unsigned blocks, unsigned threads, size_t dynamic_bytes, const Parameter &parameter) {
        for (unsigned block = 0; block < blocks; block++) {
            memory.push_back(std::make_unique<BlockMemory>(threads, dynamic_bytes));
            BlockMemory *own = memory.back().get();
            for (unsigned thread = 0; thread < threads; thread++) {
                running.emplace_back([=] {
                    consort::context = {thread, threads, block, blocks, &own->meeting, &own->shared, own->dynamic.data()};
                    kernel(parameter);
                });
            }
        }
    }
    Grid(Grid &&) = default;
    ~Grid() {
        for (std::thread &thread : running) {
            thread.join();
        }
    }
};

#endif
