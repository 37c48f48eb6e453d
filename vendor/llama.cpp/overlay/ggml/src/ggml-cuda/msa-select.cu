// MSA, part 1: which blocks a token attends to. See msa-kernels.cuh for the definition.
//
// Scores are reduced to one number a block while they are still in registers: a score per key is never stored.
// Three kernels make block scores, [stream][token*group][block] f32, and one picks the best:
//
//   score_many  256 rows (token, group) x a run of key blocks a CTA. Bound by the tensor cores: two products of
//               64 x 128 a warpgroup alternate, so that one is reduced while the other runs.
//   score_few   a key block at a time a CTA, all rows at once. Bound by the bytes of the index cache.
//   score_walk  the same for 16-bit keys on Hopper, whose tensor cores read them from shared memory themselves.
//   choose      a warp or a CTA a row.

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include "msa-choose.cuh"

#include <climits>
#include <cmath>
#include <type_traits>

namespace msa {

// ---------------------------------------------------------------------------------------------------------------
// many tokens

constexpr int score_threads  = 256;
constexpr int score_rows     = 256; // a CTA: two warpgroups, two products of 64 rows each
constexpr int score_distance = 2;   // blocks loaded ahead
constexpr int score_masks    = score_distance + 2; // the second product of a block is reduced after the next load ahead

// wgmma may still read a tile one block later, so Hopper takes a stage more than the others have room for.
__host__ __device__ constexpr int score_stages(const bool hopper) {
    return hopper ? 4 : 3;
}

template <int n_stage>
struct score_shared {
    char     tile[n_stage][tile_bytes];
    uint16_t mask[score_masks][8]; // 16 positions a warp
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
                shared.mask[block%score_masks][warp] = (uint16_t) present;
            }
        }
        copies_commit();
    };
    const auto mask_of = [&](const int block) {
        return *reinterpret_cast<const block_mask *>(shared.mask[block%score_masks]);
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

constexpr int few_warps = few_threads/warp_size;

// The keys that a warp multiplies: 16 of each block. As the products sum over dimensions, any order will do that both
// operands share: lane 4*i + j takes dimensions 32*p + 8*j ... + 7 of keys i and i + 8, as two steps of four.
//
// 16-bit rows come straight into registers, a block ahead. Quantised ones need too many small loads for that: they
// pass through shared memory as they are, two blocks ahead, a warp's own rows only.
template <msa_type type>
struct direct_keys {
    static constexpr int shared_bytes = 0;

    half8 now[2][4], ahead[2][4];
    int   cell_now[2], cell_ahead[2];

    __device__ void load(const msa_select_args & args, const char * keys, const int stream, const int block) {
        const int lane = threadIdx.x%warp_size;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            cell_ahead[i] = cell_of(args.pos, stream, block*msa_block + threadIdx.x/warp_size*16 + 8*i + lane/4);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                ahead[i][p] = cell_ahead[i] < 0 ? zero8() : row_format<type>::load(keys + cell_ahead[i]*args.key.cell_bytes, 4*p + lane%4);
            }
        }
    }

    __device__ void begin(const msa_select_args & args, const char * keys, const int stream, const int block, char *) {
        load(args, keys, stream, block);
    }

    __device__ void next(const msa_select_args & args, const char * keys, const int stream, const int block) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            cell_now[i] = cell_ahead[i];
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                now[i][p] = ahead[i][p];
            }
        }
        if (block + (int) gridDim.x < args.pos.n_block()) {
            load(args, keys, stream, block + gridDim.x);
        }
    }

    __device__ half8 key(const int i, const int p) const { return now[i][p]; }
    __device__ bool  present(const int i) const { return cell_now[i] >= 0; }
};

template <msa_type type>
struct staged_keys {
    static constexpr int n_stage      = 3;
    static constexpr int n_copy       = row_bytes_of(type)/8; // a row, which is only 8-byte aligned
    static constexpr int stage_bytes  = 16*row_bytes_of(type);
    static constexpr int shared_bytes = few_warps*n_stage*stage_bytes;

    char   * own;
    uint32_t mask[n_stage - 1]; // of the rows in flight, the oldest first
    uint32_t mask_now;
    int      cell;              // of the rows to be copied next
    int      turn;

    __device__ int cell_at(const msa_select_args & args, const int stream, const int block) const {
        const int lane = threadIdx.x%warp_size;
        return lane < 16 ? cell_of(args.pos, stream, block*msa_block + threadIdx.x/warp_size*16 + lane) : -1;
    }

