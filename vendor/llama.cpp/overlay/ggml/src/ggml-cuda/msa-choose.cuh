// The best blocks of a (token, group), by scores that a kernel before has left in memory. The choosing is a kernel of
// its own (msa-select.cu) and the beginning of attend_few (msa-attend.cu), which saves a launch. Both wait for what it takes
// at one token, so that latency is what counts here.

#pragma once

#include "msa-tile.cuh"

#include <climits>
#include <cmath>

namespace msa {

int64_t     score_stride(const msa_select_args & args); // of rows (token, group) of all streams
size_t      score_bytes (const msa_select_args & args);
bool        walks(const msa_select_args & args); // score_blocks is score_walk
bool        warp_chooses(const msa_select_args & args); // for a row, rather than a CTA
cudaError_t score_blocks(const msa_select_args & args, void * scratch, cudaStream_t stream); // at the beginning of scratch
cudaError_t choose_each (const msa_select_args & args, const float * scores, int * zeros, cudaStream_t stream); // also sets a zero a row, if wanted

constexpr int warp_blocks = 2048; // most that a warp alone chooses from

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

// A team of threads chooses for a row: a warp, or all threads of a CTA. It holds its ranks in as many groups as a warp has
// lanes; from more than msa_most_blocks there would be more candidates than there is room for.
template <int n_thread>
struct choice { // in shared memory
    alignas(16) uint64_t best[warp_size]; // of each group
    uint64_t bound;
    int      count;
    int      chosen[warp_size];
};

// Most ranks at or above the bound.
template <int n_thread>
__host__ __device__ constexpr int most_candidates(const int n_block) {
    const int n = msa_top*(n_thread/warp_size)*((n_block + n_thread - 1)/n_thread);
    return n < warp_size ? warp_size : n;
}

template <int n_thread> __device__ void sync_team() {
    if constexpr (n_thread == warp_size) {
        __syncwarp();
    } else {
        __syncthreads();
    }
}

// at(i) for the lanes i that this warp of the team looks after, an equal share of the 32.
template <int n_thread, typename work>
__device__ __forceinline__ void for_own_lanes(const work & at) {
    constexpr int n_own = warp_size*warp_size/n_thread;
#pragma unroll
    for (int k = 0; k < n_own; ++k) {
        at(threadIdx.x%n_thread/warp_size*n_own + k);
    }
}

// The best rank of each group gives a lower bound: at most n_top groups hold anything at or above the n_top-th best of
// them. 1 if fewer than n_top groups hold anything: then all that is visible qualifies.
template <int n_thread>
__device__ __forceinline__ uint64_t bound_of(choice<n_thread> & shared, uint64_t * candidates, unsigned long long mine, const int n_top) {
    constexpr int n_lane = n_thread/warp_size; // of a group
    const int thread = threadIdx.x%n_thread;
    const int lane   = threadIdx.x%warp_size;
#pragma unroll
    for (int other = 1; other < n_lane; other *= 2) {
        mine = max(mine, __shfl_xor_sync(all_lanes, mine, other));
    }
    if (thread%n_lane == 0) {
        shared.best[thread/n_lane] = mine;
    }
    if (thread < warp_size) {
        candidates[thread] = 0;
    }
    if (thread == 0) {
        shared.count = 0;
        shared.bound = 1;
    }
    sync_team<n_thread>();
    const unsigned long long best = shared.best[lane];
    if constexpr (n_thread == warp_size) { // each lane counts for itself
        int better = 0;
#pragma unroll
        for (int i = 0; i < warp_size; i += 2) {
            const ulonglong2 pair = *reinterpret_cast<const ulonglong2 *>(shared.best + i);
            better += (pair.x > best) + (pair.y > best);
        }
        const uint32_t found = __ballot_sync(all_lanes, better == n_top - 1 && best > 0);
        return found == 0 ? 1 : __shfl_sync(all_lanes, best, __ffs(found) - 1);
    }
    for_own_lanes<n_thread>([&](const int i) {
        const unsigned long long other = __shfl_sync(all_lanes, best, i);
        const int better = __popc(__ballot_sync(all_lanes, best > other));
        if (lane == 0 && better == n_top - 1 && other > 0) {
            shared.bound = other;
        }
    });
    sync_team<n_thread>();
    return shared.bound;
}

__device__ __forceinline__ int block_of(const uint64_t rank) {
    return (int) (0xffffffffu - (uint32_t) rank);
}

// store(place, block) is called for each of the n_top places, by different threads.
//
// At most 32 candidates, then zeros: lanes vote.
template <int n_thread, typename store_id>
__device__ __forceinline__ void place_few(choice<n_thread> & shared, const uint64_t * candidates, const int n_top, const store_id & store) {
    const int lane = threadIdx.x%warp_size;
    const unsigned long long candidate = candidates[lane];
    for_own_lanes<n_thread>([&](const int i) {
        const unsigned long long other = __shfl_sync(all_lanes, candidate, i);
        const int above = __popc(__ballot_sync(all_lanes, candidate > other));
        if (lane == 0) {
            shared.chosen[i] = other > 0 && above < n_top ? block_of(other) : INT_MAX;
        }
    });
    sync_team<n_thread>();
    const int block = shared.chosen[lane];
    for_own_lanes<n_thread>([&](const int i) {
        const int other = __shfl_sync(all_lanes, block, i);
        const int place = __popc(__ballot_sync(all_lanes, block < other));
        if (lane == 0 && other != INT_MAX) {
            store(place, other);
        }
    });
    const int n_chosen = __popc(__ballot_sync(all_lanes, block != INT_MAX));
    const int thread   = threadIdx.x%n_thread;
    if (thread >= n_chosen && thread < n_top) {
        store(thread, -1);
    }
}

// Any number of candidates: they are counted out. A team of one warp does it always, as it would have all votes to itself.
template <int n_thread, typename store_id>
__device__ __forceinline__ void place_many(choice<n_thread> & shared, const uint64_t * candidates, const int n_top, const store_id & store) {
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
            shared.chosen[above] = block_of(candidate);
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
                place += k < n_chosen && shared.chosen[k] < block;
            }
        }
        store(place, block);
    }
}

