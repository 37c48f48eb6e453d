// MSA, part 2: attention over the selected blocks. See msa-kernels.cuh for the definition.
//
//   attend_few   a cluster of eight CTAs a (token, group), each two of the blocks, merged through distributed shared
//                memory: one launch. Bound by the latency of a chain of loads (ids, cells, rows). Where not all clusters
//                find room at once, eight CTAs without that bond, the last of which merges what all left in memory.
//   attend_many  works on (token, group, block) "pairs" sorted by block, so that a block is read once for up to
//                chunk_pairs tokens; a prefill that reads every block once a token is bound by L2 at a quarter of the
//                tensor cores' rate. A pair yields a normalised partial output of 16 heads x 128 in f16 and the base-2
//                logarithm of its softmax sum; the pairs of a token are weighed once all are there, by CTAs between
//                chunks. Bound by what L2 delivers: 4 KiB a pair of query, as much of output, and that again.
//
// Queries (f16) and partial outputs of attend_many are stored in fragment order (msa-tile.cuh), 16 bytes a lane, so that
// both move between global memory and the operand registers of one and the same thread.

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include "msa-attend.cuh"
#include "msa-choose.cuh"

#include <cooperative_groups.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace msa {

constexpr int chunk_pairs     = 64;               // most pairs that share one load of a block
constexpr int many_threads    = 256;

// A slice is some tokens of a stream for one group. Its chunks come before those of the next slice, and its partial outputs are
// combined beside the chunks of that one.
struct slicing {
    int n_slice; // of a (stream, group)
    int n_token; // of a slice; a stream's last may have fewer
};

struct chunk {
    int block;  // flat: slice*n_block + block
    int first;  // of its pairs in the sorted list
    int count;
};

// Where everything lies in the scratch memory of attend_many.
struct attend_plan {
    half  * query;      // [token][group] fragments
    half  * partial;    // [token][group][n_top] fragments
    float * log_sum;    // [token][group][n_top][msa_rows]
    slicing cut;
    int   * count;      // [slice][block] pairs
    int   * n_done;     // [slice] chunks
    int   * n_taken;    // chunks, and jobs of combining
    int   * first;      // [slice][block] of its pairs in the list
    int   * end;        // [slice] of its chunks
    int   * rank;       // [pair] within its block
    int   * list;       // pairs sorted by block
    chunk * chunks;
    int   * n_chunk;
    size_t  bytes;
};

// Slices whose partial outputs fit half of L2 are combined from there, as long as a block has a full chunk's pairs of each:
// with less it is read too often.
static slicing slicing_of(const msa_attend_args & args) {
    const int64_t n_pair  = (int64_t) args.pos.n_token*args.n_top; // of a (stream, group)
    const int64_t by_l2   = n_pair*fragment_halves*(int64_t) sizeof(half)/(current_device().l2_bytes/2) + 1;
    const int64_t by_size = n_pair/((int64_t) chunk_pairs*args.pos.n_block());
    const int n_token = (int) (args.pos.n_token/std::max<int64_t>(1, std::min(by_l2, by_size)));
    return {(args.pos.n_token + n_token - 1)/n_token, n_token};
}

__host__ __device__ static int n_slice(const msa_attend_args & args, const slicing & cut) {
    return args.pos.n_stream*args.n_group*cut.n_slice;
}

__host__ __device__ static int n_bucket(const msa_attend_args & args, const slicing & cut) {
    return n_slice(args, cut)*args.pos.n_block();
}

// What begins at zero: count, n_done and n_taken follow each other.
static int n_counter(const msa_attend_args & args, const slicing & cut) {
    return n_bucket(args, cut) + n_slice(args, cut) + 2;
}

static attend_plan plan_at(const msa_attend_args & args, char * base) {
    attend_plan plan = {};
    const auto take = [&](auto *& pointer, const size_t n) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + plan.bytes);
        plan.bytes += (n*sizeof(*pointer) + 255)/256*256;
    };
    if (msa_attend_launch(args) == msa_launch::many_tokens) {
        const size_t n_pair = (size_t) n_query(args)*args.n_top;
        plan.cut = slicing_of(args);
        take(plan.query,   (size_t) n_query(args)*fragment_halves);
        take(plan.partial, n_pair*fragment_halves);
        take(plan.log_sum, n_pair*msa_rows);
        take(plan.count,   n_counter(args, plan.cut));
        plan.n_done  = plan.count  + n_bucket(args, plan.cut);
        plan.n_taken = plan.n_done + n_slice(args, plan.cut);
        take(plan.first,   n_bucket(args, plan.cut));
        take(plan.end,     n_slice(args, plan.cut));
        take(plan.rank,    n_pair);
        take(plan.list,    n_pair);
        take(plan.chunks,  n_pair/chunk_pairs + n_bucket(args, plan.cut));
        take(plan.n_chunk, 1);
    }
    return plan;
}

// ---------------------------------------------------------------------------------------------------------------
// many tokens: sort the pairs by block

__device__ static int bucket_of(const msa_attend_args & args, const attend_plan & plan, const int query, const int block) {
    const int stream = query/(args.pos.n_token*args.n_group);
    const int token  = query/args.n_group%args.pos.n_token;
    const int slice  = (stream*args.n_group + query%args.n_group)*plan.cut.n_slice + token/plan.cut.n_token;
    return slice*args.pos.n_block() + block;
}

// A pair into the histogram.
__device__ static void count_pair(const msa_attend_args & args, const attend_plan & plan, const int query, const int place, const int block) {
    plan.rank[query*args.n_top + place] = block < 0 ? -1 : atomicAdd(plan.count + bucket_of(args, plan, query, block), 1);
}

// The warp's queries of a (token, group) to f16 in fragment order.
__device__ static void convert_query(const msa_attend_args & args, const attend_plan & plan, const int query) {
    const int lane = threadIdx.x%warp_size;
    const float * source = args.query + (int64_t) query*fragment_halves + lane/4*msa_dim + 2*(lane%4);
    uint4 * to = reinterpret_cast<uint4 *>(plan.query + (int64_t) query*fragment_halves) + lane;
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = *reinterpret_cast<const float2 *>(source + 8*(i%2)*msa_dim + 16*step + 8*(i/2));
            a[i] = pack(pair.x, pair.y);
        }
        to[step*warp_size] = make_uint4(a[0], a[1], a[2], a[3]);
    }
}

