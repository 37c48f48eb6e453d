// Reads what MiniMax-M3 might write, and tries what its grammars let it write. Prints one line a check that passed, the
// others on stderr; exits with 1 if there was one.

#include "../src/llama-grammar.h"
#include "../src/unicode.h"
#include "ggufcluster-argument-type.h"
#include "ggufcluster-minimax-m3.h"

#include <cstdio>
#include <random>

using json = common_json;

static int failures = 0;

static void check(bool right, const std::string & what, const std::string & got = "") {
    failures += !right;
    fprintf(right ? stdout : stderr, "%s %s%s%s\n", right ? "ok" : "WRONG", what.c_str(), right ? "" : ": ", right ? "" : got.c_str());
}

// `§` stands for the token that begins every tag of a call.
static std::string marked(std::string text) {
    for (size_t at; (at = text.find("§")) != std::string::npos;) {
        text.replace(at, std::string("§").size(), "]<]minimax[>[");
    }
    return text;
}

static const char * TEMPLATE =
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[ai]' }}"
    "{% if thinking == 'on' %}{{ '<mm:think>' }}{% elif thinking == 'off' %}{{ '</mm:think>' }}{% endif %}{% endif %}";

// What makes a template one of the hybrid style.
static const std::string PLAIN_TEMPLATE = std::string(TEMPLATE) + "{# <minimax:tool_call> #}";

