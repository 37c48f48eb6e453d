// The best blocks of a (token, group), by scores that a kernel before has left in memory. The choosing is a kernel of
// its own (msa-select.cu) and the beginning of attend_few (msa-attend.cu), which saves a launch.

#pragma once

#include "msa-tile.cuh"

#include <climits>
#include <cmath>

namespace msa {

int64_t     score_stride(const msa_select_args & args); // of rows (token, group) of all streams
size_t      score_bytes (const msa_select_args & args);
bool        is_short_walk(const msa_select_args & args); // score_blocks is score_walk, with a block a CTA at most
cudaError_t score_blocks(const msa_select_args & args, void * scratch, cudaStream_t stream); // at the beginning of scratch
cudaError_t choose_each (const msa_select_args & args, const float * scores, int * zeros, cudaStream_t stream); // also sets a zero a row, if wanted

// Scores in the order of unsigned integers, forced blocks above all, invisible ones 0; then lower blocks first.
// All ranks differ, so the choice is exact.
__device__ inline uint64_t rank_of(const float score, const int block, const bool forced) {
    if (score == -INFINITY) {
        return 0;
    }
    const uint32_t bits = __float_as_uint(score);
    const uint32_t high = forced ? 0xffffffffu : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    return ((uint64_t) high << 32) | (0xffffffffu - (uint32_t) block);
}

template <int n_thread>
struct choice { // of one row, in shared memory
    alignas(16) uint64_t best[n_thread];
    uint64_t threshold;
    int      count;
    int      chosen[msa_top];
};

// Most ranks at or above the threshold.
template <int n_thread>
__host__ __device__ constexpr int most_candidates(const int n_block) {
    return msa_top*((n_block + n_thread - 1)/n_thread);
}

template <int n_thread> __device__ void sync_team() {
    if constexpr (n_thread == warp_size) {
        __syncwarp();
    } else {
        asm volatile("bar.sync 1, %0;" :: "n"(n_thread) : "memory");
    }
}

// A team is a warp, or the first n_thread threads of a CTA.
//
// Each thread's best rank gives a lower bound: at most msa_top threads hold anything at or above the msa_top-th best of
// them. 1 if fewer than n_top threads hold anything: then all that is visible qualifies.
template <int n_thread>
__device__ __forceinline__ uint64_t bound_of(choice<n_thread> & shared, const uint64_t mine, const int n_top) {
    const int thread = threadIdx.x%n_thread;
    shared.best[thread] = mine;
    if (thread < msa_top) {
        shared.chosen[thread] = INT_MAX;
    }
    if (thread == 0) {
        shared.threshold = 1;
        shared.count = 0;
    }
    sync_team<n_thread>();
    int better = 0;
#pragma unroll 16
    for (int i = 0; i < n_thread; i += 2) {
        const ulonglong2 pair = *reinterpret_cast<const ulonglong2 *>(shared.best + i);
        better += (pair.x > mine) + (pair.y > mine);
    }
    if (better == n_top - 1 && mine > 0) {
        shared.threshold = mine;
    }
    sync_team<n_thread>();
    return shared.threshold;
}

// The shared.count candidates are few, and are counted out. store(place, block) is called for each of the n_top places, by
// different threads.
template <int n_thread, typename store_id>
__device__ __forceinline__ void place_best(choice<n_thread> & shared, const uint64_t * candidates, const int n_top, const store_id & store) {
    const int thread = threadIdx.x%n_thread;
    const int n_candidate = shared.count;
    const int n_chosen    = min(n_candidate, n_top);
    for (int i = thread; i < n_candidate; i += n_thread) {
        const uint64_t candidate = candidates[i];
        int above = 0;
#pragma unroll 8
        for (int k = 0; k < n_candidate; ++k) {
            above += candidates[k] > candidate;
        }
        if (above < n_top) {
            shared.chosen[above] = (int) (0xffffffffu - (uint32_t) candidate);
        }
    }
    sync_team<n_thread>();
    if (thread < n_top) {
        const int block = thread < n_chosen ? shared.chosen[thread] : -1;
        int place = thread;
        if (block >= 0) {
            place = 0;
#pragma unroll
            for (int k = 0; k < msa_top; ++k) {
                place += shared.chosen[k] < block;
            }
        }
        store(place, block);
    }
}

// score: of every block, for the token at *position. candidates: room for most_candidates.
template <int n_thread, typename store_id>
__device__ void choose_blocks(const msa_select_args & args, const float * score, const int * position, choice<n_thread> & shared,
        uint64_t * candidates, const store_id & store) {
    constexpr int n_held = 8; // ranks a thread keeps in registers, the first ones
    const int thread = threadIdx.x%n_thread;
    float first[n_held];
#pragma unroll
    for (int k = 0; k < n_held; ++k) { // before the position is known
        const int block = thread + k*n_thread;
        first[k] = block < args.pos.n_block() ? score[block] : -INFINITY;
    }
    const int own = *position/msa_block;
    const int n   = min(own + 1, args.pos.n_block());
    const auto rank_at = [&](const float x, const int block) {
        return rank_of(x, block, block < args.n_init || block > own - args.n_local);
    };
    const auto rank = [&](const int block) { return rank_at(score[block], block); };

    uint64_t held[n_held], mine = 0;
#pragma unroll
    for (int k = 0; k < n_held; ++k) {
        const int block = thread + k*n_thread;
        held[k] = block < n ? rank_at(first[k], block) : 0;
    }
#pragma unroll
    for (int k = 0; k < n_held; ++k) {
        mine = max(mine, held[k]);
    }
#pragma unroll 8
    for (int block = thread + n_held*n_thread; block < n; block += n_thread) {
        mine = max(mine, rank(block));
    }
    const uint64_t bound = bound_of(shared, mine, args.n_top);
    const auto offer = [&](const uint64_t candidate) {
        if (candidate >= bound) {
            candidates[atomicAdd(&shared.count, 1)] = candidate;
        }
    };
#pragma unroll
    for (int k = 0; k < n_held; ++k) {
        offer(held[k]);
    }
    for (int block = thread + n_held*n_thread; block < n; block += n_thread) {
        offer(rank(block));
    }
    sync_team<n_thread>();
    place_best(shared, candidates, args.n_top, store);
}

} // namespace msa
