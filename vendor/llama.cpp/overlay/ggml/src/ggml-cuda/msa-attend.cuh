// What the attention kernels share, over the selected blocks (msa-attend.cu) and over all (msa-dense.cu).
//
// A part is the output of a token's 16 heads over some of its keys, not yet divided by its softmax sums: floats in
// fragment order (msa-tile.cuh), one float4 a lane for every eight columns. With it go the rows' maxima, in units of the
// exponent of 2, and their sums.

#pragma once

#include "msa-tile.cuh"

#include <cmath>

namespace msa {

constexpr float log2_e = 1.4426950408889634f;

constexpr int fragment_halves = msa_rows*msa_dim; // of a pair, a query or an output

__host__ __device__ inline int n_query(const msa_attend_args & args) { // (token, group) of all streams
    return args.pos.n_stream*args.pos.n_token*args.n_group;
}

__device__ inline void hide_keys(float (&acc)[64], const block_mask & mask, const int last_key) {
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

// n parts weighed by their sums: total = lane's eight elements of one piece, which is two float4 a lane.
template <int n, typename part_at, typename top_at, typename sum_at>
__device__ void merge_parts(const part_at & part, const top_at & top_of, const sum_at & sum_of,
        float (&total)[8], float (&top)[2], float (&sum)[2]) {
    float factor[n][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        top[i] = -INFINITY;
        sum[i] = 0.0f;
#pragma unroll
        for (int w = 0; w < n; ++w) {
            factor[w][i] = top_of(w, i);
            top[i] = fmaxf(top[i], factor[w][i]);
        }
        const float base = top[i] == -INFINITY ? 0.0f : top[i];
#pragma unroll
        for (int w = 0; w < n; ++w) {
            factor[w][i] = exp2_fast(factor[w][i] - base);
            sum[i] += factor[w][i]*sum_of(w, i);
        }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        total[k] = 0.0f;
    }
#pragma unroll
    for (int w = 0; w < n; ++w) {
        const float4 * from = part(w);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const float4 x = from[k*warp_size];
            total[4*k]     += factor[w][0]*x.x;
            total[4*k + 1] += factor[w][0]*x.y;
            total[4*k + 2] += factor[w][1]*x.z;
            total[4*k + 3] += factor[w][1]*x.w;
        }
    }
}

// A piece of the output, in its place in memory.
__device__ inline void store_piece(float * out, const int piece, const float (&total)[8], const float (&sum)[2]) {
    const int lane = threadIdx.x%warp_size;
    float * to = out + lane/4*msa_dim + 2*(lane%4) + 16*piece;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const float scale = sum[k%2] > 0.0f ? 1.0f/sum[k%2] : 0.0f;
        *reinterpret_cast<float2 *>(to + 8*(k%2)*msa_dim + 8*(k/2)) = make_float2(total[2*k]*scale, total[2*k + 1]*scale);
    }
}

// Runs the launches in turn until one fails.
template <typename... steps>
cudaError_t in_turn(const steps &... step) {
    cudaError_t status = cudaSuccess;
    ((status = status == cudaSuccess ? step() : status), ...);
    return status;
}

} // namespace msa
