// MSA, part 1: which blocks a token attends to. See msa-kernels.cuh for the definition.
//
// Scores are reduced to one number a block while they are still in registers: a score per key is never stored.
// Two kernels make block scores, [stream][token*group][block] f32, and one picks the best:
//
//   score_many  256 rows (token, group) x a run of key blocks a CTA. Bound by the tensor cores: two products of
//               64 x 128 a warpgroup alternate, so that one is reduced while the other runs.
//   score_few   a key block at a time a CTA, all rows at once. Bound by the bytes of the index cache, of which two
//               blocks a CTA are in flight.
//   choose      a warp (or 128 threads) a row.

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include "msa-tile.cuh"

#include <climits>
#include <cmath>

namespace msa {

// ---------------------------------------------------------------------------------------------------------------
// many tokens

constexpr int score_threads  = 256;
constexpr int score_rows     = 256; // a CTA: two warpgroups, two products of 64 rows each
constexpr int score_distance = 2;   // blocks loaded ahead

// wgmma may still read a tile one block later, so Hopper takes a stage more than the others have room for.
__host__ __device__ constexpr int score_stages(const bool hopper) {
    return hopper ? 4 : 3;
}

template <int n_stage>
struct score_shared {
    char     tile[n_stage][tile_bytes];
    uint16_t mask[n_stage][8]; // 16 positions a warp
    int      bound[2][score_threads/warp_size];
};

struct row_pair {
    int row[2];      // rows i and i + 8 of the fragment, within the stream
    int position[2]; // of their tokens, -1 past the end
};

__device__ static row_pair rows_at(const msa_select_args & args, const int stream, const int row0) {
    row_pair out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        out.row[i] = row0 + (threadIdx.x%warp_size)/4 + 8*i;
        const int token = out.row[i]/args.n_group;
        out.position[i] = token < args.pos.n_token ? args.pos.query[(int64_t) stream*args.pos.n_token + token] : -1;
    }
    return out;
}

__device__ static void load_query(uint32_t (&a)[8][4], const msa_select_args & args, const int stream, const row_pair & rows) {
    const int     n_row = args.pos.n_token*args.n_group;
    const float * base  = args.query + (int64_t) stream*n_row*msa_dim + 2*(threadIdx.x%4);
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = rows.row[i%2];
            const float * source = base + (int64_t) row*msa_dim + 16*step + 8*(i/2);
            const float2 pair = row < n_row ? *reinterpret_cast<const float2 *>(source) : make_float2(0.0f, 0.0f);
            a[step][i] = pack(pair.x, pair.y);
        }
    }
}

__device__ static float2 largest_of_all(const float (&acc)[64]) {
    float low[2]  = {acc[0], acc[1]};
    float high[2] = {acc[2], acc[3]};
#pragma unroll
    for (int n = 1; n < 16; ++n) {
        low[0]  = fmaxf(low[0],  acc[4*n + 0]);
        low[1]  = fmaxf(low[1],  acc[4*n + 1]);
        high[0] = fmaxf(high[0], acc[4*n + 2]);
        high[1] = fmaxf(high[1], acc[4*n + 3]);
    }
    return make_float2(fmaxf(low[0], low[1]), fmaxf(high[0], high[1]));
}

__device__ static float2 largest_of_visible(const float (&acc)[64], const block_mask & mask, const int position0, const row_pair & rows) {
    float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int  key     = 8*n + 2*(threadIdx.x%4) + e;
            const bool present = (mask.word[n/4] >> (key%32)) & 1;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (present && position0 + key <= rows.position[i]) {
                    best[i] = fmaxf(best[i], acc[4*n + 2*i + e]);
                }
            }
        }
    }
    return make_float2(best[0], best[1]);
}

