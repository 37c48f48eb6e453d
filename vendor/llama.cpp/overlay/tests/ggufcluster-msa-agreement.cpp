// Runs a small MiniMax-M3 on the native and on the generic path of sparse attention, through the same history of the
// cache, and compares the next-token distributions. Exit code 1 if they diverge by more than the limit.
//
//   ggufcluster-msa-agreement [--deep] [--reference] MODEL.gguf TYPE LIMIT [N_GPU_LAYERS [ENDPOINT ...]]
//
// --deep: depths up to 8,192 instead of the short histories, and a line for every distribution. The generic path fills the
// cache once for both, as that takes longest; each path then decodes the last tokens up to every depth itself.
// --reference: the native path on this machine's CPU goes through the history as well, and both paths are held against it;
// the limit is for the native one. On a GPU the two paths round differently, and this tells which of them is off.
// TYPE of K and V: f32, f16 or q8_0. ENDPOINT: HOST:PORT of RPC servers to spread the layers over.
//
// On the CPU the generic path adds up f16 values in f16 where a batch has few tokens, which alone diverges by 1e-5 to
// 1e-4. With f32 the sparse layers of the two paths agree to rounding; the leading dense layers of the generic path round
// K and V to f16, which GGUFCLUSTER_MSA_LEADING=generic leaves out of the comparison.

#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

// What a model says after the last token of a batch.
struct answer {
    int                 depth;   // positions of the sequence, these tokens included
    int                 n_token; // of this sequence in the batch
    int                 n_sequence;
    std::vector<double> log_probability;
};
using answers = std::vector<answer>;

struct piece { // of a sequence
    llama_seq_id sequence;
    int          position;
    int          n_token;
};

struct session {
    llama_context * context;
    int             n_vocab;
    answers         seen;
    std::mt19937    rng { 7 };

    void feed(const llama_seq_id sequence, const int position, const int n) {
        feed({{sequence, position, n}});
    }

    // Decodes a piece of each sequence in one call and notes the distributions after their last tokens.
    void feed(const std::vector<piece> & pieces) {
        int n = 0;
        for (const piece & p : pieces) {
            n += p.n_token;
        }
        llama_batch batch = llama_batch_init(n, 0, 1);
        for (const piece & p : pieces) {
            for (int i = 0; i < p.n_token; ++i) {
                add(batch, p.sequence, p.position + i, i == p.n_token - 1);
            }
        }
        if (llama_decode(context, batch) != 0) {
            fprintf(stderr, "llama_decode failed\n");
            exit(2);
        }
        int last = -1;
        for (const piece & p : pieces) {
            last += p.n_token;
            seen.push_back({p.position + p.n_token, p.n_token, (int) pieces.size(), log_probabilities(llama_get_logits_ith(context, last))});
        }
        llama_batch_free(batch);
    }

    void add(llama_batch & batch, const llama_seq_id sequence, const int position, const bool wanted) {
        const int i = batch.n_tokens++;
        batch.token[i]     = (llama_token) (rng()%n_vocab);
        batch.pos[i]       = position;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = sequence;
        batch.logits[i]    = wanted;
    }

    std::vector<double> log_probabilities(const float * logits) const {
        const double top = *std::max_element(logits, logits + n_vocab);
        double sum = 0.0;
        for (int i = 0; i < n_vocab; ++i) {
            sum += std::exp(logits[i] - top);
        }
        std::vector<double> out(n_vocab);
        for (int i = 0; i < n_vocab; ++i) {
            out[i] = logits[i] - top - std::log(sum);
        }
        return out;
    }
};

double divergence(const std::vector<double> & expected, const std::vector<double> & got) {
    double sum = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
        sum += std::exp(expected[i])*(expected[i] - got[i]);
    }
    return sum;
}

struct story {
    const char * name;
    int          n_sequence;
    std::function<void(session &)> tell;
    int          n_position = 4096;  // of a sequence
    int          n_ubatch   = 512;
    bool         is_filled  = false; // it starts with a whole sequence, and every distribution gets a line
};

void grow(session & s) { // prefill in odd pieces, decode, past 16 blocks
    int at = 0;
    for (const int n : {1, 2, 7, 64, 513, 700, 900, 130, 1, 1, 1, 8, 1}) {
        s.feed(0, at, n);
        at += n;
    }
}

void remove_and_refill(session & s) { // a tail is taken back, as with rejected drafts, then a hole is cut
    llama_memory_t memory = llama_get_memory(s.context);
    s.feed(0, 0, 2600);
    llama_memory_seq_rm(memory, 0, 2590, -1);
    s.feed(0, 2590, 4);
    s.feed(0, 2594, 1);
    llama_memory_seq_rm(memory, 0, 300, 450);
    s.feed(0, 2595, 1);
    s.feed(0, 2596, 200);
}

