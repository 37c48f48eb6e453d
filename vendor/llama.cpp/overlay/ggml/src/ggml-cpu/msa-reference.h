// MiniMax Sparse Attention in plain code: what the CPU backend runs and what the CUDA kernels are tested against.
// ggml-cuda/msa-kernels.cuh has the definition; dimensions here are free.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace msa_reference {

struct cache {               // rows (group, cell, stream) of dim elements
    const char * data;
    size_t       group_bytes;
    size_t       cell_bytes;
    size_t       stream_bytes;
    void      (* to_float)(const void * row, float * out, int64_t n); // nullptr: floats already

    const float * row(const int64_t stream, const int64_t group, const int64_t cell, std::vector<float> & space) const {
        const char * at = data + stream*stream_bytes + group*group_bytes + cell*cell_bytes;
        if (to_float == nullptr) {
            return reinterpret_cast<const float *>(at);
        }
        to_float(at, space.data(), (int64_t) space.size());
        return space.data();
    }
};

struct positions {
    const int32_t * map;     // [n_stream][n_pos/map_step], -1 where positions have no cell; nullptr: cells of their numbers
    const int32_t * query;   // [n_stream][n_token]
    int64_t         map_step;
    int64_t         n_pos;
    int64_t         n_token; // a stream

    int32_t query_of(const int64_t stream, const int64_t token) const { return query[stream*n_token + token]; }

    // The cell of a position, -1 if the token cannot see it.
    int32_t visible_cell(const int64_t stream, const int64_t position, const int64_t until) const {
        if (position > until || position >= n_pos) {
            return -1;
        }
        if (map == nullptr) {
            return (int32_t) position;
        }
        const int32_t first = map[stream*(n_pos/map_step) + position/map_step];
        return first < 0 ? -1 : first + (int32_t) (position%map_step);
    }
};

struct selection {
    int64_t dim;
    int64_t block;           // positions
    int64_t n_top;
    int64_t n_local;
    int64_t n_init;
};

inline double dot(const float * a, const float * b, const int64_t n) {
    double part[8] = {}; // eight sums, that compilers may add up at once
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int64_t k = 0; k < 8; ++k) {
            part[k] += (double) a[i + k]*b[i + k];
        }
    }
    for (; i < n; ++i) {
        part[0] += (double) a[i]*b[i];
    }
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

// The best score of every block up to the token's own, -inf where nothing is visible.
inline std::vector<float> block_scores(const float * query, const cache & key, const positions & pos, const selection & how,
        const int64_t stream, const int64_t token) {
    const int64_t until = pos.query_of(stream, token);
    std::vector<float> scores(until/how.block + 1, -INFINITY);
    std::vector<float> space(how.dim);
    for (int64_t p = 0; p <= until; ++p) {
        const int32_t cell = pos.visible_cell(stream, p, until);
        if (cell >= 0) {
            float & best = scores[p/how.block];
            best = std::max(best, (float) dot(query, key.row(stream, 0, cell, space), how.dim));
        }
    }
    return scores;
}

// The chosen blocks in ascending order, then -1. Forced blocks first, then by score, then the lower one; a block
// with nothing visible is never chosen.
inline void choose_blocks(const std::vector<float> & scores, const selection & how, int32_t * ids) {
    const int64_t own = (int64_t) scores.size() - 1;
    const auto forced = [&](const int64_t b) { return b < how.n_init || b > own - how.n_local; };
    std::vector<int32_t> order;
    for (int32_t b = 0; b <= own; ++b) {
        if (scores[b] != -INFINITY) {
            order.push_back(b);
        }
    }
    std::stable_sort(order.begin(), order.end(), [&](const int32_t a, const int32_t b) {
        return forced(a) != forced(b) ? forced(a) : !forced(a) && scores[a] > scores[b];
    });
    order.resize(std::min((int64_t) order.size(), how.n_top));
    std::sort(order.begin(), order.end());
    std::fill(ids, ids + how.n_top, -1);
    std::copy(order.begin(), order.end(), ids);
}

struct blocks {
    const int32_t * id;      // -1 for none
    int64_t         n;
};

// The blocks up to a position, for those that attend to all.
inline std::vector<int32_t> all_blocks(const int64_t until, const int64_t block) {
    std::vector<int32_t> ids(until/block + 1);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

// out = softmax(scale * query . k) v over the visible positions of the blocks.
inline void attend_blocks(const float * query, const cache & key, const cache & value, const positions & pos, const selection & how,
        const int64_t stream, const int64_t token, const int64_t group, const blocks list, const float scale, float * out) {
    const int64_t until = pos.query_of(stream, token);
    std::vector<float>   space(how.dim);
    std::vector<double>  sum(how.dim, 0.0), scores;
    std::vector<int32_t> cells;
    double top = -INFINITY, total = 0.0;
    for (int64_t i = 0; i < list.n; ++i) {
        cells.clear();
        scores.clear();
        double new_top = top;
        for (int64_t p = list.id[i]*how.block; list.id[i] >= 0 && p < (list.id[i] + 1)*how.block; ++p) {
            const int32_t cell = pos.visible_cell(stream, p, until);
            if (cell >= 0) {
                cells.push_back(cell);
                scores.push_back(scale*dot(query, key.row(stream, group, cell, space), how.dim));
                new_top = std::max(new_top, scores.back());
            }
        }
        const double shrink = new_top == top ? 1.0 : std::exp(top - new_top);
        top = new_top;
        total *= shrink;
        for (double & x : sum) {
            x *= shrink;
        }
        for (size_t k = 0; k < cells.size(); ++k) {
            const double weight = std::exp(scores[k] - top);
            const float * row = value.row(stream, group, cells[k], space);
            for (int64_t d = 0; d < how.dim; ++d) {
                sum[d] += weight*row[d];
            }
            total += weight;
        }
    }
    for (int64_t d = 0; d < how.dim; ++d) {
        out[d] = total > 0.0 ? (float) (sum[d]/total) : 0.0f;
    }
}

} // namespace msa_reference
