// Runs the CPU reference of sparse attention on arrays from a file. tests/vendor/msa_reference.py writes and reads both.
//
//   msa_reference_driver REQUEST REPLY
//
// REQUEST: the sizes below as int64, then the arrays in the order of their members; REPLY: ids, then outputs. Caches
// are f32 with rows (stream, cell, group).

#include "ggml-cpu/msa-reference.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

struct sizes {
    int64_t dim, n_head, n_group, n_cell, n_stream, n_entry, step, n_token, block, n_top, n_local, n_init;
};

template <typename T>
static std::vector<T> read_array(FILE * file, const int64_t n) {
    std::vector<T> out(n);
    if ((int64_t) fread(out.data(), sizeof(T), n, file) != n) {
        fprintf(stderr, "request too short\n");
        exit(1);
    }
    return out;
}

struct request {
    sizes                n;
    std::vector<int32_t> map;         // (stream, entry)
    std::vector<int32_t> position;    // (stream, token)
    std::vector<float>   index_query; // (stream, token, group, dim)
    std::vector<float>   index_key;   // (stream, cell, dim)
    std::vector<float>   query;       // (stream, token, head, dim)
    std::vector<float>   key;         // (stream, cell, group, dim)
    std::vector<float>   value;

    explicit request(FILE * file)
        : n(read_array<sizes>(file, 1)[0])
        , map(read_array<int32_t>(file, n.n_stream*n.n_entry))
        , position(read_array<int32_t>(file, n.n_stream*n.n_token))
        , index_query(read_array<float>(file, n.n_stream*n.n_token*n.n_group*n.dim))
        , index_key(read_array<float>(file, n.n_stream*n.n_cell*n.dim))
        , query(read_array<float>(file, n.n_stream*n.n_token*n.n_head*n.dim))
        , key(read_array<float>(file, n.n_stream*n.n_cell*n.n_group*n.dim))
        , value(read_array<float>(file, n.n_stream*n.n_cell*n.n_group*n.dim)) {}

    msa_reference::cache view(const std::vector<float> & rows, const int64_t n_group) const {
        const auto copy = [](const void * row, float * out, const int64_t dim) { memcpy(out, row, dim*sizeof(float)); };
        const size_t row = n.dim*sizeof(float);
        return {reinterpret_cast<const char *>(rows.data()), row, n_group*row, n.n_cell*n_group*row, copy};
    }
};

static void answer(const request & r, FILE * file) {
    const sizes & n = r.n;
    const msa_reference::positions pos = {r.map.data(), r.position.data(), n.step, n.n_entry*n.step, n.n_token};
    const msa_reference::selection how = {n.dim, n.block, n.n_top, n.n_local, n.n_init};
    std::vector<int32_t> ids(n.n_stream*n.n_token*n.n_group*n.n_top);
    std::vector<float>   out(r.query.size());
    for (int64_t row = 0; row < n.n_stream*n.n_token*n.n_group; ++row) {
        const int64_t stream = row/n.n_group/n.n_token, token = row/n.n_group%n.n_token, group = row%n.n_group;
        const auto scores = msa_reference::block_scores(
            r.index_query.data() + row*n.dim, r.view(r.index_key, 1), pos, how, stream, token);
        msa_reference::choose_blocks(scores, how, ids.data() + row*n.n_top);
        const int64_t n_row = n.n_head/n.n_group;
        for (int64_t head = row*n_row; head < (row + 1)*n_row; ++head) {
            msa_reference::attend_blocks(r.query.data() + head*n.dim, r.view(r.key, n.n_group), r.view(r.value, n.n_group),
                pos, how, stream, token, group, {ids.data() + row*n.n_top, n.n_top}, 1.0f/std::sqrt((float) n.dim), out.data() + head*n.dim);
        }
    }
    fwrite(ids.data(), sizeof(int32_t), ids.size(), file);
    fwrite(out.data(), sizeof(float), out.size(), file);
}

int main(const int argc, char ** argv) {
    FILE * in = argc == 3 ? fopen(argv[1], "rb") : nullptr;
    if (in == nullptr) {
        fprintf(stderr, "usage: msa_reference_driver REQUEST REPLY\n");
        return 1;
    }
    const request asked(in);
    fclose(in);
    FILE * file = fopen(argv[2], "wb");
    if (file == nullptr) {
        perror(argv[2]);
        return 1;
    }
    answer(asked, file);
    return fclose(file) == 0 ? 0 : 1;
}
