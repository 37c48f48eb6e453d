#include "ggufcluster-chat.h"

#include "chat.h"
#include "log.h"
#include "server-chat.h"
#include "server-common.h"
#include "server-task.h"

#include <cctype>
#include <cstdlib>
#include <cstring>

struct ggufcluster_chat {
    server_chat_params params;
};

struct ggufcluster_answer {
    std::string       grammar;
    std::string       generation_prompt;
    task_result_state state;
};

static char * text_of(const json & value) {
    return strdup(safe_json_to_str(value).c_str());
}

// Nothing that is thrown may reach a caller who is not C++.
template <typename Work> static char * guarded(Work work) {
    try {
        return text_of(work());
    } catch (const std::exception & error) {
        return text_of(json { { "error", error.what() } });
    }
}

// As llama-server sets them without options, with a template that is known to be Jinja.
static server_chat_params chat_params(const llama_model * model, const char * source) {
    const common_params defaults {};
    server_chat_params  params {};
    params.use_jinja         = true;
    params.prefill_assistant = defaults.prefill_assistant;
    params.reasoning_format  = defaults.reasoning_format;
    params.tmpls             = common_chat_templates_init(model, source);
    params.enable_thinking   = common_chat_templates_support_enable_thinking(params.tmpls.get());
    return params;
}

ggufcluster_chat * ggufcluster_chat_open(const llama_model * model, const char * source, char ** error) {
    common_log_set_verbosity_thold(-1);
    ggufcluster_chat * chat = nullptr;
    *error = nullptr;
    try {
        chat = new ggufcluster_chat { chat_params(model, source) };
    } catch (const std::exception & failure) {
        *error = text_of(json { { "error", failure.what() } });
    }
    return chat;
}

void ggufcluster_chat_close(ggufcluster_chat * chat) {
    delete chat;
}

static common_chat_parser_params parser_params(const ggufcluster_chat & chat, const json & asked) {
    common_chat_parser_params params;
    params.format            = static_cast<common_chat_format>(asked.at("chat_format").get<int>());
    params.reasoning_format  = asked.contains("reasoning_format")
        ? common_reasoning_format_from_name(asked.at("reasoning_format").get<std::string>())
        : chat.params.reasoning_format;
    params.reasoning_in_content = json_value(asked, "stream", false) &&
        params.reasoning_format == COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY;
    params.generation_prompt = asked.at("generation_prompt").get<std::string>();
    params.parse_tool_calls  = json_value(asked, "parse_tool_calls", params.parse_tool_calls);
    params.is_continuation   = asked.contains("continue_final_message") &&
        common_chat_continuation_parse(asked.at("continue_final_message")) != COMMON_CHAT_CONTINUATION_NONE;
    params.echo = json_value(asked, "echo", params.echo);
    if (asked.contains("chat_parser")) {
        params.parser.load(asked.at("chat_parser").get<std::string>());
    }
    return params;
}

// A grammar of the client's own has no type and is the client's business.
static std::string binding_grammar(const json & asked) {
    const bool ours = asked.contains("grammar_type") && !asked.at("grammar_lazy").get<bool>();
    return ours ? asked.at("grammar").get<std::string>() : "";
}

char * ggufcluster_chat_ask(ggufcluster_chat * chat, const char * request, ggufcluster_answer ** answer) {
    *answer = nullptr;
    return guarded([&]() {
        json                    body = json::parse(std::string(request));
        std::vector<raw_buffer> files;
        const json              asked = oaicompat_chat_params_parse(body, chat->params, files);
        *answer = new ggufcluster_answer {
            binding_grammar(asked),
            asked.at("generation_prompt").get<std::string>(),
            task_result_state(parser_params(*chat, asked)),
        };
        return asked;
    });
}

// As common_sampler_init does it.
static void accept_prompt(llama_sampler * grammar, const llama_vocab * vocab, const std::string & prompt) {
    bool first = true;
    for (const llama_token token : common_tokenize(vocab, prompt, false, true)) {
        const std::string piece = common_token_to_piece(vocab, token, true);
        const bool added = first && !piece.empty() && std::isspace((unsigned char) piece[0]) && !std::isspace((unsigned char) prompt[0]);
        first = false;
        if (!added) {
            llama_sampler_accept(grammar, token);
        }
    }
}

llama_sampler * ggufcluster_answer_grammar(const ggufcluster_answer * answer, const llama_vocab * vocab, char ** error) {
    *error = nullptr;
    if (answer->grammar.empty()) {
        return nullptr;
    }
    llama_sampler * grammar = nullptr;
    try {
        grammar = llama_sampler_init_grammar(vocab, answer->grammar.c_str(), "root");
        if (grammar == nullptr) {
            throw std::runtime_error("the grammar cannot be read");
        }
        accept_prompt(grammar, vocab, answer->generation_prompt);
        return grammar;
    } catch (const std::exception & failure) {
        llama_sampler_free(grammar);
        *error = text_of(json { { "error", failure.what() } });
        return nullptr;
    }
}

char * ggufcluster_answer_read(ggufcluster_answer * answer, const char * text, size_t size, int state) {
    return guarded([&]() {
        std::vector<common_chat_msg_diff> diffs;
        answer->state.chat_parser_params.cut = state == GGUFCLUSTER_ANSWER_CUT;
        const bool goes_on = state == GGUFCLUSTER_ANSWER_GOES_ON;
        const common_chat_msg message = answer->state.update_chat_msg(std::string(text, size), goes_on, diffs);
        json deltas = json::array();
        for (const auto & diff : diffs) {
            deltas.push_back(server_chat_msg_diff_to_json_oaicompat(diff));
        }
        json result = json { { "deltas", deltas } };
        if (!goes_on) {
            result["message"] = message.to_json_oaicompat();
        }
        return result;
    });
}

void ggufcluster_answer_close(ggufcluster_answer * answer) {
    delete answer;
}

void ggufcluster_chat_free(char * text) {
    free(text);
}