// A warp a (token, group).
__global__ void prepare(const msa_attend_args args, const attend_plan plan) {
    const int query = (blockIdx.x*blockDim.x + threadIdx.x)/warp_size;
    const int lane  = threadIdx.x%warp_size;
    if (query >= n_query(args)) {
        return;
    }
    if (lane < args.n_top) {
        count_pair(args, plan, query, lane, args.ids[query*args.n_top + lane]);
    }
    convert_query(args, plan, query);
}

// For kernels that choose before they do something else.
struct block_scores {
    msa_select_args select;
    const float   * scores;
    int64_t         stride;
};

constexpr int prepare_warps = 8; // of a CTA
static_assert(prepare_warps*(most_candidates<warp_size>(warp_blocks)*sizeof(uint64_t) + sizeof(choice<warp_size>)) <= least_shared);

// The same, after the choice: it waits for memory where the other waits for other lanes.
__global__ __launch_bounds__(prepare_warps*warp_size)
void choose_and_prepare(const msa_attend_args args, const attend_plan plan, const block_scores from) {
    extern __shared__ __align__(16) uint64_t candidates[];
    __shared__ choice<warp_size> choices[prepare_warps];
    const int warp  = threadIdx.x/warp_size;
    const int query = blockIdx.x*prepare_warps + warp;
    if (query >= n_query(args)) {
        return;
    }
    convert_query(args, plan, query);
    choose_blocks<warp_size>(from.select, from.scores + query*from.stride, args.pos.query[query/args.n_group], choices[warp],
        candidates + warp*most_candidates<warp_size>(args.pos.n_block()),
        [&](const int place, const int block) {
            from.select.ids[(int64_t) query*args.n_top + place] = block;
            count_pair(args, plan, query, place, block);
        });
}

constexpr int scan_threads = 1024;

__device__ static int2 add(const int2 a, const int2 b) {
    return make_int2(a.x + b.x, a.y + b.y);
}

__device__ static int2 scan_warp(int2 value) { // inclusive
#pragma unroll
    for (int step = 1; step < warp_size; step *= 2) {
        const int2 below = make_int2(__shfl_up_sync(all_lanes, value.x, step), __shfl_up_sync(all_lanes, value.y, step));
        if ((int) threadIdx.x%warp_size >= step) {
            value = add(value, below);
        }
    }
    return value;
}

// One CTA: where every block's pairs begin, and the chunks they are cut into.
__global__ __launch_bounds__(scan_threads)
void scan(const msa_attend_args args, const attend_plan plan) {
    __shared__ int2 total[warp_size];
    const int warp = threadIdx.x/warp_size;
    const int lane = threadIdx.x%warp_size;
    int2 done = make_int2(0, 0); // pairs and chunks before this round
    for (int base = 0; base < n_bucket(args, plan.cut); base += scan_threads) {
        const int bucket = base + threadIdx.x;
        const int n = bucket < n_bucket(args, plan.cut) ? plan.count[bucket] : 0;
        const int2 mine = make_int2(n, (n + chunk_pairs - 1)/chunk_pairs);
        int2 until = scan_warp(mine);
        if (lane == warp_size - 1) {
            total[warp] = until;
        }
        __syncthreads();
        if (warp == 0) {
            total[lane] = scan_warp(total[lane]);
        }
        __syncthreads();
        until = add(add(until, done), warp > 0 ? total[warp - 1] : make_int2(0, 0));
        if (n > 0) {
            plan.first[bucket] = until.x - mine.x;
            for (int i = 0; i < mine.y; ++i) {
                plan.chunks[until.y - mine.y + i] = {bucket, until.x - mine.x + i*chunk_pairs, min(chunk_pairs, n - i*chunk_pairs)};
            }
        }
        if (bucket < n_bucket(args, plan.cut) && bucket%args.pos.n_block() == args.pos.n_block() - 1) {
            plan.end[bucket/args.pos.n_block()] = until.y;
        }
        done = add(done, total[warp_size - 1]);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        *plan.n_chunk = done.y;
    }
}

__global__ void sort_pairs(const msa_attend_args args, const attend_plan plan) {
    const int pair = blockIdx.x*blockDim.x + threadIdx.x;
    if (pair < n_query(args)*args.n_top && plan.rank[pair] >= 0) {
        plan.list[plan.first[bucket_of(args, plan, pair/args.n_top, args.ids[pair])] + plan.rank[pair]] = pair;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// many tokens: combine

// Weighs the pairs of a (token, group) by their softmax sums. A warp; one of the eight 512-byte pieces of all pairs at a time: few
// enough registers to have them in flight together. L1 is passed by, as other multiprocessors wrote what is read here.
__device__ __forceinline__ void combine(const msa_attend_args & args, const attend_plan & plan, const int query) {
    const int lane   = threadIdx.x%warp_size;
    const int id     = lane < args.n_top ? args.ids[(int64_t) query*args.n_top + lane] : -1;
    const int n_used = __popc(__ballot_sync(all_lanes, id >= 0));       // ids end in -1
    const float * log_sum = plan.log_sum + (int64_t) query*args.n_top*msa_rows + lane/4;

    float weight[msa_top][2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int part = 0; part < msa_top; ++part) {
            weight[part][i] = part < n_used ? __ldcg(log_sum + part*msa_rows + 8*i) : -INFINITY;
            top[i] = fmaxf(top[i], weight[part][i]);
        }
        const float base = top[i] == -INFINITY ? 0.0f : top[i];
#pragma unroll
        for (int part = 0; part < msa_top; ++part) {
            weight[part][i] = exp2_fast(weight[part][i] - base);
            sum[i] += weight[part][i];
        }
    }
    const uint4 * partial = reinterpret_cast<const uint4 *>(plan.partial + (int64_t) query*args.n_top*fragment_halves) + lane;
#pragma unroll 1
    for (int piece = 0; piece < 8; ++piece) {
        float acc[8] = {};
#pragma unroll
        for (int part = 0; part < msa_top; ++part) {
            const uint4 raw   = part < n_used ? __ldcg(partial + (8*part + piece)*warp_size) : make_uint4(0, 0, 0, 0);
            const half8 value = *reinterpret_cast<const half8 *>(&raw);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float2 pair = __half22float2(value.pair[k]);
                acc[2*k]     += weight[part][k%2]*pair.x;
                acc[2*k + 1] += weight[part][k%2]*pair.y;
            }
        }
        store_piece(args.out + (int64_t) query*fragment_halves, piece, acc, sum);
    }
}

