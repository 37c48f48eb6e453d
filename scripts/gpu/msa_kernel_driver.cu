// Runs the CUDA kernels of sparse attention on arrays from a file, as tests/vendor/msa_reference_driver.cpp runs the
// reference: same REQUEST, same REPLY. Caches go to the device in f16 (bf16 with a third argument), queries in f32.
//
//   msa_kernel_driver REQUEST REPLY [bf16]
//
// scripts/gpu/check_golden.py compiles and asks it.

#include "ggml-cuda/msa-kernels.cuh"
#include "msa_request.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>

static void require(const cudaError_t status, const char * what) {
    if (status != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
        exit(1);
    }
}

template <typename T>
static T * on_device(const size_t n, const void * from = nullptr) {
    T * data = nullptr;
    require(cudaMalloc(&data, (n > 0 ? n : 1)*sizeof(T)), "cudaMalloc");
    if (from != nullptr) {
        require(cudaMemcpy(data, from, n*sizeof(T), cudaMemcpyHostToDevice), "copy in");
    }
    return data;
}

// Rows (stream, cell, group) in 16 bits.
static msa_cache cache_of(const std::vector<float> & rows, const int64_t n_group, const int64_t n_cell, const bool bf16) {
    std::vector<uint16_t> narrow(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        const half          f = __float2half(rows[i]);
        const __nv_bfloat16 b = __float2bfloat16(rows[i]);
        memcpy(&narrow[i], bf16 ? (const void *) &b : (const void *) &f, sizeof(uint16_t));
    }
    const int64_t row = msa_dim*sizeof(uint16_t);
    return {reinterpret_cast<const char *>(on_device<uint16_t>(narrow.size(), narrow.data())),
        bf16 ? msa_type::bf16 : msa_type::f16, row, n_group*row, n_cell*n_group*row};
}

static msa_positions positions_of(const request & r) {
    int shift = 0;
    while ((1 << shift) < r.n.step) {
        ++shift;
    }
    return {on_device<int32_t>(r.map.size(), r.map.data()), on_device<int32_t>(r.position.size(), r.position.data()), shift,
        (int) (r.n.n_entry*r.n.step), (int) r.n.n_token, (int) r.n.n_stream};
}

static void answer(const request & r, const bool bf16, FILE * file) {
    const sizes & n = r.n;
    const msa_positions pos = positions_of(r);
    std::vector<int32_t> ids(n.n_stream*n.n_token*n.n_group*n.n_top);
    std::vector<float>   out(r.query.size());
    int32_t * device_ids = on_device<int32_t>(ids.size());
    float   * device_out = on_device<float>(out.size());

    const msa_select_args select = {on_device<float>(r.index_query.size(), r.index_query.data()), cache_of(r.index_key, 1, n.n_cell, bf16),
        pos, (int) n.n_group, (int) n.n_top, (int) n.n_local, (int) n.n_init, device_ids};
    const msa_attend_args attend = {on_device<float>(r.query.size(), r.query.data()), cache_of(r.key, n.n_group, n.n_cell, bf16),
        cache_of(r.value, n.n_group, n.n_cell, bf16), pos, device_ids, (int) n.n_group, (int) n.n_top, 1.0f/std::sqrt((float) n.dim), device_out};
    if (msa_select_launch(select) == msa_launch::none || msa_attend_launch(attend) == msa_launch::none) {
        fprintf(stderr, "no kernel for this request\n");
        exit(1);
    }
    require(msa_select(select, on_device<char>(msa_select_scratch_bytes(select)), nullptr), "select");
    require(msa_attend(attend, on_device<char>(msa_attend_scratch_bytes(attend)), nullptr), "attend");
    require(cudaMemcpy(ids.data(), device_ids, ids.size()*sizeof(int32_t), cudaMemcpyDeviceToHost), "ids");
    require(cudaMemcpy(out.data(), device_out, out.size()*sizeof(float),   cudaMemcpyDeviceToHost), "outputs");
    fwrite(ids.data(), sizeof(int32_t), ids.size(), file);
    fwrite(out.data(), sizeof(float), out.size(), file);
}

int main(const int argc, char ** argv) {
    FILE * in = argc >= 3 ? fopen(argv[1], "rb") : nullptr;
    if (in == nullptr) {
        fprintf(stderr, "usage: msa_kernel_driver REQUEST REPLY [bf16]\n");
        return 1;
    }
    const request asked(in);
    fclose(in);
    if (asked.n.dim != msa_dim || asked.n.block != msa_block || asked.n.n_head != msa_rows*asked.n.n_group) {
        fprintf(stderr, "the kernels have heads of %d, blocks of %d and %d heads a group\n", msa_dim, msa_block, msa_rows);
        return 1;
    }
    FILE * file = fopen(argv[2], "wb");
    if (file == nullptr) {
        perror(argv[2]);
        return 1;
    }
    answer(asked, argc > 3 && strcmp(argv[3], "bf16") == 0, file);
    return fclose(file) == 0 ? 0 : 1;
}