// Smallest and largest position of the CTA's tokens.
__device__ static int2 position_bounds(const msa_select_args & args, const int stream, int (&bound)[2][score_threads/warp_size]) {
    const int token = (blockIdx.x*score_rows + threadIdx.x)/args.n_group;
    const int last  = min(token, args.pos.n_token - 1);
    const int position = args.pos.query[(int64_t) stream*args.pos.n_token + last];
    const int warp = threadIdx.x/warp_size;
    int low  = __reduce_min_sync(all_lanes, position);
    int high = __reduce_max_sync(all_lanes, position);
    if (threadIdx.x%warp_size == 0) {
        bound[0][warp] = low;
        bound[1][warp] = high;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < score_threads/warp_size; ++i) {
        low  = min(low,  bound[0][i]);
        high = max(high, bound[1][i]);
    }
    return make_int2(low, high);
}

// Block scores of one product, four blocks at a time so that the four lanes of a row store 16 bytes together.
struct score_writer {
    float kept[2];

    __device__ void add(const float (&acc)[64], const block_mask & mask, const int block, const int low_position, const row_pair & rows) {
        const bool everything = mask.complete() && block*msa_block + msa_block - 1 <= low_position;
        const float2 best = everything ? largest_of_all(acc) : largest_of_visible(acc, mask, block*msa_block, rows);
        const float low  = row_max(best.x);
        const float high = row_max(best.y);
        if (block%4 == (int) threadIdx.x%4) {
            kept[0] = low;
            kept[1] = high;
        }
    }

    __device__ void store(float * scores, const int64_t stride, const int turn, const int last, const row_pair & rows) const {
        const int mine = turn + threadIdx.x%4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (mine < last && rows.position[i] >= 0) {
                scores[rows.row[i]*stride + mine] = kept[i];
            }
        }
    }
};

// Index keys of another type go through f16 once: a key block is used by every CTA of a column, and taking it apart
// each time cost 2.5 times as much as the products. [stream][position], so the map is not needed any more.
constexpr int expand_threads = 256;

template <msa_type type>
__global__ void expand(const msa_select_args args, half8 * out) {
    const int position = (blockIdx.x*expand_threads + threadIdx.x)/16;
    const int chunk    = threadIdx.x%16;
    if (position < args.pos.n_pos) {
        const int cell = cell_of(args.pos, blockIdx.y, position);
        const char * keys = args.key.data + blockIdx.y*args.key.stream_bytes;
        out[((int64_t) blockIdx.y*args.pos.n_pos + position)*16 + chunk] =
            cell < 0 ? zero8() : row_format<type>::load(keys + cell*args.key.cell_bytes, chunk);
    }
}

