#include "common.cuh"

void ggml_cuda_msa(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// Runs the selection at node i together with the attention behind it; how many nodes that is beyond the first, 0 if it
// did nothing.
int ggml_cuda_msa_fused(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i);

bool ggml_cuda_msa_supported(int device, const ggml_tensor * dst);