    __device__ uint32_t fetch(const msa_select_args & args, const char * keys, const int stage) const {
        const uint32_t to = shared_address(own + stage*stage_bytes);
#pragma unroll
        for (int i = 0; i < (16*n_copy + warp_size - 1)/warp_size; ++i) {
            const int piece = i*warp_size + threadIdx.x%warp_size;
            const int from  = __shfl_sync(all_lanes, cell, min(piece/n_copy, 15));
            if (piece < 16*n_copy) {
                copy8_async(to + piece*8, keys + (from < 0 ? 0 : from)*args.key.cell_bytes + piece%n_copy*8, from >= 0);
            }
        }
        copies_commit();
        return __ballot_sync(all_lanes, cell >= 0);
    }

    __device__ void begin(const msa_select_args & args, const char * keys, const int stream, const int block, char * shared) {
        own  = shared + threadIdx.x/warp_size*n_stage*stage_bytes;
        turn = -1;
#pragma unroll
        for (int i = 0; i < n_stage - 1; ++i) {
            cell    = cell_at(args, stream, block + i*gridDim.x);
            mask[i] = fetch(args, keys, i);
        }
        cell = cell_at(args, stream, block + (n_stage - 1)*gridDim.x);
    }

    __device__ void next(const msa_select_args & args, const char * keys, const int stream, const int block) {
        ++turn;
        copies_wait<n_stage - 2>();
        __syncwarp(); // copied, and the stage of the turn before is read
        mask_now = mask[0];
#pragma unroll
        for (int i = 0; i + 1 < n_stage - 1; ++i) {
            mask[i] = mask[i + 1];
        }
        mask[n_stage - 2] = fetch(args, keys, (turn + n_stage - 1)%n_stage);
        cell = cell_at(args, stream, block + n_stage*gridDim.x);
    }

    __device__ half8 key(const int i, const int p) const {
        const int lane = threadIdx.x%warp_size;
        return row_format<type>::load(own + turn%n_stage*stage_bytes + (8*i + lane/4)*row_bytes_of(type), 4*p + lane%4);
    }

    __device__ bool present(const int i) const { return (mask_now >> (8*i + threadIdx.x%warp_size/4)) & 1; }
};

template <msa_type type>
using few_keys = std::conditional_t<type == msa_type::q8_0, staged_keys<type>, direct_keys<type>>;

constexpr int few_ctas = 2; // a multiprocessor

