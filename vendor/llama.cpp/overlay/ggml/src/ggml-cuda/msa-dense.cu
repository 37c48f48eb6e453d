// MSA, part 3: attention over all blocks, for the layers that select nothing. Positions and caches are read as by the other
// parts, so these layers need no mask either. See msa-kernels.cuh for the definition.
//
//   dense_few    one token of a stream. Warps walk through the keys 16 at a time, each with its own ring of copies in
//                flight. Bound by memory.
//   dense_many   a CTA has eight tokens of a group, a warp each, and walks through blocks in shared memory. Bound by the
//                tensor cores; with quantised caches also by their conversion, if every CTA does it for itself.
//   expand       the quantised caches of some groups as f16, for a dense_many of so many tokens that it pays.
//   dense_merge  where the keys of a token were split among CTAs: adds up the parts.

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include "msa-attend.cuh"

#include <algorithm>
#include <optional>
#include <type_traits>

namespace msa {

__host__ __device__ constexpr bool is_quantised(const msa_type type) {
    return type == msa_type::q8_0 || type == msa_type::q4_0;
}

constexpr int max_splits = 128; // of the keys of a token

// Where everything lies in the scratch memory.
struct dense_plan {
    int     n_split;
    float * part;   // [token][group][n_split] parts, see msa-attend.cuh
    float * top;    // [token][group][n_split][msa_rows]
    float * sum;    // same
    int     n_group;  // whose caches are expanded at a time, 0: they are not
    half8 * expanded; // keys and then values: [stream][group][position] rows of f16
    size_t  bytes;

    int groups_at_once(const msa_attend_args & args) const { return n_group == 0 ? args.n_group : n_group; }
};

// Keys that a CTA is to have at least: less work than this is not worth another part.
constexpr int few_keys_least  = 128;
constexpr int many_keys_least = 2*msa_block;

constexpr int many_tokens = 8; // of a CTA

__host__ __device__ constexpr int div_up(const int n, const int size) {
    return (n + size - 1)/size;
}

__host__ __device__ static int many_tiles(const msa_positions & pos) { // of a stream
    return div_up(pos.n_token, many_tokens);
}

constexpr int few_ctas = 2; // a multiprocessor

// The split that leaves the fewest multiprocessors idle in the last round.
static int splits_of(const int n_cta, const int n_place, const int most) {
    int best = 1;
    const auto rounds = [&](const int n) { return (double) ((n_cta*n + n_place - 1)/n_place)/n; };
    for (int n = 2; n <= most && n_cta < 4*n_place; ++n) {
        best = rounds(n) < 0.98*rounds(best) ? n : best;
    }
    return best;
}

constexpr int    expand_tiles = 8;        // CTAs a key block that are worth it
constexpr size_t least_room   = 64 << 20; // bytes

// Scratch memory: what attend_many takes for the partial outputs of as many tokens. A layer that selects nothing shall not be
// what memory is kept for.
static size_t room_of(const msa_attend_args & args) {
    return (size_t) n_query(args)*msa_top*fragment_halves*sizeof(half);
}

static size_t expanded_bytes(const msa_attend_args & args, const int n_group) {
    return (size_t) 2*args.pos.n_stream*n_group*args.pos.n_pos*msa_dim*sizeof(half);
}

// Most splits of a token's keys: each is to have enough of them, and all parts are to find room.
static int most_splits(const msa_attend_args & args, const int keys_least, const size_t taken) {
    const size_t part = (size_t) n_query(args)*(fragment_halves + 2*msa_rows)*sizeof(float);
    const size_t room = std::max(room_of(args), least_room) - taken;
    return (int) std::clamp<size_t>(std::min<size_t>(args.pos.n_pos/keys_least, room/part), 1, max_splits);
}

static int many_ctas(const msa_attend_args & args, const int n_group) { // if no keys are split
    return args.pos.n_stream*many_tiles(args.pos)*n_group;
}

// How many groups' caches are expanded at a time, in equal shares; 0: none, as with few tokens, or where what finds room
// would leave multiprocessors idle.
static int groups_to_expand(const msa_attend_args & args) {
    if (!is_quantised(args.key.type) || msa_dense_launch(args) == msa_launch::few_tokens || many_tiles(args.pos) < expand_tiles) {
        return 0;
    }
    const int most = (int) std::min<size_t>(room_of(args)/expanded_bytes(args, 1), args.n_group);
    if (most == 0) {
        return 0;
    }
    const int n_group = div_up(args.n_group, div_up(args.n_group, most));
    const int n_cta   = many_ctas(args, n_group)*most_splits(args, many_keys_least, expanded_bytes(args, n_group));
    return n_cta >= current_device().n_sm*7/8 ? n_group : 0;
}

static dense_plan plan_dense(const msa_attend_args & args, char * base) {
    dense_plan plan = {};
    const auto take = [&](auto *& pointer, const size_t n) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + plan.bytes);
        plan.bytes += (n*sizeof(*pointer) + 255)/256*256;
    };
    const device_facts device = current_device();
    const bool few = msa_dense_launch(args) == msa_launch::few_tokens;
    plan.n_group = groups_to_expand(args);
    if (plan.n_group > 0) {
        take(plan.expanded, expanded_bytes(args, plan.n_group)/sizeof(half8));
    }
    const int most = most_splits(args, few ? few_keys_least : many_keys_least, plan.bytes);
    plan.n_split = few
        ? std::clamp(few_ctas*device.n_sm/n_query(args), 1, most)
        : splits_of(many_ctas(args, plan.groups_at_once(args)), device.n_sm, most);
    if (few || plan.n_split > 1) {
        const size_t n_part = (size_t) n_query(args)*plan.n_split;
        take(plan.part, n_part*fragment_halves);
        take(plan.top,  n_part*msa_rows);
        take(plan.sum,  n_part*msa_rows);
    }
    return plan;
}