// expanded: rows of f16 by position; otherwise the f16 cache itself, by cell.
__global__ __launch_bounds__(score_threads, 1)
void score_many(const msa_select_args args, const half8 * expanded, float * scores, const int64_t stride, const int run) {
    extern __shared__ __align__(1024) char raw[];
    constexpr int n_stage = score_stages(msa_hopper);
    score_shared<n_stage> & shared = *reinterpret_cast<score_shared<n_stage> *>(raw);

    const int stream = blockIdx.z;
    const int warp   = threadIdx.x/warp_size;
    const int lane   = threadIdx.x%warp_size;
    const int2 bounds = position_bounds(args, stream, shared.bound);
    const int first = blockIdx.y*run;
    const int last  = min(min(first + run, args.pos.n_block()), bounds.y/msa_block + 1);
    if (first >= last) {
        return;
    }
    scores += (int64_t) stream*args.pos.n_token*args.n_group*stride;

    const int row0 = blockIdx.x*score_rows + (warp/4)*128 + (warp%4)*16;
    const row_pair rows0 = rows_at(args, stream, row0);
    const row_pair rows1 = rows_at(args, stream, row0 + 64);
    uint32_t query0[8][4], query1[8][4];
    load_query(query0, args, stream, rows0);
    load_query(query1, args, stream, rows1);

    const char * keys = expanded
        ? reinterpret_cast<const char *>(expanded + (int64_t) stream*args.pos.n_pos*16)
        : args.key.data + stream*args.key.stream_bytes;
    const int64_t row_bytes = expanded ? msa_dim*sizeof(half) : args.key.cell_bytes;
    const auto next_cell = [&](const int block) {
        return block < last && lane < 16 ? cell_of(args.pos, stream, block*msa_block + 16*warp + lane) : -1;
    };
    const auto load = [&](const int block, const int cell) {
        if (block < last) {
            const int stage = block%n_stage;
            const int row = expanded && cell >= 0 ? block*msa_block + 16*warp + lane : cell;
            fill_rows<msa_type::f16>(shared_address(shared.tile[stage]), 16*warp, keys, row_bytes, row);
            const uint32_t present = __ballot_sync(all_lanes, cell >= 0);
            if (lane == 0) {
                shared.mask[stage][warp] = (uint16_t) present;
            }
        }
        copies_commit();
    };
    const auto mask_of = [&](const int block) {
        return *reinterpret_cast<const block_mask *>(shared.mask[block%n_stage]);
    };

    load(first,     next_cell(first));
    load(first + 1, next_cell(first + 1));
    int cell = next_cell(first + score_distance);

    // Four blocks a turn: no product is in flight across turns, or the compiler would wait after each one. Blocks past
    // the last one in a turn are computed from stale tiles and not stored.
    float acc0[64], acc1[64];
    for (int turn = first; turn < last; turn += 4) {
        score_writer writer0, writer1;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int block = turn + k;
            copies_wait<score_distance - 1>();
            tiles_written();
            __syncthreads();

            const uint32_t tile = shared_address(shared.tile[block%n_stage]);
            product_start<tile_rows::output>(acc0, query0, tile);
            load(block + score_distance, cell);
            cell = next_cell(block + score_distance + 1);
            if (k > 0) {
                product_wait<1>(acc1);
                writer1.add(acc1, mask_of(block - 1), block - 1, bounds.x, rows1);
            }
            product_start<tile_rows::output>(acc1, query1, tile);
            product_wait<1>(acc0);
            writer0.add(acc0, mask_of(block), block, bounds.x, rows0);
        }
        product_wait<0>(acc1);
        writer1.add(acc1, mask_of(turn + 3), turn + 3, bounds.x, rows1);
        writer0.store(scores, stride, turn, last, rows0);
        writer1.store(scores, stride, turn, last, rows1);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// few tokens

constexpr int few_threads = 256;
constexpr int few_rows    = 64; // most (token, group) rows

// Key blocks pass through shared memory as they are in the cache, a few in flight: registers alone do not hold enough
// of them to fill the bandwidth. A warp copies and consumes 16 rows of its own, so only the block's result is shared.
constexpr int few_warps = few_threads/warp_size;

__host__ __device__ constexpr int few_stages(const bool hopper) {
    return hopper ? 3 : 2;
}

__host__ __device__ constexpr int few_ctas(const bool hopper, const int n_row) { // a multiprocessor, by shared memory
    return hopper && n_row <= 32 ? 2 : 1;
}

template <msa_type type>
struct few_stage {
    char     rows[few_warps][16*row_bytes_of(type)];
    uint32_t present[few_warps]; // one bit a row
};

template <msa_type type>
__device__ static void few_fetch(few_stage<type> & stage, const char * keys, const int64_t cell_bytes, const int cell) {
    constexpr int copy_bytes = row_bytes_of(type)%16 == 0 ? 16 : 8;
    constexpr int n_copy     = row_bytes_of(type)/copy_bytes; // a row
    const int warp = threadIdx.x/warp_size;
    const int lane = threadIdx.x%warp_size;
    const uint32_t to = shared_address(stage.rows[warp]);
#pragma unroll
    for (int i = 0; i < (16*n_copy + warp_size - 1)/warp_size; ++i) {
        const int piece = i*warp_size + lane;
        const int from  = __shfl_sync(all_lanes, cell, min(piece/n_copy, 15));
        const char * source = keys + (from < 0 ? 0 : from)*cell_bytes + piece%n_copy*copy_bytes;
        if (piece < 16*n_copy) {
            if constexpr (copy_bytes == 16) {
                copy16_async(to + piece*copy_bytes, source, from >= 0);
            } else {
                copy8_async(to + piece*copy_bytes, source, from >= 0);
            }
        }
    }
    const uint32_t present = __ballot_sync(all_lanes, cell >= 0);
    if (lane == 0) {
        stage.present[warp] = present;
    }
}

// The products sum over dimensions, so any order will do as long as both operands share it: lane 4*i + j takes
// dimensions 32*p + 8*j ... + 7 of key i, as two steps of four.
template <msa_type type, int n_tile>
__device__ static void few_products(float (&acc)[n_tile][4], const char * rows, const half (* query)[msa_dim + 8]) {
    const int lane = threadIdx.x%warp_size;
#pragma unroll 2
    for (int p = 0; p < 4; ++p) {
        half8 key[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            key[i] = row_format<type>::load(rows + (8*i + lane/4)*row_bytes_of(type), 4*p + lane%4);
        }
        const uint32_t * low  = reinterpret_cast<const uint32_t *>(&key[0]);
        const uint32_t * high = reinterpret_cast<const uint32_t *>(&key[1]);
        const uint32_t a[2][4] = {{low[0], high[0], low[1], high[1]}, {low[2], high[2], low[3], high[3]}};
#pragma unroll
        for (int n = 0; n < n_tile; ++n) {
            const uint4 b = *reinterpret_cast<const uint4 *>(&query[8*n + lane/4][32*p + 8*(lane%4)]);
            mma_m16n8k16(acc[n], a[0], b.x, b.y);
            mma_m16n8k16(acc[n], a[1], b.z, b.w);
        }
    }
}

// A CTA takes blocks blockIdx.x, + gridDim.x, ...
template <msa_type type, int n_tile>
__global__ __launch_bounds__(few_threads, few_ctas(msa_hopper, 8*n_tile))
void score_few(const msa_select_args args, float * scores, const int64_t stride) {
    constexpr int n_column = 8*n_tile;
    constexpr int n_stage  = few_stages(msa_hopper);
    extern __shared__ __align__(1024) char raw[];
    few_stage<type> * stages = reinterpret_cast<few_stage<type> *>(raw);
    __shared__ __align__(16) half query[n_column][msa_dim + 8]; // padded: eight rows hit eight different banks
    __shared__ int   position[n_column];
    __shared__ float best[2][few_warps][n_column];

    const int stream  = blockIdx.y;
    const int warp    = threadIdx.x/warp_size;
    const int lane    = threadIdx.x%warp_size;
    const int n_row   = args.pos.n_token*args.n_group;
    const int n_block = args.pos.n_block();
    const int stride_blocks = gridDim.x;
    const char * keys = args.key.data + stream*args.key.stream_bytes;

    const auto cell_at = [&](const int block) {
        return block < n_block && lane < 16 ? cell_of(args.pos, stream, block*msa_block + 16*warp + lane) : -1;
    };
    int ahead[n_stage - 1];
#pragma unroll
    for (int i = 0; i < n_stage - 1; ++i) {
        ahead[i] = cell_at(blockIdx.x + i*stride_blocks);
    }
    int next_cell = cell_at(blockIdx.x + (n_stage - 1)*stride_blocks);
#pragma unroll
    for (int i = 0; i < n_stage - 1; ++i) {
        few_fetch<type>(stages[i], keys, args.key.cell_bytes, ahead[i]);
        copies_commit();
    }
    for (int i = threadIdx.x; i < n_column*msa_dim/2; i += few_threads) {
        const int row = i/(msa_dim/2);
        const int d   = i%(msa_dim/2)*2;
        const float2 pair = row < n_row
            ? *reinterpret_cast<const float2 *>(args.query + ((int64_t) stream*n_row + row)*msa_dim + d) : make_float2(0.0f, 0.0f);
        *reinterpret_cast<half2 *>(&query[row][d]) = __floats2half2_rn(pair.x, pair.y);
    }
    if (threadIdx.x < n_column) {
        position[threadIdx.x] = (int) threadIdx.x < n_row ? args.pos.query[(int64_t) stream*args.pos.n_token + threadIdx.x/args.n_group] : -1;
    }
    __syncthreads();

    int turn = 0;
    for (int block = blockIdx.x; block < n_block; block += stride_blocks, ++turn) {
        const few_stage<type> & stage = stages[turn%n_stage];
        copies_wait<n_stage - 2>();
        __syncwarp();
        float acc[n_tile][4] = {};
        few_products<type, n_tile>(acc, stage.rows[warp], query);
        const uint32_t present = stage.present[warp];
        // The stage of the block before is free: this warp has passed all its reads of it.
        __syncwarp();
        few_fetch<type>(stages[(turn + n_stage - 1)%n_stage], keys, args.key.cell_bytes, next_cell);
        copies_commit();
        next_cell = cell_at(block + n_stage*stride_blocks);

        int key[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            key[i] = (present >> (8*i + lane/4)) & 1 ? block*msa_block + 16*warp + 8*i + lane/4 : INT_MAX;
        }
#pragma unroll
        for (int n = 0; n < n_tile; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int column = 8*n + 2*(lane%4) + e;
                const int until  = position[column];
                float top = fmaxf(key[0] <= until ? acc[n][e] : -INFINITY, key[1] <= until ? acc[n][2 + e] : -INFINITY);
#pragma unroll
                for (int other = 4; other < warp_size; other *= 2) {
                    top = fmaxf(top, __shfl_xor_sync(all_lanes, top, other));
                }
                if (lane < 4) {
                    best[turn%2][warp][column] = top;
                }
            }
        }
        __syncthreads();
        if (threadIdx.x < n_row) {
            float top = best[turn%2][0][threadIdx.x];
#pragma unroll
            for (int i = 1; i < few_warps; ++i) {
                top = fmaxf(top, best[turn%2][i][threadIdx.x]);
            }
            scores[((int64_t) stream*n_row + threadIdx.x)*stride + block] = top;
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// the best blocks of a row

constexpr int choose_cta = 128;

// Scores in the order of unsigned integers, forced blocks above all, invisible ones 0; then lower blocks first.
// All ranks differ, so the choice is exact.
__device__ static uint64_t rank_of(const float score, const int block, const bool forced) {
    if (score == -INFINITY) {
        return 0;
    }
    const uint32_t bits = __float_as_uint(score);
    const uint32_t high = forced ? 0xffffffffu : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    return ((uint64_t) high << 32) | (0xffffffffu - (uint32_t) block);
}

template <int n_thread> __device__ static void sync_row() {
    if constexpr (n_thread == warp_size) {
        __syncwarp();
    } else {
        __syncthreads();
    }
}

// Each thread's best rank gives a lower bound: at most msa_top threads hold anything at or above the msa_top-th
// best of them. What is left after that is few, and is counted out.
template <int n_thread>
__global__ __launch_bounds__(choose_cta)
void choose(const msa_select_args args, const float * scores, const int64_t stride, const int capacity) {
    constexpr int rows_a_cta = choose_cta/n_thread;
    extern __shared__ uint64_t candidates_of_all[];
    __shared__ uint64_t best[rows_a_cta][n_thread];
    __shared__ uint64_t threshold[rows_a_cta];
    __shared__ int      count[rows_a_cta];
    __shared__ int      chosen[rows_a_cta][msa_top];

    const int team   = threadIdx.x/n_thread;
    const int thread = threadIdx.x%n_thread;
    const int row    = blockIdx.x*rows_a_cta + team;
    if (row >= args.pos.n_stream*args.pos.n_token*args.n_group) {
        return; // a whole team
    }
    uint64_t * candidates = candidates_of_all + (int64_t) team*capacity;
    const int own  = args.pos.query[row/args.n_group]/msa_block;
    const int n    = min(own + 1, args.pos.n_block());
    const float * score = scores + row*stride;
    const auto rank = [&](const int block) {
        return rank_of(score[block], block, block < args.n_init || block > own - args.n_local);
    };

    uint64_t mine = 0;
#pragma unroll 8
    for (int block = thread; block < n; block += n_thread) {
        mine = max(mine, rank(block));
    }
    best[team][thread] = mine;
    if (thread < msa_top) {
        chosen[team][thread] = INT_MAX;
    }
    if (thread == 0) {
        threshold[team] = 1; // with fewer than n_top threads holding anything, all that is visible qualifies
        count[team] = 0;
    }
    sync_row<n_thread>();
    int better = 0;
#pragma unroll 16
    for (int i = 0; i < n_thread; ++i) {
        better += best[team][i] > mine;
    }
    if (better == args.n_top - 1 && mine > 0) {
        threshold[team] = mine;
    }
    sync_row<n_thread>();
    const uint64_t bound = threshold[team];
    for (int block = thread; block < n; block += n_thread) {
        const uint64_t candidate = rank(block);
        if (candidate >= bound) {
            candidates[atomicAdd(&count[team], 1)] = candidate;
        }
    }
    sync_row<n_thread>();
    const int n_candidate = count[team];
    const int n_chosen    = min(n_candidate, args.n_top);
    for (int i = thread; i < n_candidate; i += n_thread) {
        const uint64_t candidate = candidates[i];
        int above = 0;
#pragma unroll 8
        for (int k = 0; k < n_candidate; ++k) {
            above += candidates[k] > candidate;
        }
        if (above < args.n_top) {
            chosen[team][above] = (int) (0xffffffffu - (uint32_t) candidate);
        }
    }
    sync_row<n_thread>();
    if (thread < args.n_top) {
        const int block = thread < n_chosen ? chosen[team][thread] : -1;
        int place = thread;
        if (block >= 0) {
            place = 0;
#pragma unroll
            for (int k = 0; k < msa_top; ++k) {
                place += chosen[team][k] < block;
            }
        }
        args.ids[(int64_t) row*args.n_top + place] = block;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

static int64_t score_stride(const msa_select_args & args) {
    return (args.pos.n_block() + 3)/4*4;
}

static size_t score_bytes(const msa_select_args & args) {
    const size_t n_row = (size_t) args.pos.n_stream*args.pos.n_token*args.n_group;
    return (n_row*score_stride(args)*sizeof(float) + 255)/256*256;
}

template <msa_type type>
static cudaError_t launch_score_many(const msa_select_args & args, float * scores, cudaStream_t stream) {
    half8 * expanded = nullptr;
    if constexpr (type != msa_type::f16) {
        expanded = reinterpret_cast<half8 *>(reinterpret_cast<char *>(scores) + score_bytes(args));
        const dim3 grid((args.pos.n_pos*16 + expand_threads - 1)/expand_threads, args.pos.n_stream);
        const cudaError_t status = launch(expand<type>, grid, expand_threads, 0, stream, args, expanded);
        if (status != cudaSuccess) {
            return status;
        }
    }
    const device_facts device = current_device();
    const int n_tile = (args.pos.n_token*args.n_group + score_rows - 1)/score_rows;
    // Runs of blocks long enough to pay for loading the queries, short enough to fill the device a few times.
    const int wanted = (4*device.n_sm + n_tile*args.pos.n_stream - 1)/(n_tile*args.pos.n_stream);
    const int even   = (args.pos.n_block() + wanted - 1)/wanted;
    const int run    = (even < 8 ? 8 : even + 3)/4*4;
    const dim3 grid(n_tile, (args.pos.n_block() + run - 1)/run, args.pos.n_stream);
    const size_t bytes = device.hopper ? sizeof(score_shared<score_stages(true)>) : sizeof(score_shared<score_stages(false)>);
    return launch(score_many, grid, score_threads, bytes, stream, args, (const half8 *) expanded, scores, score_stride(args), run);
}

template <msa_type type>
static cudaError_t launch_score_few(const msa_select_args & args, float * scores, cudaStream_t stream) {
    const int  n_row = args.pos.n_token*args.n_group;
    const device_facts device = current_device();
    const int  n_resident = few_ctas(device.hopper, n_row)*device.n_sm;
    const dim3 grid(args.pos.n_block() < n_resident ? args.pos.n_block() : n_resident, args.pos.n_stream);
    const auto kernel = n_row <= 8 ? score_few<type, 1> : n_row <= 16 ? score_few<type, 2> : n_row <= 32 ? score_few<type, 4> : score_few<type, 8>;
    return launch(kernel, grid, few_threads, few_stages(device.hopper)*sizeof(few_stage<type>), stream, args, scores, score_stride(args));
}

static cudaError_t launch_choose(const msa_select_args & args, const float * scores, cudaStream_t stream) {
    const int  n_row    = args.pos.n_stream*args.pos.n_token*args.n_group;
    const int  n_block  = args.pos.n_block();
    const bool a_warp   = n_row >= 1024 && n_block <= 2048;
    const int  n_thread = a_warp ? warp_size : choose_cta;
    const int  rows_a_cta = choose_cta/n_thread;
    const int  capacity = msa_top*((n_block + n_thread - 1)/n_thread);
    return launch(a_warp ? choose<warp_size> : choose<choose_cta>, dim3((n_row + rows_a_cta - 1)/rows_a_cta), choose_cta,
        rows_a_cta*capacity*sizeof(uint64_t), stream, args, scores, score_stride(args), capacity);
}

template <msa_type type>
static cudaError_t launch_select(const msa_select_args & args, float * scores, cudaStream_t stream) {
    const cudaError_t status = msa_select_launch(args) == msa_launch::few_tokens
        ? launch_score_few <type>(args, scores, stream)
        : launch_score_many<type>(args, scores, stream);
    return status == cudaSuccess ? launch_choose(args, scores, stream) : status;
}

} // namespace msa

// ---------------------------------------------------------------------------------------------------------------
// entry

msa_launch msa_select_launch(const msa_select_args & args) {
    const bool shape = args.n_top >= 1 && args.n_top <= msa_top && args.n_group >= 1 && args.n_group <= msa::few_rows
        && args.pos.n_token >= 1 && args.pos.n_stream >= 1 && args.pos.n_block() <= 65536;
    if (!shape || args.key.type == msa_type::q4_0) { // four bits lose the order of index scores
        return msa_launch::none;
    }
    return args.pos.n_token*args.n_group <= msa::few_rows ? msa_launch::few_tokens : msa_launch::many_tokens;
}

size_t msa_select_scratch_bytes(const msa_select_args & args) {
    const bool expands = args.key.type != msa_type::f16 && msa_select_launch(args) == msa_launch::many_tokens;
    return msa::score_bytes(args) + (expands ? (size_t) args.pos.n_stream*args.pos.n_pos*msa_dim*sizeof(half) : 0);
}

cudaError_t msa_select(const msa_select_args & args, void * scratch, cudaStream_t stream) {
    float * scores = static_cast<float *>(scratch);
    switch (args.key.type) {
        case msa_type::f16:  return msa::launch_select<msa_type::f16> (args, scores, stream);
        case msa_type::bf16: return msa::launch_select<msa_type::bf16>(args, scores, stream);
        case msa_type::q8_0: return msa::launch_select<msa_type::q8_0>(args, scores, stream);
        default:             return cudaErrorNotSupported;
    }
}

#endif
