#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// GGML_OP_MSA_SELECT and GGML_OP_MSA_ATTEND, rows of tokens and groups spread over the threads.
void ggml_compute_forward_msa(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif
