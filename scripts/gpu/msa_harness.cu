// Checks and times the MSA kernels alone, without llama.cpp: builds in seconds.
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -I OVERLAY/ggml/src
//        -o msa_harness msa_harness.cu OVERLAY/ggml/src/ggml-cuda/msa-*.cu
// -DMSA_LIKE_SM=120 or 80 lets a Hopper GPU take the ways of these devices.
//
//   msa_harness check [small] [I/N] every shape and type against ggml-cpu/msa-reference.h; exit code 1 on a failure.
//                                   With I/N only every Nth of them from the Ith on, for tools that take long.
//   msa_harness time [MAX_CONTEXT]  microseconds a layer, one JSON object a line
//   msa_harness once [MAX_CONTEXT]  the same shapes, once each, for a profiler
//
// Times are medians over CUDA graph launches. A prefill is one call a graph, with L2 overwritten before each; a step is
// one of 64 calls in a graph over different parts of a cache of 2^20 cells, so that what it reads is cold.

#include "ggml-cpu/msa-reference.h"
#include "ggml-cuda/msa-kernels.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

static void require(const cudaError_t status, const char * what) {
    if (status != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
        exit(1);
    }
}

template <typename T>
struct device_array {
    T * data = nullptr;
    explicit device_array(const size_t n) { require(cudaMalloc(&data, std::max<size_t>(n, 1)*sizeof(T)), "cudaMalloc"); }
    explicit device_array(const std::vector<T> & host) : device_array(host.size()) {
        require(cudaMemcpy(data, host.data(), host.size()*sizeof(T), cudaMemcpyHostToDevice), "copy in");
    }
    device_array(const device_array &) = delete;
    ~device_array() { cudaFree(data); }
    std::vector<T> host(const size_t n) const {
        std::vector<T> out(n);
        require(cudaMemcpy(out.data(), data, n*sizeof(T), cudaMemcpyDeviceToHost), "copy out");
        return out;
    }
};

// ---------------------------------------------------------------------------------------------------------------
// cache types on the host

static const char * name_of(const msa_type type) {
    switch (type) {
        case msa_type::f16:  return "f16";
        case msa_type::bf16: return "bf16";
        case msa_type::q8_0: return "q8_0";
        case msa_type::q4_0: return "q4_0";
    }
    return "?";
}

static size_t row_bytes(const msa_type type) {
    switch (type) {
        case msa_type::q8_0: return msa_dim/32*34;
        case msa_type::q4_0: return msa_dim/32*18;
        default:             return msa_dim*2;
    }
}

static void encode(const msa_type type, const float * x, char * out) {
    if (type == msa_type::f16 || type == msa_type::bf16) {
        for (int i = 0; i < msa_dim; ++i) {
            if (type == msa_type::f16) {
                reinterpret_cast<half *>(out)[i] = __float2half(x[i]);
            } else {
                reinterpret_cast<__nv_bfloat16 *>(out)[i] = __float2bfloat16(x[i]);
            }
        }
        return;
    }
    for (int b = 0; b < msa_dim/32; ++b, x += 32) {
        float top = 0.0f;
        for (int i = 0; i < 32; ++i) {
            top = std::max(top, std::fabs(x[i]));
        }
        const float  step  = top/(type == msa_type::q8_0 ? 127.0f : 7.0f);
        const half   scale = __float2half(step);
        char * block = out + b*(type == msa_type::q8_0 ? 34 : 18);
        memcpy(block, &scale, 2);
        for (int i = 0; i < 32; ++i) {
            const int q = (int) std::lround(x[i]/step);
            if (type == msa_type::q8_0) {
                block[2 + i] = (char) q;
            } else {
                char & byte = block[2 + i%16];
                byte = (char) (i < 16 ? (q + 8) : ((byte & 0xf) | ((q + 8) << 4)));
            }
        }
    }
}

template <msa_type type>
static void decode(const void * row, float * out, const int64_t n) {
    const char * bytes = static_cast<const char *>(row);
    for (int64_t i = 0; i < n; ++i) {
        if (type == msa_type::f16) {
            out[i] = __half2float(static_cast<const half *>(row)[i]);
        } else if (type == msa_type::bf16) {
            out[i] = __bfloat162float(static_cast<const __nv_bfloat16 *>(row)[i]);
        } else {
            const int size = type == msa_type::q8_0 ? 34 : 18;
            const char * block = bytes + i/32*size;
            half scale;
            memcpy(&scale, block, 2);
            const int k = i%32;
            const int q = type == msa_type::q8_0 ? (int8_t) block[2 + k] : ((uint8_t) block[2 + k%16] >> (k/16*4) & 0xf) - 8;
            out[i] = __half2float(scale)*q;
        }
    }
}

