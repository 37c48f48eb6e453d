// Tries how requests of other dialects are mapped, and streams in Anthropic's. Prints one line a check that passed, the others
// on stderr; exits with 1 if there was one.

#include "ggufcluster-anthropic.h"
#include "ggufcluster-requests.h"

#include <cstdio>
#include <stdexcept>

static int failures = 0;

static void check(bool right, const std::string & what, const std::string & got = "") {
    failures += !right;
    fprintf(right ? stdout : stderr, "%s %s%s%s\n", right ? "ok" : "WRONG", what.c_str(), right ? "" : ": ", right ? "" : got.c_str());
}

static void is(const json & got, const std::string & expected, const std::string & what) {
    check(got == json::parse(expected), what, got.dump());
}

// Start and end of blocks and their deltas, as text.
static std::string shown(const json & events) {
    std::string out;
    for (size_t i = 0; i < events.size(); i++) {
        const json & data = events.at(i).at("data");
        const std::string type = data.at("type");
        out += "|" + std::to_string(data.at("index").get<int>());
        if (type == "content_block_start") {
            out += " " + data.at("content_block").at("type").get<std::string>();
        } else if (type == "content_block_stop") {
            out += " end";
        } else {
            const json & delta = data.at("delta");
            for (const char * field : { "thinking", "text", "partial_json", "signature" }) {
                out += delta.contains(field) ? std::string(" ") + field + "=" + delta.at(field).get<std::string>() : "";
            }
        }
    }
    return out;
}

static common_chat_msg_diff thought(const std::string & text) {
    common_chat_msg_diff diff;
    diff.reasoning_content_delta = text;
    return diff;
}

static common_chat_msg_diff words(const std::string & text) {
    common_chat_msg_diff diff;
    diff.content_delta = text;
    return diff;
}

static common_chat_msg_diff call(size_t index, const std::string & arguments) {
    common_chat_msg_diff diff;
    diff.tool_call_index = index;
    diff.tool_call_delta = { "f", arguments, "id" };
    return diff;
}

static void test_streams() {
    ggufcluster_anthropic_stream stream;
    const auto first = stream.next({});
    check(first.first && first.events.empty(), "an answer begins without a block");
    const auto second = stream.next({ thought("a"), words("b") });
    check(!second.first, "an answer begins once");
    check(shown(second.events) == "|0 thinking|0 thinking=a|0 signature=|0 end|1 text|1 text=b", "text ends the thinking", shown(second.events));
    const auto third = stream.next({ words("c"), call(0, "{}"), call(1, "{") });
    check(shown(third.events) == "|1 text=c|1 end|2 tool_use|2 partial_json={}|2 end|3 tool_use|3 partial_json={",
        "each call is a block", shown(third.events));
    const auto fourth = stream.next({ words("d") });
    check(shown(fourth.events) == "|3 end|4 text|4 text=d", "text after a call is another block", shown(fourth.events));
    const auto last = stream.last({ words("e") });
    check(shown(last.events) == "|4 text=e|4 end", "the last block ends", shown(last.events));

    ggufcluster_anthropic_stream only;
    const auto all = only.last({ thought("a") });
    check(all.first && shown(all.events) == "|0 thinking|0 thinking=a|0 signature=|0 end", "an answer in one part", shown(all.events));
    check(ggufcluster_anthropic_stream().last({}).events.empty(), "an empty answer has no block");
}

