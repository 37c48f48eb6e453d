// MiniMax Sparse Attention as two ggml operators.
//
// Positions of a sequence fall into blocks of `block` consecutive ones. ggml_msa_select names, for every token and KV
// group, the blocks with the best index keys; ggml_msa_attend attends to what these blocks hold. Both read the caches in
// place. Neither needs a mask: visible is what has a cell and whose position is not beyond the token's.
//
//   pos_map   I32 [n_pos/step, n_stream]  cell of the first of `step` consecutive positions, the others in the cells after
//                                         it; -1 where they have none. Rows named here must be finite.
//                                         NULL: every position is in the cell of its number, as far as there are cells
//   pos_query I32 [n_token*n_stream]      position of every token, stream after stream
//
// Both must be inputs of the graph or constants.

#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_msa_params {
    int32_t block;   // positions of a block
    int32_t step;    // positions of an entry of pos_map, a power of two up to block
    int32_t n_top;   // blocks to choose
    int32_t n_local; // the token's own and the ones before it, always chosen
    int32_t n_init;  // the first ones, always chosen
    float   scale;   // of the attention, not used by the choice
};

// query F32 [dim, n_group, n_token*n_stream], key [dim, 1, n_cell, n_stream]
// -> I32 [n_top, n_group, n_token*n_stream]: ascending, then -1 where fewer blocks have anything visible.
// Forced blocks come first, then the best score (the largest product of the token's query with a visible key of the
// block); the lower block wins a tie.
GGML_API struct ggml_tensor * ggml_msa_select(
        struct ggml_context * ctx, struct ggml_tensor * query, struct ggml_tensor * key,
        struct ggml_tensor * pos_map, struct ggml_tensor * pos_query, struct ggml_msa_params params);

// query F32 [dim, n_head, n_token*n_stream], key and value [dim, n_group, n_cell, n_stream], ids of ggml_msa_select or
// NULL for all blocks; heads of a group are neighbours -> F32 like query.
GGML_API struct ggml_tensor * ggml_msa_attend(
        struct ggml_context * ctx, struct ggml_tensor * query, struct ggml_tensor * key, struct ggml_tensor * value,
        struct ggml_tensor * ids, struct ggml_tensor * pos_map, struct ggml_tensor * pos_query, struct ggml_msa_params params);

GGML_API struct ggml_msa_params ggml_msa_params_of(const struct ggml_tensor * op);

#define GGML_MSA_KERNEL_BLOCKS 16384 // of a sequence, that the CUDA kernels can choose from

// Whether the CUDA kernels take the operator, as far as shapes and types tell; the device must be sm_80 or newer.
GGML_API bool ggml_msa_has_kernel(const struct ggml_tensor * op);

#ifdef __cplusplus
}
#endif
