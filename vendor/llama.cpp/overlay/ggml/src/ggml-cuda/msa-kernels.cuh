// MiniMax Sparse Attention (MSA): the kernels' own interface, free of ggml.
//
// A sequence is cut into blocks of 128 consecutive *positions*. For every token t and KV group g
//
//   score(b) = max over visible positions p of block b of  dot(index_q[t][g], index_k[p])      (select)
//   ids      = the n_top best blocks, ascending, then -1; ties go to the lower block;
//              the last n_local blocks up to the token's own and the first n_init ones come first
//   out[t]   = softmax(scale * q[t][h] . k[p]) v[p] over the visible positions of those blocks (attend)
//              or of all blocks (dense), for the layers that select nothing
//
// A map says in which cell of the caches a position lives, one entry for every 1 << map_shift consecutive positions: the
// cell of the first, the others follow it; -1 where they are nowhere. A cache without holes needs an entry a block, and no
// map at all if every position lies in the cell of its number.
// Position p is visible to token t when it has a cell and p <= query[t]. A row that the map names is read even if no
// token sees it, and must be finite. Nothing here has the length of context times tokens.
//
// The functions enqueue on the stream, never synchronise, and may be captured in a CUDA graph.

#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

constexpr int msa_dim    = 128; // elements of a head, of the index and of K and V
constexpr int msa_block  = 128; // positions of a block
constexpr int msa_rows   = 16;  // query heads of a KV group
constexpr int msa_top    = 16;  // most blocks a token can select
constexpr int msa_most_blocks = 16384; // of a sequence, that a token can select from

enum class msa_type { f16, bf16, q8_0, q4_0 };

struct msa_cache {           // element (d, group, cell, stream), rows of msa_dim elements
    const char * data;
    msa_type     type;
    int64_t      group_bytes;
    int64_t      cell_bytes;
    int64_t      stream_bytes;
};

struct msa_positions {
    const int32_t * map;     // [stream][n_pos >> map_shift]; nullptr: cells of their numbers
    const int32_t * query;   // [stream][n_token], position of every token
    int             map_shift;
    int             n_pos;   // a multiple of 1 << map_shift
    int             n_token; // a stream
    int             n_stream;

    __host__ __device__ int n_block() const { return (n_pos + msa_block - 1)/msa_block; }
};

struct msa_select_args {
    const float * query;     // [stream][token][group][msa_dim]
    msa_cache     key;       // one group
    msa_positions pos;
    int           n_group;
    int           n_top;
    int           n_local;
    int           n_init;
    int32_t     * ids;       // [stream][token][group][n_top]
};

struct msa_attend_args {
    const float   * query;   // [stream][token][group][msa_rows][msa_dim]
    msa_cache       key;
    msa_cache       value;
    msa_positions   pos;
    const int32_t * ids;     // [stream][token][group][n_top]; not read by dense; nullptr for few tokens: all of at most n_top blocks
    int             n_group;
    int             n_top;   // same
    float           scale;   // more than 0
    float         * out;     // like query
};

// How the work is shaped; none: not supported. Depends on the shape, the types and the current device only.
enum class msa_launch { none, few_tokens, many_tokens };

msa_launch msa_select_launch(const msa_select_args & args);
msa_launch msa_attend_launch(const msa_attend_args & args);
msa_launch msa_dense_launch (const msa_attend_args & args);

size_t msa_select_scratch_bytes(const msa_select_args & args);
size_t msa_attend_scratch_bytes(const msa_attend_args & args);
size_t msa_dense_scratch_bytes (const msa_attend_args & args);

cudaError_t msa_select(const msa_select_args & args, void * scratch, cudaStream_t stream);
cudaError_t msa_attend(const msa_attend_args & args, void * scratch, cudaStream_t stream);
cudaError_t msa_dense (const msa_attend_args & args, void * scratch, cudaStream_t stream);

// msa_select and msa_attend in turn, for few tokens in ways that are faster than either alone. attend.ids is select.ids.
size_t      msa_select_attend_scratch_bytes(const msa_select_args & select, const msa_attend_args & attend);
cudaError_t msa_select_attend(const msa_select_args & select, const msa_attend_args & attend, void * scratch, cudaStream_t stream);
