// MSA, part 2: attention over the selected blocks. See msa-kernels.cuh for the definition.
//
// Work is cut by (token, group, selected block), a "pair". Each pair yields a normalised partial output of 16 heads
// x 128 in f16 and the base-2 logarithm of its softmax sum; combine weighs the pairs of a token.
//
//   attend_few   pairs in any order, keys and values from global memory: a token or a few. Bound by latency.
//   attend_many  pairs sorted by block, so that a block is read once for up to chunk_pairs tokens: a prefill of T
//                tokens reads every selected block about T/chunk_pairs times at most instead of once a token. Bound
//                by the tensor cores and the partial outputs, 4 KiB a pair.
//
// Queries (f16) and partial outputs are stored in fragment order (msa-tile.cuh), 16 bytes
// a lane, so that both move between global memory and the operand registers without shared memory.

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include "msa-tile.cuh"

#include <cmath>
#include <type_traits>

namespace msa {

constexpr float log2_e = 1.4426950408889634f;

constexpr int fragment_halves = msa_rows*msa_dim; // of a pair or a query
constexpr int chunk_pairs     = 64;               // most pairs that share one load of a block
constexpr int many_threads    = 256;

struct chunk {
    int block;  // flat: (stream*n_group + group)*n_block + block
    int first;  // of its pairs in the sorted list
    int count;
};

// Where everything lies in the scratch memory.
struct attend_plan {
    half  * query;      // [token][group] fragments, many_tokens only
    half  * partial;    // [token][group][part] fragments
    float * log_sum;    // [token][group][part][msa_rows]
    int   * count;      // [stream][group][block] pairs
    int   * first;      // of a block's pairs in the list
    int   * rank;       // [pair] within its block
    int   * list;       // pairs sorted by block
    chunk * chunks;
    int   * n_chunk;
    size_t  bytes;
};

__host__ __device__ static int n_query(const msa_attend_args & args) { // (token, group) of all streams
    return args.pos.n_stream*args.pos.n_token*args.n_group;
}

__host__ __device__ static int n_bucket(const msa_attend_args & args) {
    return args.pos.n_stream*args.n_group*args.pos.n_block();
}

// A single token does not fill a device with one part a block, so two share it.
static int parts_a_block(const msa_attend_args & args) {
    return n_query(args) <= 8 ? 2 : 1;
}

static attend_plan plan_at(const msa_attend_args & args, char * base) {
    attend_plan plan = {};
    const auto take = [&](auto *& pointer, const size_t n) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + plan.bytes);
        plan.bytes += (n*sizeof(*pointer) + 255)/256*256;
    };
    const size_t n_part = (size_t) n_query(args)*args.n_top*parts_a_block(args);
    take(plan.partial, n_part*fragment_halves);
    take(plan.log_sum, n_part*msa_rows);
    if (msa_attend_launch(args) == msa_launch::many_tokens) {
        take(plan.query,   (size_t) n_query(args)*fragment_halves);
        take(plan.count,   n_bucket(args));
        take(plan.first,   n_bucket(args));
        take(plan.rank,    n_part);
        take(plan.list,    n_part);
        take(plan.chunks,  n_part/chunk_pairs + n_bucket(args));
        take(plan.n_chunk, 1);
    }
    return plan;
}

// ---------------------------------------------------------------------------------------------------------------
// combine