// The schema of each tool's parameters by its name.
static const char * TOOLS = R"({
    "f": {"properties": {
        "text": {"type": "string"}, "whole": {"type": "integer"}, "number": {"type": "number"}, "yes": {"type": "boolean"},
        "none": {"type": "null"}, "maybe": {"type": ["string", "null"]}, "count": {"type": ["integer", "null"]},
        "one": {"enum": ["a", 7, null]}, "fixed": {"const": 3}, "nullable": {"type": "integer", "nullable": true},
        "list": {"type": "array", "items": {"type": "integer"}}, "words": {"type": "array", "items": {"type": "string"}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        "free": {"type": "object"}, "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "any": {}, "yes_schema": true, "odd": {"type": "widget"}, "tree": {"$ref": "#/$defs/tree"},
        "loop": {"$ref": "#/$defs/loop"}, "outside": {"$ref": "other.json#/x"},
        "both": {"allOf": [{"$ref": "#/$defs/tree"}, {"properties": {"extra": {"type": "string"}}}]},
        "shape": {"anyOf": [{"type": "object", "properties": {"item": {"type": "string"}}},
                            {"type": "array", "items": {"type": "integer"}}]},
        "text_or_shape": {"anyOf": [{"type": "object"}, {"type": "string"}]},
        "text_or_list": {"type": ["string", "array"], "items": {"type": "integer"}},
        "level": {"anyOf": [{"type": "integer"}, {"const": "auto"}, {"enum": ["off", true]}]},
        "scope": {"oneOf": [{"enum": ["one", "all"]}, {"type": "null"}]},
        "files": {"type": "object", "additionalProperties": {"type": "string"}},
        "pattern": {"type": "object", "patternProperties": {"^x": {"type": "string"}}, "additionalProperties": false},
        "rows": {"$ref": "#/$defs/rows"},
        "gaps": {"type": "array", "items": {"type": ["integer", "null"]}}, "/top": {"type": "integer"},
        "box": {"$ref": "#/$defs/Box%3Cint%3E"}, "crate": {"$ref": "#/$defs/a%20b~1c"},
        "held": {"type": "object", "properties": {"item": {"type": "integer"}}}},
      "$defs": {"rows": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/rows"}}]},
                "Box<int>": {"type": "string"}, "a%20b/c": {"type": "string"}, "tree": {"type": "object", "properties": {"name": {"type": "string"},
                         "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
                "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"allOf": [{"$ref": "#/$defs/loop"}]}]}}},
    "g": {}, "fg": {"type": "object"}
})";

struct asked {
    common_chat_tool_choice choice   = COMMON_CHAT_TOOL_CHOICE_AUTO;
    const char *            thinking = "";
    const char *            schema   = "";
    bool                    tools    = true;
    bool                    parallel = true;
    bool                    extract  = true;
    const char *            thought  = ""; // of a message to be continued
    const char *            said     = "";
    bool                    plain    = false; // the hybrid style
};

static common_chat_params params_of(const asked & a) {
    const common_chat_template tmpl(a.plain ? PLAIN_TEMPLATE : TEMPLATE, "", "");
    autoparser::generation_params inputs;
    inputs.messages              = json::array({ json{ { "role", "user" }, { "content", "?" } } });
    inputs.add_generation_prompt = true;
    inputs.tool_choice           = a.choice;
    inputs.parallel_tool_calls   = a.parallel;
    inputs.reasoning_format      = a.extract ? COMMON_REASONING_FORMAT_DEEPSEEK : COMMON_REASONING_FORMAT_NONE;
    inputs.extra_context         = json{ { "thinking", a.thinking } };
    inputs.json_schema           = *a.schema ? json::parse(a.schema) : json();
    inputs.tools                 = json::array();
    if (*a.thought || *a.said) {
        inputs.add_generation_prompt          = false;
        inputs.continue_final_message         = *a.said ? COMMON_CHAT_CONTINUATION_CONTENT : COMMON_CHAT_CONTINUATION_REASONING;
        inputs.continue_msg.role              = "assistant";
        inputs.continue_msg.reasoning_content = a.thought;
        inputs.continue_msg.content           = a.said;
    }
    const json tools = json::parse(TOOLS);
    for (const auto & [name, parameters] : tools.items()) {
        if (a.tools) {
            inputs.tools.push_back(json{ { "type", "function" }, { "function", json{ { "name", name }, { "parameters", parameters } } } });
        }
    }
    return ggufcluster_minimax_m3_params(tmpl, inputs);
}

static common_chat_parser_params reader_of(const asked & a) {
    const auto data = params_of(a);
    common_chat_parser_params reader(data);
    reader.parser.load(data.parser);
    return reader;
}

static std::string shown(const common_chat_msg & msg) {
    std::string out = "[" + msg.reasoning_content + "][" + msg.content + "]";
    for (const auto & call : msg.tool_calls) {
        out += " " + call.name + call.arguments;
    }
    return out;
}

static bool begins(const std::string & text, const std::string & beginning) {
    return text.compare(0, beginning.size(), beginning) == 0;
}

// Whether a client that has got `before` can be told the rest of `after`.
static bool continues(const common_chat_msg & before, const common_chat_msg & after) {
    bool same = before.tool_calls.size() <= after.tool_calls.size();
    for (size_t i = 0; same && i < before.tool_calls.size(); i++) {
        same = before.tool_calls[i] == after.tool_calls[i];
    }
    return same && begins(after.content, before.content) && begins(after.reasoning_content, before.reasoning_content);
}

// At which byte a stream of the text would have to take something back; -1 if nowhere.
static int taken_back(const std::string & text, common_chat_parser_params reader) {
    common_chat_msg before;
    for (size_t size = 0; size <= text.size(); size++) {
        const auto now = common_chat_parse(text.substr(0, size), true, reader);
        if (!continues(before, now)) {
            return (int) size;
        }
        for (bool cut : { false, true }) {
            reader.cut = cut;
            if (!continues(now, common_chat_parse(text.substr(0, size), false, reader))) {
                return (int) size;
            }
        }
        before = now;
    }
    return -1;
}

static void reads(const std::string & written, const std::string & expected, const asked & a = {}, bool cut = false) {
    const std::string text = marked(written);
    auto reader = reader_of(a);
    reader.cut  = cut;
    const std::string got = shown(common_chat_parse(text, false, reader));
    check(got == marked(expected), written, got);
    const int at = taken_back(text, reader);
    check(at == -1, written + " streamed", "taken back at byte " + std::to_string(at));
}

static std::string call(const std::string & arguments) {
    return "§<tool_call>\n§<invoke name=\"f\">" + arguments + "§</invoke>\n§</tool_call>";
}

static void types(const std::string & name, const std::string & written, const std::string & expected) {
    reads(call("§<" + name + ">" + written + "§</" + name + ">"), "[][] f{\"" + name + "\": " + expected + "}");
}

static void test_scalars() {
    types("text", " 7 \n", R"(" 7 \n")");
    types("text", "null", R"("null")");
    types("text", "a \"b\" \\ </text> <x> §</x> é", R"("a \"b\" \\ </text> <x> §</x> é")");
    types("whole", " 7\n", "7");
    types("whole", "3.0", "3.0");
    types("whole", "2.5", R"("2.5")");
    types("whole", "1e400", R"("1e400")");
    types("whole", "true", R"("true")");
    types("whole", "", R"("")");
    types("whole", std::string("1\0x", 3), R"("1\u0000x")");
    types("number", "-2.50e-3", "-2.50e-3");
    types("number", "NaN", R"("NaN")");
    types("number", "1 2", R"("1 2")");
    types("yes", " True ", "true");
    types("yes", "yes", R"("yes")");
    types("none", "None", "null");
    types("maybe", "null", "null");
    types("maybe", "nullx", R"("nullx")");
    types("maybe", "None", R"("None")");
    types("count", "null", "null");
    types("nullable", "null", "null");
    types("one", "a", R"("a")");
    types("one", "7", "7");
    types("one", "8", R"("8")");
    types("one", "null", "null");
    types("one", std::string(65, '['), "\"" + std::string(65, '[') + "\"");
    types("fixed", " 3 ", "3");
    types("any", "12", "12");
    types("any", "1.10", R"("1.10")");
    types("any", "007", R"("007")");
    types("any", "1e3", R"("1e3")");
    types("any", "123456789012345678901234567890", R"("123456789012345678901234567890")");
    types("any", "null", R"("null")");
    types("any", "{\"a\": 1}", R"("{\"a\": 1}")");
    types("undeclared", "false", "false");
    types("yes_schema", "words", R"("words")");
    types("odd", "5", "5");
    types("outside", "5", "5");
    types("loop", "5", "5");
}

static void test_structures() {
    types("list", "", "[]");
    types("list", "\n§<item> 1 §</item>\n§<item>2§</item>\n", "[1, 2]");
    types("list", " [1, 2] ", "[1, 2]");
    types("list", "1, 2", R"("1, 2")");
    types("list", "{\"a\": 1}", R"("{\"a\": 1}")");
    types("list", "§<x>1§</x>", R"({"x": 1})");
    types("words", "§<item>1§</item>§<item>§</item>", R"(["1", ""])");
    types("pair", "§<item>1§</item>§<item>1§</item>", R"(["1", 1])");
    types("free", "", "{}");
    types("free", "§<a>1§</a>§<b>§<item>x§</item>§</b>", R"({"a": 1, "b": ["x"]})");
    types("free", "§<a>1§</a>§<b>2§</b>§<a>3§</a>", R"({"a": 3, "b": 2})");
    types("free", "§<item>1§</item>", R"({"item": 1})");
    types("free", "§<item>1§</item>§<item>2§</item>", "[1, 2]");
    types("map", "§<a>1§</a>", R"({"a": "1"})");
    types("held", "§<item>1§</item>", R"({"item": 1})");
    types("shape", "§<item>1§</item>", R"({"item": "1"})");
    types("shape", "[1]", "[1]");
    types("tree", "§<name>1§</name>§<children>§<item>§<name>2§</name>§</item>§</children>",
        R"({"name": "1", "children": [{"name": "2"}]})");
    types("both", "§<name>1§</name>§<extra>2§</extra>", R"({"name": "1", "extra": "2"})");
    types("text_or_shape", "§<a>1§</a>", R"({"a": 1})");
    types("text_or_shape", "§<a>1", R"("§<a>1")");
    types("text_or_shape", "see §<a>1§</a>", R"("see §<a>1§</a>")");
    types("text_or_shape", "{\"a\": 1}", R"("{\"a\": 1}")");
    types("text_or_shape", "", R"("")");
    types("text_or_list", "\n§<item>1§</item>\n§<item>2§</item>\n", "[1, 2]");
    types("text_or_list", "§<item>1§</item> and more", R"("§<item>1§</item> and more")");
    types("text_or_list", "12", R"("12")");
    types("text", "§<item>1§</item>", R"("§<item>1§</item>")");
    types("level", "5", "5");
    types("level", "auto", R"("auto")");
    types("level", "true", "true");
    types("level", "\"auto\"", R"("\"auto\"")");
    types("level", "low", R"("low")");
    types("scope", "all", R"("all")");
    types("scope", "null", "null");
    types("files", "§</a/b.c>1§<//a/b.c>§<item>2§</item>", R"({"/a/b.c": "1", "item": "2"})");
    types("files", "\n§</a/b.c>§</x>§<//a/b.c>\n", R"({"/a/b.c": "§</x>"})");
    types("pattern", "§<x>1§</x>", R"({"x": "1"})");
    types("gaps", "§<item>1§</item>§<item>§</item>", "[1, null]");
    types("none", "", "null");
    types("/top", "1", "1");
    types("box", "1", R"("1")");
    types("crate", "1", R"("1")");
    types("any", "§<a>§<b>1§</b>§</a>", R"({"a": {"b": 1}})");
    reads(call("§<item>1§</item>"), R"([][] f{"item": 1})");
    reads(call(" §<whole>1§</whole>\r\n§<text>a§</text>\t§<whole>2§</whole>"), R"([][] f{"whole": 2, "text": "a"})");
}

static void test_messages() {
    const std::string g = "§<tool_call>§<invoke name=\"g\">§</invoke>§</tool_call>";
    reads("Hi < there.\n", "[][Hi < there.\n]");
    reads(" \n ", "[][ \n ]");
    reads("<mm:think> a§<tool_call></mm:think>\n\nb", "[a§<tool_call>][\n\nb]");
    reads("\n<mm:think>a", "[a][]");
    reads("</mm:think>b", "[][b]");
    reads("<mm:think>a</mm:think>" + g, "[a][] g{}");
    reads("x\n" + g + "\ny\n" + g + "\n", "[][x\n\ny\n] g{} g{}");
    reads("§<tool_call>§<invoke name=\"unknown\">§<a>1§</a>§</invoke>§</tool_call>", R"([][] unknown{"a": 1})");
    reads("§<tool_call>§<invoke name=\"g\">§</invoke> §<invoke name=\"fg\">§</invoke>§</tool_call>", "[][] g{} fg{}");
    reads("</mm:think>a", "[][a]", { COMMON_CHAT_TOOL_CHOICE_AUTO, "off" });
    reads("<mm:think>a</mm:think>b", "[a][b]", { COMMON_CHAT_TOOL_CHOICE_AUTO, "off" });
    reads("a</mm:think>b", "[a][b]", { COMMON_CHAT_TOOL_CHOICE_AUTO, "on" });
    reads(g, "[][" + g + "]", { COMMON_CHAT_TOOL_CHOICE_NONE });
    reads(g, "[][" + g + "]", { COMMON_CHAT_TOOL_CHOICE_AUTO, "", "", false });
    reads("a" + g + g + "b", "[][ab] g{}", { COMMON_CHAT_TOOL_CHOICE_AUTO, "", "", true, false });
    reads("<mm:think>" + g + "</mm:think>b" + g, "[][<mm:think>" + g + "</mm:think>b] g{}",
        { COMMON_CHAT_TOOL_CHOICE_AUTO, "", "", true, true, false });
}

static void test_unreadable() {
    const std::string g = "§<tool_call>§<invoke name=\"g\">§</invoke>§</tool_call>";
    for (const std::string bad : {
        "§<tool_call>", "§<tool_call>oops", "§<tool_call>§</tool_call>", "§<tool_call>§<city>a§</city>§</tool_call>",
        "§<tool_call>§<invoke name=\"\">§</invoke>§</tool_call>", "§<tool_call>§<invoke name=\"f\">§</invoke",
        "§<tool_call>§<invoke name=\"f\">§<text>a", "§<tool_call>§<invoke name=\"f\">§<text>a§</txt>§</invoke>§</tool_call>",
        "§<tool_call>§<invoke name=\"f\">words§</invoke>§</tool_call>", "§<tool_call>§<invoke name=\"f\">§<>1§</>§</invoke>§</tool_call>",
        "§<tool_call>§<invoke name=\"f\">§<free>§<a>1§</free>§</invoke>§</tool_call>",
        "§<tool_call>§<invoke name=\"f\">§<free>§<a>1§</a>x§</free>§</invoke>§</tool_call>",
        "§<tool_call>§<invoke name=\"f\">§<free>§<a>1§</a>§</fre>§</invoke>§</tool_call>",
        "§<tool_call>§<invoke name=\"f\">§<whole>1§</whole>§</f>§</invoke>§</tool_call>" }) {
        reads("a" + bad, "[][a" + bad + "]");
        reads(g + "\n" + bad, "[][\n" + bad + "] g{}");
    }
    const std::string unclosed = "§<tool_call>§<invoke name=\"f\">§<text>a§</invoke>§</tool_call>";
    reads(unclosed + g, "[][" + unclosed + "] g{}");
    reads("§<tool_call>§<invoke name=\"g\">§</invoke>oops§</tool_call>b", "[][oops§</tool_call>b] g{}");
    types("text", g, "\"" + std::string(R"(§<tool_call>§<invoke name=\"g\">§</invoke>§</tool_call>)") + "\"");
}

static void test_cut() {
    const std::string begun = "§<tool_call>\n§<invoke name=\"f\">";
    reads(begun + "§<text>one §</te", R"([][] f{"text": "one )", {}, true);
    reads(begun + "§<whole>1§</whole>§<text>a \"b", R"([][] f{"whole": 1, "text": "a \"b)", {}, true);
    reads(begun + "§<whole>1§</whole>§<tex", R"([][] f{"whole": 1)", {}, true);
    reads(begun + "§<whole>12", "[][] f{", {}, true);
    reads(begun + "§<maybe>nul", "[][] f{", {}, true);
    reads(begun + "§<free>§<a>1§</a>", "[][] f{", {}, true);
    reads(begun + "§<text_or_list>§<item>1§</item>", "[][] f{", {}, true);
    reads(begun + "§<text_or_list>1", R"([][] f{"text_or_list": "1)", {}, true);
    reads(begun + "§<level>aut", "[][] f{", {}, true);
    reads(begun + "§</invoke>\n§</tool", "[][] f{}", {}, true);
    reads(begun + "§</invoke>§<invoke name=\"g\">", "[][] f{} g{", {}, true);
    reads("a§<tool_call>§<invoke name=\"f", "[][a§<tool_call>§<invoke name=\"f]", {}, true);
    reads("a]<]mini", "[][a]<]mini]", {}, true);
    reads("<mm:think>a", "[a][]", {}, true);
}

static void test_hostile() {
    for (const std::string nest : { "§<a>", "§<item>", "§<tool_call>", "§<tool_call>§<invoke name=\"f\">§<any>" }) {
        std::string text = "§<tool_call>§<invoke name=\"f\">";
        for (int i = 0; i < 3000; i++) {
            text += nest;
        }
        const auto msg = common_chat_parse(marked(text), false, reader_of({}));
        check(msg.tool_calls.empty() && msg.content == marked(text), nest + " nested without end");
    }
    const std::string brackets(100000, '[');
    const auto msg = common_chat_parse(marked(call("§<list>" + brackets + "§</list>")), false, reader_of({}));
    check(msg.tool_calls.size() == 1 && msg.tool_calls[0].arguments == "{\"list\": \"" + brackets + "\"}", "nested JSON stays text");
    std::string broken_lists;
    for (int i = 0; i < 2000; i++) {
        broken_lists += "§<item>§<item>1§</item>x";
    }
    const auto text = common_chat_parse(marked(call("§<rows>" + broken_lists + "§</rows>")), false, reader_of({}));
    check(text.tool_calls.size() == 1, "lists that are none, many times over");
    std::string overlapping;
    for (int i = 0; i < 3000; i++) {
        overlapping += "§<tool_call>§<invoke name=\"f\">§<text>";
    }
    overlapping = marked(overlapping + "§</text>oops§<tool_call>§<invoke name=\"g\">§</invoke>§</tool_call>");
    const auto given_up = common_chat_parse(overlapping, false, reader_of({}));
    check(given_up.content == overlapping && given_up.tool_calls.empty(), "no block is tried after so many that reach so far");
    std::string bad_bytes = call("§<text>\xff\xc3§</text>");
    const auto broken = common_chat_parse(marked(bad_bytes), false, reader_of({}));
    check(!broken.tool_calls.empty() && !json::parse_no_throw(broken.tool_calls[0].arguments).is_discarded(), "bytes that are no UTF-8");
}

// The stack holds what a client sends.
static void test_references_without_end() {
    json steps = json::array();
    for (int i = 1; i <= 100000; i++) {
        steps.push_back(json::parse("{\"anyOf\": [{\"$ref\": \"#/steps/" + std::to_string(i) + "\"}]}"));
    }
    const json schema = { { "properties", { { "a", { { "$ref", "#/steps/0" } } } } }, { "steps", steps } };
    const std::string value = ggufcluster::argument_type(schema, schema).member("a").value("1");
    check(value == "1", "references without end", value);
}

// Any order of fragments: never an exception, never anything taken back, arguments always JSON.
static void test_any_order() {
    const std::vector<std::string> fragments = {
        "§", "<tool_call>", "§<tool_call>", "§</tool_call>", "§<invoke name=\"f\">", "§<invoke name=\"g\">", "§</invoke>", "§<text>",
        "§</text>", "§<free>", "§</free>", "§<list>", "§</list>", "§<item>", "§</item>", "<mm:think>", "</mm:think>", "1", "x", " ", "\n",
        "null", "]<]mini", "```json", "{", "}", call("§<text>a§</text>"), call("§<list>§<item>1§</item>§</list>"), call(""),
    };
    std::minstd_rand random(1);
    for (const asked & a : { asked{}, asked{ COMMON_CHAT_TOOL_CHOICE_AUTO, "on" }, asked{ COMMON_CHAT_TOOL_CHOICE_AUTO, "", "{}" } }) {
        const auto  reader = reader_of(a);
        std::string wrong;
        int         calls = 0;
        for (int round = 0; round < 1500 && wrong.empty(); round++) {
            std::string text;
            for (size_t n = random() % 14; n > 0; n--) {
                text += fragments[random() % fragments.size()];
            }
            const auto msg = common_chat_parse(marked(text), false, reader);
            bool right = taken_back(marked(text), reader) == -1;
            for (const auto & made : msg.tool_calls) {
                right &= json::parse_no_throw(made.arguments).is_object();
                calls++;
            }
            wrong = right ? "" : text;
        }
        check(wrong.empty() && calls > 100, std::string("fragments in any order, ") + (*a.schema ? "JSON" : a.thinking), wrong);
    }
}

static bool allows(const common_chat_params & data, const std::string & written) {
    auto * grammar = llama_grammar_init_impl(nullptr, data.grammar.c_str(), "root", false, nullptr, 0, nullptr, 0);
    bool   alive   = grammar != nullptr;
    for (const auto code : unicode_cpts_from_utf8(data.generation_prompt + marked(written))) {
        if (alive) {
            llama_grammar_accept(grammar, code);
            alive = !llama_grammar_get_stacks(grammar).empty();
        }
    }
    bool may_end = false;
    for (const auto & stack : alive ? llama_grammar_get_stacks(grammar) : llama_grammar_stacks()) {
        may_end |= stack.empty();
    }
    llama_grammar_free_impl(grammar);
    return may_end;
}

static void test_grammars() {
    check(params_of({}).grammar.empty(), "nothing binds the model where it may choose");
    for (const char * thinking : { "", "on", "off" }) {
        const auto must = params_of({ COMMON_CHAT_TOOL_CHOICE_REQUIRED, thinking });
        const std::string end = std::string(thinking) == "on" ? "x</mm:think>" : "";
        check(allows(must, end + "text\n§<tool_call>\n§<invoke name=\"f\">§<b>any order §</c> \n"), std::string("a call must begin ") + thinking);
        check(allows(must, end + "§<tool_call>§<invoke name=\"fg\">"), std::string("longer name ") + thinking);
        check(!allows(must, end + "text"), std::string("no call ") + thinking);
        check(!allows(must, end + "§<tool_call>§<invoke name=\"h\">"), std::string("unknown tool ") + thinking);
        check(!allows(must, end + "§<tool_call>oops"), std::string("no call in the block ") + thinking);
    }
    check(allows(params_of({ COMMON_CHAT_TOOL_CHOICE_REQUIRED }), "<mm:think>§<tool_call>no</mm:think>§<tool_call>§<invoke name=\"g\">"),
        "a call that is only thought of");
    const char * schema = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})";
    for (const bool tools : { false, true }) {
        const auto answer = params_of({ COMMON_CHAT_TOOL_CHOICE_AUTO, "", schema, tools });
        check(allows(answer, "{\"a\": 1}"), "bare JSON");
        check(allows(answer, "<mm:think>x</mm:think>\n{\"a\": 1}\n"), "JSON after thinking");
        check(allows(answer, "</mm:think>```json\n{\"a\": 1}\n```"), "JSON in a fence");
        check(!allows(answer, "{\"b\": 1}"), "other JSON");
        check(!allows(answer, "Well"), "words where JSON is asked for");
        check(allows(answer, "§<tool_call>§<invoke name=\"g\">") == tools, "a call in place of JSON");
    }
}

static void test_json_answers() {
    const asked json_asked{ COMMON_CHAT_TOOL_CHOICE_AUTO, "", "{}" };
    const asked without_tools{ COMMON_CHAT_TOOL_CHOICE_AUTO, "", "{}", false };
    reads("<mm:think>x</mm:think>\n{\"a\": \"`\"}", "[x][{\"a\": \"`\"}]", json_asked);
    reads("```json\n{\"a\": \"```\"}\n```\n", "[][{\"a\": \"```\"}]", json_asked);
    reads("```\n[1]\n```", "[][[1]]", json_asked);
    reads("<mm:think>x</mm:think>\n```js", "[x][]", json_asked, true);
    reads("{\"a\": \"§<tool_call>\"}", "[][{\"a\": \"§<tool_call>\"}]", json_asked);
    reads("\n§<tool_call>§<invoke name=\"g\">§</invoke>§</tool_call>", "[][] g{}", json_asked);
    reads("x§<tool_call>§<invoke name=\"g\">§</invoke>§</tool_call>", "[][x] g{}", { COMMON_CHAT_TOOL_CHOICE_REQUIRED, "", "{}" });
    reads("\"§<tool_call>\"", "[][\"§<tool_call>\"]", without_tools);
}

static void test_continued() {
    for (const char * thinking : { "", "on", "off" }) {
        asked a{ COMMON_CHAT_TOOL_CHOICE_AUTO, thinking };
        a.thought = "I'm";
        reads(" thinking</mm:think>Hi", "[I'm thinking][Hi]", a);
        a.said = "He";
        reads("llo§<tool_call>§<invoke name=\"g\">§</invoke>§</tool_call>", "[I'm][Hello] g{}", a);
        a.choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        check(allows(params_of(a), "llo§<tool_call>§<invoke name=\"g\">"), std::string("a continued message may call ") + thinking);
    }
}

static asked plainly(common_chat_tool_choice choice = COMMON_CHAT_TOOL_CHOICE_AUTO) {
    asked a{ choice };
    a.plain = true;
    return a;
}

static std::string argument(const std::string & name, const std::string & written) {
    return "<parameter name=\"" + name + "\">" + written + "</parameter>";
}

static std::string plain_call(const std::string & arguments) {
    return "<minimax:tool_call><invoke name=\"f\">" + arguments + "</invoke></minimax:tool_call>";
}

static void plain_types(const std::string & name, const std::string & written, const std::string & expected) {
    reads(plain_call(argument(name, written)), "[][] f{\"" + name + "\": " + expected + "}", plainly());
}

static void test_plain_form() {
    plain_types("text", "", R"("")");
    plain_types("text", " null\n", R"(" null\n")");
    plain_types("text", "[1]", R"("[1]")");
    plain_types("text", "a </parameter> b </invoke> c", R"("a </parameter> b </invoke> c")");
    plain_types("text", "§<item>1§</item>", R"("§<item>1§</item>")");
    plain_types("text", "<parameter name=\"x\">1", R"("<parameter name=\"x\">1")");
    plain_types("list", " [1, 2]", " [1, 2]");
    plain_types("list", std::string("[1]\0x", 5), R"("[1]\u0000x")");
    plain_types("list", "1, 2", R"("1, 2")");
    plain_types("any", "{\"a\": 1}", R"({"a": 1})");
    plain_types("any", "{a}", R"("{a}")");
    plain_types("text_or_list", "[1]", "[1]");
    plain_types("text_or_list", "{}", R"("{}")");
    plain_types("text_or_list", "[1", R"("[1")");
    plain_types("count", "null", "null");
    plain_types("level", "7", "7");
    const std::string g = "<minimax:tool_call>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>";
    reads(plain_call(argument("yes", "True") + "\n" + argument("text", "a")) + "\n" + g + " b", R"([][ b] f{"yes": true, "text": "a"} g{})", plainly());
    reads("x" + g + "§<tool_call>§<invoke name=\"g\">§</invoke>§</tool_call>", "[][x§<tool_call>§<invoke name=\"g\">§</invoke>§</tool_call>] g{}", plainly());
    reads(g, "[][" + g + "]");
    for (const std::string bad : { "<minimax:tool_call>oops", "<minimax:tool_call><invoke name=\"f\">oops</invoke></minimax:tool_call>",
        "<minimax:tool_call><invoke name=\"f\"><parameter name=\"text\">a</invoke></minimax:tool_call>",
        "<minimax:tool_call><invoke name=\"f\"><parameter name=\"text\">a</param></invoke></minimax:tool_call>" }) {
        reads("a " + bad, "[][a " + bad + "]", plainly());
        reads(g + bad, "[][" + bad + "] g{}", plainly());
    }
    reads("<minimax:tool_call><invoke name=\"f\">" + argument("whole", "1") + "<parameter name=\"text\">a </para",
        R"([][] f{"whole": 1, "text": "a )", plainly(), true);
    reads("<minimax:tool_call><invoke name=\"f\"><parameter name=\"text_or_list\">[1, ", "[][] f{", plainly(), true);
    const auto must = params_of(plainly(COMMON_CHAT_TOOL_CHOICE_REQUIRED));
    check(allows(must, "<mm:think>x</mm:think>Well.\n<minimax:tool_call>\n<invoke name=\"fg\">..."), "a plain call must begin");
    check(!allows(must, "§<tool_call>§<invoke name=\"f\">") && !allows(must, "text"), "no plain call");
}

int main() {
    test_plain_form();
    test_continued();
    test_scalars();
    test_structures();
    test_messages();
    test_unreadable();
    test_cut();
    test_hostile();
    test_references_without_end();
    test_any_order();
    test_grammars();
    test_json_answers();
    return failures == 0 ? 0 : 1;
}
