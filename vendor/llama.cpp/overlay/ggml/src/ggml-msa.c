#include "ggml-msa.h"

#include "ggml-impl.h"

#include <string.h>

static bool is_map(const struct ggml_tensor * map, const int64_t n_stream) {
    return map == NULL || (map->type == GGML_TYPE_I32 && ggml_is_contiguous(map) && map->ne[1] == n_stream && map->ne[2] == 1 && map->ne[3] == 1);
}

static bool is_place(const struct ggml_tensor * query, const int64_t n_token) {
    return query->type == GGML_TYPE_I32 && ggml_is_contiguous(query) && ggml_nelements(query) == n_token;
}

static bool is_sound(const struct ggml_msa_params p) {
    return p.block > 0 && p.step > 0 && p.step <= p.block && (p.step & (p.step - 1)) == 0 && p.block%p.step == 0
        && p.n_top > 0 && p.n_local >= 0 && p.n_init >= 0;
}

struct ggml_tensor * ggml_msa_select(
        struct ggml_context * ctx, struct ggml_tensor * query, struct ggml_tensor * key,
        struct ggml_tensor * pos_map, struct ggml_tensor * pos_query, const struct ggml_msa_params params) {
    GGML_ASSERT(is_sound(params));
    GGML_ASSERT(query->type == GGML_TYPE_F32 && ggml_is_contiguous(query) && query->ne[3] == 1);
    GGML_ASSERT(key->ne[0] == query->ne[0] && key->ne[1] == 1);
    GGML_ASSERT(query->ne[2]%key->ne[3] == 0);
    GGML_ASSERT(is_map(pos_map, key->ne[3]) && is_place(pos_query, query->ne[2]));

    struct ggml_tensor * result = ggml_new_tensor_3d(ctx, GGML_TYPE_I32, params.n_top, query->ne[1], query->ne[2]);
    ggml_set_op_params(result, &params, sizeof(params));
    result->op     = GGML_OP_MSA_SELECT;
    result->src[0] = query;
    result->src[1] = key;
    result->src[2] = pos_map;
    result->src[3] = pos_query;
    return result;
}

struct ggml_tensor * ggml_msa_attend(
        struct ggml_context * ctx, struct ggml_tensor * query, struct ggml_tensor * key, struct ggml_tensor * value,
        struct ggml_tensor * ids, struct ggml_tensor * pos_map, struct ggml_tensor * pos_query, const struct ggml_msa_params params) {
    GGML_ASSERT(is_sound(params) && params.scale > 0.0f);
    GGML_ASSERT(query->type == GGML_TYPE_F32 && ggml_is_contiguous(query) && query->ne[3] == 1);
    GGML_ASSERT(key->ne[0] == query->ne[0] && ggml_are_same_shape(key, value));
    GGML_ASSERT(query->ne[1]%key->ne[1] == 0 && query->ne[2]%key->ne[3] == 0);
    GGML_ASSERT(ids == NULL || (ids->type == GGML_TYPE_I32 && ggml_is_contiguous(ids) && ids->ne[0] == params.n_top
        && ids->ne[1] == key->ne[1] && ids->ne[2] == query->ne[2] && ids->ne[3] == 1));
    GGML_ASSERT(is_map(pos_map, key->ne[3]) && is_place(pos_query, query->ne[2]));

    struct ggml_tensor * result = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, query->ne[0], query->ne[1], query->ne[2]);
    ggml_set_op_params(result, &params, sizeof(params));
    result->op     = GGML_OP_MSA_ATTEND;
    result->src[0] = query;
    result->src[1] = key;
    result->src[2] = value;
    result->src[3] = ids;
    result->src[4] = pos_map;
    result->src[5] = pos_query;
    return result;
}

struct ggml_msa_params ggml_msa_params_of(const struct ggml_tensor * op) {
    struct ggml_msa_params params;
    memcpy(&params, op->op_params, sizeof(params));
    return params;
}

static bool has_aligned_rows(const struct ggml_tensor * cache) {
    const size_t alignment = ggml_is_quantized(cache->type) ? 8 : 16;
    return cache->nb[1]%alignment == 0 && cache->nb[2]%alignment == 0 && cache->nb[3]%alignment == 0
        && cache->nb[0] == ggml_type_size(cache->type);
}

bool ggml_msa_has_kernel(const struct ggml_tensor * op) {
    const struct ggml_msa_params p = ggml_msa_params_of(op);
    const struct ggml_tensor * query = op->src[0];
    const struct ggml_tensor * key   = op->src[1];
    const enum ggml_type type = key->type;
    const bool common = p.block == 128 && p.n_top <= 16 && query->ne[0] == 128 && has_aligned_rows(key);
    if (op->op == GGML_OP_MSA_SELECT) {
        // Four bits lose the order of index scores, and index keys are not rotated against outliers as K is.
        const int64_t n_pos = op->src[2] ? op->src[2]->ne[0]*p.step : key->ne[2];
        return common && n_pos <= (int64_t) GGML_MSA_KERNEL_BLOCKS*p.block && query->ne[1] <= 64 && (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_Q8_0);
    }
    const struct ggml_tensor * value = op->src[2];
    return common && query->ne[1] == 16*key->ne[1] && type == value->type && has_aligned_rows(value)
        && (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0);
}