using decoder = void (*)(const void *, float *, int64_t);

static decoder decoder_of(const msa_type type) {
    switch (type) {
        case msa_type::f16:  return decode<msa_type::f16>;
        case msa_type::bf16: return decode<msa_type::bf16>;
        case msa_type::q8_0: return decode<msa_type::q8_0>;
        case msa_type::q4_0: return decode<msa_type::q4_0>;
    }
    return nullptr;
}

// ---------------------------------------------------------------------------------------------------------------
// check

constexpr int without_map = -1; // every position in the cell of its number

struct shape {
    int n_token, n_pos, n_stream;
    bool holes;      // a tenth of the map, and one whole block, have no cell
    int n_top = 16, n_local = 1, n_init = 0;
    int map_shift = 0; // with 7 the cells of a block follow each other, and holes are whole blocks; without_map: no map, no holes

    bool has_map() const { return map_shift != without_map; }
    int  step()    const { return has_map() ? 1 << map_shift : 1; } // positions of an entry
};

struct problem {
    shape                what;
    int                  n_pos;  // of the map
    int                  n_cell;
    std::vector<int32_t> cell, position;
    std::vector<float>   index_query, query;
    std::vector<char>    index_key, key, value;
};

constexpr int n_group = 4;

static std::vector<char> random_cache(std::mt19937 & rng, const msa_type type, const size_t n_row) {
    std::normal_distribution<float> normal;
    std::vector<char> out(n_row*row_bytes(type));
    float row[msa_dim];
    for (size_t i = 0; i < n_row; ++i) {
        for (float & x : row) {
            x = normal(rng);
        }
        encode(type, row, out.data() + i*row_bytes(type));
    }
    return out;
}

// Queries that f16 holds exactly, so that selections can be compared to the last bit but for the order of sums.
static std::vector<float> random_query(std::mt19937 & rng, const size_t n, const float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> out(n);
    for (float & x : out) {
        x = __half2float(__float2half(normal(rng)));
    }
    return out;
}

static problem make_problem(const shape & what, const msa_type index_type, const msa_type type, const unsigned seed) {
    std::mt19937 rng(seed);
    problem p;
    p.what   = what;
    const int step  = what.step();
    const int n_map = (what.n_pos + step - 1)/step;
    p.n_pos  = n_map*step;
    p.n_cell = p.n_pos + 37;
    p.cell.assign((size_t) what.n_stream*n_map, -1);
    for (int s = 0; s < what.n_stream; ++s) {
        std::vector<int32_t> runs(n_map);
        for (int i = 0; i < n_map; ++i) {
            runs[i] = i*step + (what.map_shift > 0 ? 5 : 0);
        }
        if (what.has_map()) {
            std::shuffle(runs.begin(), runs.end(), rng);
        }
        const int last = what.n_pos - s*17; // streams of different lengths
        for (int t = 0; t < what.n_token; ++t) {
            p.position.push_back(std::max(0, last - what.n_token + t));
        }
        for (int i = 0; i*step < last; ++i) {
            const bool own  = (i + 1)*step > last - what.n_token;
            const bool hole = what.holes && !own && (rng()%10 == 0 || i*step/msa_block == 1);
            p.cell[(size_t) s*n_map + i] = hole ? -1 : runs[i];
        }
    }
    const size_t n_query = (size_t) what.n_stream*what.n_token*n_group;
    const size_t n_row   = (size_t) what.n_stream*p.n_cell;
    p.index_query = random_query(rng, n_query*msa_dim, 1.0f);
    p.query       = random_query(rng, n_query*msa_rows*msa_dim, 3.0f);
    p.index_key   = random_cache(rng, index_type, n_row);
    p.key         = random_cache(rng, type, n_row*n_group);
    p.value       = random_cache(rng, type, n_row*n_group);
    return p;
}