void shift(session & s) { // a context shift: the beginning goes, the rest moves down
    llama_memory_t memory = llama_get_memory(s.context);
    s.feed(0, 0, 2700);
    llama_memory_seq_rm(memory, 0, 10, 200);
    llama_memory_seq_add(memory, 0, 200, -1, -190);
    s.feed(0, 2510, 1);
    s.feed(0, 2511, 70);
}

void save_and_restore(session & s) {
    llama_memory_t memory = llama_get_memory(s.context);
    s.feed(0, 0, 2300);
    std::vector<uint8_t> state(llama_state_seq_get_size(s.context, 0));
    llama_state_seq_get_data(s.context, state.data(), state.size(), 0);
    llama_memory_clear(memory, true);
    s.feed(0, 0, 50);
    llama_memory_seq_rm(memory, 0, -1, -1);
    llama_state_seq_set_data(s.context, state.data(), state.size(), 0);
    s.feed(0, 2300, 1);
    s.feed(0, 2301, 40);
}

void two_streams(session & s) { // of different lengths, stepping together; one is copied over the other
    llama_memory_t memory = llama_get_memory(s.context);
    s.feed(0, 0, 2400);
    s.feed(1, 0, 300);
    s.feed({{0, 2400, 1}, {1, 300, 1}});
    s.feed({{0, 2401, 1}, {1, 301, 1}});
    llama_memory_seq_rm(memory, 1, -1, -1);
    llama_memory_seq_cp(memory, 0, 1, -1, -1);
    s.feed({{0, 2402, 1}, {1, 2402, 1}});
    s.feed(1, 2403, 33);
}

// Takes back and decodes again, in batches of several shapes, what leads to a depth: about the limits of a block and of
// 16 blocks, further down, off any limit and at the end. Before that a copy cut at half steps along.
void deep(session & s) {
    llama_memory_t memory = llama_get_memory(s.context);
    llama_memory_seq_cp(memory, 0, 1, -1, -1);
    llama_memory_seq_rm(memory, 1, 4001, -1);
    int at = 4001;
    for (const int n : {1, 7, 64}) {
        llama_memory_seq_rm(memory, 0, 8192 - n, -1);
        s.feed({{0, 8192 - n, n}, {1, at, n}});
        at += n;
    }
    const std::vector<std::pair<int, std::vector<int>>> batches_at_depths = {
        {8192, {513, 64, 7, 2, 1}}, {8191, {1}}, {8001, {64, 7, 2, 1}}, {4097, {64, 7, 2, 1}}, {4096, {1}}, {4095, {1}},
        {2049, {513, 64, 7, 2, 1}}, {2048, {1}}, {2047, {1}}, {129, {64, 7, 2, 1}}, {128, {1}}, {127, {1}},
    };
    for (const auto & [depth, batches] : batches_at_depths) {
        for (const int n : batches) {
            llama_memory_seq_rm(memory, 0, depth - n, -1);
            s.feed(0, depth - n, n);
        }
    }
}

session begin(llama_model * model, const story & told, const ggml_type type, const char * path, const int n_thread = 1) {
    setenv("GGUFCLUSTER_MSA", path, 1);
    llama_context_params params = llama_context_default_params();
    params.n_ctx           = told.n_position*told.n_sequence;
    params.n_batch         = told.n_position;
    params.n_ubatch        = told.n_ubatch;
    params.n_seq_max       = told.n_sequence;
    params.kv_unified      = false;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k          = type;
    params.type_v          = type;
    params.n_threads       = n_thread; // more would wait for each other at every small operator
    params.n_threads_batch = n_thread;
    llama_context * context = llama_init_from_model(model, params);
    if (context == nullptr) {
        exit(2);
    }
    return { context, llama_vocab_n_tokens(llama_model_get_vocab(model)), {} };
}

using state = std::vector<uint8_t>;

// What both paths start from: a whole sequence, if the story wants one.
state filled(llama_model * model, const story & told, const ggml_type type) {
    if (!told.is_filled) {
        return {};
    }
    session s = begin(model, told, type, "generic");
    s.feed(0, 0, told.n_position);
    state full(llama_state_seq_get_size(s.context, 0));
    llama_state_seq_get_data(s.context, full.data(), full.size(), 0);
    llama_free(s.context);
    return full;
}

answers run(llama_model * model, const story & told, const ggml_type type, const char * path, const state & full, const int n_thread = 1) {
    session s = begin(model, told, type, path, n_thread);
    if (!full.empty() && llama_state_seq_set_data(s.context, full.data(), full.size(), 0) != full.size()) {
        fprintf(stderr, "llama_state_seq_set_data failed\n");
        exit(2);
    }
    told.tell(s);
    llama_free(s.context);
    return s.seen;
}

// Of each distribution; infinite where a number is none.
std::vector<double> divergences(const answers & expected, const answers & got) {
    std::vector<double> out;
    for (size_t i = 0; i < expected.size(); ++i) {
        const double d = divergence(expected[i].log_probability, got[i].log_probability);
        out.push_back(std::isnan(d) ? INFINITY : d);
    }
    return out;
}

double largest(const std::vector<double> & values) {
    return *std::max_element(values.begin(), values.end());
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size()/2];
}