constexpr int job_tokens = 16; // of a slice, that a CTA combines at a time

__device__ static int jobs_of_slice(const attend_plan & plan) {
    return (plan.cut.n_token + job_tokens - 1)/job_tokens;
}

__device__ static bool is_done(const attend_plan & plan, const int slice) {
    int n_done;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(n_done) : "l"(plan.n_done + slice) : "memory");
    return n_done == plan.end[slice] - (slice > 0 ? plan.end[slice - 1] : 0);
}

__device__ static void combine_tokens(const msa_attend_args & args, const attend_plan & plan, const int job_index) {
    const int slice = job_index/jobs_of_slice(plan);
    if (threadIdx.x == 0) {
        while (!is_done(plan, slice)) {}
    }
    __syncthreads();
    const int part   = slice%plan.cut.n_slice;
    const int group  = slice/plan.cut.n_slice%args.n_group;
    const int stream = slice/plan.cut.n_slice/args.n_group;
    const int first  = job_index%jobs_of_slice(plan)*job_tokens;
    for (int i = first + threadIdx.x/warp_size; i < min(first + job_tokens, plan.cut.n_token); i += many_threads/warp_size) {
        const int token = part*plan.cut.n_token + i;
        if (token < args.pos.n_token) {
            combine(args, plan, (stream*args.pos.n_token + token)*args.n_group + group);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// many tokens: attention

// A multiprocessor: two hide each other's loads and softmax where shared memory and registers allow.
__host__ __device__ constexpr int many_ctas(const bool hopper) {
    return hopper ? 2 : 1;
}

enum class work { chunk, combining, nothing };

struct job {
    work what;
    int  index;
};

struct many_shared {
    char     key  [tile_bytes];
    char     value[tile_bytes];
    half8    query[many_threads/warp_size][8][warp_size]; // of the next pair; every lane reads what it copied itself
    uint16_t mask[8];
    job      next;
};

// acc: products of 16 rows x 128 keys -> probabilities in a, their row sums, and maxima in units of the exponent of 2.
__device__ static void softmax_rows(const float (&acc)[64], const float scale, uint32_t (&a)[8][4], float (&top)[2], float (&sum)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int n = 0; n < 16; ++n) {
            best[0] = fmaxf(best[0], acc[4*n + 2*i]);
            best[1] = fmaxf(best[1], acc[4*n + 2*i + 1]);
        }
        top[i] = scale*row_max(fmaxf(best[0], best[1]));
        const float base = top[i] == -INFINITY ? 0.0f : top[i];
        float part[2] = {};
#pragma unroll
        for (int n = 0; n < 16; ++n) {
            const float low  = exp2_fast(scale*acc[4*n + 2*i]     - base);
            const float high = exp2_fast(scale*acc[4*n + 2*i + 1] - base);
            part[0] += low;
            part[1] += high;
            a[n/2][2*(n%2) + i] = pack(low, high);
        }
        sum[i] = row_sum(part[0] + part[1]);
    }
}

__device__ static void store_part(const attend_plan & plan, const int64_t part, const float (&acc)[64], const float (&top)[2], const float (&sum)[2]) {
    const int lane = threadIdx.x%warp_size;
    const float scale[2] = {sum[0] > 0.0f ? 1.0f/sum[0] : 0.0f, sum[1] > 0.0f ? 1.0f/sum[1] : 0.0f};
    uint4 * to = reinterpret_cast<uint4 *>(plan.partial + part*fragment_halves) + lane;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        const float * x = acc + 8*c;
        __stcg(to + c*warp_size, make_uint4(
            pack(x[0]*scale[0], x[1]*scale[0]), pack(x[2]*scale[1], x[3]*scale[1]),
            pack(x[4]*scale[0], x[5]*scale[0]), pack(x[6]*scale[1], x[7]*scale[1])));
    }
    if (lane%4 == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            plan.log_sum[part*msa_rows + lane/4 + 8*i] = sum[i] > 0.0f ? top[i] + log2f(sum[i]) : -INFINITY;
        }
    }
}

// One thread of a CTA takes what it does next. Before the chunks run out it combines only what is done already, and so never waits
// with a chunk in hand: what others wait for is always under way.
__device__ static job take_job(const msa_attend_args & args, const attend_plan & plan, const bool prefers_combining) {
    const int n_job = n_slice(args, plan.cut)*jobs_of_slice(plan);
    if (prefers_combining) {
        int next;
        asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(next) : "l"(plan.n_taken + 1) : "memory");
        if (next < n_job && is_done(plan, next/jobs_of_slice(plan)) && atomicCAS(plan.n_taken + 1, next, next + 1) == next) {
            return {work::combining, next};
        }
    }
    const int index = atomicAdd(plan.n_taken, 1);
    if (index < *plan.n_chunk) {
        return {work::chunk, index};
    }
    const int last = atomicAdd(plan.n_taken + 1, 1);
    return {last < n_job ? work::combining : work::nothing, last};
}

// The queries of a warp's pairs on their way through its own shared memory: lane i knows the ith pair, the query, and the last key
// of the block that it sees.
struct pair_list {
    int   pair; // -1: none
    int   query;
    int   last_key;
    half8 (& room)[8][warp_size];

    __device__ int pair_at(const int i)     const { return __shfl_sync(all_lanes, pair, i); }
    __device__ int last_key_at(const int i) const { return __shfl_sync(all_lanes, last_key, i); }

