#include "ggufcluster-minimax-m3.h"

#include "chat-peg-parser.h"
#include "ggufcluster-call-reader.h"
#include "parsers/parsers.h"

#include <stdexcept>
#include <variant>

using ggufcluster::begun_marker;
using ggufcluster::reading;
using ggufcluster::call_form;
using ggufcluster::WHITE_SPACE;

static const std::string THINK_START = "<mm:think>";
static const std::string THINK_END   = "</mm:think>";
static const std::string FENCE       = "```";
static const std::string JSON_FENCE  = "```json";

// Blocks that are none may overlap, each to the end of the text. What they cost must not grow faster than the text, so no more are
// tried once they took this many times what stands before, and some text.
static constexpr size_t MOST_SEARCHES   = 16;
static constexpr size_t SEARCHED_ANYWAY = 4 << 20;

// The name of the one rule by which the reader's settings travel to where answers are read.
static const std::string SETTINGS_RULE = "ggufcluster-minimax-m3";

//
// While the model writes
//

static bool may_call(const autoparser::generation_params & inputs) {
    return inputs.tools.is_array() && !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
}

static bool must_call(const autoparser::generation_params & inputs) {
    return may_call(inputs) && inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
}

// Our hybrid style of the template has markers without the namespace.
static const call_form & form_of(const common_chat_template & tmpl) {
    const bool plain = tmpl.source().find(ggufcluster::PLAIN_FORM.block_start) != std::string::npos;
    return plain ? ggufcluster::PLAIN_FORM : ggufcluster::NATIVE_FORM;
}

static json settings_of(
        const autoparser::generation_params & inputs, const call_form & form, const std::string & generation_prompt) {
    json tools = json::object();
    if (may_call(inputs)) {
        foreach_function(inputs.tools, [&](const json & tool) {
            const auto & function = tool.at("function");
            tools[function.at("name").get<std::string>()] = common_chat_tool_parameters(function);
        });
    }
    return {
        // Thinking that the template has opened or closed is read like the model's own.
        { "prompt",    generation_prompt.substr(0, generation_prompt.find(THINK_START))   },
        { "reasoning", inputs.reasoning_format != COMMON_REASONING_FORMAT_NONE            },
        { "calls",     may_call(inputs)                                                   },
        { "parallel",  inputs.parallel_tool_calls                                         },
        { "json",      inputs.json_schema.is_object() && !must_call(inputs)               },
        { "tools",     tools                                                              },
        { "plain",     &form == &ggufcluster::PLAIN_FORM                                  },
    };
}

// Up to the name of a tool that was offered, and nothing of what follows.
static common_peg_parser begun_call(common_chat_peg_builder & p, const call_form & form, const json & tools) {
    auto name = p.choice();
    foreach_function(tools, [&](const json & tool) {
        name |= p.literal(tool.at("function").at("name").get<std::string>() + "\">");
    });
    const std::string block(form.block_start);
    return p.ac(p.until(block) + p.literal(block), block) + p.space() + p.literal(std::string(form.call_start)) + name + p.rest();
}

static common_peg_parser json_answer(
        common_chat_peg_builder & p, const call_form & form, const autoparser::generation_params & inputs) {
    auto answer = p.rule("response-format", p.schema(p.json(), "response-format-schema", inputs.json_schema));
    auto either = p.choice({
        p.literal(JSON_FENCE) + p.space() + answer + p.space() + p.literal(FENCE),
        answer,
    });
    if (may_call(inputs)) {
        either |= p.literal(std::string(form.block_start)) + p.rest();
    }
    return p.space() + either + p.space();
}

static std::string grammar_of(
        const autoparser::generation_params & inputs, const call_form & form, const std::string & generation_prompt) {
    if (!must_call(inputs) && !inputs.json_schema.is_object()) {
        return "";
    }
    const auto parser = build_chat_peg_parser([&](common_chat_peg_builder & p) {
        auto thought = p.optional(p.choice({
            p.literal(THINK_START) + p.ac(p.until(THINK_END) + p.literal(THINK_END), THINK_END),
            p.literal(THINK_END),
        }));
        return p.prefix(generation_prompt, THINK_START) + thought +
            (must_call(inputs) ? begun_call(p, form, inputs.tools) : json_answer(p, form, inputs));
    });
    return build_grammar([&](const common_grammar_builder & builder) { parser.build_grammar(builder); });
}

