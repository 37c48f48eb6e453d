// Building blocks of the MSA kernels: rows of any cache type as f16, tiles of 128 x 128 f16 in shared memory,
// and the product of 16 query rows a warp with such a tile.
//
// "Fragment order" below is the register layout of the m16n8k16 instructions: lane l = 4*i + j holds rows i and
// i + 8, columns 8*n + 2*j and 8*n + 2*j + 1. wgmma hands each of its four warps the same layout.

#pragma once

#include "msa-kernels.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace msa {

// MSA_LIKE_SM=80 or 120 takes the ways of these devices on a newer one, so that a Hopper GPU can check what others run.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && !defined(MSA_LIKE_SM)
constexpr bool msa_hopper = true;
#else
constexpr bool msa_hopper = false;
#endif

struct device_facts {
    int  n_sm;
    int  l2_bytes;
    bool hopper; // as msa_hopper is in the code that runs there
    bool newer;  // Hopper or later: has clusters
};

inline device_facts current_device() {
    int device = 0, major = 0;
    device_facts facts = {};
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&facts.n_sm, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&facts.l2_bytes, cudaDevAttrL2CacheSize, device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
#ifdef MSA_LIKE_SM
    major = MSA_LIKE_SM/10;
#endif
    facts.hopper = major == 9;
    facts.newer  = major >= 9;
    return facts;
}

constexpr int warp_size  = 32;
constexpr int tile_bytes = msa_block*msa_dim*sizeof(half);
constexpr int half_tile_bytes = tile_bytes/2; // 128 rows of 64 columns, 128 bytes a row
constexpr unsigned all_lanes = 0xffffffffu;

// Most shared memory of a CTA where that is least (8.6, 8.9 and 12.x, so GB10). No test here runs on such a device: what is
// launched there says at compile time that it fits.
constexpr int least_shared = 99*1024;

struct alignas(16) half8 {
    half2 pair[4];
};

static_assert(sizeof(half8) == 16);

__device__ inline uint32_t shared_address(const void * pointer) {
    return (uint32_t) __cvta_generic_to_shared(pointer);
}

__device__ inline uint32_t pack(const float low, const float high) {
    const half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&both);
}

__device__ inline float exp2_fast(const float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---------------------------------------------------------------------------------------------------------------
// launches

// A kernel may begin while the one before it in the stream still runs, once all CTAs of that one have called
// let_next_begin; what that one writes it may read after wait_for_last. Only for kernels that follow one whose CTAs are
// all resident: elsewhere those that begin early take places that are still needed (docs/measurements).
enum class begins { after_last, beside_last };

__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_last() { // does nothing in a kernel that began after it
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// n_cluster CTAs along x form a cluster.
template <typename... params>
cudaError_t launch_clusters(const int n_cluster, const begins when, void (* kernel)(params...), const dim3 grid, const int n_thread,
        const size_t shared_bytes, cudaStream_t stream, const params... args) {
    if (shared_bytes > 48*1024) {
        const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared_bytes);
        if (status != cudaSuccess) {
            return status;
        }
    }
    cudaLaunchAttribute attributes[2] = {};
    unsigned n_attribute = 0;
    if (n_cluster > 1) {
        cudaLaunchAttribute & cluster = attributes[n_attribute++];
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim.x = n_cluster;
        cluster.val.clusterDim.y = 1;
        cluster.val.clusterDim.z = 1;
    }
    if (when == begins::beside_last && current_device().newer) {
        cudaLaunchAttribute & early = attributes[n_attribute++];
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim          = grid;
    config.blockDim         = dim3(n_thread);
    config.dynamicSmemBytes = shared_bytes;
    config.stream           = stream;
    config.attrs            = attributes;
    config.numAttrs         = n_attribute;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

template <typename... params>
cudaError_t launch(void (* kernel)(params...), const dim3 grid, const int n_thread, const size_t shared_bytes, cudaStream_t stream, const params... args) {
    return launch_clusters(1, begins::after_last, kernel, grid, n_thread, shared_bytes, stream, args...);
}

// ---------------------------------------------------------------------------------------------------------------
// cache rows

__host__ __device__ constexpr int row_bytes_of(const msa_type type) {
    return type == msa_type::q8_0 ? msa_dim/32*34 : type == msa_type::q4_0 ? msa_dim/32*18 : msa_dim*2;
}

template <msa_type type> struct row_format;

// Elements 8*chunk ... 8*chunk + 7 of a row. Quantised rows are only 2-byte aligned inside, and to 8 bytes as a whole.
template <> struct row_format<msa_type::f16> {
    static __device__ half8 load(const char * row, const int chunk) {
        const uint4 raw = reinterpret_cast<const uint4 *>(row)[chunk];
        return *reinterpret_cast<const half8 *>(&raw);
    }
};

template <> struct row_format<msa_type::bf16> {
    static __device__ half8 load(const char * row, const int chunk) {
        const uint4 raw = reinterpret_cast<const uint4 *>(row)[chunk];
        const __nv_bfloat162 * pair = reinterpret_cast<const __nv_bfloat162 *>(&raw);
        half8 out;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            out.pair[i] = __float22half2_rn(__bfloat1622float2(pair[i]));
        }
        return out;
    }
};

// Two bytes of a word as the halves 1024 + byte: the bits 0x6400 are 1024, whose last place is worth 1. Conversion
// instructions run at a quarter of the rate.
template <int selector>
__device__ inline half2 bytes_plus_1024(const uint32_t word) {
    const uint32_t bits = __byte_perm(word, 0x64646464, selector);
    return *reinterpret_cast<const half2 *>(&bits);
}

// Bytes offset ... offset + 7 of a row that is aligned to 4 bytes, where offset is even: whole words are read.
__device__ inline void eight_bytes(uint32_t (&out)[2], const char * row, const int offset) {
    const uint32_t * word = reinterpret_cast<const uint32_t *>(row + (offset & ~3));
    const bool split = offset & 2;
    const uint32_t middle = word[1];
    out[0] = __funnelshift_r(word[0], middle, split ? 16 : 0);
    out[1] = __funnelshift_r(middle, word[split ? 2 : 1], split ? 16 : 0);
}

__device__ inline half8 dequantise(const uint32_t (&word)[2], const float zero, const uint16_t scale_bits) {
    const half2 offset = __float2half2_rn(-1024.0f - zero);
    const half2 scale  = __half2half2(__ushort_as_half(scale_bits));
    half8 out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        out.pair[2*i]     = __hmul2(scale, __hadd2(bytes_plus_1024<0x4140>(word[i]), offset));
        out.pair[2*i + 1] = __hmul2(scale, __hadd2(bytes_plus_1024<0x4342>(word[i]), offset));
    }
    return out;
}

template <> struct row_format<msa_type::q8_0> {
    static __device__ half8 load(const char * row, const int chunk) {
        const int block = chunk/4*34;
        uint32_t word[2];
        eight_bytes(word, row, block + 2 + chunk%4*8);
        word[0] ^= 0x80808080;
        word[1] ^= 0x80808080;
        return dequantise(word, 128.0f, *reinterpret_cast<const uint16_t *>(row + block));
    }
};

template <> struct row_format<msa_type::q4_0> {
    static __device__ half8 load(const char * row, const int chunk) {
        const int block = chunk/4*18;
        uint32_t word[2];
        eight_bytes(word, row, block + 2 + chunk%2*8);
        const int shift = chunk%4/2*4; // elements 16 ... 31 are the high nibbles
        word[0] = (word[0] >> shift) & 0x0f0f0f0f;
        word[1] = (word[1] >> shift) & 0x0f0f0f0f;
        return dequantise(word, 8.0f, *reinterpret_cast<const uint16_t *>(row + block));
    }
};

__device__ inline half8 zero8() {
    half8 out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out.pair[i] = __floats2half2_rn(0.0f, 0.0f);
    }
    return out;
}

