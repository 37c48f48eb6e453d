#include "ggufcluster-msa-positions.h"

#include "ggml-cpp.h"
#include "llama-batch.h"
#include "llama-kv-cache.h"
#include "llama-kv-cells.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace ggufcluster {

void msa_cells::add(const llama_pos position, const int32_t cell) {
    if (position >= (llama_pos) cell_of.size()) {
        runs.resize(position/block + 1);
        cell_of.resize(runs.size()*block, -1);
    }
    if (cell_of[position] >= 0) {
        known = known && cell_of[position] == cell;
        return;
    }
    cell_of[position] = cell;
    count(position, cell);
}

void msa_cells::count(const llama_pos position, const int32_t cell) {
    run & r = runs[position/block];
    const int32_t first = cell - (int32_t) (position%block);
    if (r.present == 0) {
        r.first = first;
        ++n_partial;
        n_moved += is_moved(position/block);
    }
    // Within a block positions come in order, from the first one on.
    if (!r.broken && (r.first != first || first < 0 || r.present != position%block)) {
        r.broken = true;
        ++n_broken;
    }
    ++n_present;
    n_partial -= ++r.present == block;
}

void msa_cells::cut(const llama_pos p0) {
    for (llama_pos position = std::max(p0, 0); position < (llama_pos) cell_of.size(); ++position) {
        if (cell_of[position] < 0) {
            continue;
        }
        run & r = runs[position/block];
        cell_of[position] = -1;
        --n_present;
        n_partial += r.present-- == block;
        if (r.present == 0) {
            --n_partial;
            n_broken -= r.broken;
            n_moved  -= is_moved(position/block);
            r = {};
        }
    }
    if (p0 < (llama_pos) cell_of.size()) {
        runs.resize((std::max(p0, 0) + block - 1)/block);
        cell_of.resize(runs.size()*block);
    }
}

// The first token after a restored state waits for it, so that it touches as little of each cell as it can.
void msa_cells::rebuild(const llama_kv_cells & cache, const llama_seq_id sequence) {
    *this = {};
    runs.resize((cache.seq_pos_max(sequence) + block)/block); // -1 if there is none
    cell_of.resize(runs.size()*block, -1);
    const bool is_alone = cache.seq_pos_get(sequence).size() == cache.get_used();
    for (int32_t cell = (int32_t) cache.used_max_p1() - 1; cell >= 0; --cell) { // of two with one position the lower one stays
        if (!cache.is_empty(cell) && (is_alone || cache.seq_has(cell, sequence))) {
            cell_of[cache.pos_get(cell)] = cell;
        }
    }
    for (int64_t b = 0; b < (int64_t) runs.size(); ++b) {
        count_block(b);
    }
    known = true;
}

// The same as counting its positions one after the other.
void msa_cells::count_block(const int64_t b) {
    const int32_t * cells = cell_of.data() + b*block;
    bool full = cells[0] >= 0;
    for (int32_t i = 1; i < block; ++i) {
        full &= cells[i] == cells[0] + i;
    }
    if (full) {
        runs[b] = {cells[0], block, false};
        n_present += block;
        n_moved   += is_moved(b);
        return;
    }
    for (int32_t i = 0; i < block; ++i) {
        if (cells[i] >= 0) {
            count(b*block + i, cells[i]);
        }
    }
}

void msa_cells::update(const llama_kv_cells & cache, const llama_seq_id sequence, const llama_pos * positions, const int64_t * cells, const int64_t n) {
    for (int64_t i = 0; known && i < n; ++i) {
        add(positions[i], (int32_t) cells[i]);
    }
    // A cell that came or went without notice would not add up.
    if (!known || n_present != (int64_t) cache.get_used()) {
        rebuild(cache, sequence);
    }
}

bool msa_cells::in_runs(const int64_t n_cell) const {
    if (n_broken > 0 || n_partial > 1 || runs.empty()) {
        return n_broken == 0 && n_partial == 0;
    }
    const run & last = runs.back();
    const bool partial = last.present > 0 && last.present < block;
    return n_partial == partial && (!partial || last.first + block <= n_cell);
}

bool msa_cells::in_order() const {
    return n_broken == 0 && n_moved == 0 && !runs.empty() && n_present == (int64_t) (runs.size() - 1)*block + runs.back().present;
}

void msa_cells::write(int32_t * out, const int64_t n_entry, const int64_t step) const {
    for (int64_t i = 0; i < n_entry; ++i) {
        const int64_t position = i*step;
        out[i] = position < (int64_t) cell_of.size() ? cell_of[position] : -1;
    }
}

void msa_positions::forget() {
    for (auto & [sequence, cells] : sequences) {
        cells.forget();
    }
}

void msa_positions::remove(const llama_seq_id sequence, const llama_pos p0, const llama_pos p1) {
    for (auto & [id, cells] : sequences) {
        if (sequence >= 0 && sequence != id) {
            continue;
        }
        if (p1 < 0) {
            cells.cut(p0);
        } else {
            cells.forget();
        }
    }
}

void msa_positions::update(const llama_kv_cache & cache, const llama_kv_cache_context & context, const llama_ubatch & ubatch) {
    // The context tells the cells of an ubatch only as it fills an input tensor with them.
    constexpr size_t alignment = 64; // of a buffer
    const size_t bytes = (ubatch.n_tokens*sizeof(int64_t) + alignment - 1)/alignment*alignment;
    const std::unique_ptr<int64_t, decltype(&std::free)> storage(static_cast<int64_t *>(std::aligned_alloc(alignment, bytes)), std::free);
    int64_t * cells = storage.get();
    const ggml_backend_buffer_ptr buffer(ggml_backend_cpu_buffer_from_ptr(cells, bytes));
    ggml_tensor input = {};
    input.type   = GGML_TYPE_I64;
    input.ne[0]  = ubatch.n_tokens;
    input.buffer = buffer.get();
    input.data   = cells;
    context.set_input_k_idxs(&input, &ubatch);

    for (uint32_t first = 0, last = 0; first < ubatch.n_tokens; first = last) {
        const llama_seq_id sequence = ubatch.seq_id[first][0];
        for (; last < ubatch.n_tokens && ubatch.seq_id[last][0] == sequence; ++last) {
            cells[last] %= cache.get_size(); // streams lie one after the other
        }
        sequences[sequence].update(cache.get_cells(sequence), sequence, ubatch.pos + first, cells + first, last - first);
    }
}

} // namespace ggufcluster
