#include "ggufcluster-msa.h"

#include "ggml-backend.h"
#include "llama-impl.h"
#include "llama-kv-cache-msa.h"
#include "llama-model.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace ggufcluster {

msa_path msa_wanted() {
    const char * value = std::getenv("GGUFCLUSTER_MSA");
    const std::string name = value ? value : "auto";
    if (name == "auto")    { return msa_path::automatic; }
    if (name == "native")  { return msa_path::native; }
    if (name == "generic") { return msa_path::generic; }
    if (name == "dense")   { return msa_path::dense; }
    throw std::runtime_error("GGUFCLUSTER_MSA (--msa) is '" + name + "': use auto, native, generic or dense");
}

// Whether a variable that is there to compare two ways is unset or names the usual one.
static bool keeps_default(const char * variable, const std::string & usual, const std::string & other) {
    const char * value = std::getenv(variable);
    const std::string name = value ? value : usual;
    if (name != usual && name != other) {
        throw std::runtime_error(variable + (" is '" + name + "': use " + usual + " or " + other));
    }
    return name == usual;
}

// GGUFCLUSTER_MSA_LEADING=generic keeps the leading dense layers on llama.cpp's own attention and its mask.
static bool leading_layers_wanted() {
    return keeps_default("GGUFCLUSTER_MSA_LEADING", "native", "generic");
}

// Blocks are chosen only where there are more than a token may have. GGUFCLUSTER_MSA_SELECT=always chooses all the same.
static bool selects_only_if_needed() {
    return keeps_default("GGUFCLUSTER_MSA_SELECT", "needed", "always");
}

bool msa_has_indexer(const llama_hparams & hparams) {
    static std::atomic<bool> said { false };
    const bool has = hparams.indexer_head_size > 0;
    if (!has && !said.exchange(true)) {
        LLAMA_LOG_WARN("ggufcluster: sparse attention: dense path: the model was converted without its indexer\n");
    }
    return has;
}

ggml_type msa_index_type() {
    const char * value = std::getenv("GGUFCLUSTER_MSA_INDEX_TYPE");
    const std::string name = value ? value : "f16";
    if (name == "f16")  { return GGML_TYPE_F16; }
    if (name == "q8_0") { return GGML_TYPE_Q8_0; }
    throw std::runtime_error("GGUFCLUSTER_MSA_INDEX_TYPE is '" + name + "': use f16 or q8_0; "
        "with fewer bits the index scores lose their order, as index keys are not rotated against outliers");
}

static bool is_sparse(const llm_graph_context & graph, const int il) {
    return il >= (int) graph.hparams.n_layer_dense_lead;
}

// The operators of a layer, of its shapes and types and with no data, to ask a device about.
static bool device_has(ggml_backend_dev_t device, const llama_kv_cache_msa_context & context, const llm_graph_context & graph,
        const int il, const ggml_msa_params & params) {
    const ggml_init_params sizes = { 32*ggml_tensor_overhead(), nullptr, true };
    ggml_context * ctx = ggml_init(sizes);
    ggml_tensor * key       = context.get_base()->get_k(ctx, il);
    ggml_tensor * value     = context.get_base()->get_v(ctx, il);
    const int64_t n_token = key->ne[3];
    const int64_t n_pos = GGML_PAD((int64_t) graph.cparams.n_ctx_seq, (int64_t) params.block); // that a sequence can come to
    ggml_tensor * map   = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_pos/params.step, key->ne[3]);
    ggml_tensor * place = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n_token);
    // A remote device says yes to everything; all of a cluster's GPUs are newer than sm_80, so shapes decide.
    const auto runs = [&](const ggml_tensor * op) { return ggml_msa_has_kernel(op) && ggml_backend_dev_supports_op(device, op); };
    bool has = ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
    const auto attends = [&](ggml_tensor * ids) {
        return runs(ggml_msa_attend(ctx, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, key->ne[0], graph.n_head, n_token),
            key, value, ids, map, place, params));
    };
    if (is_sparse(graph, il)) {
        ggml_tensor * index_key = context.get_idx()->get_k(ctx, il);
        ggml_tensor * ids = ggml_msa_select(ctx, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, index_key->ne[0], key->ne[1], n_token),
            index_key, map, place, params);
        has = has && runs(ids) && attends(ids);
    }
    has = has && attends(nullptr);
    ggml_free(ctx);
    return has;
}

