// GGML_OP_MSA_SELECT and GGML_OP_MSA_ATTEND on CUDA: tensors to the arguments of msa-kernels.cuh, scratch from the pool.

#include "msa.cuh"

#include "ggml-msa.h"

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include "msa-kernels.cuh"

static_assert(msa_most_blocks == GGML_MSA_KERNEL_BLOCKS);

static msa_type type_of(const ggml_tensor * cache) {
    switch (cache->type) {
        case GGML_TYPE_F16:  return msa_type::f16;
        case GGML_TYPE_BF16: return msa_type::bf16;
        case GGML_TYPE_Q8_0: return msa_type::q8_0;
        case GGML_TYPE_Q4_0: return msa_type::q4_0;
        default: GGML_ABORT("no MSA kernel for %s", ggml_type_name(cache->type));
    }
}

static msa_cache cache_of(const ggml_tensor * cache) {
    return {(const char *) cache->data, type_of(cache), (int64_t) cache->nb[1], (int64_t) cache->nb[2], (int64_t) cache->nb[3]};
}

static msa_positions positions_of(const ggml_tensor * map, const ggml_tensor * query, const ggml_tensor * key, const int step) {
    const int n_stream = (int) key->ne[3];
    const int n_token  = (int) (ggml_nelements(query)/n_stream);
    if (map == nullptr) {
        return {nullptr, (const int32_t *) query->data, 0, (int) key->ne[2], n_token, n_stream};
    }
    int shift = 0;
    while (1 << shift < step) {
        ++shift;
    }
    return {(const int32_t *) map->data, (const int32_t *) query->data, shift, (int) map->ne[0]*step, n_token, n_stream};
}

static msa_select_args select_args(const ggml_tensor * dst) {
    const ggml_msa_params p = ggml_msa_params_of(dst);
    return {(const float *) dst->src[0]->data, cache_of(dst->src[1]), positions_of(dst->src[2], dst->src[3], dst->src[1], p.step),
        (int) dst->ne[1], p.n_top, p.n_local, p.n_init, (int32_t *) dst->data};
}

static msa_attend_args attend_args(const ggml_tensor * dst) {
    const ggml_msa_params p = ggml_msa_params_of(dst);
    return {(const float *) dst->src[0]->data, cache_of(dst->src[1]), cache_of(dst->src[2]),
        positions_of(dst->src[4], dst->src[5], dst->src[1], p.step), dst->src[3] ? (const int32_t *) dst->src[3]->data : nullptr,
        (int) dst->src[1]->ne[1], p.n_top, p.scale, (float *) dst->data};
}

void ggml_cuda_msa(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    if (dst->op == GGML_OP_MSA_SELECT) {
        const msa_select_args args = select_args(dst);
        ggml_cuda_pool_alloc<char> scratch(ctx.pool(), msa_select_scratch_bytes(args));
        CUDA_CHECK(msa_select(args, scratch.get(), ctx.stream()));
    } else if (dst->src[3] == nullptr) {
        const msa_attend_args args = attend_args(dst);
        ggml_cuda_pool_alloc<char> scratch(ctx.pool(), std::max<size_t>(msa_dense_scratch_bytes(args), 1));
        CUDA_CHECK(msa_dense(args, scratch.get(), ctx.stream()));
    } else {
        const msa_attend_args args = attend_args(dst);
        ggml_cuda_pool_alloc<char> scratch(ctx.pool(), std::max<size_t>(msa_attend_scratch_bytes(args), 1));
        CUDA_CHECK(msa_attend(args, scratch.get(), ctx.stream()));
    }
}

int ggml_cuda_msa_fused(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, const int i) {
    const ggml_tensor * select = graph->nodes[i];
    const ggml_tensor * attend = i + 1 < graph->n_nodes ? graph->nodes[i + 1] : nullptr;
    if (select->op != GGML_OP_MSA_SELECT || !attend || attend->op != GGML_OP_MSA_ATTEND || attend->src[3] != select) {
        return 0;
    }
    const msa_select_args selects = select_args(select);
    const msa_attend_args attends = attend_args(attend);
    ggml_cuda_pool_alloc<char> scratch(ctx.pool(), msa_select_attend_scratch_bytes(selects, attends));
    CUDA_CHECK(msa_select_attend(selects, attends, scratch.get(), ctx.stream()));
    return 1;
}

bool ggml_cuda_msa_supported(const int device, const ggml_tensor * dst) {
    if (ggml_cuda_info().devices[device].cc < GGML_CUDA_CC_AMPERE || !ggml_msa_has_kernel(dst)) {
        return false;
    }
    const msa_launch launch = dst->op == GGML_OP_MSA_SELECT ? msa_select_launch(select_args(dst))
        : dst->src[3] == nullptr ? msa_dense_launch(attend_args(dst)) : msa_attend_launch(attend_args(dst));
    return launch != msa_launch::none;
}

#else

void ggml_cuda_msa(ggml_backend_cuda_context &, ggml_tensor *) {
    GGML_ABORT("no MSA kernels for this device");
}

int ggml_cuda_msa_fused(ggml_backend_cuda_context &, const ggml_cgraph *, int) {
    return 0;
}

bool ggml_cuda_msa_supported(int, const ggml_tensor *) {
    return false;
}

#endif