// Weighs the parts of one (token, group) by their softmax sums. A warp takes n_piece of the eight 512-byte pieces.
template <int max_part, int n_piece>
__global__ void combine(const msa_attend_args args, const attend_plan plan, const int parts) {
    after_previous_kernel();
    const int warp  = (blockIdx.x*blockDim.x + threadIdx.x)/warp_size;
    const int lane  = threadIdx.x%warp_size;
    const int query = warp/(8/n_piece);
    const int piece = warp%(8/n_piece)*n_piece;
    if (query >= n_query(args)) {
        return;
    }
    const int n_part = args.n_top*parts;
    const int id     = lane < args.n_top ? args.ids[(int64_t) query*args.n_top + lane] : -1;
    const int n_used = __popc(__ballot_sync(all_lanes, id >= 0))*parts; // ids end in -1
    const float * log_sum = plan.log_sum + (int64_t) query*n_part*msa_rows + lane/4;
    const half8 * partial = reinterpret_cast<const half8 *>(plan.partial + (int64_t) query*n_part*fragment_halves) + piece*warp_size + lane;

    float weight[max_part][2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll
    for (int part = 0; part < max_part; ++part) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            weight[part][i] = part < n_used ? log_sum[part*msa_rows + 8*i] : -INFINITY;
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int part = 0; part < max_part; ++part) {
            top[i] = fmaxf(top[i], weight[part][i]);
        }
        const float base = top[i] == -INFINITY ? 0.0f : top[i];
#pragma unroll
        for (int part = 0; part < max_part; ++part) {
            weight[part][i] = exp2_fast(weight[part][i] - base);
            sum[i] += weight[part][i];
        }
    }
    float acc[n_piece][8] = {};
#pragma unroll
    for (int part = 0; part < max_part; ++part) {
#pragma unroll
        for (int c = 0; c < n_piece; ++c) {
            const uint4 raw = part < n_used
                ? __ldcs(reinterpret_cast<const uint4 *>(partial + (part*8 + c)*warp_size)) : make_uint4(0, 0, 0, 0);
            const half8 value = *reinterpret_cast<const half8 *>(&raw);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float2 pair = __half22float2(value.pair[k]);
                acc[c][2*k]     += weight[part][k%2]*pair.x;
                acc[c][2*k + 1] += weight[part][k%2]*pair.y;
            }
        }
    }
    float * out = args.out + (int64_t) query*fragment_halves + lane/4*msa_dim + 2*(lane%4);
#pragma unroll
    for (int c = 0; c < n_piece; ++c) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const float scale = sum[k%2] > 0.0f ? 1.0f/sum[k%2] : 0.0f;
            float * to = out + 8*(k%2)*msa_dim + 8*(2*(piece + c) + k/2);
            *reinterpret_cast<float2 *>(to) = make_float2(acc[c][2*k]*scale, acc[c][2*k + 1]*scale);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// many tokens: sort the pairs by block

__device__ static int bucket_of(const msa_attend_args & args, const int query, const int block) {
    const int stream = query/(args.pos.n_token*args.n_group);
    return (stream*args.n_group + query%args.n_group)*args.pos.n_block() + block;
}

// A warp a (token, group): its queries to f16 in fragment order, its pairs into the histogram.
__global__ void prepare(const msa_attend_args args, const attend_plan plan) {
    after_previous_kernel();
    const int query = (blockIdx.x*blockDim.x + threadIdx.x)/warp_size;
    const int lane  = threadIdx.x%warp_size;
    if (query >= n_query(args)) {
        return;
    }
    if (lane < args.n_top) {
        const int pair  = query*args.n_top + lane;
        const int block = args.ids[pair];
        plan.rank[pair] = block < 0 ? -1 : atomicAdd(plan.count + bucket_of(args, query, block), 1);
    }
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
    after_previous_kernel();
    __shared__ int2 total[warp_size];
    const int warp = threadIdx.x/warp_size;
    const int lane = threadIdx.x%warp_size;
    int2 done = make_int2(0, 0); // pairs and chunks before this round
    for (int base = 0; base < n_bucket(args); base += scan_threads) {
        const int bucket = base + threadIdx.x;
        const int n = bucket < n_bucket(args) ? plan.count[bucket] : 0;
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
        done = add(done, total[warp_size - 1]);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        *plan.n_chunk = done.y;
    }
}