static void test_arguments() {
    is(ggufcluster_finished_arguments(R"({"a": 1, "b": "one, {two)"), R"({"a": 1})", "text is cut off");
    is(ggufcluster_finished_arguments(R"({"a": {"x": [1, 2]}, "b": 2)"), R"({"a": {"x": [1, 2]}, "b": 2})", "all are finished");
    is(ggufcluster_finished_arguments(R"({"a": "\", }", "b": {"c": 1, "d)"), R"({"a": "\", }"})", "an object is cut off");
    is(ggufcluster_finished_arguments(R"({"a": "x)"), "{}", "none is finished");
    is(ggufcluster_finished_arguments("{"), "{}", "none has begun");
    is(ggufcluster_finished_arguments(""), "{}", "nothing at all");
}

static json anthropic(const std::string & request) {
    json body = json::object();
    ggufcluster_map_anthropic_request(json::parse(request), body);
    return body;
}

static void test_anthropic_requests() {
    is(anthropic(R"({"thinking": {"type": "disabled"}})"), R"({"reasoning_effort": "none"})", "no thinking");
    is(anthropic(R"({"thinking": {"type": "enabled", "budget_tokens": 9}})"), R"({"reasoning_effort": "high"})", "thinking");
    is(anthropic(R"({"thinking": {"type": "adaptive"}})"), "{}", "thinking as the model likes");
    is(anthropic(R"({"thinking": 7, "tool_choice": "any"})"), "{}", "values of another type");
    is(anthropic(R"({"tool_choice": {"type": "none"}})"), R"({"tool_choice": "none"})", "no tool");
    is(anthropic(R"({"tool_choice": {"type": "tool", "name": "f"}})"), R"({"tool_choice": {"type": "function", "name": "f"}})", "one tool");
    is(anthropic(R"({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})"), R"({"parallel_tool_calls": false})", "one call");
}

static const std::string TOOLS = R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}])";

static std::string chosen(const std::string & choice) {
    json body = json::parse("{" + TOOLS + ", \"tool_choice\": " + choice + "}");
    ggufcluster_map_chat_request(body);
    std::string names = body.at("tool_choice").get<std::string>();
    for (size_t i = 0; i < body.at("tools").size(); i++) {
        names += " " + body.at("tools").at(i).at("function").at("name").get<std::string>();
    }
    return names;
}

static bool refused(const std::string & choice) {
    try {
        chosen(choice);
    } catch (const std::invalid_argument &) {
        return true;
    }
    return false;
}

static void test_chat_requests() {
    check(chosen("\"auto\"") == "auto f g", "a choice in one word is left alone");
    check(chosen(R"({"type": "function", "function": {"name": "g"}})") == "required g", "one tool");
    check(chosen(R"({"type": "function", "name": "g"})") == "required g", "one tool in the form of responses");
    check(chosen(R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}})")
        == "auto f", "some tools");
    check(chosen(R"({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]})") == "required g",
        "some tools in the form of responses");
    check(refused(R"({"type": "function", "function": {"name": "h"}})"), "a tool that is not offered");
    check(refused(R"({"type": "function"})"), "a tool without a name");

    std::string nested = "{}";
    for (int i = 0; i < 1000; i++) {
        nested = "[" + nested + "]";
    }
    check(refused(R"({"type": "function", "name": "f"}, "x": )" + nested), "a request that is nested too deep");
    const std::string earlier = json::make(nested).dump();
    check(refused(R"({"type": "function", "name": "f"}, "messages": [{"arguments": )" + earlier + "}]"), "arguments that are nested too deep");
    check(chosen(R"({"type": "function", "name": "f"}, "messages": [{"content": )" + earlier + "}]") == "required f", "a text with brackets");
    check(chosen(R"({"type": "function", "name": "f"}, "x": )" + nested.substr(2, nested.size() - 4)) == "required f", "a request that is nested deep");

    json body = json::parse(R"({"enable_thinking": false, "chat_template_kwargs": {"a": 1}})");
    ggufcluster_map_chat_request(body);
    is(body.at("chat_template_kwargs"), R"({"a": 1, "enable_thinking": false})", "a switch beside the messages");
    body = json::parse(R"({"enable_thinking": false, "chat_template_kwargs": {"enable_thinking": true}})");
    ggufcluster_map_chat_request(body);
    is(body.at("chat_template_kwargs"), R"({"enable_thinking": true})", "the template's own arguments go first");
}

static void test_images() {
    json part = json::parse(R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})");
    ggufcluster_leave_image_out(part);
    is(part, R"({"type": "text", "text": "[An image was left out: no vision is loaded.]"})", "an image without vision");
}

int main() {
    test_images();
    test_streams();
    test_arguments();
    test_anthropic_requests();
    test_chat_requests();
    return failures == 0 ? 0 : 1;
}
