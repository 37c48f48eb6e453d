// Runs the CPU reference of sparse attention on arrays from a file.
//
//   msa_reference_driver REQUEST REPLY
//
// REQUEST as in msa_request.h; REPLY: ids, then outputs. tests/vendor/msa_reference.py writes and reads both.

#include "ggml-cpu/msa-reference.h"
#include "msa_request.h"

static msa_reference::cache view(const request & r, const std::vector<float> & rows, const int64_t n_group) {
    const size_t row = r.n.dim*sizeof(float);
    return {reinterpret_cast<const char *>(rows.data()), row, n_group*row, r.n.n_cell*n_group*row, nullptr};
}

static void answer(const request & r, FILE * file) {
    const sizes & n = r.n;
    const msa_reference::positions pos = {r.map.data(), r.position.data(), n.step, n.n_entry*n.step, n.n_token};
    const msa_reference::selection how = {n.dim, n.block, n.n_top, n.n_local, n.n_init};
    std::vector<int32_t> ids(n.n_stream*n.n_token*n.n_group*n.n_top);
    std::vector<float>   out(r.query.size());
    for (int64_t row = 0; row < n.n_stream*n.n_token*n.n_group; ++row) {
        const int64_t stream = row/n.n_group/n.n_token, token = row/n.n_group%n.n_token, group = row%n.n_group;
        const auto scores = msa_reference::block_scores(
            r.index_query.data() + row*n.dim, view(r, r.index_key, 1), pos, how, stream, token);
        msa_reference::choose_blocks(scores, how, ids.data() + row*n.n_top);
        const int64_t n_row = n.n_head/n.n_group;
        for (int64_t head = row*n_row; head < (row + 1)*n_row; ++head) {
            msa_reference::attend_blocks(r.query.data() + head*n.dim, view(r, r.key, n.n_group), view(r, r.value, n.n_group),
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