// ---------------------------------------------------------------------------------------------------------------
// softmax as keys come in

struct running {      // of a lane's two rows
    float top[2] = {-INFINITY, -INFINITY}; // of all keys so far, in units of the exponent of 2
    float sum[2] = {0.0f, 0.0f};           // of this lane's columns only
};

// acc: products with 8*n keys, in fragment order -> weights as operands. Returns by how much what was summed up shrinks.
template <int n>
__device__ static float2 weigh(const float (&acc)[4*n], const float scale, running & state, uint32_t (&weight)[n/2][4]) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int c = 0; c < n; ++c) {
            best[0] = fmaxf(best[0], acc[4*c + 2*i]);
            best[1] = fmaxf(best[1], acc[4*c + 2*i + 1]);
        }
        const float top  = fmaxf(state.top[i], scale*row_max(fmaxf(best[0], best[1])));
        const float base = top == -INFINITY ? 0.0f : top;
        factor[i] = exp2_fast(state.top[i] - base);
        state.top[i] = top;
        float part[2] = {};
#pragma unroll
        for (int c = 0; c < n; ++c) {
            const float low  = exp2_fast(scale*acc[4*c + 2*i]     - base);
            const float high = exp2_fast(scale*acc[4*c + 2*i + 1] - base);
            part[0] += low;
            part[1] += high;
            weight[c/2][2*(c%2) + i] = pack(low, high);
        }
        state.sum[i] = state.sum[i]*factor[i] + part[0] + part[1];
    }
    return make_float2(factor[0], factor[1]);
}

__device__ static void shrink(float (&out)[64], const float2 factor) {
    if (!__any_sync(all_lanes, factor.x != 1.0f || factor.y != 1.0f)) { // the rule, after the first keys
        return;
    }
#pragma unroll
    for (int n = 0; n < 16; ++n) {
        out[4*n]     *= factor.x;
        out[4*n + 1] *= factor.x;
        out[4*n + 2] *= factor.y;
        out[4*n + 3] *= factor.y;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// one token

constexpr int walk_warps   = 4;
constexpr int walk_threads = walk_warps*warp_size;
constexpr int walk_keys    = 16; // a step of a warp

// A warp's shared memory: a ring of stages, each 16 key rows and then 16 value rows as they are; for quantised types
// also 16 value rows as f16. Last the warp's output.
template <msa_type type>
struct walk_layout {
    static constexpr bool converts    = is_quantised(type);
    static constexpr int  n_stage     = 3;
    static constexpr int  copy_bytes  = converts ? 8 : 16; // quantised rows are 8-byte aligned
    static constexpr int  copies      = row_bytes_of(type)/copy_bytes; // a row
    static constexpr int  stride      = type == msa_type::q8_0 ? 144 : row_bytes_of(type); // 136 would meet in four banks
    static constexpr int  stage_bytes = 2*walk_keys*stride;
    static constexpr int  values_at   = n_stage*stage_bytes;
    static constexpr int  bytes       = values_at + (converts ? walk_keys*msa_dim*(int) sizeof(half) : 0);
    static_assert(bytes >= fragment_halves*(int) sizeof(float) && stage_bytes%16 == 0);
};

// Swizzled so that neither eight rows of one chunk nor two rows of four chunks meet in a bank.
__device__ static int walk_offset(const int row, const int chunk) {
    return row*256 + ((chunk ^ ((row & 1) << 2 | (row >> 1 & 3)))*16);
}

struct walk_source {
    const char * keys;
    const char * values;
    int64_t      key_bytes;   // a cell
    int64_t      value_bytes; // same
};

// Rows 0 ... 15 of a stage are keys, 16 ... 31 their values. Lane l knows the cell of row l%16.
template <msa_type type>
__device__ static void copy_stage(const uint32_t to, const walk_source & source, const int cell) {
    using layout = walk_layout<type>;
#pragma unroll
    for (int i = 0; i < layout::copies; ++i) {
        const int piece = i*warp_size + threadIdx.x%warp_size;
        const int row   = piece/layout::copies;
        const int at    = piece%layout::copies;
        const int from  = __shfl_sync(all_lanes, cell, row%walk_keys);
        const char * rows = row < walk_keys ? source.keys + max(from, 0)*source.key_bytes : source.values + max(from, 0)*source.value_bytes;
        if constexpr (layout::converts) {
            copy8_async(to + row*layout::stride + at*8, rows + at*8, from >= 0);
        } else {
            copy16_async(to + walk_offset(row, at), rows + at*16, from >= 0);
        }
    }
    copies_commit();
}

// Elements 8*chunk ... of a row of a stage.
template <msa_type type>
__device__ static half8 staged(const char * stage, const int row, const int chunk) {
    if constexpr (walk_layout<type>::converts) {
        return row_format<type>::load(stage + row*walk_layout<type>::stride, chunk);
    } else {
        return row_format<type>::load(stage + walk_offset(row, chunk), 0);
    }
}

// The query's dimensions in the order in which `staged` chunks of keys are operands: a lane's eight neighbours.
__device__ static void load_query(uint32_t (&a)[8][4], const float * query) {
    const int lane = threadIdx.x%warp_size;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float4 * row = reinterpret_cast<const float4 *>(query + (lane/4 + 8*i)*msa_dim + 32*p + 8*(lane%4));
            const float4 low = row[0], high = row[1];
            a[2*p][i]         = pack(low.x, low.y);
            a[2*p][i + 2]     = pack(low.z, low.w);
            a[2*p + 1][i]     = pack(high.x, high.y);
            a[2*p + 1][i + 2] = pack(high.z, high.w);
        }
    }
}

template <msa_type type>
__device__ static void score_keys(float (&score)[8], const uint32_t (&a)[8][4], const char * stage) {
    const int lane = threadIdx.x%warp_size;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        score[i] = 0.0f;
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const half8 key = staged<type>(stage, 8*n + lane/4, 4*p + lane%4);
            const uint32_t * b = reinterpret_cast<const uint32_t *>(&key);
            mma_m16n8k16(score + 4*n, a[2*p],     b[0], b[1]);
            mma_m16n8k16(score + 4*n, a[2*p + 1], b[2], b[3]);
        }
    }
}

__device__ static void hide_step(float (&score)[8], const uint32_t visible) {
#pragma unroll
    for (int k = 0; k < 8; ++k) { // key of score 4*n + 2*i + e: 8*n + 2*(lane%4) + e
        score[k] = (visible >> (8*(k/4) + 2*(threadIdx.x%4) + k%2)) & 1 ? score[k] : -INFINITY;
    }
}

// Adds the stage's values to out. Converted rows go where `values` points; bf16 is narrowed in place, by the lane that
// copied it.
template <msa_type type>
__device__ static void add_values(float (&out)[64], const uint32_t (&weight)[4], char * stage, char * values) {
    const int lane = threadIdx.x%warp_size;
    char * rows = walk_layout<type>::converts ? values : stage;
    const int row0 = walk_layout<type>::converts ? 0 : walk_keys;
    if constexpr (type != msa_type::f16) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int row = 2*i + lane/16;
            const half8 chunk = staged<type>(stage, walk_keys + row, lane%16);
            *reinterpret_cast<half8 *>(rows + walk_offset(row0 + row, lane%16)) = chunk;
        }
        __syncwarp();
    }
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, shared_address(rows + walk_offset(row0 + lane%16, n + lane/16)));
        mma_m16n8k16(out + 4*n,     weight, b[0], b[1]);
        mma_m16n8k16(out + 4*n + 4, weight, b[2], b[3]);
    }
}

struct walk_sums {
    float top[walk_warps][msa_rows];
    float sum[walk_warps][msa_rows];
};

// The warps' outputs, each in its own memory, become one part of the plan.
template <msa_type type>
__device__ static void merge_walks(const dense_plan & plan, const int64_t part, char * raw, walk_sums & sums, const float (&out)[64], running & state) {
    using layout = walk_layout<type>;
    const int warp = threadIdx.x/warp_size;
    const int lane = threadIdx.x%warp_size;
    float4 * own = reinterpret_cast<float4 *>(raw + warp*layout::bytes) + lane;
#pragma unroll
    for (int n = 0; n < 16; ++n) {
        own[n*warp_size] = make_float4(out[4*n], out[4*n + 1], out[4*n + 2], out[4*n + 3]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float sum = row_sum(state.sum[i]);
        if (lane%4 == 0) {
            sums.top[warp][lane/4 + 8*i] = state.top[i];
            sums.sum[warp][lane/4 + 8*i] = sum;
        }
    }
    __syncthreads();
#pragma unroll
    for (int piece = warp; piece < 8; piece += walk_warps) {
        float total[8], top[2], sum[2];
        merge_parts<walk_warps>([&](const int w) { return reinterpret_cast<const float4 *>(raw + w*layout::bytes) + 2*piece*warp_size + lane; },
            [&](const int w, const int i) { return sums.top[w][lane/4 + 8*i]; },
            [&](const int w, const int i) { return sums.sum[w][lane/4 + 8*i]; }, total, top, sum);
        float4 * to = reinterpret_cast<float4 *>(plan.part + part*fragment_halves) + 2*piece*warp_size + lane;
        to[0]         = make_float4(total[0], total[1], total[2], total[3]);
        to[warp_size] = make_float4(total[4], total[5], total[6], total[7]);
        if (piece == 0 && lane%4 == 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                plan.top[part*msa_rows + lane/4 + 8*i] = top[i];
                plan.sum[part*msa_rows + lane/4 + 8*i] = sum[i];
            }
        }
    }
}

