#include "msa.h"

#include "ggml-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-msa.h"
#include "msa-reference.h"

namespace {

void expand_f16(const void * row, float * out, const int64_t n) {
    ggml_cpu_fp16_to_fp32(static_cast<const ggml_fp16_t *>(row), out, n);
}

// The type traits convert one half at a time, which took six tenths of the whole operator.
ggml_to_float_t to_float_of(const ggml_type type) {
    return type == GGML_TYPE_F32 ? nullptr : type == GGML_TYPE_F16 ? expand_f16 : ggml_get_type_traits(type)->to_float;
}

msa_reference::cache view(const ggml_tensor * cache) {
    const auto to_float = to_float_of(cache->type);
    return {static_cast<const char *>(cache->data), cache->nb[1], cache->nb[2], cache->nb[3], to_float};
}

msa_reference::positions positions(const ggml_tensor * map, const ggml_tensor * query, const ggml_tensor * key, const int64_t step) {
    return {map ? static_cast<const int32_t *>(map->data) : nullptr, static_cast<const int32_t *>(query->data), step,
        map ? map->ne[0]*step : key->ne[2], ggml_nelements(query)/key->ne[3]};
}

void select(const ggml_tensor * dst, const int64_t row) {
    const ggml_msa_params p = ggml_msa_params_of(dst);
    const ggml_tensor * query = dst->src[0];
    const msa_reference::positions pos = positions(dst->src[2], dst->src[3], dst->src[1], p.step);
    const msa_reference::selection how = {query->ne[0], p.block, p.n_top, p.n_local, p.n_init};
    const int64_t token = row/query->ne[1];
    const auto scores = block_scores(static_cast<const float *>(query->data) + row*query->ne[0], view(dst->src[1]), pos, how,
        token/pos.n_token, token%pos.n_token);
    choose_blocks(scores, how, static_cast<int32_t *>(dst->data) + row*p.n_top);
}

void attend(const ggml_tensor * dst, const int64_t row) {
    const ggml_msa_params p = ggml_msa_params_of(dst);
    const ggml_tensor * query = dst->src[0];
    const ggml_tensor * key   = dst->src[1];
    const msa_reference::positions pos = positions(dst->src[4], dst->src[5], key, p.step);
    const msa_reference::selection how = {query->ne[0], p.block, p.n_top, p.n_local, p.n_init};
    const int64_t token = row/query->ne[1];
    const int64_t group = row%query->ne[1]/(query->ne[1]/key->ne[1]);
    const int64_t stream = token/pos.n_token;
    std::vector<int32_t> every;
    msa_reference::blocks list;
    if (dst->src[3] == nullptr) {
        every = msa_reference::all_blocks(pos.query_of(stream, token%pos.n_token), p.block);
        list  = {every.data(), (int64_t) every.size()};
    } else {
        list  = {static_cast<const int32_t *>(dst->src[3]->data) + (token*key->ne[1] + group)*p.n_top, p.n_top};
    }
    attend_blocks(static_cast<const float *>(query->data) + row*query->ne[0], view(key), view(dst->src[2]), pos, how,
        stream, token%pos.n_token, group, list, p.scale, static_cast<float *>(dst->data) + row*query->ne[0]);
}

} // namespace

void ggml_compute_forward_msa(const ggml_compute_params * params, ggml_tensor * dst) {
    const int64_t n_row = dst->src[0]->ne[1]*dst->src[0]->ne[2];
    for (int64_t row = params->ith; row < n_row; row += params->nth) {
        if (dst->op == GGML_OP_MSA_SELECT) {
            select(dst, row);
        } else {
            attend(dst, row);
        }
    }
}