static void parallel(const int n, const std::function<void(int)> & work) {
    const int n_thread = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::thread> threads;
    for (int t = 0; t < n_thread; ++t) {
        threads.emplace_back([&, t] {
            for (int i = t; i < n; i += n_thread) {
                work(i);
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
}

struct verdict {
    int    wrong_rows = 0;   // selections that differ by more than a near tie
    int    near_ties  = 0;
    double error      = 0.0; // largest |out - reference| / |reference| of a head
};

// A problem as the reference reads it.
struct reference_view {
    msa_reference::cache     index_key, key, value;
    msa_reference::positions pos;
};

static reference_view view_of(const problem & p, const msa_type index_type, const msa_type type) {
    const size_t index_row = row_bytes(index_type), row = row_bytes(type);
    return {{p.index_key.data(), 0, index_row, index_row*p.n_cell, decoder_of(index_type)},
        {p.key.data(),   row, row*n_group, row*n_group*p.n_cell, decoder_of(type)},
        {p.value.data(), row, row*n_group, row*n_group*p.n_cell, decoder_of(type)},
        {p.what.has_map() ? p.cell.data() : nullptr, p.position.data(), p.what.step(), p.n_pos, p.what.n_token}};
}

// The largest |out - reference| / |reference| of the heads of (token, group) q, which attends to these blocks.
static double error_of(const problem & p, const reference_view & reader, const int q, const msa_reference::blocks list,
        const std::vector<float> & out) {
    const int stream = q/(p.what.n_token*n_group), token = q/n_group%p.what.n_token, group = q%n_group;
    const msa_reference::selection how = {msa_dim, msa_block, 0, 0, 0};
    std::vector<float> reference(msa_dim);
    double worst = 0.0;
    for (int h = 0; h < msa_rows; ++h) {
        const size_t at = ((size_t) q*msa_rows + h)*msa_dim;
        attend_blocks(p.query.data() + at, reader.key, reader.value, reader.pos, how, stream, token, group, list, 1.0f/std::sqrt((float) msa_dim), reference.data());
        double difference = 0.0, norm = 0.0;
        for (int d = 0; d < msa_dim; ++d) {
            difference += std::pow((double) out[at + d] - reference[d], 2);
            norm       += std::pow((double) reference[d], 2);
        }
        const double error = std::sqrt(difference/std::max(norm, 1e-30));
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
    return worst;
}

// Over all blocks, of up to 32 (token, group).
static double compare_dense(const problem & p, const msa_type type, const std::vector<float> & out) {
    const reference_view reader = view_of(p, type, type);
    const std::vector<int32_t> every = msa_reference::all_blocks(p.n_pos - 1, msa_block);
    const int n_query = p.what.n_stream*p.what.n_token*n_group;
    const int stride  = std::max(1, n_query/32) | 1;
    std::vector<double> errors((n_query + stride - 1)/stride);
    parallel((int) errors.size(), [&](const int sample) { errors[sample] = error_of(p, reader, sample*stride, {every.data(), (int64_t) every.size()}, out); });
    return *std::max_element(errors.begin(), errors.end());
}

static verdict compare(const problem & p, const msa_type index_type, const msa_type type,
        const std::vector<int32_t> & ids, const std::vector<float> & out) {
    const shape & w = p.what;
    const reference_view reader = view_of(p, index_type, type);
    const msa_reference::selection how = {msa_dim, msa_block, w.n_top, w.n_local, w.n_init};

    const int n_query = w.n_stream*w.n_token*n_group;
    const int stride  = std::max(1, n_query/512) | 1; // odd, so that every group is sampled
    const int n_sample = (n_query + stride - 1)/stride;
    std::vector<verdict> verdicts(n_sample);
    parallel(n_sample, [&](const int sample) {
        const int q = sample*stride;
        const int stream = q/(w.n_token*n_group), token = q/n_group%w.n_token;
        const int32_t * got = ids.data() + (size_t) q*w.n_top;
        verdict & v = verdicts[sample];

        std::vector<int32_t> expected(w.n_top);
        const std::vector<float> scores = block_scores(p.index_query.data() + (size_t) q*msa_dim, reader.index_key, reader.pos, how, stream, token);
        choose_blocks(scores, how, expected.data());
        if (!std::equal(expected.begin(), expected.end(), got)) {
            float worst = INFINITY, missed = -INFINITY;
            bool sound = true;
            for (int i = 0; i < w.n_top; ++i) {
                sound = sound && (got[i] < 0) == (expected[i] < 0) && got[i] < (int) scores.size();
                sound = sound && (i == 0 || got[i] < 0 || got[i] > got[i - 1]);
                if (sound && got[i] >= 0 && std::find(expected.begin(), expected.end(), got[i]) == expected.end()) {
                    worst = std::min(worst, scores[got[i]]);
                }
                if (expected[i] >= 0 && std::find(got, got + w.n_top, expected[i]) == got + w.n_top) {
                    missed = std::max(missed, scores[expected[i]]);
                }
            }
            // f16 holds q8_0 and bf16 values only rounded
            const float tolerance = index_type == msa_type::f16 ? 1e-4f : 2e-2f;
            (sound && missed - worst < tolerance ? v.near_ties : v.wrong_rows)++;
        }
        if (v.wrong_rows) {
            return;
        }
        v.error = error_of(p, reader, q, {got, w.n_top}, out);
    });
    verdict all;
    for (const verdict & v : verdicts) {
        all.wrong_rows += v.wrong_rows;
        all.near_ties  += v.near_ties;
        all.error       = std::max(all.error, v.error);
    }
    return all;
}

static bool check_one(const shape & what, const msa_type index_type, const msa_type type, const unsigned seed) {
    const problem p = make_problem(what, index_type, type, seed);
    const size_t n_query = (size_t) what.n_stream*what.n_token*n_group;
    const device_array<int32_t> cell(p.cell), position(p.position);
    const device_array<float>   index_query(p.index_query), query(p.query);
    const device_array<char>    index_key(p.index_key), key(p.key), value(p.value);
    const device_array<int32_t> ids(n_query*what.n_top);
    const device_array<float>   out(n_query*msa_rows*msa_dim);
    cudaMemset(ids.data, 0x7f, n_query*what.n_top*sizeof(int32_t));
    cudaMemset(out.data, 0xff, n_query*msa_rows*msa_dim*sizeof(float)); // NaN

    const msa_positions pos = {what.has_map() ? cell.data : nullptr, position.data, what.has_map() ? what.map_shift : 0, p.n_pos, what.n_token, what.n_stream};
    const int64_t index_row = row_bytes(index_type), row = row_bytes(type);
    const msa_select_args select = {index_query.data, {index_key.data, index_type, 0, index_row, index_row*p.n_cell}, pos,
        n_group, what.n_top, what.n_local, what.n_init, ids.data};
    const msa_attend_args attend = {query.data,
        {key.data,   type, row, row*n_group, row*n_group*p.n_cell},
        {value.data, type, row, row*n_group, row*n_group*p.n_cell},
        pos, ids.data, n_group, what.n_top, 1.0f/std::sqrt((float) msa_dim), out.data};
    const device_array<char> scratch(std::max({msa_select_attend_scratch_bytes(select, attend), msa_dense_scratch_bytes(attend)}));
    require(msa_select(select, scratch.data, nullptr), "select");
    require(msa_attend(attend, scratch.data, nullptr), "attend");
    require(cudaDeviceSynchronize(), "run");
    const std::vector<int32_t> chosen = ids.host(n_query*what.n_top);
    const std::vector<float>   apart  = out.host(n_query*msa_rows*msa_dim);
    const verdict v = compare(p, index_type, type, chosen, apart);
    cudaMemset(ids.data, 0x7f, n_query*what.n_top*sizeof(int32_t));
    cudaMemset(out.data, 0xff, n_query*msa_rows*msa_dim*sizeof(float));
    require(msa_select_attend(select, attend, scratch.data, nullptr), "select and attend");
    require(cudaDeviceSynchronize(), "run");
    const bool same = ids.host(chosen.size()) == chosen && out.host(apart.size()) == apart; // with many tokens pairs are sorted in any order, which changes nothing
    cudaMemset(out.data, 0xff, n_query*msa_rows*msa_dim*sizeof(float));
    require(msa_dense(attend, scratch.data, nullptr), "dense");
    require(cudaDeviceSynchronize(), "run");
    const double dense_error = compare_dense(p, type, out.host(n_query*msa_rows*msa_dim));
    // Both sides of the quantised types round to f16 here: queries (2^-12 relative), rows, and probabilities.
    const bool good = same && v.wrong_rows == 0 && std::max(v.error, dense_error) < (type == msa_type::f16 ? 2e-3 : 4e-3);
    printf("%s T=%-4d n=%-6d streams=%d holes=%d top=%-2d local=%d init=%d step=%d index=%-4s kv=%-4s wrong=%d near_ties=%d fused=%s error=%.2e dense=%.2e\n", good ? "ok  " : "FAIL",
        what.n_token, what.n_pos, what.n_stream, what.holes, what.n_top, what.n_local, what.n_init, what.has_map() ? what.step() : 0,
        name_of(index_type), name_of(type), v.wrong_rows, v.near_ties, same ? "same" : "DIFFERS", v.error, dense_error);
    fflush(stdout);
    return good;
}

static int check(const bool small, const unsigned part, const unsigned n_part) {
    std::vector<shape> shapes = {
        {1, 1, 1, false}, {1, 130, 1, false}, {1, 4500, 1, true}, {2, 1000, 2, true}, {7, 5001, 1, true}, {16, 4096, 2, false},
        {64, 3000, 1, true}, {64, 2900, 2, true}, {1, 5000, 1, true, 8, 2, 1},
        {1, 4500, 1, true, 16, 1, 0, 7}, {64, 2900, 2, true, 16, 1, 0, 7}, {257, 900, 1, true}, // 1,028 rows
        {1, 4500, 1, false, 16, 1, 0, without_map}, {64, 2900, 2, false, 16, 1, 0, without_map},
    };
    if (!small) {
        shapes.insert(shapes.end(), {{1, 70000, 1, false}, {8, 40000, 2, true}, {33, 600, 1, false}, {513, 9001, 1, true}, {513, 513, 1, false},
            {300, 5000, 2, true}, {160, 30000, 1, true}, {2048, 8192, 1, false}, {513, 6000, 1, true, 8, 2, 1}, {100, 300000, 1, false}});
    }
    bool good = true;
    unsigned seed = 1;
    for (const shape & what : shapes) {
        for (const auto & [index_type, type] : std::vector<std::pair<msa_type, msa_type>>{
                {msa_type::f16, msa_type::f16}, {msa_type::q8_0, msa_type::q8_0}, {msa_type::bf16, msa_type::bf16}, {msa_type::f16, msa_type::q4_0}}) {
            if (what.n_pos > 20000 && type != msa_type::f16 && type != msa_type::q8_0) {
                continue; // slow to make
            }
            good = (seed%n_part != part%n_part || check_one(what, index_type, type, seed)) && good;
            ++seed;
        }
    }
    printf("%s\n", good ? "all good" : "FAILED");
    return good ? 0 : 1;
}

// ---------------------------------------------------------------------------------------------------------------
// time

__device__ static float normal_at(const uint64_t seed) {
    uint64_t x = seed*0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30))*0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27))*0x94d049bb133111ebull;
    x ^= x >> 31;
    const float u = ((uint32_t) x + 1.0f)*2.3283064e-10f, v = (uint32_t) (x >> 32)*2.3283064e-10f;
    return sqrtf(-2.0f*logf(fminf(u, 1.0f)))*cospif(2.0f*v);
}

__global__ void fill_normal(float * out, const size_t n, const uint64_t seed) {
    for (size_t i = blockIdx.x*(size_t) blockDim.x + threadIdx.x; i < n; i += (size_t) gridDim.x*blockDim.x) {
        out[i] = normal_at(seed + i);
    }
}

// Index queries of related neighbours: a random walk in steps of 0.03, brought back to unit mean square.
__global__ void fill_walk(float * out, const int n_token, const uint64_t seed) {
    __shared__ float squares[msa_dim];
    const int head = blockIdx.x, d = threadIdx.x;
    float x = normal_at(seed + head*msa_dim + d);
    for (int t = 0; t < n_token; ++t) {
        const size_t at = ((size_t) t*n_group + head)*msa_dim + d;
        x += 0.03f*normal_at(seed + 1000 + at);
        squares[d] = x*x;
        __syncthreads();
        float sum = 0.0f;
        for (int i = 0; i < msa_dim; ++i) {
            sum += squares[i];
        }
        out[at] = x*rsqrtf(sum/msa_dim);
        __syncthreads();
    }
}

__global__ void fill_cache(char * out, const size_t n_block, const int type, const uint64_t seed) {
    for (size_t i = blockIdx.x*(size_t) blockDim.x + threadIdx.x; i < n_block; i += (size_t) gridDim.x*blockDim.x) { // 32 elements
        if (type == (int) msa_type::f16) {
            for (int k = 0; k < 32; ++k) {
                reinterpret_cast<half *>(out)[i*32 + k] = __float2half(normal_at(seed + i*32 + k));
            }
            continue;
        }
        const int size = type == (int) msa_type::q8_0 ? 34 : 18;
        char * block = out + i*size;
        *reinterpret_cast<half *>(block) = __float2half(type == (int) msa_type::q8_0 ? 0.025f : 0.3f);
        for (int k = 2; k < size; ++k) {
            const float x = normal_at(seed + i*32 + k);
            block[k] = type == (int) msa_type::q8_0 ? (char) fminf(fmaxf(40.0f*x, -127.0f), 127.0f) : (char) (int) (x*1000.0f);
        }
    }
}

// An idle device takes a while to reach its clocks: what is timed first would be slower.
static void warm_up(const double seconds) {
    const device_array<float> out(1 << 26);
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
        fill_normal<<<4096, 256>>>(out.data, 1 << 26, 1);
        require(cudaDeviceSynchronize(), "warm up");
    }
}