// Whether all layers of one kind run on the operators: as asked for, or if their devices have the kernels.
static bool is_native(const bool sparse, const llm_graph_context & graph, const llama_model & model,
        const llama_kv_cache_msa_context & context, const ggml_msa_params & params) {
    const msa_path wanted = msa_wanted();
    if (wanted != msa_path::automatic) {
        return wanted == msa_path::native;
    }
    for (int il = 0; il < graph.n_layer; ++il) {
        if (is_sparse(graph, il) == sparse && !device_has(model.dev_layer(il), context, graph, il, params)) {
            return false;
        }
    }
    return true;
}

static void log_once(const bool native) {
    static std::atomic<int> said { -1 };
    if (said.exchange(native) != (int) native) {
        LLAMA_LOG_INFO("ggufcluster: sparse attention: %s path\n", native ? "native" : "generic");
    }
}

// Brings the cache's map of positions up to date; how many positions may share an entry in all streams of the ubatch.
// 0: none needs one.
static int32_t entry_step(const llama_kv_cache_msa_context & context, const llama_ubatch & ubatch, const int64_t n_stream, const int32_t block) {
    llama_kv_cache_msa & cache = *context.get_cache();
    cache.positions.update(*cache.get_base(), *context.get_base(), ubatch);
    bool in_order = true, in_runs = block == msa_cells::block;
    for (int64_t s = 0; s < n_stream; ++s) {
        const msa_cells & cells = cache.positions.of(ubatch.seq_id[s*(ubatch.n_tokens/n_stream)][0]);
        in_order = in_order && cells.in_order();
        in_runs  = in_runs && cells.in_runs(cache.get_base()->get_size());
    }
    return in_order ? 0 : in_runs ? block : 1;
}

static int64_t padded_positions(const llama_kv_cache_msa_context & context, const ggml_msa_params & params) {
    return GGML_PAD((int64_t) context.get_n_pos(), (int64_t) params.block);
}

// Graphs that only reserve memory come with an ubatch in no cells, all of it at position 0.
static bool is_reservation(const llama_ubatch & ubatch, const int64_t n_stream) {
    return ubatch.n_tokens > n_stream && ubatch.pos[0] == ubatch.pos[1];
}

// A token's key, value and index key go to cells of one number: two inputs, which are copied to every device, less.
static void share_cells(llm_graph_input_attn_kv_msa & caches) {
    caches.self_k_idxs_idx = caches.self_k_idxs;
    if (ggml_are_same_shape(caches.self_v_idxs, caches.self_k_idxs)) { // values of a token lie together
        caches.self_v_idxs = caches.self_k_idxs;
    }
}

msa_native * msa_native::begin(const llm_graph_context & graph, const llama_model & model, llm_graph_input_attn_kv_msa & caches,
        ggml_tensor * positions, const int64_t n_stream, ggml_msa_params params) {
    const auto * context = static_cast<const llama_kv_cache_msa_context *>(graph.mctx);
    if (!is_native(true, graph, model, *context, params)) {
        log_once(false);
        return nullptr;
    }
    log_once(true);
    share_cells(caches);

    auto input = std::make_unique<msa_native>();
    int64_t n_pos = GGML_PAD((int64_t) context->get_base()->get_n_kv(), (int64_t) params.block); // the most there can be
    if (!is_reservation(graph.ubatch, n_stream)) {
        n_pos = padded_positions(*context, params);
        input->step = entry_step(*context, graph.ubatch, n_stream, params.block);
        params.step = std::max(input->step, 1);
    }
    input->context   = context;
    input->params    = params;
    input->n_pos     = n_pos;
    input->n_stream  = n_stream;
    input->to_all    = leading_layers_wanted() && is_native(false, graph, model, *context, params);
    input->selects   = is_reservation(graph.ubatch, n_stream) || n_pos > (int64_t) params.n_top*params.block
        || !selects_only_if_needed();
    input->pos_query = positions;
    if (input->step > 0) {
        input->pos_map = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_I32, n_pos/params.step, n_stream);
        ggml_set_input(input->pos_map);
    }
    return static_cast<msa_native *>(graph.res->add_input(std::move(input)));
}