template <msa_type type>
__global__ __launch_bounds__(walk_threads, few_ctas)
void dense_few(const msa_attend_args args, const dense_plan plan) {
    using layout = walk_layout<type>;
    constexpr int n_stage = layout::n_stage;
    extern __shared__ __align__(1024) char raw[];
    __shared__ walk_sums sums;
    const int warp   = threadIdx.x/warp_size;
    const int lane   = threadIdx.x%warp_size;
    const int split  = blockIdx.x;
    const int group  = blockIdx.y;
    const int stream = blockIdx.z; // each has one token
    const int query  = stream*args.n_group + group;
    char * own = raw + warp*layout::bytes;
    const walk_source source = {
        args.key.data   + group*args.key.group_bytes   + stream*args.key.stream_bytes,
        args.value.data + group*args.value.group_bytes + stream*args.value.stream_bytes,
        args.key.cell_bytes, args.value.cell_bytes};

    const int until  = min(args.pos.query[stream], args.pos.n_pos - 1);
    const int n_step = until/walk_keys + 1;
    const int share  = (n_step + plan.n_split - 1)/plan.n_split;
    const int last   = min((split + 1)*share, n_step);
    const int first  = split*share + warp;
    const auto cell_at = [&](const int step) {
        const int at = step*walk_keys + lane%walk_keys;
        return step < last && at <= until ? cell_of(args.pos, stream, at) : -1;
    };
    uint32_t visible[n_stage]; // of the steps in the ring, oldest first
    int cell = cell_at(first);
#pragma unroll
    for (int k = 0; k < n_stage - 1; ++k) {
        visible[k] = __ballot_sync(all_lanes, cell >= 0);
        copy_stage<type>(shared_address(own + k*layout::stage_bytes), source, cell);
        cell = cell_at(first + (k + 1)*walk_warps);
    }
    uint32_t a[8][4];
    load_query(a, args.query + (int64_t) query*fragment_halves);
    float out[64] = {};
    running state;
    int stage = 0;
    for (int step = first; step < last; step += walk_warps) {
        visible[n_stage - 1] = __ballot_sync(all_lanes, cell >= 0);
        __syncwarp(); // all have read the stage that is filled now
        copy_stage<type>(shared_address(own + (stage + n_stage - 1)%n_stage*layout::stage_bytes), source, cell);
        cell = cell_at(step + n_stage*walk_warps);
        copies_wait<n_stage - 1>();
        __syncwarp();

        float score[8];
        uint32_t weight[1][4];
        score_keys<type>(score, a, own + stage*layout::stage_bytes);
        if (visible[0] != all_lanes) {
            hide_step(score, visible[0]);
        }
        shrink(out, weigh<2>(score, args.scale*log2_e, state, weight));
        add_values<type>(out, weight[0], own + stage*layout::stage_bytes, own + layout::values_at);
#pragma unroll
        for (int k = 0; k < n_stage - 1; ++k) {
            visible[k] = visible[k + 1];
        }
        stage = (stage + 1)%n_stage;
    }
    copies_wait<0>();
    __syncwarp();
    merge_walks<type>(plan, (int64_t) query*plan.n_split + split, raw, sums, out, state);
}

// ---------------------------------------------------------------------------------------------------------------
// many tokens

constexpr int dense_threads = many_tokens*warp_size;

// Where shared memory is large the heads of the CTA's tokens stay in it; elsewhere every warp keeps its own in registers.
// Two stages leave a whole block's time to the copies and need one barrier a block. Quantised rows wait as they are and are
// expanded to f16 beside the products, the keys for the next block, the values for this one.
template <msa_type type, bool large>
struct dense_shared {
    static constexpr int n_key     = large ? 2 : 1;
    static constexpr int n_value   = large && !is_quantised(type) ? 2 : 1;
    static constexpr int raw_bytes = is_quantised(type) ? msa_block*row_bytes_of(type) : 16;

    char     key  [n_key][tile_bytes];
    char     value[n_value][tile_bytes];
    char     query[large ? tile_bytes : 16];
    char     raw_key  [raw_bytes];
    char     raw_value[raw_bytes];
    uint16_t mask[2][many_tokens]; // of the cells of a block, by its parity
};

// What a warp needs to know to bring in its 16 rows of a block.
struct row_source {
    const char * rows;       // of the group and stream
    int64_t      cell_bytes;
    int          row0;       // 16*warp
};

// Starts to copy 16-bit rows into a tile, for bf16 still to be narrowed.
__device__ static void copy_rows16(const uint32_t tile, const row_source & source, const int cell) {
    fill_rows<msa_type::f16>(tile, source.row0, source.rows, source.cell_bytes, cell);
}

// Every lane turns the chunks that it copied itself from bf16 into f16.
__device__ static void narrow_rows(char * tile, const int row0) {
    const int lane = threadIdx.x%warp_size;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        half8 * chunk = reinterpret_cast<half8 *>(tile + tile_offset(row0 + 2*i + lane/16, lane%16));
        *chunk = row_format<msa_type::bf16>::load(reinterpret_cast<const char *>(chunk), 0);
    }
}

// Starts to copy quantised rows as they are, and closes the group of copies.
template <msa_type type>
__device__ static void copy_quantised(char * raw, const row_source & source, const int cell) {
    constexpr int copies = row_bytes_of(type)/8;
    const uint32_t to = shared_address(raw + source.row0*row_bytes_of(type));
#pragma unroll 3
    for (int i = 0; i < (16*copies + warp_size - 1)/warp_size; ++i) {
        const int piece = i*warp_size + threadIdx.x%warp_size;
        const int from  = __shfl_sync(all_lanes, cell, min(piece/copies, 15));
        if (piece < 16*copies) {
            copy8_async(to + piece*8, source.rows + max(from, 0)*source.cell_bytes + piece%copies*8, from >= 0);
        }
    }
    copies_commit();
}