template <msa_type type, int n_tile>
__device__ static void few_products(float (&acc)[n_tile][4], const few_keys<type> & keys, const half (* query)[msa_dim + 8]) {
    constexpr int n_ahead = type == msa_type::q8_0 ? 2 : 4; // more than registers hold otherwise
    const int lane = threadIdx.x%warp_size;
#pragma unroll n_ahead
    for (int p = 0; p < 4; ++p) {
        const half8 key[2] = {keys.key(0, p), keys.key(1, p)};
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

struct share { // of a lane in the n values
    int  first;
    bool only; // no other lane has the same
};

template <int n> constexpr int values_left = n == 2 ? 2 : (n + 7)/8;

// Largest values of the eight lanes that are 4 apart. A lane passes on one half of what it still has and keeps the
// other, until it has one value, or an eighth: value[0 ...] are first, first + 1, ...
template <int n>
__device__ __forceinline__ static share largest_of_lanes(float (&value)[n]) {
    share mine = {0, true};
#pragma unroll
    for (int step = 0; step < 3; ++step) {
        const int  half  = (n >> step)/2;
        const int  other = 16 >> step;
        const bool upper = threadIdx.x & other;
        if (half == 0) {
            value[0] = fmaxf(value[0], __shfl_xor_sync(all_lanes, value[0], other));
            mine.only = mine.only && !upper;
            continue;
        }
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float kept = upper ? value[half + i] : value[i];
            const float sent = upper ? value[i] : value[half + i];
            value[i] = fmaxf(kept, __shfl_xor_sync(all_lanes, sent, other));
        }
        mine.first += upper ? half : 0;
    }
    return mine;
}

// Of two values it is faster for every lane to get both.
__device__ __forceinline__ static share largest_of_lanes(float (&value)[2]) {
#pragma unroll
    for (int other = 4; other < warp_size; other *= 2) {
        value[0] = fmaxf(value[0], __shfl_xor_sync(all_lanes, value[0], other));
        value[1] = fmaxf(value[1], __shfl_xor_sync(all_lanes, value[1], other));
    }
    return {0, threadIdx.x%warp_size < 4};
}

// A CTA takes blocks blockIdx.x, + gridDim.x, ...
template <msa_type type, int n_tile>
__global__ __launch_bounds__(few_threads, n_tile < 8 ? few_ctas : 1)
void score_few(const msa_select_args args, float * scores, const int64_t stride) {
    constexpr int n_column = 8*n_tile;
    extern __shared__ __align__(1024) char raw[];
    __shared__ __align__(16) half query[n_column][msa_dim + 8]; // padded: eight rows hit eight different banks
    __shared__ int   position[n_column];
    __shared__ float best[2][few_warps][n_column];

    const int stream = blockIdx.y;
    const int warp   = threadIdx.x/warp_size;
    const int lane   = threadIdx.x%warp_size;
    const int n_row  = args.pos.n_token*args.n_group;
    const char * base = args.key.data + stream*args.key.stream_bytes;

    few_keys<type> keys;
    keys.begin(args, base, stream, blockIdx.x, raw);
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
    const auto column_of = [&](const int i) { return 8*(i/2) + 2*(lane%4) + i%2; };

    int turn = 0;
    for (int block = blockIdx.x; block < args.pos.n_block(); block += gridDim.x, turn ^= 1) {
        keys.next(args, base, stream, block);
        float acc[n_tile][4] = {};
        few_products<type, n_tile>(acc, keys, query);
        int key[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            key[i] = keys.present(i) ? block*msa_block + 16*warp + 8*i + lane/4 : INT_MAX;
        }
        float top[2*n_tile];
#pragma unroll
        for (int i = 0; i < 2*n_tile; ++i) {
            const int until = position[column_of(i)];
            top[i] = fmaxf(key[0] <= until ? acc[i/2][i%2] : -INFINITY, key[1] <= until ? acc[i/2][2 + i%2] : -INFINITY);
        }
        const share mine = largest_of_lanes(top);
        if (mine.only) {
#pragma unroll
            for (int i = 0; i < values_left<2*n_tile>; ++i) {
                best[turn][warp][column_of(mine.first + i)] = top[i];
            }
        }
        __syncthreads();
        if (threadIdx.x < n_row) {
            float top = best[turn][0][threadIdx.x];
#pragma unroll
            for (int i = 1; i < few_warps; ++i) {
                top = fmaxf(top, best[turn][i][threadIdx.x]);
            }
            scores[((int64_t) stream*n_row + threadIdx.x)*stride + block] = top;
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// few tokens, Hopper

constexpr int walk_threads = 128; // a warpgroup: all rows in one product
constexpr int walk_stages  = 3;
constexpr int walk_ctas    = 2;   // a multiprocessor

struct walk_shared {
    char       tile[walk_stages][tile_bytes];
    block_mask mask[walk_stages];
};

// A warp's 32 rows of a tile; lane r knows the cell of row r. They are read once in a step, and are more than L2 holds.
__device__ __forceinline__ static void fill_once(const uint32_t tile, const char * keys, const int64_t cell_bytes, const int cell, const uint64_t policy) {
    const int lane = threadIdx.x%warp_size;
#pragma unroll
    for (int i = 0; i < warp_size/2; ++i) {
        const int row  = 2*i + lane/16;
        const int from = __shfl_sync(all_lanes, cell, row);
        copy16_async(tile + tile_offset(threadIdx.x - lane + row, lane%16), keys + (from < 0 ? 0 : from)*cell_bytes + lane%16*16, from >= 0, policy);
    }
}

// The block's scores for the warp's 16 rows.
__device__ __forceinline__ static void walk_scores(float * scores, const int64_t stride, const float (&acc)[64], const block_mask & mask, const int block,
        const int lowest, const row_pair & rows) {
    const bool everything = mask.complete() && block*msa_block + msa_block - 1 <= lowest;
    const float2 best = everything ? largest_of_all(acc) : largest_of_visible(acc, mask, block*msa_block, rows);
    const float low  = row_max(best.x);
    const float high = row_max(best.y);
    const int   lane = threadIdx.x%4; // of the four that share the two rows
    if (lane < 2 && (lane ? rows.position[1] : rows.position[0]) >= 0) {
        scores[(lane ? rows.row[1] : rows.row[0])*stride + block] = lane ? high : low;
    }
}

// A CTA takes neighbouring blocks, an equal share of them; a warp brings in 32 keys of each, two blocks ahead.
__global__ __launch_bounds__(walk_threads, walk_ctas)
void score_walk(const msa_select_args args, float * scores, const int64_t stride) {
    if constexpr (!msa_hopper) {
        return;
    }
    extern __shared__ __align__(1024) char raw[];
    walk_shared & shared = *reinterpret_cast<walk_shared *>(raw);
    const int stream = blockIdx.y;
    const int warp   = threadIdx.x/warp_size;
    const int share = args.pos.n_block()/gridDim.x, rest = args.pos.n_block()%gridDim.x, cta = blockIdx.x;
    const int first = cta*share + min(cta, rest);
    const int last  = first + share + (cta < rest ? 1 : 0);
    // The next kernel may begin in time for the last block. A choice for more tokens was slower beside a single block.
    const bool early = first + 1 == last && args.pos.n_token*args.pos.n_stream == 1;
    if (early) {
        let_next_begin();
    }
    const char * keys = args.key.data + stream*args.key.stream_bytes;
    scores += (int64_t) stream*args.pos.n_token*args.n_group*stride;

    const uint64_t policy = policy_to_leave_first();
    const auto next_cell = [&](const int block) {
        return block < last ? cell_of(args.pos, stream, block*msa_block + threadIdx.x) : -1;
    };
    const auto load = [&](const int stage, const int block, const int cell) {
        if (block < last) {
            fill_once(shared_address(shared.tile[stage]), keys, args.key.cell_bytes, cell, policy);
            shared.mask[stage].word[warp] = __ballot_sync(all_lanes, cell >= 0);
        }
        copies_commit();
    };
    int cell = next_cell(first);
#pragma unroll
    for (int stage = 0; stage < walk_stages - 1; ++stage) {
        const int following = next_cell(first + stage + 1);
        load(stage, first + stage, cell);
        cell = following;
    }
    const row_pair rows = rows_at(args, stream, 16*warp);
    uint32_t query[8][4];
    load_query(query, args, stream, rows);
    const int position[2] = {rows.position[0], rows.position[1] < 0 ? rows.position[0] : rows.position[1]};
    const int lowest = __reduce_min_sync(all_lanes, position[0] < 0 ? INT_MAX : min(position[0], position[1]));

    int stage = 0;
    for (int block = first; block < last; ++block) {
        copies_wait<walk_stages - 2>();
        tiles_written();
        __syncthreads(); // the block is there, and all are done with the one before
        const int ahead = block + walk_stages - 1;
        load((stage + walk_stages - 1)%walk_stages, ahead, cell);
        cell = next_cell(ahead + 1);
        if (block + 1 == last && !early) {
            let_next_begin();
        }
        float acc[64];
        product_start<tile_rows::output>(acc, query, shared_address(shared.tile[stage]));
        product_wait<0>(acc);
        walk_scores(scores, stride, acc, shared.mask[stage], block, lowest, rows);
        stage = (stage + 1)%walk_stages;
    }
    copies_wait<0>();
}

// ---------------------------------------------------------------------------------------------------------------
// the best blocks of a row

constexpr int choose_cta  = 256;

template <int n_thread>
__global__ __launch_bounds__(choose_cta)
void choose(const msa_select_args args, const float * scores, const int64_t stride, int * zeros) {
    constexpr int rows_a_cta = choose_cta/n_thread;
    extern __shared__ __align__(16) uint64_t candidates[];
    __shared__ choice<n_thread> choices[rows_a_cta];

    let_next_begin();
    const int team = threadIdx.x/n_thread;
    const int row  = blockIdx.x*rows_a_cta + team;
    if (row < args.pos.n_stream*args.pos.n_token*args.n_group) { // a whole team
        const int position = args.pos.query[row/args.n_group];
        wait_for_last();
        if (zeros && threadIdx.x%n_thread == 0) {
            zeros[row] = 0;
        }
        choose_blocks<n_thread>(args, scores + row*stride, position, choices[team],
            candidates + team*most_candidates<n_thread>(args.pos.n_block()),
            [&](const int place, const int block) { args.ids[(int64_t) row*args.n_top + place] = block; });
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

int64_t score_stride(const msa_select_args & args) {
    return (args.pos.n_block() + 3)/4*4;
}

size_t score_bytes(const msa_select_args & args) {
    const size_t n_row = (size_t) args.pos.n_stream*args.pos.n_token*args.n_group;
    return (n_row*score_stride(args)*sizeof(float) + 255)/256*256;
}

bool walks(const msa_select_args & args) {
    return msa_select_launch(args) == msa_launch::few_tokens && args.key.type == msa_type::f16 && current_device().hopper;
}

static_assert(sizeof(score_shared<score_stages(false)>) <= least_shared);
static_assert((choose_cta/warp_size)*(most_candidates<warp_size>(warp_blocks)*sizeof(uint64_t) + sizeof(choice<warp_size>)) <= least_shared);
static_assert(most_candidates<choose_cta>(msa_most_blocks)*sizeof(uint64_t) + sizeof(choice<choose_cta>) <= least_shared);

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
    const auto grid_of = [&](const int n_cta) {
        const int n_resident = n_cta*device.n_sm;
        return dim3(args.pos.n_block() < n_resident ? args.pos.n_block() : n_resident, args.pos.n_stream);
    };
    if (walks(args)) {
        return launch(score_walk, grid_of(walk_ctas), walk_threads, sizeof(walk_shared), stream, args, scores, score_stride(args));
    }
    static_assert(few_keys<type>::shared_bytes + few_rows*((msa_dim + 8)*sizeof(half) + sizeof(int) + 2*few_warps*sizeof(float)) <= least_shared);
    const auto kernel = n_row <= 8 ? score_few<type, 1> : n_row <= 16 ? score_few<type, 2> : n_row <= 32 ? score_few<type, 4> : score_few<type, 8>;
    return launch(kernel, grid_of(n_row <= 32 ? few_ctas : 1), few_threads, few_keys<type>::shared_bytes, stream, args, scores, score_stride(args));
}

bool warp_chooses(const msa_select_args & args) {
    return args.pos.n_stream*args.pos.n_token*args.n_group >= 1024 && args.pos.n_block() <= warp_blocks;
}

cudaError_t choose_each(const msa_select_args & args, const float * scores, int * zeros, cudaStream_t stream) {
    const int  n_row    = args.pos.n_stream*args.pos.n_token*args.n_group;
    const int  n_block  = args.pos.n_block();
    const bool a_warp   = warp_chooses(args);
    const int  rows_a_cta = a_warp ? choose_cta/warp_size : 1;
    const int  capacity   = a_warp ? most_candidates<warp_size>(n_block) : most_candidates<choose_cta>(n_block);
    const begins when = walks(args) ? begins::beside_last : begins::after_last; // its few CTAs find room beside it
    return launch_clusters(1, when, a_warp ? choose<warp_size> : choose<choose_cta>, dim3((n_row + rows_a_cta - 1)/rows_a_cta), choose_cta,
        rows_a_cta*capacity*sizeof(uint64_t), stream, args, scores, score_stride(args), zeros);
}

template <msa_type type>
static cudaError_t launch_score(const msa_select_args & args, float * scores, cudaStream_t stream) {
    return msa_select_launch(args) == msa_launch::few_tokens
        ? launch_score_few <type>(args, scores, stream)
        : launch_score_many<type>(args, scores, stream);
}

cudaError_t score_blocks(const msa_select_args & args, void * scratch, cudaStream_t stream) {
    float * scores = static_cast<float *>(scratch);
    switch (args.key.type) {
        case msa_type::f16:  return launch_score<msa_type::f16> (args, scores, stream);
        case msa_type::bf16: return launch_score<msa_type::bf16>(args, scores, stream);
        case msa_type::q8_0: return launch_score<msa_type::q8_0>(args, scores, stream);
        default:             return cudaErrorNotSupported;
    }
}

} // namespace msa

// ---------------------------------------------------------------------------------------------------------------
// entry

msa_launch msa_select_launch(const msa_select_args & args) {
    const bool shape = args.n_top >= 1 && args.n_top <= msa_top && args.n_group >= 1 && args.n_group <= msa::few_rows
        && args.pos.n_token >= 1 && args.pos.n_stream >= 1 && args.pos.n_block() <= msa_most_blocks;
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
    const cudaError_t status = msa::score_blocks(args, scratch, stream);
    return status == cudaSuccess ? msa::choose_each(args, static_cast<const float *>(scratch), nullptr, stream) : status;
}

#endif