    __device__ void fetch(const attend_plan & plan, const int i) const {
        const int lane = threadIdx.x%warp_size;
        const bool here = pair_at(i) >= 0;
        const char * from = reinterpret_cast<const char *>(plan.query + (int64_t) __shfl_sync(all_lanes, query, i)*fragment_halves) + lane*sizeof(half8);
        const uint32_t to = shared_address(&room[0][lane]);
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            copy16_async(to + step*warp_size*sizeof(half8), from + step*warp_size*sizeof(half8), here);
        }
        copies_commit();
    }

    __device__ void take(uint32_t (&a)[8][4]) const {
        copies_wait<0>();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            const uint4 piece = *reinterpret_cast<const uint4 *>(&room[step][threadIdx.x%warp_size]);
            a[step][0] = piece.x;
            a[step][1] = piece.y;
            a[step][2] = piece.z;
            a[step][3] = piece.w;
        }
    }
};

constexpr int many_warps = many_threads/warp_size;
static_assert(chunk_pairs/many_warps < warp_size, "a lane beyond the last pair knows none");

__device__ __forceinline__ pair_list pairs_of(const msa_attend_args & args, const attend_plan & plan, const chunk & own, const int block, many_shared & shared) {
    const int warp  = threadIdx.x/warp_size;
    const int lane  = threadIdx.x%warp_size;
    const int at    = lane*many_warps + warp;
    const int pair  = lane < chunk_pairs/many_warps && at < own.count ? plan.list[own.first + at] : -1;
    const int query = max(pair, 0)/args.n_top;
    return {pair, query, args.pos.query[query/args.n_group] - block*msa_block, shared.query[warp]};
}

template <msa_type type>
__device__ __forceinline__ void attend_chunk(const msa_attend_args & args, const attend_plan & plan, const int index, many_shared & shared) {
    const int warp   = threadIdx.x/warp_size;
    const int lane   = threadIdx.x%warp_size;
    const chunk own  = plan.chunks[index];
    const int block  = own.block%args.pos.n_block();
    const int slice  = own.block/args.pos.n_block();
    const int group  = slice/plan.cut.n_slice%args.n_group;
    const int stream = slice/plan.cut.n_slice/args.n_group;
    const uint32_t key_tile   = shared_address(shared.key);
    const uint32_t value_tile = shared_address(shared.value);

    const int cell = lane < 16 ? cell_of(args.pos, stream, block*msa_block + 16*warp + lane) : -1;
    fill_rows<type>(key_tile, 16*warp, args.key.data + group*args.key.group_bytes + stream*args.key.stream_bytes, args.key.cell_bytes, cell);
    fill_rows<type>(value_tile, 16*warp, args.value.data + group*args.value.group_bytes + stream*args.value.stream_bytes, args.value.cell_bytes, cell);
    const pair_list pairs = pairs_of(args, plan, own, block, shared);
    pairs.fetch(plan, 0);
    if (threadIdx.x == 0) {
        shared.next = take_job(args, plan, true); // while rows are on their way
    }
    const uint32_t present = __ballot_sync(all_lanes, cell >= 0);
    if (lane == 0) {
        shared.mask[warp] = (uint16_t) present;
    }
    copies_wait<0>();
    tiles_written();
    __syncthreads();
    const block_mask mask = *reinterpret_cast<const block_mask *>(shared.mask);

    // A warpgroup takes four pairs at a time, one a warp.
    for (int i = 0; i*many_warps + warp/4*4 < own.count; ++i) {
        const int pair     = pairs.pair_at(i);
        const int last_key = pairs.last_key_at(i);
        uint32_t a[8][4];
        pairs.take(a);
        pairs.fetch(plan, i + 1);

        float acc[64], top[2], sum[2];
        product_start<tile_rows::output>(acc, a, key_tile);
        product_wait<0>(acc);
        if (!mask.complete() || last_key < msa_block - 1) {
            hide_keys(acc, mask, last_key);
        }
        softmax_rows(acc, args.scale*log2_e, a, top, sum);
        product_start<tile_rows::summed>(acc, a, value_tile);
        product_wait<0>(acc);
        if (pair >= 0) {
            store_part(plan, pair, acc, top, sum);
        }
    }
    copies_wait<0>(); // the last fetch, of nothing, is not to land on the next chunk's first
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(plan.n_done + slice, 1);
    }
}

template <msa_type type>
__global__ __launch_bounds__(many_threads, many_ctas(msa_hopper))
void attend_many(const msa_attend_args args, const attend_plan plan) {
    extern __shared__ __align__(1024) char raw[];
    many_shared & shared = *reinterpret_cast<many_shared *>(raw);
    if (threadIdx.x == 0) {
        shared.next = take_job(args, plan, false);
    }
    __syncthreads();
    for (job now = shared.next; now.what != work::nothing; now = shared.next) {
        __syncthreads(); // all have read it
        if (now.what == work::chunk) {
            attend_chunk<type>(args, plan, now.index, shared);
        } else {
            if (threadIdx.x == 0) {
                shared.next = take_job(args, plan, false);
            }
            combine_tokens(args, plan, now.index);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// few tokens

// 16 keys of each of two blocks a warp. Keys come in as operands (see score_few for the order of dimensions); values
// cross shared memory to be transposed.
constexpr int few_threads = 256;
constexpr int few_warps   = few_threads/warp_size;
constexpr int few_cluster = msa_top/2; // a cluster has all blocks of a (token, group)
static_assert(few_cluster == few_warps, "pieces of an output: one a warp, then one a CTA");

// A warp's shared memory: 32 value rows as they are; for quantised types then 32 key rows, and in their place when they
// are used 16 value rows as f16; last the warp's output.
template <msa_type type>
struct few_layout {
    static constexpr bool converts    = type == msa_type::q8_0 || type == msa_type::q4_0;
    static constexpr int  copy_bytes  = converts ? 8 : 16; // quantised rows are 8-byte aligned
    static constexpr int  copies      = row_bytes_of(type)/copy_bytes;      // a row
    static constexpr int  raw_bytes   = 32*row_bytes_of(type);
    static constexpr int  tile_bytes  = 16*msa_dim*(int) sizeof(half);
    static constexpr int  input_bytes = raw_bytes + (!converts ? 0 : raw_bytes > tile_bytes ? raw_bytes : tile_bytes);
    static constexpr int  out_bytes   = fragment_halves*(int) sizeof(float);
    static constexpr int  bytes       = input_bytes > out_bytes ? input_bytes : out_bytes;
};

__device__ inline int value_offset(const int row, const int chunk) {
    return row*256 + ((chunk ^ (row%8))*16);
}

template <msa_type type>
__device__ static void copy_rows(const uint32_t to, const char * rows, const int64_t cell_bytes, const int cell) {
    using layout = few_layout<type>;
#pragma unroll
    for (int i = 0; i < layout::copies; ++i) {
        const int piece = i*warp_size + threadIdx.x%warp_size;
        const int row   = piece/layout::copies;
        const int at    = piece%layout::copies;
        const int from  = __shfl_sync(all_lanes, cell, row);
        const char * source = rows + (from < 0 ? 0 : from)*cell_bytes + at*layout::copy_bytes;
        if constexpr (!layout::converts) {
            copy16_async(to + value_offset(row, at), source, from >= 0);
        } else {
            copy8_async(to + piece*8, source, from >= 0);
        }
    }
    copies_commit();
}

// score: products of 16 rows with 32 keys, in four groups of eight -> weights; row maxima in units of the exponent of 2.
__device__ inline void few_softmax(float (&score)[16], const float scale, const uint32_t visible, uint32_t (&weight)[2][4], float (&top)[2], float (&sum)[2]) {
    const int lane = threadIdx.x%warp_size;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float best = -INFINITY;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float & x = score[4*n + 2*i + e];
                x = (visible >> (8*n + 2*(lane%4) + e)) & 1 ? x : -INFINITY;
                best = fmaxf(best, x);
            }
        }
        top[i] = scale*row_max(best);
        const float base = top[i] == -INFINITY ? 0.0f : top[i];
        float part = 0.0f;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const float low  = exp2_fast(scale*score[4*n + 2*i]     - base);
            const float high = exp2_fast(scale*score[4*n + 2*i + 1] - base);
            part += low + high;
            weight[n/2][2*(n%2) + i] = pack(low, high);
        }
        sum[i] = row_sum(part);
    }
}