__global__ void sort_pairs(const msa_attend_args args, const attend_plan plan) {
    after_previous_kernel();
    const int pair = blockIdx.x*blockDim.x + threadIdx.x;
    if (pair < n_query(args)*args.n_top && plan.rank[pair] >= 0) {
        plan.list[plan.first[bucket_of(args, pair/args.n_top, args.ids[pair])] + plan.rank[pair]] = pair;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// many tokens: attention

// A multiprocessor: two hide each other's loads and softmax where shared memory and registers allow.
constexpr int many_ctas(const bool hopper) {
    return hopper ? 2 : 1;
}

struct many_shared {
    char     key  [tile_bytes];
    char     value[tile_bytes];
    uint16_t mask[8];
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

__device__ static void hide_keys(float (&acc)[64], const block_mask & mask, const int last_key) {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int  key     = 8*n + 2*(threadIdx.x%4) + e;
            const bool visible = ((mask.word[n/4] >> (key%32)) & 1) && key <= last_key;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                acc[4*n + 2*i + e] = visible ? acc[4*n + 2*i + e] : -INFINITY;
            }
        }
    }
}

__device__ static void store_part(const attend_plan & plan, const int64_t part, const float (&acc)[64], const float (&top)[2], const float (&sum)[2]) {
    const int lane = threadIdx.x%warp_size;
    const float scale[2] = {sum[0] > 0.0f ? 1.0f/sum[0] : 0.0f, sum[1] > 0.0f ? 1.0f/sum[1] : 0.0f};
    uint4 * to = reinterpret_cast<uint4 *>(plan.partial + part*fragment_halves) + lane;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        const float * x = acc + 8*c;
        __stcs(to + c*warp_size, make_uint4(
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

template <msa_type type>
__global__ __launch_bounds__(many_threads, many_ctas(msa_hopper))
void attend_many(const msa_attend_args args, const attend_plan plan) {
    after_previous_kernel();
    extern __shared__ __align__(1024) char raw[];
    many_shared & shared = *reinterpret_cast<many_shared *>(raw);
    const int warp = threadIdx.x/warp_size;
    const int lane = threadIdx.x%warp_size;
    const uint32_t key_tile   = shared_address(shared.key);
    const uint32_t value_tile = shared_address(shared.value);

    const int n_chunk = *plan.n_chunk;
    for (int i = blockIdx.x; i < n_chunk; i += gridDim.x) {
        const chunk work = plan.chunks[i];
        const int block  = work.block%args.pos.n_block();
        const int group  = work.block/args.pos.n_block()%args.n_group;
        const int stream = work.block/args.pos.n_block()/args.n_group;

        const int cell = lane < 16 ? cell_of(args.pos, stream, block*msa_block + 16*warp + lane) : -1;
        fill_rows<type>(key_tile, 16*warp, args.key.data + group*args.key.group_bytes + stream*args.key.stream_bytes, args.key.cell_bytes, cell);
        fill_rows<type>(value_tile, 16*warp, args.value.data + group*args.value.group_bytes + stream*args.value.stream_bytes, args.value.cell_bytes, cell);
        copies_commit();
        const uint32_t present = __ballot_sync(all_lanes, cell >= 0);
        if (lane == 0) {
            shared.mask[warp] = (uint16_t) present;
        }
        copies_wait<0>();
        tiles_written();
        __syncthreads();
        const block_mask mask = *reinterpret_cast<const block_mask *>(shared.mask);

        // A warpgroup takes four pairs at a time, one a warp.
        for (int at = warp/4*4; at < work.count; at += many_threads/warp_size) {
            const int  mine = at + warp%4;
            const int  pair = mine < work.count ? plan.list[work.first + mine] : -1;
            const int  query = max(pair, 0)/args.n_top;
            uint32_t a[8][4];
            const uint4 * from = reinterpret_cast<const uint4 *>(plan.query + (int64_t) query*fragment_halves) + lane;
#pragma unroll
            for (int step = 0; step < 8; ++step) {
                const uint4 piece = from[step*warp_size];
                a[step][0] = piece.x;
                a[step][1] = piece.y;
                a[step][2] = piece.z;
                a[step][3] = piece.w;
            }
            const int last_key = args.pos.query[query/args.n_group] - block*msa_block;

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
        __syncthreads();
    }
}

// ---------------------------------------------------------------------------------------------------------------
// few tokens

// A CTA a part of a pair, 16 keys a warp. Keys come in as operands (see score_few for the order of dimensions);
// values cross shared memory to be transposed.
template <msa_type type, int n_warp>
__global__ __launch_bounds__(n_warp*warp_size, 16/n_warp) // room for all loads of a thread at once
void attend_few(const msa_attend_args args, const attend_plan plan) {
    after_previous_kernel();
    extern __shared__ __align__(1024) char raw[];          // 8 KiB a warp: 16 value rows, then the warp's output
    __shared__ float top_of[n_warp][msa_rows];
    __shared__ float sum_of[n_warp][msa_rows];

    constexpr int parts = 8/n_warp;
    const int warp  = threadIdx.x/warp_size;
    const int lane  = threadIdx.x%warp_size;
    const int part  = blockIdx.x;
    const int group = blockIdx.y;
    const int token = blockIdx.z; // of all streams
    const int query = token*args.n_group + group;
    const int stream = token/args.pos.n_token;
    const int block = args.ids[(int64_t) query*args.n_top + part/parts];
    if (block < 0) {
        return;
    }
    const int key0 = block*msa_block + part%parts*(16*n_warp) + 16*warp;
    const int cell = lane < 16 ? cell_of(args.pos, stream, key0 + lane) : -1;
    const char * keys   = args.key.data   + group*args.key.group_bytes   + stream*args.key.stream_bytes;
    const char * values = args.value.data + group*args.value.group_bytes + stream*args.value.stream_bytes;

    // All loads are under way before the first is used: values as asynchronous copies where they need no conversion.
    char * own = raw + warp*(fragment_halves*sizeof(float));
    const uint32_t tile = shared_address(own);
    half8 value[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int    row    = 2*i + lane/16;
        const int    from   = __shfl_sync(all_lanes, cell, row);
        const char * source = values + (from < 0 ? 0 : from)*args.value.cell_bytes;
        if constexpr (type == msa_type::f16) {
            copy16_async(tile + row*256 + ((lane%16) ^ (row%8))*16, source + (lane%16)*16, from >= 0);
        } else {
            value[i] = from < 0 ? zero8() : row_format<type>::load(source, lane%16);
        }
    }
    copies_commit();
    half8 key[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const int from = __shfl_sync(all_lanes, cell, 8*n + lane/4);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            key[n][p] = from < 0 ? zero8() : row_format<type>::load(keys + from*args.key.cell_bytes, 4*p + lane%4);
        }
    }
    const int position = args.pos.query[token];
    const uint32_t visible = __ballot_sync(all_lanes, cell >= 0 && key0 + lane <= position);

    const float * source = args.query + (int64_t) query*fragment_halves + lane/4*msa_dim + 8*(lane%4);
    float score[8] = {};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        uint32_t a[2][4]; // two steps of the product
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float * row = source + 8*i*msa_dim + 32*p;
            const float4 low  = *reinterpret_cast<const float4 *>(row);
            const float4 high = *reinterpret_cast<const float4 *>(row + 4);
            a[0][i]     = pack(low.x, low.y);
            a[0][i + 2] = pack(low.z, low.w);
            a[1][i]     = pack(high.x, high.y);
            a[1][i + 2] = pack(high.z, high.w);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const uint32_t * b = reinterpret_cast<const uint32_t *>(&key[n][p]);
            mma_m16n8k16(score + 4*n, a[0], b[0], b[1]);
            mma_m16n8k16(score + 4*n, a[1], b[2], b[3]);
        }
    }

    if constexpr (type == msa_type::f16) {
        copies_wait<0>();
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int row = 2*i + lane/16;
            *reinterpret_cast<half8 *>(own + row*256 + ((lane%16) ^ (row%8))*16) = value[i];
        }
    }
    __syncwarp();

    float top[2], sum[2];
    uint32_t weight[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float best = -INFINITY;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float & x = score[4*n + 2*i + e];
                x = (visible >> (8*n + 2*(lane%4) + e)) & 1 ? x : -INFINITY;
                best = fmaxf(best, x);
            }
        }
        const float scale = args.scale*log2_e;
        top[i] = scale*row_max(best);
        const float base = top[i] == -INFINITY ? 0.0f : top[i];
        float part_sum = 0.0f;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float low  = exp2_fast(scale*score[4*n + 2*i]     - base);
            const float high = exp2_fast(scale*score[4*n + 2*i + 1] - base);
            part_sum += low + high;
            weight[2*n + i] = pack(low, high);
        }
        sum[i] = row_sum(part_sum);
        if (lane%4 == 0) {
            top_of[warp][lane/4 + 8*i] = top[i];
            sum_of[warp][lane/4 + 8*i] = sum[i];
        }
    }
    float acc[64] = {};
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
        uint32_t b[4];
        const int row = lane%16;
        load_matrices_transposed(b, tile + row*256 + ((n + lane/16) ^ (row%8))*16);
        mma_m16n8k16(acc + 4*n,     weight, b[0], b[1]);
        mma_m16n8k16(acc + 4*n + 4, weight, b[2], b[3]);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 16; ++n) {
        reinterpret_cast<float4 *>(own)[n*warp_size + lane] = make_float4(acc[4*n], acc[4*n + 1], acc[4*n + 2], acc[4*n + 3]);
    }
    __syncthreads();

    // The warps' outputs, weighed; thread t sums pieces t, t + n_thread, ... of the part.
    float factor[n_warp][2], all_top[2], all_sum[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        all_top[i] = -INFINITY;
#pragma unroll
        for (int w = 0; w < n_warp; ++w) {
            all_top[i] = fmaxf(all_top[i], top_of[w][lane/4 + 8*i]);
        }
#pragma unroll
        for (int w = 0; w < n_warp; ++w) {
            const float t = top_of[w][lane/4 + 8*i];
            factor[w][i] = t == -INFINITY ? 0.0f : exp2_fast(t - all_top[i]);
            all_sum[i] += factor[w][i]*sum_of[w][lane/4 + 8*i];
        }
    }
    const int64_t out = (int64_t) query*args.n_top*parts + part;
    const float inverse[2] = {all_sum[0] > 0.0f ? 1.0f/all_sum[0] : 0.0f, all_sum[1] > 0.0f ? 1.0f/all_sum[1] : 0.0f};