static double median_us(cudaStream_t stream, const int n_sample, const std::function<void()> & before, const std::function<void()> & work) {
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    work();
    require(cudaStreamEndCapture(stream, &graph), "capture end");
    require(cudaGraphInstantiate(&instance, graph, 0), "instantiate");
    cudaEvent_t start, stop;
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    std::vector<double> times;
    for (int i = -3; i < n_sample; ++i) {
        before();
        cudaEventRecord(start, stream);
        cudaGraphLaunch(instance, stream);
        cudaEventRecord(stop, stream);
        require(cudaEventSynchronize(stop), "time");
        float ms = 0.0f;
        cudaEventElapsedTime(&ms, start, stop);
        if (i >= 0) {
            times.push_back(ms*1e3);
        }
    }
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    cudaGraphExecDestroy(instance);
    cudaGraphDestroy(graph);
    std::sort(times.begin(), times.end());
    return times[times.size()/2];
}

constexpr int n_pool = 1 << 20;

static void time_type(const msa_type index_type, const msa_type type, const int max_context, const bool once) {
    const int64_t index_row = row_bytes(index_type), row = row_bytes(type);
    const device_array<char> index_key(index_row*n_pool), key(row*n_group*n_pool), value(row*n_group*n_pool);
    fill_cache<<<4096, 256>>>(index_key.data, (size_t) n_pool*4, (int) index_type, 1);
    fill_cache<<<4096, 256>>>(key.data,   (size_t) n_pool*n_group*4, (int) type, 2);
    fill_cache<<<4096, 256>>>(value.data, (size_t) n_pool*n_group*4, (int) type, 3);
    std::vector<int32_t> identity(n_pool/msa_block);
    for (int i = 0; i < n_pool/msa_block; ++i) {
        identity[i] = i*msa_block;
    }
    const device_array<int32_t> cell(identity);
    const device_array<char> flush(256 << 20);
    cudaStream_t stream;
    cudaStreamCreate(&stream);

    for (const int n_token : {1, 8, 16, 2048}) { // prefills last, as they heat the device
        for (const char * pattern : {"rand", "corr"}) {
            for (const int n : {8192, 32768, 131072, 262144, 1 << 20}) {
                if (n > max_context || (n_token == 1 && pattern[0] == 'c') || (n_token == 16 && n != 131072)) {
                    continue;
                }
                const int n_call = n_token == 2048 ? 1 : 64;
                const size_t n_query = (size_t) n_token*n_group;
                const device_array<float> index_query(n_query*msa_dim*n_call), query(n_query*msa_rows*msa_dim*n_call), out(n_query*msa_rows*msa_dim);
                const device_array<int32_t> ids(n_query*msa_top*n_call);
                fill_normal<<<1024, 256>>>(query.data, n_query*msa_rows*msa_dim*n_call, 5);
                for (int i = 0; i < n_call; ++i) {
                    float * to = index_query.data + i*n_query*msa_dim;
                    if (pattern[0] == 'c') {
                        fill_walk<<<n_group, msa_dim>>>(to, n_token, 7 + i*1000003);
                    } else {
                        fill_normal<<<1024, 256>>>(to, n_query*msa_dim, 9 + i*1000003);
                    }
                }
                std::vector<int32_t> last(n_token);
                for (int t = 0; t < n_token; ++t) {
                    last[t] = n - n_token + t;
                }
                const device_array<int32_t> position(last);
                const msa_positions pos = {cell.data, position.data, 7, n, n_token, 1};
                const auto select_at = [&](const int i) {
                    const int64_t at = (int64_t) (i%(n_pool/n))*n;
                    return msa_select_args{index_query.data + i*n_query*msa_dim, {index_key.data + at*index_row, index_type, 0, index_row, 0},
                        pos, n_group, msa_top, 1, 0, ids.data + i*n_query*msa_top};
                };
                const auto attend_at = [&](const int i) {
                    const int64_t at = (int64_t) (i%(n_pool/n))*n*row*n_group;
                    return msa_attend_args{query.data + i*n_query*msa_rows*msa_dim, {key.data + at, type, row, row*n_group, 0},
                        {value.data + at, type, row, row*n_group, 0}, pos, ids.data + i*n_query*msa_top, n_group, msa_top, 0.0883883f, out.data};
                };
                const size_t scratch_bytes = std::max({msa_select_attend_scratch_bytes(select_at(0), attend_at(0)), msa_dense_scratch_bytes(attend_at(0))});
                const device_array<char> scratch(scratch_bytes);
                if (once) {
                    require(msa_select(select_at(0), scratch.data, stream), "select");
                    require(msa_attend(attend_at(0), scratch.data, stream), "attend");
                    require(msa_dense(attend_at(0), scratch.data, stream), "dense");
                    require(cudaStreamSynchronize(stream), "run");
                    continue;
                }
                const auto run = [&](const bool selects, const bool attends, const bool all) {
                    return median_us(stream, n_token == 2048 ? 15 : 11,
                        [&] { if (n_call == 1) { cudaMemsetAsync(flush.data, 1, 256 << 20, stream); } },
                        [&] {
                            for (int i = 0; i < n_call; ++i) {
                                if (selects && attends) {
                                    require(msa_select_attend(select_at(i), attend_at(i), scratch.data, stream), "select and attend");
                                    continue;
                                }
                                if (selects) { require(msa_select(select_at(i), scratch.data, stream), "select"); }
                                if (attends) { require(msa_attend(attend_at(i), scratch.data, stream), "attend"); }
                                if (all)     { require(msa_dense(attend_at(i), scratch.data, stream), "dense"); }
                            }
                        })/n_call;
                };
                const double select_us = run(true, false, false);
                const double attend_us = run(false, true, false);
                const double total_us  = run(true, true, false);
                const double dense_us  = pattern[0] == 'c' ? NAN : run(false, false, true);
                printf("{\"T\": %d, \"n\": %d, \"pattern\": \"%s\", \"index\": \"%s\", \"kv\": \"%s\", \"indexer_us\": %.2f, \"attention_us\": %.2f, "
                    "\"total_us\": %.2f, \"dense_us\": %s, \"scratch_mib\": %.1f}\n", n_token, n, pattern, name_of(index_type), name_of(type),
                    select_us, attend_us, total_us, std::isnan(dense_us) ? "null" : std::to_string(dense_us).c_str(), scratch_bytes/1048576.0);
                fflush(stdout);
            }
        }
    }
    cudaStreamDestroy(stream);
}

int main(const int argc, char ** argv) {
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "check") {
        const bool small = argc > 2 && std::string(argv[2]) == "small";
        unsigned part = 1, n_part = 1;
        if (argc > 2 + small && (sscanf(argv[2 + small], "%u/%u", &part, &n_part) != 2 || n_part == 0)) {
            fprintf(stderr, "'%s' is not I/N\n", argv[2 + small]);
            return 2;
        }
        return check(small, part, n_part);
    }
    if (mode == "time" || mode == "once") {
        const int  max_context = argc > 2 ? atoi(argv[2]) : 262144;
        const bool once = mode == "once";
        if (!once) {
            warm_up(2.0);
        }
        time_type(msa_type::f16,  msa_type::f16,  max_context, once);
        time_type(msa_type::q8_0, msa_type::q8_0, max_context, once);
        time_type(msa_type::f16,  msa_type::q4_0, max_context, once);
        return 0;
    }
    fprintf(stderr, "usage: msa_harness check [small] [I/N] | time|once [MAX_CONTEXT]\n");
    return 2;
}