// Every lane turns the pieces that it copied itself from bf16 into f16.
__device__ inline void few_narrow(char * own) {
#pragma unroll
    for (int i = 0; i < few_layout<msa_type::bf16>::copies; ++i) {
        const int piece = i*warp_size + threadIdx.x%warp_size;
        half8 * chunk = reinterpret_cast<half8 *>(own + value_offset(piece/16, piece%16));
        *chunk = row_format<msa_type::bf16>::load(reinterpret_cast<const char *>(chunk), 0);
    }
}

template <msa_type type>
__device__ static void few_values(float (&acc)[64], char * own, const uint32_t (&weight)[2][4]) {
    using layout = few_layout<type>;
    const int lane = threadIdx.x%warp_size;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        char * tile = own + (layout::converts ? layout::raw_bytes : k*16*256);
        if constexpr (layout::converts) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int row = 2*i + lane/16;
                *reinterpret_cast<half8 *>(tile + value_offset(row, lane%16)) =
                    row_format<type>::load(own + (16*k + row)*row_bytes_of(type), lane%16);
            }
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 16; n += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, shared_address(tile + value_offset(lane%16, n + lane/16)));
            mma_m16n8k16(acc + 4*n,     weight[k], b[0], b[1]);
            mma_m16n8k16(acc + 4*n + 4, weight[k], b[2], b[3]);
        }
    }
}

struct few_sums {
    float top[few_warps][msa_rows];
    float sum[few_warps][msa_rows];
    float part_top[few_cluster][msa_rows]; // of the cluster's CTAs
    float part_sum[few_cluster][msa_rows];
};

constexpr int few_query_stride = msa_dim + 4; // floats; padded against bank conflicts

// Where CTAs that are no cluster leave their parts (msa-attend.cuh); in scratch memory.
struct few_parts {
    float4 * data;  // [query][CTA]
    float  * top;   // [query][CTA][msa_rows]
    float  * sum;   // same
    int    * count; // [query] of parts that are there, 0 before the launch
};

enum class few_way { cluster, cluster_that_chooses, loose };

__host__ __device__ constexpr bool is_cluster(const few_way way) {
    return way != few_way::loose;
}

// A warp's 32 keys: 16 of each of two blocks, lane l looks after key l.
template <msa_type type>
struct few_rows {
    char * own;         // the warp's shared memory
    half8  key[4][4];

    // Starts to bring keys and values in.
    __device__ void begin(const char * keys, const int64_t key_bytes, const char * values, const int64_t value_bytes, const int cell) {
        using layout = few_layout<type>;
        const int lane = threadIdx.x%warp_size;
        if constexpr (layout::converts) {
            copy_rows<type>(shared_address(own) + layout::raw_bytes, keys, key_bytes, cell);
        } else {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int from = __shfl_sync(all_lanes, cell, 8*n + lane/4);
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    key[n][p] = from < 0 ? zero8() : row_format<type>::load(keys + from*key_bytes, 4*p + lane%4);
                }
            }
        }
        copy_rows<type>(shared_address(own), values, value_bytes, cell);
    }

    // After the copies of quantised keys have arrived.
    __device__ void take_keys() {
        using layout = few_layout<type>;
        const int lane = threadIdx.x%warp_size;
        if constexpr (layout::converts) {
            __syncwarp();
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    key[n][p] = row_format<type>::load(own + layout::raw_bytes + (8*n + lane/4)*row_bytes_of(type), 4*p + lane%4);
                }
            }
        }
    }
};

// score: the 16 heads' products with the warp's keys, in the order of dimensions in which lanes hold these.
__device__ inline void few_products(float (&score)[16], const half8 (&key)[4][4], const float * queries) {
    const int lane = threadIdx.x%warp_size;
    const float * source = queries + lane/4*few_query_stride + 8*(lane%4);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        score[i] = 0.0f;
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        uint32_t a[2][4]; // two steps of the product
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float * row = source + 8*i*few_query_stride + 32*p;
            const float4 low  = *reinterpret_cast<const float4 *>(row);
            const float4 high = *reinterpret_cast<const float4 *>(row + 4);
            a[0][i]     = pack(low.x, low.y);
            a[0][i + 2] = pack(low.z, low.w);
            a[1][i]     = pack(high.x, high.y);
            a[1][i + 2] = pack(high.z, high.w);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const uint32_t * b = reinterpret_cast<const uint32_t *>(&key[n][p]);
            mma_m16n8k16(score + 4*n, a[0], b[0], b[1]);
            mma_m16n8k16(score + 4*n, a[1], b[2], b[3]);
        }
    }
}