// Whatever the prompt of a new turn has begun or left out of thinking is for the continued message to say.
static std::string without_thinking(std::string prompt) {
    prompt = prompt.substr(0, prompt.find(THINK_START));
    if (string_ends_with(prompt, THINK_END)) {
        prompt.resize(prompt.size() - THINK_END.size());
    }
    return prompt;
}

common_chat_params ggufcluster_minimax_m3_params(const common_chat_template & tmpl, const autoparser::generation_params & inputs) {
    // Tags and the like are upstream's. It gets neither tools nor a schema, of which it would make parser and grammar.
    autoparser::generation_params plain = inputs;
    plain.tools       = json();
    plain.json_schema = json();
    common_chat_params data = common_chat_params_init_minimax_m3(tmpl, plain);
    data.prompt = common_chat_template_direct_apply_impl(tmpl, inputs);
    if (inputs.has_continuation()) {
        const std::string begun = common_chat_template_generation_prompt_impl(tmpl, plain);
        data.generation_prompt  = without_thinking(begun) + data.generation_prompt.substr(begun.size()); // what was said
        data.prompt += data.generation_prompt;
    }
    const call_form & form     = form_of(tmpl);
    const json        settings = settings_of(inputs, form, data.generation_prompt);
    data.parser  = build_chat_peg_parser([&](common_chat_peg_builder & p) {
        return p.rule(SETTINGS_RULE, p.literal(settings.dump()));
    }).save();
    try {
        data.grammar = grammar_of(inputs, form, data.generation_prompt);
    } catch (const std::runtime_error & e) { // a schema that cannot be read, which is the client's
        throw std::invalid_argument(e.what());
    }
    return data;
}

//
// What it wrote
//

namespace {

class message_reader {
public:
    message_reader(std::string_view text, const json & settings, bool is_partial, bool cut)
        : size(text.size()), rest(text), settings(settings), form(is_set("plain") ? ggufcluster::PLAIN_FORM : ggufcluster::NATIVE_FORM),
          is_partial(is_partial), cut(cut) {
        msg.role = "assistant";
    }

    common_chat_msg read();

private:
    const size_t      size;
    std::string_view  rest;
    size_t            searched = 0; // in blocks that are none
    const json &      settings;
    const call_form & form;
    const bool        is_partial;
    const bool        cut;
    common_chat_msg   msg;
    bool              at_edge = true; // no word of content yet, or none since the last call
    std::string       edge;           // white space there, which is nothing unless a word follows

    bool is_set(const char * name) const { return settings.at(name).get<bool>(); }

    bool read_thinking();
    bool begins_with_block() const;
    bool may_search() const { return searched <= SEARCHED_ANYWAY + MOST_SEARCHES * (size - rest.size()); }
    void read_json();
    void read_content();
    bool read_block();
    void end_in_block(const ggufcluster::call_reader & reader);
    void add_calls(const std::vector<ggufcluster::call_reader::call> & calls);
    void add_content(std::string_view text);
    std::string_view without_begun(std::string_view text, std::string_view marker) const;
};

} // namespace

// What may become a marker is kept back while the model writes.
std::string_view message_reader::without_begun(std::string_view text, std::string_view marker) const {
    return is_partial ? text.substr(0, text.size() - begun_marker(text, marker)) : text;
}

common_chat_msg message_reader::read() {
    if (read_thinking()) {
        if (is_set("json") && !(is_set("calls") && begins_with_block())) {
            read_json();
        } else if (is_set("calls")) {
            read_content();
        } else {
            add_content(rest);
        }
    }
    if (!is_partial && msg.tool_calls.empty()) {
        msg.content += edge;
    }
    return msg;
}

// Whether the thinking is over.
bool message_reader::read_thinking() {
    const std::string_view text = rest.substr(std::min(rest.find_first_not_of(WHITE_SPACE), rest.size()));
    if (is_partial && (begun_marker(text, THINK_START) == text.size() || begun_marker(text, THINK_END) == text.size())) {
        return false;
    }
    if (string_starts_with(text, THINK_END)) {
        rest = text.substr(THINK_END.size());
    }
    if (!string_starts_with(text, THINK_START)) {
        return true;
    }
    const size_t end    = text.find(THINK_END);
    const bool   closed = end != text.npos;
    if (is_set("reasoning")) {
        const std::string_view thought = text.substr(0, end).substr(THINK_START.size());
        const size_t           start   = std::min(thought.find_first_not_of(WHITE_SPACE), thought.size());
        msg.reasoning_content = closed ? thought.substr(start) : without_begun(thought.substr(start), THINK_END);
    } else {
        add_content(closed ? text.substr(0, end + THINK_END.size()) : without_begun(text, THINK_END));
    }
    rest = closed ? text.substr(end + THINK_END.size()) : "";
    return closed;
}