// A warp's 16 quantised rows to f16, after the copies have arrived; then the room that they took is free.
template <msa_type type>
__device__ static void expand_rows(char * tile, const char * raw, const int row0) {
    const int lane = threadIdx.x%warp_size;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = row0 + 2*i + lane/16;
        *reinterpret_cast<half8 *>(tile + tile_offset(row, lane%16)) = row_format<type>::load(raw + row*row_bytes_of(type), lane%16);
    }
    __syncwarp();
}

// A warp's token, its 16 heads and what it has summed up.
struct dense_warp {
    uint32_t a[8][4];  // the heads as operands,
    uint32_t query;    // or where shared memory has those of the CTA
    float    out[64];
    running  state;
    int      position; // -1: no token
    bool     busy;     // the warpgroup has a token
};

__device__ static void load_heads(uint32_t (&a)[8][4], const float * query) {
    const int lane = threadIdx.x%warp_size;
    const float * source = query + lane/4*msa_dim + 2*(lane%4);
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = *reinterpret_cast<const float2 *>(source + 8*(i%2)*msa_dim + 16*step + 8*(i/2));
            a[step][i] = pack(pair.x, pair.y);
        }
    }
}

// The same into 16 rows of a tile.
__device__ static void stage_heads(char * tile, const int row0, const float * query) {
    const int lane = threadIdx.x%warp_size;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = 2*i + lane/16;
        const float4 * from = reinterpret_cast<const float4 *>(query + row*msa_dim + lane%16*8);
        const float4 low = from[0], high = from[1];
        *reinterpret_cast<uint4 *>(tile + tile_offset(row0 + row, lane%16)) =
            make_uint4(pack(low.x, low.y), pack(low.z, low.w), pack(high.x, high.y), pack(high.z, high.w));
    }
}

__device__ static void weigh_block(const float (&acc)[64], dense_warp & own, const float scale, uint32_t (&weight)[8][4]) {
    shrink(own.out, weigh<16>(acc, scale, own.state, weight));
}

// The block's keys are in their tile, and after `between` its values; `beside_keys` and `beside_values` run while the tensor
// cores multiply.
template <bool large, typename first, typename second, typename third>
__device__ static void attend_block(dense_warp & own, const float scale, const uint16_t * present, const int block,
        const uint32_t key_tile, const uint32_t value_tile, const first & beside_keys, const second & between, const third & beside_values) {
    uint32_t weight[8][4];
    if (own.busy) {
        float acc[64];
        if constexpr (large) {
            shared_product_start(acc, own.query, threadIdx.x/warp_size/4*64, key_tile);
        } else {
            product_start<tile_rows::output>(acc, own.a, key_tile);
        }
        beside_keys();
        product_wait<0>(acc);
        const block_mask mask = *reinterpret_cast<const block_mask *>(present);
        const int last_key = own.position - block*msa_block;
        if (!mask.complete() || last_key < msa_block - 1) {
            hide_keys(acc, mask, last_key);
        }
        weigh_block(acc, own, scale, weight);
    } else {
        beside_keys();
    }
    between();
    if (own.busy) {
        product_start<tile_rows::summed, true>(own.out, weight, value_tile);
        beside_values();
        product_wait<0>(own.out);
    } else {
        beside_values();
    }
}

struct dense_range {
    int first; // block
    int last;  // behind the range
};

// The blocks of 16-bit types, two stages.
template <msa_type type, typename cells>
__device__ static void walk_blocks(dense_shared<type, true> & shared, dense_warp & own, const float scale, const dense_range range,
        const row_source & keys, const row_source & values, const cells & cell_of_row) {
    const int  warp  = threadIdx.x/warp_size;
    const auto issue = [&](const int block) {
        const int cell = cell_of_row(block);
        copy_rows16(shared_address(shared.key[block%2]),   keys,   cell);
        copy_rows16(shared_address(shared.value[block%2]), values, cell);
        copies_commit();
        shared.mask[block%2][warp] = (uint16_t) __ballot_sync(all_lanes, cell >= 0);
    };
    issue(range.first);
    for (int block = range.first; block < range.last; ++block) {
        const int at = block%2;
        copies_wait<0>();
        if constexpr (type == msa_type::bf16) {
            narrow_rows(shared.key[at],   keys.row0);
            narrow_rows(shared.value[at], values.row0);
        }
        tiles_written();
        __syncthreads(); // the block is there, and all are done with the one before
        if (block + 1 < range.last) {
            issue(block + 1);
        }
        attend_block<true>(own, scale, shared.mask[at], block, shared_address(shared.key[at]), shared_address(shared.value[at]), [] {}, [] {}, [] {});
    }
}

// The blocks of 16-bit types, one stage: keys are copied while values are used and the other way round.
template <msa_type type, typename cells>
__device__ static void walk_blocks(dense_shared<type, false> & shared, dense_warp & own, const float scale, const dense_range range,
        const row_source & keys, const row_source & values, const cells & cell_of_row) {
    const int  warp  = threadIdx.x/warp_size;
    const auto bring = [&](char (&tile)[tile_bytes], const row_source & source, const int cell) {
        copy_rows16(shared_address(tile), source, cell);
        copies_commit();
    };
    const auto ready = [&](char (&tile)[tile_bytes]) {
        copies_wait<0>();
        if constexpr (type == msa_type::bf16) {
            narrow_rows(tile, keys.row0);
        }
        tiles_written();
        __syncthreads(); // the tile is there, and all are done with the other one
    };
    int cell = cell_of_row(range.first);
    bring(shared.key[0], keys, cell);
    for (int block = range.first; block < range.last; ++block) {
        shared.mask[block%2][warp] = (uint16_t) __ballot_sync(all_lanes, cell >= 0);
        ready(shared.key[0]);
        bring(shared.value[0], values, cell);
        cell = block + 1 < range.last ? cell_of_row(block + 1) : -1;
        attend_block<false>(own, scale, shared.mask[block%2], block, shared_address(shared.key[0]), shared_address(shared.value[0]), [] {}, [&] {
            ready(shared.value[0]);
            if (block + 1 < range.last) {
                bring(shared.key[0], keys, cell);
            }
        }, [] {});
    }
}

