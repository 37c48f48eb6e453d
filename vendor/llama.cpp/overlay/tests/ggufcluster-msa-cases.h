// Cases of test-backend-ops for GGML_OP_MSA_SELECT and GGML_OP_MSA_ATTEND, included there once test_case is known.
#pragma once

#include "ggml-msa.h"

#include <numeric>

struct msa_case {
    int64_t n_token; // a stream
    int64_t n_pos;   // of the longest stream
    int64_t n_stream = 1;
    int64_t step     = 1;    // 0: no map, positions are in the cells of their numbers
    bool    holes    = false;
    int32_t n_top    = 16;
    int32_t n_local  = 1;
    int32_t n_init   = 0;

    static constexpr int64_t block   = 128;
    static constexpr int64_t dim     = 128;
    static constexpr int64_t n_group = 4;
    static constexpr int64_t n_head  = 64;

    int64_t n_entry() const { return step == 0 ? 0 : (n_pos + step - 1)/step; }
    int64_t n_cell()  const { return std::max(n_entry()*step, n_pos) + 37; }
    int64_t length(const int64_t stream) const { return std::max(n_pos - 17*stream, n_token); }

    ggml_msa_params params() const { return { (int32_t) block, (int32_t) std::max<int64_t>(step, 1), n_top, n_local, n_init, 0.088f }; }
};

template <typename T> static void msa_set(ggml_tensor * t, const std::vector<T> & data) {
    GGML_ASSERT(data.size()*sizeof(T) == ggml_nbytes(t));
    ggml_backend_tensor_set(t, data.data(), 0, ggml_nbytes(t));
}

// Whole numbers: products and their sums are exact in every type and order, so selections must agree to the last one,
// and there are ties. Every 32 elements reach 127, so that q8_0 has a scale of 1.
static void msa_init_whole(ggml_tensor * t, std::mt19937 & rng, const int limit) {
    std::vector<float> data(ggml_nelements(t));
    for (size_t i = 0; i < data.size(); ++i) {
        data[i] = limit == 127 && i%32 == 0 ? 127.0f : (float) ((int) (rng()%(2*limit + 1)) - limit);
    }
    if (t->type == GGML_TYPE_F32) {
        msa_set(t, data);
        return;
    }
    std::vector<char> raw(ggml_nbytes(t));
    ggml_quantize_chunk(t->type, data.data(), raw.data(), 0, data.size()/t->ne[0], t->ne[0], nullptr);
    msa_set(t, raw);
}

// Cells in any order, or in runs of `step`; a tenth of the entries and the second block are holes, the tokens' own never.
static void msa_init_map(ggml_tensor * t, std::mt19937 & rng, const msa_case & c) {
    std::vector<int32_t> data(ggml_nelements(t), -1);
    for (int64_t s = 0; s < c.n_stream; ++s) {
        std::vector<int32_t> runs(c.n_entry());
        for (size_t i = 0; i < runs.size(); ++i) {
            runs[i] = (int32_t) (i*c.step) + 5;
        }
        std::shuffle(runs.begin(), runs.end(), rng);
        for (int64_t i = 0; i*c.step < c.length(s); ++i) {
            const bool own = (i + 1)*c.step > c.length(s) - c.n_token;
            if (!c.holes || own || (rng()%10 != 0 && i*c.step/c.block != 1)) {
                data[s*c.n_entry() + i] = runs[i];
            }
        }
    }
    msa_set(t, data);
}

static std::vector<int32_t> msa_query_positions(const msa_case & c) {
    std::vector<int32_t> data;
    for (int64_t s = 0; s < c.n_stream; ++s) {
        for (int64_t i = 0; i < c.n_token; ++i) {
            data.push_back((int32_t) (c.length(s) - c.n_token + i));
        }
    }
    return data;
}