// ---------------------------------------------------------------------------------------------------------------
// asynchronous copies

__device__ inline void copy16_async(const uint32_t to, const char * from, const bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(present ? 16 : 0) : "memory");
}

// For what is read once in a step and is more than L2 holds: it does not drive out the rest.
__device__ inline uint64_t policy_to_leave_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ inline void copy16_async(const uint32_t to, const char * from, const bool present, const uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" :: "r"(to), "l"(from), "r"(present ? 16 : 0), "l"(policy) : "memory");
}

__device__ inline void copy8_async(const uint32_t to, const char * from, const bool present) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to), "l"(from), "r"(present ? 8 : 0) : "memory");
}

__device__ inline void copies_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int n_pending> __device__ inline void copies_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(n_pending) : "memory");
}

// ---------------------------------------------------------------------------------------------------------------
// tiles: row r, 16-byte chunk c of a 128 x 128 f16 tile, swizzled as wgmma's 128-byte mode wants it

__device__ inline uint32_t tile_offset(const int row, const int chunk) {
    return (chunk/8)*half_tile_bytes + row*128 + (((chunk%8) ^ (row%8))*16);
}

// A warp fills 16 rows of a tile. Lane r < 16 knows the cell of row r (-1: zeros).
template <msa_type type>
__device__ void fill_rows(const uint32_t tile, const int row0, const char * base, const int64_t cell_bytes, const int cell) {
    const int lane = threadIdx.x%warp_size;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int  row  = 2*i + lane/16;
        const int  from = __shfl_sync(all_lanes, cell, row);
        const char * source = base + (from < 0 ? 0 : from)*cell_bytes;
        const uint32_t to = tile + tile_offset(row0 + row, lane%16);
        if constexpr (type == msa_type::f16) {
            copy16_async(to, source + (lane%16)*16, from >= 0);
        } else {
            const half8 chunk = from < 0 ? zero8() : row_format<type>::load(source, lane%16);
            const uint4 raw = *reinterpret_cast<const uint4 *>(&chunk);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" :: "r"(to), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w) : "memory");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// products

__device__ inline void mma_m16n8k16(float * acc, const uint32_t (&a)[4], const uint32_t b0, const uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void load_matrices(uint32_t (&out)[4], const uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address) : "memory");
}

__device__ inline void load_matrices_transposed(uint32_t (&out)[4], const uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address) : "memory");
}