// The blocks of quantised types. Rows of the next but one block come in while the next one's are expanded.
template <msa_type type, bool large, typename cells>
__device__ static void walk_quantised(dense_shared<type, large> & shared, dense_warp & own, const float scale, const dense_range range,
        const row_source & keys, const row_source & values, const cells & cell_of_row) {
    const int  warp = threadIdx.x/warp_size;
    const auto cell_in_range = [&](const int block) { return block < range.last ? cell_of_row(block) : -1; };
    int cell = cell_in_range(range.first);
    int next = cell_in_range(range.first + 1);
    const auto key_tile = [&](const int block) -> char (&)[tile_bytes] { return shared.key[large ? block%2 : 0]; };
    const auto expand_keys = [&](const int block, const int following) { // the block's keys, then start on the next one's
        copies_wait<1>();
        expand_rows<type>(key_tile(block), shared.raw_key, keys.row0);
        copy_quantised<type>(shared.raw_key, keys, following);
        tiles_written();
    };
    copy_quantised<type>(shared.raw_key,   keys,   cell);
    copy_quantised<type>(shared.raw_value, values, cell);
    if constexpr (large) {
        expand_keys(range.first, next);
    }
    for (int block = range.first; block < range.last; ++block) {
        shared.mask[block%2][warp] = (uint16_t) __ballot_sync(all_lanes, cell >= 0);
        const int after = cell_in_range(block + 2);
        if constexpr (!large) {
            expand_keys(block, next);
        }
        __syncthreads(); // the keys are there, and all are done with the values of the block before
        attend_block<large>(own, scale, shared.mask[block%2], block, shared_address(key_tile(block)), shared_address(shared.value[0]), [&] {
            copies_wait<1>();
            expand_rows<type>(shared.value[0], shared.raw_value, values.row0);
            copy_quantised<type>(shared.raw_value, values, next);
            tiles_written();
        }, [] { __syncthreads(); }, [&] { // the values are there, and all are done with the keys
            if constexpr (large) {
                expand_keys(block + 1, after);
            }
        });
        cell = next;
        next = after;
    }
    copies_wait<0>();
}

// As a part of the plan, or where nothing was split as the output.
__device__ static void store_heads(const msa_attend_args & args, const dense_plan & plan, const int64_t query, const int split, dense_warp & own) {
    const int lane = threadIdx.x%warp_size;
    const float sum[2] = {row_sum(own.state.sum[0]), row_sum(own.state.sum[1])};
    const int64_t part = query*plan.n_split + split;
    float4 * to = reinterpret_cast<float4 *>(plan.part + part*fragment_halves) + lane;
#pragma unroll
    for (int piece = 0; piece < 8; ++piece) {
        const float * x = own.out + 8*piece;
        if (plan.n_split == 1) {
            const float total[8] = {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
            store_piece(args.out + query*fragment_halves, piece, total, sum);
        } else {
            to[2*piece*warp_size]       = make_float4(x[0], x[1], x[2], x[3]);
            to[(2*piece + 1)*warp_size] = make_float4(x[4], x[5], x[6], x[7]);
        }
    }
    if (plan.n_split > 1 && lane%4 == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            plan.top[part*msa_rows + lane/4 + 8*i] = own.state.top[i];
            plan.sum[part*msa_rows + lane/4 + 8*i] = sum[i];
        }
    }
}

__device__ static int largest(int x) { // of the lanes
#pragma unroll
    for (int step = 1; step < warp_size; step *= 2) {
        x = max(x, __shfl_xor_sync(all_lanes, x, step));
    }
    return x;
}