// Or may yet.
bool message_reader::begins_with_block() const {
    const std::string_view text = rest.substr(std::min(rest.find_first_not_of(WHITE_SPACE), rest.size()));
    return string_starts_with(text, form.block_start) || (is_partial && begun_marker(text, form.block_start) == text.size());
}

// A fence round the answer is taken off.
void message_reader::read_json() {
    std::string_view text = rest.substr(std::min(rest.find_first_not_of(WHITE_SPACE), rest.size()));
    if ((is_partial || cut) && begun_marker(text, JSON_FENCE) == text.size()) {
        return;
    }
    if (string_starts_with(text, FENCE)) {
        text.remove_prefix(string_starts_with(text, JSON_FENCE) ? JSON_FENCE.size() : FENCE.size());
        text = text.substr(std::min(text.find_first_not_of(WHITE_SPACE), text.size()));
        text = text.substr(0, text.find_last_not_of(" \t\r\n`") + 1);
    }
    add_content(text);
}

void message_reader::read_content() {
    for (size_t start; (start = rest.find(form.block_start)) != rest.npos;) {
        add_content(rest.substr(0, start));
        rest.remove_prefix(start);
        if (!may_search()) {
            add_content(rest);
            return;
        }
        if (!read_block()) {
            return;
        }
    }
    add_content(without_begun(rest, form.block_start));
}

// Whether anything is left to read.
bool message_reader::read_block() {
    ggufcluster::call_reader reader(rest, settings.at("tools"), form);
    const reading            state = reader.read_block(0);
    add_calls(reader.calls);
    if (state == reading::UNFINISHED) {
        if (!is_partial) {
            end_in_block(reader);
        }
        return false;
    }
    searched += state == reading::MALFORMED ? reader.searched : 0;
    if (reader.position == 0) { // no call of it could be read
        add_content(form.block_start);
        reader.position = form.block_start.size();
    }
    rest.remove_prefix(reader.position);
    return true;
}

void message_reader::end_in_block(const ggufcluster::call_reader & reader) {
    if (cut && !reader.open.name.empty()) {
        add_calls({ reader.open });
        return;
    }
    const std::string_view left  = rest.substr(reader.position);
    const std::string_view words = left.substr(std::min(left.find_first_not_of(WHITE_SPACE), left.size()));
    if (!cut || begun_marker(words, form.block_end) != words.size()) {
        add_content(left);
    }
}

void message_reader::add_calls(const std::vector<ggufcluster::call_reader::call> & calls) {
    for (const auto & call : calls) {
        if (msg.tool_calls.empty() || is_set("parallel")) {
            msg.tool_calls.push_back({ call.name, call.arguments, "" });
        }
        at_edge = true;
        edge.clear();
    }
}

void message_reader::add_content(std::string_view text) {
    if (at_edge) {
        const size_t start = std::min(text.find_first_not_of(WHITE_SPACE), text.size());
        edge += text.substr(0, start);
        text.remove_prefix(start);
        if (text.empty()) {
            return;
        }
        msg.content += edge;
        edge.clear();
        at_edge = false;
    }
    msg.content += text;
}

// A stream is read again for each of its tokens, and the schemas of an agent's tools are long.
static const json & parsed_settings(const std::string & text) {
    static thread_local std::string last;
    static thread_local json        settings;
    if (text != last) {
        settings = json::parse(text);
        last     = text;
    }
    return settings;
}

std::optional<common_chat_msg> ggufcluster_minimax_m3_read(
        const common_peg_arena & parser, const std::string & input, bool is_partial, const common_chat_parser_params & params) {
    if (!parser.has_rule(SETTINGS_RULE)) {
        return std::nullopt;
    }
    const auto & rule     = std::get<common_peg_rule_parser>(parser.get(parser.get_rule(SETTINGS_RULE)));
    const json & settings = parsed_settings(std::get<common_peg_literal_parser>(parser.get(rule.child)).literal);
    const std::string written = params.generation_prompt + input;
    const std::string prompt  = settings.at("prompt");

    std::string_view text = written;
    if (string_starts_with(text, prompt)) {
        text.remove_prefix(prompt.size());
    }
    return message_reader(text, settings, is_partial, params.cut).read();
}