// Puts the ranks at or above the bound that the thread holds among the candidates.
template <int n_thread, int n_held>
__device__ __forceinline__ void offer(choice<n_thread> & shared, uint64_t * candidates, const uint64_t (&held)[n_held], const uint64_t bound) {
    int n_own = 0;
#pragma unroll
    for (int k = 0; k < n_held; ++k) {
        n_own += held[k] >= bound;
    }
    if (n_own == 0) {
        return;
    }
    int at = atomicAdd(&shared.count, n_own);
#pragma unroll
    for (int k = 0; k < n_held; ++k) {
        if (held[k] >= bound) {
            candidates[at++] = held[k];
        }
    }
}

// score: of every block, for a token at this position. candidates: room for most_candidates.
template <int n_thread, typename store_id>
__device__ void choose_blocks(const msa_select_args & args, const float * score, const int position, choice<n_thread> & shared,
        uint64_t * candidates, const store_id & store) {
    constexpr int n_held = 8; // ranks a thread keeps in registers, the first ones
    const int thread = threadIdx.x%n_thread;
    float first[n_held];
#pragma unroll
    for (int k = 0; k < n_held; ++k) { // all at once
        const int block = thread + k*n_thread;
        first[k] = block < args.pos.n_block() ? score[block] : -INFINITY;
    }
    const int own = position/msa_block;
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
    const uint64_t bound = bound_of(shared, candidates, mine, args.n_top);
    offer(shared, candidates, held, bound);
    for (int block = thread + n_held*n_thread; block < n; block += n_thread) {
        const uint64_t candidate = rank(block);
        if (candidate >= bound) {
            candidates[atomicAdd(&shared.count, 1)] = candidate;
        }
    }
    sync_team<n_thread>();
    if (n_thread > warp_size && shared.count <= warp_size) {
        place_few(shared, candidates, args.n_top, store);
    } else {
        place_many(shared, candidates, args.n_top, store);
    }
}

} // namespace msa