// The caches of args begin with group `first_group`. Where the plan has expanded them, rows lie in the order of positions, so
// that all the map has to say is whether there is one.
// large: Hopper, whose code alone has it; the other form is for all other devices.
template <msa_type type, bool large>
__global__ __launch_bounds__(dense_threads, 1)
void dense_many(const msa_attend_args args, const dense_plan plan, const int first_group) {
    if constexpr (large != msa_hopper) {
        return;
    }
    extern __shared__ __align__(1024) char raw[];
    auto & shared = *reinterpret_cast<dense_shared<type, large> *>(raw);
    const int warp   = threadIdx.x/warp_size;
    const int lane   = threadIdx.x%warp_size;
    const int n_tile = many_tiles(args.pos);
    const int tile   = gridDim.x - 1 - blockIdx.x; // the longest first
    const int stream = tile/n_tile;
    const int first  = tile%n_tile*many_tokens;    // token of the stream
    const int group  = first_group + blockIdx.y;
    const int split  = blockIdx.z;

    const int token = stream*args.pos.n_token + first + warp;
    const bool here = first + warp < args.pos.n_token;
    const int query = (here ? token : token - warp)*args.n_group + group;
    dense_warp own = {};
    own.position = here ? args.pos.query[token] : -1;
    own.busy     = first + warp/4*4 < args.pos.n_token;
    if constexpr (large) {
        own.query = shared_address(shared.query);
        stage_heads(shared.query, 16*warp, args.query + (int64_t) query*fragment_halves);
    } else {
        load_heads(own.a, args.query + (int64_t) query*fragment_halves);
    }
    const int until = min(largest(lane < many_tokens && first + lane < args.pos.n_token
        ? args.pos.query[stream*args.pos.n_token + first + lane] : -1), args.pos.n_pos - 1);
    const int n_block = until/msa_block + 1;
    const int share   = (n_block + plan.n_split - 1)/plan.n_split;
    const dense_range range = {split*share, min((split + 1)*share, n_block)};
    const auto rows_of = [&](const msa_cache & cache) {
        return row_source{cache.data + blockIdx.y*cache.group_bytes + stream*cache.stream_bytes, cache.cell_bytes, 16*warp};
    };
    const row_source keys   = rows_of(args.key);
    const row_source values = rows_of(args.value);
    const auto cell_of_row = [&](const int block) {
        const int at   = block*msa_block + 16*warp + lane;
        const int cell = lane < 16 ? cell_of(args.pos, stream, at) : -1;
        return type == msa_type::f16 && plan.n_group > 0 && cell >= 0 ? at : cell;
    };
    if (range.first < range.last) {
        if constexpr (is_quantised(type)) {
            walk_quantised<type>(shared, own, args.scale*log2_e, range, keys, values, cell_of_row);
        } else {
            walk_blocks<type>(shared, own, args.scale*log2_e, range, keys, values, cell_of_row);
        }
    }
    if (here) {
        store_heads(args, plan, query, split, own);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// many tokens of quantised caches

constexpr int expand_threads   = 256;
constexpr int expand_positions = expand_threads/16; // a lane has eight elements of a row

// z: keys of all streams, then values. Rows without a cell stay as they are: nobody reads them.
template <msa_type type>
__global__ void expand_groups(const msa_attend_args args, const int first_group, half8 * out) {
    const int position = blockIdx.x*expand_positions + threadIdx.x/16;
    const int stream   = blockIdx.z%args.pos.n_stream;
    const int cell     = cell_of(args.pos, stream, position);
    if (cell < 0) {
        return;
    }
    const msa_cache & cache = (int) blockIdx.z < args.pos.n_stream ? args.key : args.value;
    const char * row = cache.data + (first_group + blockIdx.y)*cache.group_bytes + stream*cache.stream_bytes + cell*cache.cell_bytes;
    const int64_t at = ((int64_t) blockIdx.z*gridDim.y + blockIdx.y)*args.pos.n_pos + position;
    out[at*16 + threadIdx.x%16] = row_format<type>::load(row, threadIdx.x%16);
}

// ---------------------------------------------------------------------------------------------------------------
// parts

constexpr int merge_warps = 8;

// A CTA one piece of one (token, group): its warps share the parts out, and then come together.
__global__ __launch_bounds__(merge_warps*warp_size)
void dense_merge(const msa_attend_args args, const dense_plan plan) {
    __shared__ float4 parts[merge_warps][2][warp_size];
    __shared__ float  tops[merge_warps][msa_rows];
    __shared__ float  sums[merge_warps][msa_rows];
    const int warp  = threadIdx.x/warp_size;
    const int lane  = threadIdx.x%warp_size;
    const int query = blockIdx.x;
    const int piece = blockIdx.y;
    const int64_t first = (int64_t) query*plan.n_split;

    float top[2] = {-INFINITY, -INFINITY};
    for (int s = warp; s < plan.n_split; s += merge_warps) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            top[i] = fmaxf(top[i], plan.top[(first + s)*msa_rows + lane/4 + 8*i]);
        }
    }
    float total[8] = {}, sum[2] = {};
#pragma unroll 4
    for (int s = warp; s < plan.n_split; s += merge_warps) {
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float base = top[i] == -INFINITY ? 0.0f : top[i];
            factor[i] = exp2_fast(plan.top[(first + s)*msa_rows + lane/4 + 8*i] - base);
            sum[i] += factor[i]*plan.sum[(first + s)*msa_rows + lane/4 + 8*i];
        }
        const float4 * from = reinterpret_cast<const float4 *>(plan.part + (first + s)*fragment_halves) + 2*piece*warp_size + lane;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const float4 x = from[k*warp_size];
            total[4*k]     += factor[0]*x.x;
            total[4*k + 1] += factor[0]*x.y;
            total[4*k + 2] += factor[1]*x.z;
            total[4*k + 3] += factor[1]*x.w;
        }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        parts[warp][k][lane] = make_float4(total[4*k], total[4*k + 1], total[4*k + 2], total[4*k + 3]);
        if (lane%4 == 0) {
            tops[warp][lane/4 + 8*k] = top[k];
            sums[warp][lane/4 + 8*k] = sum[k];
        }
    }
    __syncthreads();
    if (warp == 0) {
        merge_parts<merge_warps>([&](const int w) { return &parts[w][0][lane]; },
            [&](const int w, const int i) { return tops[w][lane/4 + 8*i]; },
            [&](const int w, const int i) { return sums[w][lane/4 + 8*i]; }, total, top, sum);
        store_piece(args.out + (int64_t) query*fragment_halves, piece, total, sum);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

template <msa_type type>
static cudaError_t launch_dense_few(const msa_attend_args & args, const dense_plan & plan, cudaStream_t stream) {
    static_assert(walk_warps*walk_layout<type>::bytes + sizeof(walk_sums) <= least_shared);
    const dim3 grid(plan.n_split, args.n_group, args.pos.n_stream);
    return launch(dense_few<type>, grid, walk_threads, walk_warps*walk_layout<type>::bytes, stream, args, plan);
}

template <msa_type type>
static cudaError_t launch_groups(const msa_attend_args & args, const dense_plan & plan, const int first_group, const int n_group, cudaStream_t stream) {
    static_assert(sizeof(dense_shared<type, false>) <= least_shared);
    const dim3 grid(args.pos.n_stream*many_tiles(args.pos), n_group, plan.n_split);
    return current_device().hopper
        ? launch(dense_many<type, true>,  grid, dense_threads, sizeof(dense_shared<type, true>),  stream, args, plan, first_group)
        : launch(dense_many<type, false>, grid, dense_threads, sizeof(dense_shared<type, false>), stream, args, plan, first_group);
}

template <msa_type type>
static cudaError_t launch_expanded(const msa_attend_args & args, const dense_plan & plan, cudaStream_t stream) {
    constexpr int64_t row = msa_dim*sizeof(half);
    const int64_t n_pos = args.pos.n_pos;
    cudaError_t status = cudaSuccess;
    for (int first = 0; first < args.n_group && status == cudaSuccess; first += plan.n_group) {
        const int n_group = std::min(plan.n_group, args.n_group - first);
        const int64_t stream_bytes = n_group*n_pos*row;
        char * const data = reinterpret_cast<char *>(plan.expanded);
        msa_attend_args expanded = args;
        expanded.key   = {data, msa_type::f16, n_pos*row, row, stream_bytes};
        expanded.value = {data + args.pos.n_stream*stream_bytes, msa_type::f16, n_pos*row, row, stream_bytes};
        const dim3 grid(div_up(args.pos.n_pos, expand_positions), n_group, 2*args.pos.n_stream);
        status = in_turn(
            [&] { return launch(expand_groups<type>, grid, expand_threads, 0, stream, args, first, plan.expanded); },
            [&] { return launch_groups<msa_type::f16>(expanded, plan, first, n_group, stream); });
    }
    return status;
}

template <msa_type type>
static cudaError_t launch_dense_many(const msa_attend_args & args, const dense_plan & plan, cudaStream_t stream) {
    if constexpr (is_quantised(type)) {
        if (plan.n_group > 0) {
            return launch_expanded<type>(args, plan, stream);
        }
    }
    return launch_groups<type>(args, plan, 0, args.n_group, stream);
}

template <msa_type type>
static cudaError_t launch_dense(const msa_attend_args & args, const dense_plan & plan, cudaStream_t stream) {
    return in_turn(
        [&] { return msa_dense_launch(args) == msa_launch::few_tokens
            ? launch_dense_few <type>(args, plan, stream)
            : launch_dense_many<type>(args, plan, stream); },
        [&] { return plan.part == nullptr ? cudaSuccess
            : launch(dense_merge, dim3(n_query(args), 8), merge_warps*warp_size, 0, stream, args, plan); });
}

} // namespace msa