// Starts to copy a query's 16 heads into padded rows.
__device__ inline void copy_heads(float * queries, const float * query) {
#pragma unroll
    for (int i = 0; i < fragment_halves/4/few_threads; ++i) {
        const int at = i*few_threads + threadIdx.x;
        copy16_async(shared_address(queries + at/(msa_dim/4)*few_query_stride + at%(msa_dim/4)*4),
            reinterpret_cast<const char *>(query + 4*at), true);
    }
    copies_commit();
}

// Every CTA of a cluster chooses for itself; the first one also says what.
__device__ inline void few_choose(int * ids, const block_scores & from, const int position, const int query, const int rank, uint64_t * candidates) {
    __shared__ choice<few_threads> team;
    choose_blocks<few_threads>(from.select, from.scores + query*from.stride, position, team, candidates, [&](const int place, const int id) {
        ids[place] = id;
        if (rank == 0) {
            from.select.ids[(int64_t) query*from.select.n_top + place] = id;
        }
    });
    __syncthreads();
}

__device__ inline void store_part_piece(float4 * to, const float (&total)[8]) {
    to[0]         = make_float4(total[0], total[1], total[2], total[3]);
    to[warp_size] = make_float4(total[4], total[5], total[6], total[7]);
}

// The cluster's parts become the output: warp w of every CTA sends piece w to CTA w, which merges it. `inbox` has room for
// eight pieces, and nobody uses it for anything else since the cluster's last barrier_arrive.
__device__ inline void merge_cluster(const msa_attend_args & args, const int query, const int rank, float4 * inbox, few_sums & sums,
        float (&total)[8], float (&top)[2], float (&sum)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    const int warp = threadIdx.x/warp_size;
    const int lane = threadIdx.x%warp_size;
    const int row  = lane/4;
    auto cluster = cooperative_groups::this_cluster();
    cluster.barrier_wait();
    store_part_piece(cluster.map_shared_rank(inbox, warp) + 2*rank*warp_size + lane, total);
    if (lane%4 == 0) {
        few_sums * there = cluster.map_shared_rank(&sums, warp);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            there->part_top[rank][row + 8*i] = top[i];
            there->part_sum[rank][row + 8*i] = sum[i];
        }
    }
    cluster.sync();
    if (warp == 0) {
        merge_parts<few_cluster>([&](const int r) { return inbox + 2*r*warp_size + lane; },
            [&](const int r, const int i) { return sums.part_top[r][row + 8*i]; },
            [&](const int r, const int i) { return sums.part_sum[r][row + 8*i]; }, total, top, sum);
        store_piece(args.out + (int64_t) query*fragment_halves, rank, total, sum);
    }
#endif
}

// The same through memory. The CTA that finds all others' parts there merges them, a piece a warp.
__device__ inline void merge_loose(const msa_attend_args & args, const few_parts & parts, const int query, const int rank,
        float (&total)[8], float (&top)[2], float (&sum)[2]) {
    __shared__ bool is_last;
    const int warp = threadIdx.x/warp_size;
    const int row  = threadIdx.x%warp_size/4;
    const int64_t first = (int64_t) query*few_cluster;
    const auto piece_of = [&](const int r) {
        return parts.data + (first + r)*(fragment_halves/4) + 2*warp*warp_size + threadIdx.x%warp_size;
    };
    store_part_piece(piece_of(rank), total);
    if (warp == 0 && threadIdx.x%4 == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            parts.top[(first + rank)*msa_rows + row + 8*i] = top[i];
            parts.sum[(first + rank)*msa_rows + row + 8*i] = sum[i];
        }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(parts.count + query, 1) == few_cluster - 1;
    }
    __syncthreads();
    if (!is_last) {
        return;
    }
    __threadfence();
    merge_parts<few_cluster>(piece_of, [&](const int r, const int i) { return parts.top[(first + r)*msa_rows + row + 8*i]; },
        [&](const int r, const int i) { return parts.sum[(first + r)*msa_rows + row + 8*i]; }, total, top, sum);
    store_piece(args.out + (int64_t) query*fragment_halves, warp, total, sum);
}

static_assert(msa_rows*few_query_stride*sizeof(float) >= few_cluster*2*warp_size*sizeof(float4), "parts lie where queries did");

// Brings the map near before it is known which entries are wanted: one load a line, as far as a thread each reaches.
__device__ inline void touch_map(const msa_positions & pos, const int stream) {
    const int n  = pos.map == nullptr ? 0 : pos.n_pos >> pos.map_shift;
    const int at = threadIdx.x*32;
    if (at < n) {
        [[maybe_unused]] int entry;
        asm volatile("ld.global.ca.b32 %0, [%1];" : "=r"(entry) : "l"(pos.map + (int64_t) stream*n + at));
    }
}

// The CTA's part of the output, over its 256 keys: warp w has piece w.
template <msa_type type, few_way way>
__device__ __forceinline__ void few_part(const few_rows<type> & rows, char * raw, const float * queries, few_sums & sums, const float scale,
        const uint32_t visible, float (&total)[8], float (&top)[2], float (&sum)[2]) {
    using layout = few_layout<type>;
    const int warp = threadIdx.x/warp_size;
    const int lane = threadIdx.x%warp_size;
    float score[16];
    uint32_t weight[2][4];
    few_products(score, rows.key, queries);
    few_softmax(score, scale, visible, weight, top, sum);
    if (lane%4 == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sums.top[warp][lane/4 + 8*i] = top[i];
            sums.sum[warp][lane/4 + 8*i] = sum[i];
        }
    }
    if constexpr (is_cluster(way)) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        cooperative_groups::this_cluster().barrier_arrive(); // the queries are not needed any more