// What a tile is to the product: rows are the output's columns (keys), or rows are summed over (values).
enum class tile_rows { output, summed };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(MSA_LIKE_SM)

template <tile_rows rows>
__device__ inline void wgmma_m64n128k16(float (&d)[64], const uint32_t (&a)[4], const uint64_t b, const int accumulate) {
    constexpr int transposed = rows == tile_rows::summed;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(transposed));
}

// 128-byte swizzle; groups of 8 rows are 1024 bytes apart, the second 64 columns half a tile.
__device__ inline uint64_t tile_descriptor(const uint32_t address) {
    return (uint64_t) ((address & 0x3ffff) >> 4) | ((uint64_t) (half_tile_bytes >> 4) << 16) | ((uint64_t) (1024 >> 4) << 32) | (1ull << 62);
}

// Starts acc = a x tile, or adds it to acc, for the warp's 16 rows; all four warps of a warpgroup call it together.
template <tile_rows rows, bool adds = false>
__device__ void product_start(float (&acc)[64], const uint32_t (&a)[8][4], const uint32_t tile) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        const uint32_t offset = rows == tile_rows::output ? (step/4)*half_tile_bytes + (step%4)*32 : step*16*128;
        wgmma_m64n128k16<rows>(acc, a[step], tile_descriptor(tile + offset), adds || step > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ inline void wgmma_shared_m64n128k16(float (&d)[64], const uint64_t a, const uint64_t b, const int accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(accumulate));
}

// Starts acc = rows x tile: rows is a tile as well, and of it the 64 rows of the warpgroup from row0 on count.
__device__ inline void shared_product_start(float (&acc)[64], const uint32_t rows, const int row0, const uint32_t tile) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        const uint32_t offset = (step/4)*half_tile_bytes + (step%4)*32;
        wgmma_shared_m64n128k16(acc, tile_descriptor(rows + row0*128 + offset), tile_descriptor(tile + offset), step > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most n_pending products are in flight; acc is ready.
template <int n_pending>
__device__ void product_wait(float (&acc)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(n_pending) : "memory");
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        asm volatile("" : "+f"(acc[i]) :: "memory"); // keep readers of acc behind the wait
    }
}

__device__ inline void tiles_written() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#else

template <tile_rows rows, bool adds = false>
__device__ void product_start(float (&acc)[64], const uint32_t (&a)[8][4], const uint32_t tile) {
    const int lane = threadIdx.x%warp_size;
#pragma unroll
    for (int i = 0; i < 64 && !adds; ++i) {
        acc[i] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
        for (int n = 0; n < 16; n += 2) { // two groups of eight output columns a load
            uint32_t b[4];
            if constexpr (rows == tile_rows::output) {
                const int row   = 8*n + 8*(lane/16) + lane%8;
                const int chunk = 2*step + (lane/8)%2;
                load_matrices(b, tile + tile_offset(row, chunk));
            } else {
                const int row   = 16*step + lane%16;
                const int chunk = n + lane/16;
                load_matrices_transposed(b, tile + tile_offset(row, chunk));
            }
            mma_m16n8k16(acc + 4*n,     a[step], b[0], b[1]);
            mma_m16n8k16(acc + 4*n + 4, a[step], b[2], b[3]);
        }
    }
}

__device__ inline void shared_product_start(float (&acc)[64], const uint32_t rows, const int row0, const uint32_t tile) {
    const int lane = threadIdx.x%warp_size;
    const int row  = row0 + threadIdx.x/warp_size%4*16 + lane%16;
    uint32_t a[8][4];
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        load_matrices(a[step], rows + tile_offset(row, 2*step + lane/16));
    }
    product_start<tile_rows::output>(acc, a, tile);
}

template <int n_pending>
__device__ void product_wait(float (&)[64]) {}

__device__ inline void tiles_written() {}

#endif

// ---------------------------------------------------------------------------------------------------------------
// visibility

__device__ inline int cell_of(const msa_positions & pos, const int stream, const int position) {
    if (position >= pos.n_pos) {
        return -1;
    }
    if (pos.map == nullptr) {
        return position;
    }
    const int first = pos.map[(int64_t) stream*(pos.n_pos >> pos.map_shift) + (position >> pos.map_shift)];
    return first < 0 ? -1 : first + (position & ((1 << pos.map_shift) - 1));
}

// One bit a position of a block: does it have a cell?
struct block_mask {
    uint32_t word[4];

    __device__ bool complete() const { return (word[0] & word[1] & word[2] & word[3]) == all_lanes; }
    __device__ bool has(const int i) const { return (word[i/32] >> (i%32)) & 1; }
};

// The largest over the four lanes that share a row.
__device__ inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}

__device__ inline float row_sum(float x) {
    x += __shfl_xor_sync(all_lanes, x, 1);
    return x + __shfl_xor_sync(all_lanes, x, 2);
}

} // namespace msa