static ggml_tensor * packed(ggml_context * ctx, ggml_tensor * t) {
    return ggml_is_contiguous(t) ? t : ggml_cont(ctx, t);
}

ggml_tensor * msa_native::attend(ggml_context * ctx, ggml_tensor * index_query, ggml_tensor * index_key,
        ggml_tensor * query, ggml_tensor * key, ggml_tensor * value) const {
    // Without the choice nothing needs the index query, so the graph leaves its projection out as well.
    ggml_tensor * ids = selects ? ggml_msa_select(ctx, packed(ctx, index_query), index_key, pos_map, pos_query, params) : nullptr;
    ggml_tensor * out = ggml_msa_attend(ctx, packed(ctx, query), key, value, ids, pos_map, pos_query, params);
    return ggml_reshape_2d(ctx, out, out->ne[0]*out->ne[1], out->ne[2]);
}

ggml_tensor * msa_native::attend_to_all(const llm_graph_context & graph, const llm_graph_input_attn_kv & caches,
        ggml_tensor * query, ggml_tensor * key, ggml_tensor * value, const int il) const {
    ggml_context * ctx = graph.ctx0;
    const auto rotated = [&](ggml_tensor * t, ggml_tensor * rotation) { return rotation ? llama_mul_mat_hadamard(ctx, t, rotation) : t; };
    query = rotated(query, caches.self_k_rot);
    key   = rotated(key,   caches.self_k_rot);
    value = rotated(value, caches.self_v_rot);
    const llama_kv_cache_context & cache = *context->get_base();
    for (ggml_tensor * t : { query, key, value, cache.cpy_k(ctx, key, caches.get_k_idxs(), il), cache.cpy_v(ctx, value, caches.get_v_idxs(), il) }) {
        ggml_build_forward_expand(graph.gf, t);
    }
    ggml_tensor * out = ggml_msa_attend(ctx, packed(ctx, query), cache.get_k(ctx, il), cache.get_v(ctx, il), nullptr, pos_map, pos_query, params);
    out = rotated(ggml_reshape_2d(ctx, out, out->ne[0]*out->ne[1], out->ne[2]), caches.self_v_rot);
    graph.cb(out, "kqv_out", il);
    return out;
}

void msa_native::set_input(const llama_ubatch * ubatch) {
    if (pos_map == nullptr) {
        return;
    }
    const int64_t n_entry = pos_map->ne[0];
    std::vector<int32_t> map(n_entry*n_stream);
    for (int64_t s = 0; s < n_stream; ++s) {
        const llama_seq_id sequence = ubatch->seq_id[s*(ubatch->n_tokens/n_stream)][0];
        context->get_cache()->positions.of(sequence).write(map.data() + s*n_entry, n_entry, params.step);
    }
    ggml_backend_tensor_set(pos_map, map.data(), 0, map.size()*sizeof(int32_t));
}

bool msa_native::can_reuse(const llm_graph_params & graph) {
    context = static_cast<const llama_kv_cache_msa_context *>(graph.mctx);
    const int64_t streams = graph.cparams.kv_unified ? 1 : graph.ubatch.n_seqs_unq;
    return entry_step(*context, graph.ubatch, streams, params.block) == step && padded_positions(*context, params) == n_pos
        && streams == n_stream && pos_query->ne[0] == (int64_t) graph.ubatch.n_tokens;
}

} // namespace ggufcluster