#pragma unroll
    for (int c = warp; c < 8; c += n_warp) {
        float total[8] = {};
#pragma unroll
        for (int w = 0; w < n_warp; ++w) {
            const float4 * from = reinterpret_cast<const float4 *>(raw + w*(fragment_halves*sizeof(float))) + 2*c*warp_size + lane;
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const float4 x = from[k*warp_size];
                total[4*k]     += factor[w][0]*x.x;
                total[4*k + 1] += factor[w][0]*x.y;
                total[4*k + 2] += factor[w][1]*x.z;
                total[4*k + 3] += factor[w][1]*x.w;
            }
        }
        reinterpret_cast<uint4 *>(plan.partial + out*fragment_halves)[c*warp_size + lane] = make_uint4(
            pack(total[0]*inverse[0], total[1]*inverse[0]), pack(total[2]*inverse[1], total[3]*inverse[1]),
            pack(total[4]*inverse[0], total[5]*inverse[0]), pack(total[6]*inverse[1], total[7]*inverse[1]));
    }
    if (warp == 0 && lane%4 == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            plan.log_sum[out*msa_rows + lane/4 + 8*i] = all_sum[i] > 0.0f ? all_top[i] + log2f(all_sum[i]) : -INFINITY;
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// Runs the launches in turn until one fails.
template <typename... steps>
static cudaError_t in_turn(const steps &... step) {
    cudaError_t status = cudaSuccess;
    ((status = status == cudaSuccess ? step() : status), ...);
    return status;
}

template <msa_type type>
static cudaError_t launch_few(const msa_attend_args & args, const attend_plan & plan, cudaStream_t stream) {
    const int  parts  = parts_a_block(args);
    const int  n_warp = 8/parts;
    const auto kernel = parts == 2 ? attend_few<type, 4> : attend_few<type, 8>;
    const dim3 grid(args.n_top*parts, args.n_group, args.pos.n_stream*args.pos.n_token);
    const auto weigh = parts == 2 ? combine<2*msa_top, 1> : combine<msa_top, 1>;
    return in_turn(
        [&] { return launch(kernel, grid, n_warp*warp_size, n_warp*fragment_halves*sizeof(float), stream, args, plan); },
        [&] { return launch(weigh, dim3(n_query(args)*2), 4*warp_size, 0, stream, args, plan, parts); });
}

template <msa_type type>
static cudaError_t launch_many(const msa_attend_args & args, const attend_plan & plan, cudaStream_t stream) {
    const device_facts device = current_device();
    const int n_pair  = n_query(args)*args.n_top;
    const int n_cta   = device.n_sm*many_ctas(device.hopper);
    const dim3 by_warp((n_query(args) + 7)/8);
    return in_turn(
        [&] { return cudaMemsetAsync(plan.count, 0, n_bucket(args)*sizeof(int), stream); },
        [&] { return launch(prepare, by_warp, 8*warp_size, 0, stream, args, plan); },
        [&] { return launch(scan, dim3(1), scan_threads, 0, stream, args, plan); },
        [&] { return launch(sort_pairs, dim3((n_pair + 255)/256), 256, 0, stream, args, plan); },
        [&] { return launch(attend_many<type>, dim3(n_cta), many_threads, sizeof(many_shared), stream, args, plan); },
        [&] { return launch(combine<msa_top, 8>, by_warp, 8*warp_size, 0, stream, args, plan, 1); });
}

template <msa_type type>
static cudaError_t launch_attend(const msa_attend_args & args, const attend_plan & plan, cudaStream_t stream) {
    return msa_attend_launch(args) == msa_launch::few_tokens
        ? launch_few <type>(args, plan, stream)
        : launch_many<type>(args, plan, stream);
}

} // namespace msa