#endif
    }
    copies_wait<0>();
    if constexpr (type == msa_type::bf16) {
        few_narrow(rows.own);
    }
    float acc[64] = {};
    few_values<type>(acc, rows.own, weight);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 16; ++n) {
        reinterpret_cast<float4 *>(rows.own)[n*warp_size + lane] = make_float4(acc[4*n], acc[4*n + 1], acc[4*n + 2], acc[4*n + 3]);
    }
    __syncthreads();
    merge_parts<few_warps>([&](const int w) { return reinterpret_cast<float4 *>(raw + w*layout::bytes) + 2*warp*warp_size + lane; },
        [&](const int w, const int i) { return sums.top[w][lane/4 + 8*i]; },
        [&](const int w, const int i) { return sums.sum[w][lane/4 + 8*i]; }, total, top, sum);
}

template <msa_type type, few_way way>
__global__ __launch_bounds__(few_threads, 2)
void attend_few(const msa_attend_args args, const block_scores from, const few_parts parts) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // clusters; older devices attend to few tokens as to many
    using layout = few_layout<type>;
    extern __shared__ __align__(1024) char raw[];
    __shared__ few_sums sums;
    __shared__ __align__(16) float queries[msa_rows*few_query_stride];

    const int warp   = threadIdx.x/warp_size;
    const int lane   = threadIdx.x%warp_size;
    const int rank   = blockIdx.x; // of the eight, which are the whole of x
    const int group  = blockIdx.y;
    const int token  = blockIdx.z; // of all streams
    const int query  = token*args.n_group + group;
    const int stream = token/args.pos.n_token;
    const char * keys   = args.key.data   + group*args.key.group_bytes   + stream*args.key.stream_bytes;
    const char * values = args.value.data + group*args.value.group_bytes + stream*args.value.stream_bytes;
    few_rows<type> rows;
    rows.own = raw + warp*layout::bytes;
    copy_heads(queries, args.query + (int64_t) query*fragment_halves);
    const int until = args.pos.query[token];
    touch_map(args.pos, stream);
    wait_for_last(); // nothing before this depends on what was chosen
    constexpr bool chooses = way == few_way::cluster_that_chooses;
    __shared__ int ids[msa_top];
    if constexpr (chooses) {
        few_choose(ids, from, until, query, rank, reinterpret_cast<uint64_t *>(raw));
    }
    const int slot  = 2*rank + lane/16;
    const int block = slot >= args.n_top ? -1 : chooses ? ids[slot] : args.ids ? args.ids[(int64_t) query*args.n_top + slot] : slot;
    const int at    = block*msa_block + 16*warp + lane%16;
    const int cell  = block < 0 ? -1 : cell_of(args.pos, stream, at);
    const uint32_t visible = __ballot_sync(all_lanes, cell >= 0 && at <= until);
    rows.begin(keys, args.key.cell_bytes, values, args.value.cell_bytes, cell);
    copies_wait<1>(); // the values may still be on their way
    __syncthreads();  // the queries are there
    rows.take_keys();

    float total[8], top[2], sum[2];
    few_part<type, way>(rows, raw, queries, sums, args.scale*log2_e, visible, total, top, sum);
    if constexpr (is_cluster(way)) {
        merge_cluster(args, query, rank, reinterpret_cast<float4 *>(queries), sums, total, top, sum);
    } else {
        merge_loose(args, parts, query, rank, total, top, sum);
    }
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// Beside the end of another kernel clusters go to the first multiprocessors that have room, two CTAs to each if they fit.
// So much shared memory that they do not spreads them over Hopper: each brings in 128 KB, which two take twice as long for.
constexpr size_t few_alone_bytes = 104*1024;

template <msa_type type, few_way way>
static cudaError_t launch_few(const msa_attend_args & args, const block_scores & from, const few_parts & parts, const begins when, cudaStream_t stream) {
    static_assert(most_candidates<few_threads>(msa_most_blocks)*sizeof(uint64_t) <= few_warps*few_layout<type>::bytes, "candidates lie where values will");
    static_assert(few_warps*few_layout<type>::bytes + msa_rows*few_query_stride*sizeof(float) + sizeof(few_sums) + sizeof(choice<few_threads>)
        + msa_top*sizeof(int) <= least_shared);
    const dim3 grid(few_cluster, args.n_group, args.pos.n_stream*args.pos.n_token);
    constexpr size_t bytes = few_warps*few_layout<type>::bytes;
    const bool alone = way == few_way::cluster_that_chooses && current_device().hopper;
    return launch_clusters(is_cluster(way) ? few_cluster : 1, when, attend_few<type, way>, grid, few_threads,
        alone ? few_alone_bytes : bytes, stream, args, from, parts);
}

template <few_way way>
static cudaError_t launch_few(const msa_attend_args & args, const block_scores & from, const few_parts & parts, const begins when, cudaStream_t stream) {
    switch (args.key.type) {
        case msa_type::f16:  return launch_few<msa_type::f16,  way>(args, from, parts, when, stream);
        case msa_type::bf16: return launch_few<msa_type::bf16, way>(args, from, parts, when, stream);
        case msa_type::q8_0: return launch_few<msa_type::q8_0, way>(args, from, parts, when, stream);
        case msa_type::q4_0: return launch_few<msa_type::q4_0, way>(args, from, parts, when, stream);
    }
    return cudaErrorNotSupported;
}

static_assert(sizeof(many_shared) <= least_shared);

template <msa_type type>
static cudaError_t launch_many(const msa_attend_args & args, const attend_plan & plan, cudaStream_t stream) {
    const device_facts device = current_device();
    const int n_pair  = n_query(args)*args.n_top;
    const int n_cta   = device.n_sm*many_ctas(device.hopper);
    return in_turn(
        [&] { return launch(scan, dim3(1), scan_threads, 0, stream, args, plan); },
        [&] { return launch(sort_pairs, dim3((n_pair + 255)/256), 256, 0, stream, args, plan); },
        [&] { return launch(attend_many<type>, dim3(n_cta), many_threads, sizeof(many_shared), stream, args, plan); });
}

