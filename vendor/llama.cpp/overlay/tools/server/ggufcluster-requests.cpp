#include "ggufcluster-requests.h"

#include <stdexcept>

// Whoever copies or writes JSON does it level by level, and the stack must hold that.
static constexpr int MOST_NESTED = 1000;

static json object_in(const json & from, const std::string & key) {
    return from.contains(key) && from.at(key).is_object() ? from.at(key) : json::object();
}

static std::string text_in(const json & from, const std::string & key) {
    return from.contains(key) && from.at(key).is_string() ? from.at(key).get<std::string>() : "";
}

static bool text_nested_deeper(const std::string & text, int levels) {
    bool quoted = false;
    for (size_t i = 0; i < text.size() && levels >= 0; i++) {
        const char c = text[i];
        if (c == '\\' && quoted) {
            i++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted) {
            levels -= c == '[' || c == '{';
            levels += c == ']' || c == '}';
        }
    }
    return levels < 0;
}

// A call of an earlier turn has its arguments as text, which is parsed for the template.
static bool nested_deeper(const json & value, int levels) {
    bool deeper = levels < 0;
    for (size_t i = 0; !deeper && value.is_array() && i < value.size(); i++) {
        deeper = nested_deeper(value.at(i), levels - 1);
    }
    if (!deeper && value.is_object()) {
        for (const auto & [name, member] : value.items()) {
            const bool text = name == "arguments" && member.is_string();
            deeper = deeper || nested_deeper(member, levels - 1) || (text && text_nested_deeper(member.get<std::string>(), levels));
        }
    }
    return deeper;
}

void ggufcluster_refuse_nested(const json & request) {
    if (nested_deeper(request, MOST_NESTED)) {
        throw std::invalid_argument("the request is nested more than " + std::to_string(MOST_NESTED) + " levels deep");
    }
}

void ggufcluster_map_anthropic_request(const json & request, json & body) {
    const std::string thinking = text_in(object_in(request, "thinking"), "type");
    if (thinking == "disabled" || thinking == "enabled") {
        // A template that leaves the choice to the model opens the thinking for an effort only.
        body["reasoning_effort"] = thinking == "disabled" ? "none" : "high";
    }
    const json        choice = object_in(request, "tool_choice");
    const std::string type   = text_in(choice, "type");
    if (type == "none") {
        body["tool_choice"] = "none";
    } else if (type == "tool") {
        body["tool_choice"] = json{ { "type", "function" }, { "name", text_in(choice, "name") } };
    }
    if (choice.contains("disable_parallel_tool_use") && choice.at("disable_parallel_tool_use") == true) {
        body["parallel_tool_calls"] = false;
    }
}

// The name stands beside the type in some dialects, in an object called after the type in others.
static std::string name_of(const json & tool) {
    const std::string beside = text_in(tool, "name");
    return beside.empty() ? text_in(object_in(tool, "function"), "name") : beside;
}

static std::vector<std::string> chosen_names(const json & choice) {
    if (text_in(choice, "type") != "allowed_tools") {
        return { name_of(choice) };
    }
    const json allowed = choice.contains("tools") ? choice : object_in(choice, "allowed_tools");
    std::vector<std::string> names;
    for (size_t i = 0; allowed.contains("tools") && allowed.at("tools").is_array() && i < allowed.at("tools").size(); i++) {
        names.push_back(name_of(allowed.at("tools").at(i)));
    }
    return names;
}

static json tool_named(const json & body, const std::string & name) {
    const json tools = body.contains("tools") && body.at("tools").is_array() ? body.at("tools") : json::array();
    for (size_t i = 0; i < tools.size(); i++) {
        if (name_of(tools.at(i)) == name) {
            return tools.at(i);
        }
    }
    throw std::invalid_argument("tool_choice names the tool '" + name + "', which this request does not offer");
}

void ggufcluster_leave_image_out(json & part) {
    SRV_WRN("%s\n", "an image was left out: no vision is loaded");
    part = json{ { "type", "text" }, { "text", "[An image was left out: no vision is loaded.]" } };
}

void ggufcluster_map_chat_request(json & body) {
    ggufcluster_refuse_nested(body);
    const json choice = object_in(body, "tool_choice");
    if (!choice.empty()) {
        json tools = json::array();
        for (const std::string & name : chosen_names(choice)) {
            tools.push_back(tool_named(body, name));
        }
        const json allowed = choice.contains("mode") ? choice : object_in(choice, "allowed_tools");
        body["tools"]       = tools;
        body["tool_choice"] = text_in(allowed, "mode") == "auto" ? "auto" : "required";
    }
    if (body.contains("enable_thinking") && body.at("enable_thinking").is_boolean()) {
        json arguments = object_in(body, "chat_template_kwargs");
        if (!arguments.contains("enable_thinking")) {
            arguments["enable_thinking"] = body.at("enable_thinking");
            body["chat_template_kwargs"] = arguments;
        }
    }
}
