#include "ggufcluster-anthropic.h"

#include "server-task.h"

ggufcluster_anthropic_part ggufcluster_anthropic_stream::next(const std::vector<common_chat_msg_diff> & diffs) {
    add(diffs);
    return taken();
}

ggufcluster_anthropic_part ggufcluster_anthropic_stream::last(const std::vector<common_chat_msg_diff> & diffs) {
    add(diffs);
    end_block();
    return taken();
}

ggufcluster_anthropic_part ggufcluster_anthropic_stream::taken() {
    ggufcluster_anthropic_part part;
    part.first  = !begun;
    part.events = events;
    begun = true;
    return part;
}

void ggufcluster_anthropic_stream::add(const std::vector<common_chat_msg_diff> & diffs) {
    events = json::array();
    for (const auto & diff : diffs) {
        if (!diff.reasoning_content_delta.empty()) {
            begin_block("thinking", { { "type", "thinking" }, { "thinking", "" } });
            add_delta(count - 1, "thinking_delta", "thinking", diff.reasoning_content_delta);
        }
        if (!diff.content_delta.empty()) {
            begin_block("text", { { "type", "text" }, { "text", "" } });
            add_delta(count - 1, "text_delta", "text", diff.content_delta);
        }
        if (diff.tool_call_index != std::string::npos) {
            add_call(diff);
        }
    }
}

void ggufcluster_anthropic_stream::add_call(const common_chat_msg_diff & diff) {
    const auto & call = diff.tool_call_delta;
    if (calls.count(diff.tool_call_index) == 0) {
        begin_block("call " + std::to_string(diff.tool_call_index),
            { { "type", "tool_use" }, { "id", call.id }, { "name", call.name }, { "input", json::object() } });
        calls[diff.tool_call_index] = count - 1;
    }
    if (!call.arguments.empty()) {
        add_delta(calls[diff.tool_call_index], "input_json_delta", "partial_json", call.arguments);
    }
}

void ggufcluster_anthropic_stream::begin_block(const std::string & kind, json content) {
    if (open == kind) {
        return;
    }
    end_block();
    open = kind;
    add_event("content_block_start", { { "index", count++ }, { "content_block", content } });
}

void ggufcluster_anthropic_stream::end_block() {
    if (open == "thinking") {
        add_delta(count - 1, "signature_delta", "signature", ""); // clients wait for one
    }
    if (!open.empty()) {
        add_event("content_block_stop", { { "index", count - 1 } });
    }
    open.clear();
}

void ggufcluster_anthropic_stream::add_delta(int block, const std::string & kind, const std::string & field, const std::string & text) {
    add_event("content_block_delta", { { "index", block }, { "delta", { { "type", kind }, { field, text } } } });
}

void ggufcluster_anthropic_stream::add_event(const std::string & name, json data) {
    data["type"] = name;
    events.push_back({ { "event", name }, { "data", data } });
}

template <typename T> static json with_beginning(const T & result) {
    json events = json::array();
    if (result.anthropic.first) {
        const json usage = {
            { "cache_read_input_tokens", result.n_prompt_tokens_cache                          },
            { "input_tokens",            result.n_prompt_tokens - result.n_prompt_tokens_cache },
            { "output_tokens",           0                                                     },
        };
        const json message = {
            { "id", result.oaicompat_cmpl_id }, { "type", "message" }, { "role", "assistant" }, { "content", json::array() },
            { "model", result.oaicompat_model }, { "stop_reason", nullptr }, { "stop_sequence", nullptr }, { "usage", usage },
        };
        events.push_back({ { "event", "message_start" }, { "data", { { "type", "message_start" }, { "message", message } } } });
    }
    events.insert(result.anthropic.events);
    return events;
}

json ggufcluster_anthropic_events(const server_task_result_cmpl_partial & result) {
    return with_beginning(result);
}

json ggufcluster_anthropic_events(const server_task_result_cmpl_final & result) {
    const bool        ended  = result.stop == STOP_TYPE_WORD || result.stop == STOP_TYPE_EOS;
    const std::string reason = !ended ? "max_tokens" : result.oaicompat_msg.tool_calls.empty() ? "end_turn" : "tool_use";
    const json word = result.stopping_word.empty() ? json() : json(result.stopping_word);
    json events = with_beginning(result);
    events.push_back({ { "event", "message_delta" }, { "data", {
        { "type", "message_delta" },
        { "delta", { { "stop_reason", reason }, { "stop_sequence", word } } },
        { "usage", { { "output_tokens", result.n_decoded } } },
    } } });
    events.push_back({ { "event", "message_stop" }, { "data", { { "type", "message_stop" } } } });
    return events;
}

json ggufcluster_finished_arguments(const std::string & arguments) {
    std::vector<size_t> ends = { arguments.size() }; // where a member ends, perhaps
    int  depth  = 0;
    bool quoted = false;
    for (size_t i = 0; i < arguments.size(); i++) {
        const char c = arguments[i];
        if (c == '\\' && quoted) {
            i++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (c == '{' || c == '[')) {
            depth++;
        } else if (!quoted && (c == '}' || c == ']')) {
            depth--;
        } else if (!quoted && c == ',' && depth == 1) {
            ends.push_back(i);
        }
    }
    for (const size_t end : { ends.front(), ends.back() }) {
        const json finished = json::parse_no_throw(arguments.substr(0, end) + "}");
        if (finished.is_object()) {
            return finished;
        }
    }
    return json::object();
}