// from: nullptr if ids are chosen already.
static cudaError_t launch_many(const msa_attend_args & args, const attend_plan & plan, const block_scores * from, cudaStream_t stream) {
    const dim3 by_warp((n_query(args) + prepare_warps - 1)/prepare_warps);
    return in_turn(
        [&] { return cudaMemsetAsync(plan.count, 0, n_counter(args, plan.cut)*sizeof(int), stream); },
        [&] {
            const size_t bytes = prepare_warps*most_candidates<warp_size>(args.pos.n_block())*sizeof(uint64_t);
            return from ? launch(choose_and_prepare, by_warp, prepare_warps*warp_size, bytes, stream, args, plan, *from)
                        : launch(prepare, by_warp, prepare_warps*warp_size, 0, stream, args, plan);
        },
        [&] {
            switch (args.key.type) {
                case msa_type::f16:  return launch_many<msa_type::f16> (args, plan, stream);
                case msa_type::bf16: return launch_many<msa_type::bf16>(args, plan, stream);
                case msa_type::q8_0: return launch_many<msa_type::q8_0>(args, plan, stream);
                case msa_type::q4_0: return launch_many<msa_type::q4_0>(args, plan, stream);
            }
            return cudaErrorNotSupported;
        });
}

// How the two operators run as one.
enum class together { in_turn, preparing, beside, choosing, loose };

static together together_as(const msa_select_args & select, const msa_attend_args & attend) {
    const msa_launch tokens = msa_select_launch(select);
    if (tokens != msa_attend_launch(attend) || select.n_top != attend.n_top) {
        return together::in_turn;
    }
    if (tokens != msa_launch::few_tokens) {
        // Scores lie where partial outputs will, if there is room.
        const size_t room = (size_t) n_query(attend)*attend.n_top*fragment_halves*sizeof(half);
        return warp_chooses(select) && msa_select_scratch_bytes(select) <= room ? together::preparing : together::in_turn;
    }
    // With more than a token every CTA's choosing costs more than the launch that it saves.
    if (select.pos.n_token*select.pos.n_stream == 1) {
        return together::choosing;
    }
    // A cluster lies in one of the parts that a device consists of, so that fewer fit than multiprocessors say.
    return n_query(attend)*few_cluster > current_device().n_sm*2*7/8 ? together::loose : together::beside;
}

// Behind the scores.
static few_parts parts_at(const msa_select_args & select, const msa_attend_args & attend, char * base, size_t & bytes) {
    few_parts parts = {};
    bytes = score_bytes(select);
    const auto take = [&](auto *& pointer, const size_t n) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + bytes);
        bytes += (n*sizeof(*pointer) + 255)/256*256;
    };
    const size_t n_part = (size_t) n_query(attend)*few_cluster;
    take(parts.data,  n_part*fragment_halves/4);
    take(parts.top,   n_part*msa_rows);
    take(parts.sum,   n_part*msa_rows);
    take(parts.count, n_query(attend));
    return parts;
}

} // namespace msa

// ---------------------------------------------------------------------------------------------------------------
// entry

msa_launch msa_attend_launch(const msa_attend_args & args) {
    const int n_token = args.pos.n_token*args.pos.n_stream;
    const bool shape = args.n_top >= 1 && args.n_top <= msa_top && args.n_group >= 1 && n_token >= 1
        && args.key.type == args.value.type
        && (int64_t) n_token*args.n_group*args.n_top < (1 << 28) && (int64_t) args.pos.n_stream*args.n_group*args.pos.n_block() < (1 << 28);
    if (!shape) {
        return msa_launch::none;
    }
    return n_token <= 32 && msa::current_device().newer ? msa_launch::few_tokens : msa_launch::many_tokens;
}

size_t msa_attend_scratch_bytes(const msa_attend_args & args) {
    return msa::plan_at(args, nullptr).bytes;
}

cudaError_t msa_attend(const msa_attend_args & args, void * scratch, cudaStream_t stream) {
    if (msa_attend_launch(args) == msa_launch::few_tokens) {
        return msa::launch_few<msa::few_way::cluster>(args, {}, {}, msa::begins::after_last, stream);
    }
    return msa::launch_many(args, msa::plan_at(args, static_cast<char *>(scratch)), nullptr, stream);
}

size_t msa_select_attend_scratch_bytes(const msa_select_args & select, const msa_attend_args & attend) {
    size_t with_parts = 0;
    if (msa::together_as(select, attend) == msa::together::loose) {
        msa::parts_at(select, attend, nullptr, with_parts);
    }
    return std::max({msa_select_scratch_bytes(select), msa_attend_scratch_bytes(attend), with_parts});
}

cudaError_t msa_select_attend(const msa_select_args & select, const msa_attend_args & attend, void * scratch, cudaStream_t stream) {
    const msa::block_scores from = {select, static_cast<const float *>(scratch), msa::score_stride(select)};
    const msa::begins when = msa::walks(select) ? msa::begins::beside_last : msa::begins::after_last; // beside score_few it was slower
    switch (msa::together_as(select, attend)) {
        case msa::together::in_turn:
            return msa::in_turn([&] { return msa_select(select, scratch, stream); }, [&] { return msa_attend(attend, scratch, stream); });
        case msa::together::preparing: {
            const msa::attend_plan plan = msa::plan_at(attend, static_cast<char *>(scratch));
            const msa::block_scores there = {select, reinterpret_cast<const float *>(plan.partial), msa::score_stride(select)};
            return msa::in_turn([&] { return msa::score_blocks(select, plan.partial, stream); },
                [&] { return msa::launch_many(attend, plan, &there, stream); });
        }
        case msa::together::beside:
            return msa::in_turn([&] { return msa_select(select, scratch, stream); },
                [&] { return msa::launch_few<msa::few_way::cluster>(attend, {}, {}, msa::begins::beside_last, stream); });
        case msa::together::choosing:
            return msa::in_turn([&] { return msa::score_blocks(select, scratch, stream); },
                [&] { return msa::launch_few<msa::few_way::cluster_that_chooses>(attend, from, {}, when, stream); });
        case msa::together::loose:
            break;
    }
    size_t bytes = 0;
    const msa::few_parts parts = msa::parts_at(select, attend, static_cast<char *>(scratch), bytes);
    return msa::in_turn([&] { return msa::score_blocks(select, scratch, stream); },
        [&] { return msa::choose_each(select, from.scores, parts.count, stream); },
        [&] { return msa::launch_few<msa::few_way::loose>(attend, {}, parts, msa::begins::beside_last, stream); });
}

#endif