struct models {
    llama_model * model;
    llama_model * reference; // on the CPU, nullptr: none
};

bool agree(const models & m, const story & told, const ggml_type type, const double limit) {
    const state   full    = filled(m.model, told, type);
    const answers generic = run(m.model, told, type, "generic", full);
    const answers native  = run(m.model, told, type, "native", full);
    const std::vector<double> apart = divergences(generic, native);
    std::vector<double> native_off, generic_off;
    if (m.reference) {
        const answers reference = run(m.reference, told, type, "native", full, (int) std::max(1u, std::thread::hardware_concurrency()));
        native_off  = divergences(reference, native);
        generic_off = divergences(reference, generic);
    }
    for (size_t i = 0; told.is_filled && i < generic.size(); ++i) {
        const answer & a = generic[i];
        printf("     depth %4d, batch of %d x %3d: %.2e", a.depth, a.n_sequence, a.n_token, apart[i]);
        if (m.reference) {
            printf("; off the reference: native %.2e, generic %.2e", native_off[i], generic_off[i]);
        }
        printf("\n");
    }
    const double worst = largest(m.reference ? native_off : apart);
    const bool   good  = worst < limit;
    printf("%s %s %s: %zu distributions, largest divergence %.2e", good ? "ok  " : "FAIL", told.name, ggml_type_name(type), generic.size(), largest(apart));
    if (m.reference) {
        printf("; off the reference (largest, median): native %.2e %.2e, generic %.2e %.2e", worst, median(native_off),
            largest(generic_off), median(generic_off));
    }
    printf("\n");
    fflush(stdout);
    return good;
}

// What is told of a model.
std::vector<story> stories_of(const bool is_deep, const ggml_type type) {
    if (is_deep) {
        return { {"deep", 2, deep, 8192, 1024, true} };
    }
    std::vector<story> stories = { {"grow", 1, grow}, {"remove and refill", 1, remove_and_refill}, {"save and restore", 1, save_and_restore},
        {"two streams", 2, two_streams} };
    if (!ggml_is_quantized(type)) { // the pin cannot shift a quantised cache on the CPU
        stories.push_back({"shift", 1, shift});
    }
    return stories;
}

// The layers go to these devices, in order; ended by nullptr.
std::vector<ggml_backend_dev_t> remote_devices(const int n, char ** endpoints) {
    std::vector<ggml_backend_dev_t> devices;
    ggml_backend_reg_t rpc = n > 0 ? ggml_backend_reg_by_name("RPC") : nullptr;
    const auto add = rpc ? (ggml_backend_reg_t (*)(const char *)) ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server") : nullptr;
    for (int i = 0; add && i < n; ++i) {
        ggml_backend_reg_t server = add(endpoints[i]);
        for (size_t k = 0; server && k < ggml_backend_reg_dev_count(server); ++k) {
            devices.push_back(ggml_backend_reg_dev_get(server, k));
        }
    }
    devices.push_back(nullptr);
    return devices;
}

} // namespace

int main(int argc, char ** argv) {
    bool is_deep = false, has_reference = false;
    for (; argc > 1 && strncmp(argv[1], "--", 2) == 0; --argc, ++argv) {
        const std::string option = argv[1];
        is_deep       = is_deep || option == "--deep";
        has_reference = has_reference || option == "--reference";
        if (option != "--deep" && option != "--reference") {
            fprintf(stderr, "what is %s?\n", argv[1]);
            return 2;
        }
    }
    if (argc < 4) {
        fprintf(stderr, "usage: ggufcluster-msa-agreement [--deep] [--reference] MODEL.gguf f32|f16|q8_0 LIMIT [N_GPU_LAYERS [ENDPOINT ...]]\n");
        return 2;
    }
    const std::string name = argv[2];
    const ggml_type type = name == "f32" ? GGML_TYPE_F32 : name == "f16" ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
    llama_log_set([](const ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) { fputs(text, stderr); }
    }, nullptr);
    llama_backend_init();
    ggml_backend_load_all();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = argc > 4 ? atoi(argv[4]) : 0;
    std::vector<ggml_backend_dev_t> devices = remote_devices(std::max(argc - 5, 0), argv + 5);
    if (devices.size() > 1) {
        params.devices = devices.data();
    }
    models m = { llama_model_load_from_file(argv[1], params), nullptr };
    if (has_reference) {
        ggml_backend_dev_t none[] = { nullptr };
        llama_model_params on_cpu = llama_model_default_params();
        on_cpu.n_gpu_layers = 0;
        on_cpu.devices      = none;
        m.reference = llama_model_load_from_file(argv[1], on_cpu);
    }
    if (m.model == nullptr || has_reference != (m.reference != nullptr)) {
        return 2;
    }
    bool good = true;
    for (const story & told : stories_of(is_deep, type)) {
        good = agree(m, told, type, atof(argv[3])) && good;
    }
    llama_model_free(m.model);
    llama_model_free(m.reference);
    return good ? 0 : 1;
}