// ---------------------------------------------------------------------------------------------------------------
// entry

msa_launch msa_dense_launch(const msa_attend_args & args) {
    const bool shape = args.n_group >= 1 && args.pos.n_token >= 1 && args.pos.n_stream >= 1 && args.key.type == args.value.type
        && (int64_t) msa::n_query(args) < (1 << 28);
    if (!shape) {
        return msa_launch::none;
    }
    return args.pos.n_token == 1 ? msa_launch::few_tokens : msa_launch::many_tokens;
}

// Of few tokens with few blocks the kernel for selected blocks takes all there are, in one launch.
static std::optional<msa_attend_args> as_selected(msa_attend_args args) {
    args.ids   = nullptr;
    args.n_top = msa_top;
    const bool fits = args.pos.n_block() <= msa_top && msa_attend_launch(args) == msa_launch::few_tokens;
    return fits ? std::optional(args) : std::nullopt;
}

size_t msa_dense_scratch_bytes(const msa_attend_args & args) {
    if (as_selected(args)) {
        return 0;
    }
    return msa::plan_dense(args, nullptr).bytes;
}

cudaError_t msa_dense(const msa_attend_args & args, void * scratch, cudaStream_t stream) {
    if (const auto selected = as_selected(args)) {
        return msa_attend(*selected, scratch, stream);
    }
    const msa::dense_plan plan = msa::plan_dense(args, static_cast<char *>(scratch));
    switch (args.key.type) {
        case msa_type::f16:  return msa::launch_dense<msa_type::f16> (args, plan, stream);
        case msa_type::bf16: return msa::launch_dense<msa_type::bf16>(args, plan, stream);
        case msa_type::q8_0: return msa::launch_dense<msa_type::q8_0>(args, plan, stream);
        case msa_type::q4_0: return msa::launch_dense<msa_type::q4_0>(args, plan, stream);
    }
    return cudaErrorNotSupported;
}

#endif
