// The native path of MiniMax Sparse Attention in llama's graph: which path runs, its inputs, its operators.
#pragma once

#include "ggml-msa.h"
#include "llama-graph.h"

class llama_kv_cache_msa_context;
struct llama_hparams;
struct llama_model;

namespace ggufcluster {

// What GGUFCLUSTER_MSA asks for. automatic: native where every device has the kernels, generic otherwise.
enum class msa_path { automatic, native, generic, dense };

// Throws std::runtime_error, with the names that are understood, for any other value of the variable.
msa_path msa_wanted();

// Whether the model has what selects blocks; that it has not is logged once.
bool msa_has_indexer(const llama_hparams & hparams);

// The type of the index cache: GGUFCLUSTER_MSA_INDEX_TYPE (f16 or q8_0), f16 if unset, whatever the type of K.
ggml_type msa_index_type();

class msa_native : public llm_graph_input_i {
public:
    // Adds the inputs of the native path to the graph; nullptr if it is not to be used, which is logged once. The cells of
    // keys serve values and index keys as well.
    static msa_native * begin(const llm_graph_context & graph, const llama_model & model, llm_graph_input_attn_kv_msa & caches,
            ggml_tensor * positions, int64_t n_stream, ggml_msa_params params);

    // index_query [dim, n_group, T], index_key [dim, 1, n_cell, n_stream], query [dim, n_head, T],
    // key and value [dim, n_group, n_cell, n_stream] -> [dim*n_head, T]
    ggml_tensor * attend(ggml_context * ctx, ggml_tensor * index_query, ggml_tensor * index_key,
            ggml_tensor * query, ggml_tensor * key, ggml_tensor * value) const;

    // Whether the leading dense layers run here as well, over all blocks and without a mask.
    bool attends_to_all() const { return to_all; }

    // Such a layer: its keys and values go to the cache. query [dim, n_head, T], key and value [dim, n_group, T]
    // -> [dim*n_head, T]
    ggml_tensor * attend_to_all(const llm_graph_context & graph, const llm_graph_input_attn_kv & caches,
            ggml_tensor * query, ggml_tensor * key, ggml_tensor * value, int il) const;

    void set_input(const llama_ubatch * ubatch) override;
    bool can_reuse(const llm_graph_params & params) override;

private:
    const llama_kv_cache_msa_context * context = nullptr;
    ggml_tensor * pos_map   = nullptr; // I32 [n_pos/step, n_stream]; none if every position is in the cell of its number
    ggml_tensor * pos_query = nullptr; // I32 [T]
    ggml_msa_params params  = {};
    int32_t step     = 1; // positions of an entry of pos_map, 0 without it
    int64_t n_pos    = 0;
    int64_t n_stream = 0;
    bool to_all  = false;
    bool selects = true; // false while all blocks there are would be chosen
};

} // namespace ggufcluster
