// The file that tests/vendor/msa_reference.py writes: the sizes as int64, then the arrays in the order of their members.
// Caches are f32 with rows (stream, cell, group).

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

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
};