// ---------------------------------------------------------------------------------------------------------------
// entry

msa_launch msa_attend_launch(const msa_attend_args & args) {
    const int n_token = args.pos.n_token*args.pos.n_stream;
    const bool shape = args.n_top >= 1 && args.n_top <= msa_top && args.n_group >= 1 && n_token >= 1
        && args.key.type == args.value.type
        && (int64_t) n_token*args.n_group*args.n_top < (1 << 28) && (int64_t) msa::n_bucket(args) < (1 << 28);
    if (!shape) {
        return msa_launch::none;
    }
    return n_token <= 32 ? msa_launch::few_tokens : msa_launch::many_tokens;
}

size_t msa_attend_scratch_bytes(const msa_attend_args & args) {
    return msa::plan_at(args, nullptr).bytes;
}

cudaError_t msa_attend(const msa_attend_args & args, void * scratch, cudaStream_t stream) {
    const msa::attend_plan plan = msa::plan_at(args, static_cast<char *>(scratch));
    switch (args.key.type) {
        case msa_type::f16:  return msa::launch_attend<msa_type::f16> (args, plan, stream);
        case msa_type::bf16: return msa::launch_attend<msa_type::bf16>(args, plan, stream);
        case msa_type::q8_0: return msa::launch_attend<msa_type::q8_0>(args, plan, stream);
        case msa_type::q4_0: return msa::launch_attend<msa_type::q4_0>(args, plan, stream);
    }
    return cudaErrorNotSupported;
}

#endif