// Some of the blocks up to the token's own, that one among them, then -1.
static void msa_init_ids(ggml_tensor * t, std::mt19937 & rng, const msa_case & c) {
    std::vector<int32_t> data;
    for (const int32_t position : msa_query_positions(c)) {
        for (int64_t group = 0; group < c.n_group; ++group) {
            std::vector<int32_t> blocks(position/c.block + 1);
            std::iota(blocks.begin(), blocks.end(), 0);
            std::shuffle(blocks.begin(), blocks.end() - 1, rng);
            std::reverse(blocks.begin(), blocks.end());
            blocks.resize(std::min<size_t>(blocks.size(), c.n_top));
            std::sort(blocks.begin(), blocks.end());
            blocks.resize(c.n_top, -1);
            data.insert(data.end(), blocks.begin(), blocks.end());
        }
    }
    msa_set(t, data);
}

struct test_msa : public test_case {
    const msa_case  c;
    const ggml_type type;

    test_msa(const msa_case & c, const ggml_type type) : c(c), type(type) {}

    std::string vars() override {
        const int64_t n_token = c.n_token, n_pos = c.n_pos, n_stream = c.n_stream, step = c.step;
        const int32_t holes = c.holes, n_top = c.n_top, n_local = c.n_local, n_init = c.n_init;
        return VARS_TO_STR9(n_token, n_pos, n_stream, step, holes, n_top, n_local, n_init, type);
    }

    ggml_tensor * named(ggml_tensor * t, const char * name) {
        ggml_set_name(t, name);
        return t;
    }

    ggml_tensor * new_map(ggml_context * ctx) {
        return c.step == 0 ? nullptr : named(ggml_new_tensor_2d(ctx, GGML_TYPE_I32, c.n_entry(), c.n_stream), "map");
    }
    ggml_tensor * new_place(ggml_context * ctx) { return named(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, c.n_token*c.n_stream), "place"); }
    ggml_tensor * new_cache(ggml_context * ctx, const int64_t n_head, const char * name) {
        return named(ggml_new_tensor_4d(ctx, type, c.dim, n_head, c.n_cell(), c.n_stream), name);
    }

    void initialize_tensors(ggml_context * ctx) override {
        std::mt19937 rng(42);
        for (ggml_tensor * t = ggml_get_first_tensor(ctx); t != nullptr; t = ggml_get_next_tensor(ctx, t)) {
            const std::string name = t->name;
            if      (name == "index_query") { msa_init_whole(t, rng, 2); }
            else if (name == "index_key")   { msa_init_whole(t, rng, 127); }
            else if (name == "map")         { msa_init_map(t, rng, c); }
            else if (name == "place")       { msa_set(t, msa_query_positions(c)); }
            else if (name == "ids")         { msa_init_ids(t, rng, c); }
            else if (t->op == GGML_OP_NONE) { init_tensor_uniform(t, -2.0f, 2.0f); }
        }
    }
};

struct test_msa_select : public test_msa {
    using test_msa::test_msa;

    double max_nmse_err() override { return 0.0; }

    ggml_tensor * build_graph(ggml_context * ctx) override {
        ggml_tensor * query = named(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, c.dim, c.n_group, c.n_token*c.n_stream), "index_query");
        return named(ggml_msa_select(ctx, query, new_cache(ctx, 1, "index_key"), new_map(ctx), new_place(ctx), c.params()), "out");
    }
};

struct test_msa_attend : public test_msa {
    using test_msa::test_msa;

    // Queries, probabilities and dequantised rows are rounded to f16 there.
    double max_nmse_err() override { return 2e-5; }

    ggml_tensor * build_graph(ggml_context * ctx) override {
        ggml_tensor * query = named(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, c.dim, c.n_head, c.n_token*c.n_stream), "query");
        ggml_tensor * ids   = named(ggml_new_tensor_3d(ctx, GGML_TYPE_I32, c.n_top, c.n_group, c.n_token*c.n_stream), "ids");
        return named(ggml_msa_attend(ctx, query, new_cache(ctx, c.n_group, "key"), new_cache(ctx, c.n_group, "value"), ids,
            new_map(ctx), new_place(ctx), c.params()), "out");
    }
};

