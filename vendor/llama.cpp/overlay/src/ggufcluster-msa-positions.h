// In which cells of an MSA cache the positions of its sequences lie.
#pragma once

#include "llama.h"

#include <cstdint>
#include <map>
#include <vector>

class llama_kv_cache;
class llama_kv_cache_context;
class llama_kv_cells;
struct llama_ubatch;

namespace ggufcluster {

// Of one sequence, alone in its stream. Takes time in proportion to the tokens that come and go; only what may have moved
// cells or positions in another way makes it look at all cells again.
class msa_cells {
public:
    static constexpr int64_t block = 128; // positions

    void forget() { known = false; }

    // The positions from p0 on are gone.
    void cut(llama_pos p0);

    // The cache has put position positions[i] into cells[i]; all else it holds was told before.
    void update(const llama_kv_cells & cache, llama_seq_id sequence, const llama_pos * positions, const int64_t * cells, int64_t n);

    // Whether the cell of a block's first position tells the others: cells of a block follow each other, every block but
    // the last one is full or empty, and the last one has room in n_cell cells.
    bool in_runs(int64_t n_cell) const;

    // Whether every position lies in the cell of its number, and none is missing.
    bool in_order() const;

    // Entry i is the cell of position i*step, -1 if it has none. A step of `block` needs in_runs.
    void write(int32_t * out, int64_t n_entry, int64_t step) const;

private:
    struct run {
        int32_t first   = -1; // cell that the block's first position has if the cells follow each other
        int32_t present = 0;
        bool    broken  = false;
    };

    bool is_moved(int64_t b) const { return runs[b].first != b*block; }
    void add(llama_pos position, int32_t cell);
    void count(llama_pos position, int32_t cell); // a position that is in cell_of now, but not yet in its run
    void count_block(int64_t b);
    void rebuild(const llama_kv_cells & cache, llama_seq_id sequence);

    std::vector<int32_t> cell_of; // by position
    std::vector<run>     runs;    // by block
    int64_t n_present = 0;
    int64_t n_partial = 0;        // blocks neither full nor empty
    int64_t n_broken  = 0;
    int64_t n_moved   = 0;        // blocks that do not begin in the cell of their first position
    bool    known     = false;
};

// Of all sequences.
class msa_positions {
public:
    void forget();

    // Positions p0 ... p1 - 1 of a sequence were removed; a negative sequence means all, a negative p1 no end.
    void remove(llama_seq_id sequence, llama_pos p0, llama_pos p1);

    // The ubatch has been put into cells.
    void update(const llama_kv_cache & cache, const llama_kv_cache_context & context, const llama_ubatch & ubatch);

    const msa_cells & of(llama_seq_id sequence) const { return sequences.at(sequence); }

private:
    std::map<llama_seq_id, msa_cells> sequences;
};

} // namespace ggufcluster
