// Runs a small MiniMax-M3 on the native and on the generic path of sparse attention, through the same history of the
// cache, and compares the next-token distributions. Exit code 1 if they diverge by more than the limit.
//
//   ggufcluster-msa-agreement MODEL.gguf TYPE LIMIT [N_GPU_LAYERS [ENDPOINT ...]]
//
// TYPE of K and V: f32, f16 or q8_0. ENDPOINT: HOST:PORT of RPC servers to spread the layers over.
//
// On the CPU the generic path adds up f16 values in f16, which alone diverges by some 1e-5. With f32 the sparse layers of
// the two paths agree to rounding; the leading dense layers of the generic path round K and V to f16, which
// GGUFCLUSTER_MSA_LEADING=generic leaves out of the comparison.

#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

using distributions = std::vector<std::vector<double>>; // log-probabilities

struct session {
    llama_context * context;
    int             n_vocab;
    distributions   seen;
    std::mt19937    rng { 7 };

    // Decodes n tokens of a sequence from `position` on, in one call, and notes the distribution after the last one.
    void feed(const llama_seq_id sequence, const int position, const int n) {
        llama_batch batch = llama_batch_init(n, 0, 1);
        for (int i = 0; i < n; ++i) {
            add(batch, sequence, position + i, i == n - 1);
        }
        decode(batch);
    }

    // One token each for two sequences at once.
    void step_both(const int position_a, const int position_b) {
        llama_batch batch = llama_batch_init(2, 0, 1);
        add(batch, 0, position_a, true);
        add(batch, 1, position_b, true);
        decode(batch);
    }

    void add(llama_batch & batch, const llama_seq_id sequence, const int position, const bool wanted) {
        const int i = batch.n_tokens++;
        batch.token[i]     = (llama_token) (rng()%n_vocab);
        batch.pos[i]       = position;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = sequence;
        batch.logits[i]    = wanted;
    }

    void decode(llama_batch & batch) {
        if (llama_decode(context, batch) != 0) {
            fprintf(stderr, "llama_decode failed\n");
            exit(2);
        }
        for (int i = 0; i < batch.n_tokens; ++i) {
            if (batch.logits[i]) {
                seen.push_back(log_probabilities(llama_get_logits_ith(context, i)));
            }
        }
        llama_batch_free(batch);
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
    s.step_both(2400, 300);
    s.step_both(2401, 301);
    llama_memory_seq_rm(memory, 1, -1, -1);
    llama_memory_seq_cp(memory, 0, 1, -1, -1);
    s.step_both(2402, 2402);
    s.feed(1, 2403, 33);
}

distributions run(llama_model * model, const story & told, const ggml_type type, const char * path) {
    setenv("GGUFCLUSTER_MSA", path, 1);
    llama_context_params params = llama_context_default_params();
    params.n_ctx           = 4096*told.n_sequence;
    params.n_batch         = 4096;
    params.n_ubatch        = 512;
    params.n_seq_max       = told.n_sequence;
    params.kv_unified      = false;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k          = type;
    params.type_v          = type;
    params.n_threads       = 1; // more would wait for each other at every small operator
    params.n_threads_batch = 1;
    llama_context * context = llama_init_from_model(model, params);
    if (context == nullptr) {
        exit(2);
    }
    session s = { context, llama_vocab_n_tokens(llama_model_get_vocab(model)), {} };
    told.tell(s);
    llama_free(context);
    return s.seen;
}

bool agree(llama_model * model, const story & told, const ggml_type type, const double limit) {
    const distributions expected = run(model, told, type, "generic");
    const distributions got      = run(model, told, type, "native");
    double worst = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
        const double d = divergence(expected[i], got[i]);
        worst = std::isnan(d) ? INFINITY : std::max(worst, d);
    }
    const bool good = worst < limit;
    printf("%s %s %s: %zu distributions, largest divergence %.2e\n", good ? "ok  " : "FAIL", told.name, ggml_type_name(type), expected.size(), worst);
    fflush(stdout);
    return good;
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

int main(const int argc, char ** argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s MODEL.gguf f32|f16|q8_0 LIMIT [N_GPU_LAYERS [ENDPOINT ...]]\n", argv[0]);
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
    llama_model * model = llama_model_load_from_file(argv[1], params);
    if (model == nullptr) {
        return 2;
    }
    bool good = true;
    std::vector<story> stories = { {"grow", 1, grow}, {"remove and refill", 1, remove_and_refill}, {"save and restore", 1, save_and_restore},
        {"two streams", 2, two_streams} };
    if (!ggml_is_quantized(type)) { // the pin cannot shift a quantised cache on the CPU
        stories.push_back({"shift", 1, shift});
    }
    for (const story & told : stories) {
        good = agree(model, told, type, atof(argv[3])) && good;
    }
    llama_model_free(model);
    return good ? 0 : 1;
}