struct test_msa_attend_all : public test_msa {
    using test_msa::test_msa;

    std::string vars() override { return "all_blocks=1," + test_msa::vars(); }
    double max_nmse_err() override { return 2e-5; } // as test_msa_attend

    ggml_tensor * build_graph(ggml_context * ctx) override {
        ggml_tensor * query = named(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, c.dim, c.n_head, c.n_token*c.n_stream), "query");
        return named(ggml_msa_attend(ctx, query, new_cache(ctx, c.n_group, "key"), new_cache(ctx, c.n_group, "value"), nullptr,
            new_map(ctx), new_place(ctx), c.params()), "out");
    }
};

// Both in one graph, which a backend may run together. What is chosen is exact, so only the attention's rounding is allowed.
struct test_msa_select_attend : public test_msa {
    using test_msa::test_msa;

    std::string op_desc(ggml_tensor *) override { return "MSA_SELECT_ATTEND"; }
    bool run_whole_graph() override { return true; }
    double max_nmse_err() override { return 2e-5; } // as test_msa_attend

    ggml_tensor * build_graph(ggml_context * ctx) override {
        const int64_t n_token = c.n_token*c.n_stream;
        const ggml_type index_type = type == GGML_TYPE_Q4_0 ? GGML_TYPE_F16 : type;
        ggml_tensor * index_query = named(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, c.dim, c.n_group, n_token), "index_query");
        ggml_tensor * index_key   = named(ggml_new_tensor_4d(ctx, index_type, c.dim, 1, c.n_cell(), c.n_stream), "index_key");
        ggml_tensor * query = named(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, c.dim, c.n_head, n_token), "query");
        ggml_tensor * map   = new_map(ctx);
        ggml_tensor * place = new_place(ctx);
        ggml_tensor * ids   = ggml_msa_select(ctx, index_query, index_key, map, place, c.params());
        return named(ggml_msa_attend(ctx, query, new_cache(ctx, c.n_group, "key"), new_cache(ctx, c.n_group, "value"), ids, map, place, c.params()), "out");
    }
};

static void add_msa_cases(std::vector<std::unique_ptr<test_case>> & cases) {
    const std::vector<msa_case> shapes = {
        {1, 1}, {1, 130}, {1, 5000, 1, 1, true}, {2, 1000, 2, 1, true}, {7, 2300, 1, 1, true}, {64, 3000, 2, 1, true},
        {513, 2900, 1, 1, true}, {1, 5000, 1, 128, true}, {64, 2900, 2, 128, true}, {7, 4000, 1, 1, true, 8, 2, 1},
        {1, 5000, 1, 0}, {2, 1000, 2, 0}, {64, 2900, 2, 0}, {513, 2900, 1, 0},
    };
    const std::vector<msa_case> pairs = {
        {1, 5000, 1, 1, true}, {1, 5000, 1, 128}, {1, 3000, 2, 1, true}, {3, 2300, 1, 1, true, 8, 2, 1}, {8, 3000, 1, 128, true}, {16, 2600, 2, 1, true},
        {64, 2900, 1, 1, true}, {257, 900, 1, 1, true, 4}, {1, 5000, 1, 0}, {8, 3000, 1, 0}, {257, 900, 1, 0, false, 4},
    };
    for (const msa_case & c : pairs) {
        for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
            cases.emplace_back(new test_msa_select_attend(c, type));
        }
    }
    for (const msa_case & c : shapes) {
        for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
            if (type != GGML_TYPE_Q4_0) {
                cases.emplace_back(new test_msa_select(c, type));
            }
            cases.emplace_back(new test_msa_attend(c, type));
            cases.emplace_back(new test_msa_attend_all(c, type));
        }
    }
}
