#include "ggufcluster-argument-type.h"

#include <cctype>
#include <cmath>

using json = common_json;

namespace ggufcluster {

// A client parses the arguments with a recursive parser, perhaps.
static constexpr int MOST_NESTED = 64;

// References and unions within one another; further ones say nothing. The stack must hold them.
static constexpr int MOST_FOLLOWED = 256;

static unsigned kind_of(const json & value) {
    if (value.is_null())           { return argument_type::NOTHING; }
    if (value.is_boolean())        { return argument_type::BOOLEAN; }
    if (value.is_number_integer()) { return argument_type::INTEGER; }
    if (value.is_number())         { return argument_type::NUMBER;  }
    if (value.is_string())         { return argument_type::TEXT;    }
    return value.is_array() ? argument_type::ARRAY : argument_type::OBJECT;
}

static unsigned kind_named(const json & name) {
    const std::string type = name.is_string() ? name.get<std::string>() : "";
    if (type == "string")  { return argument_type::TEXT;    }
    if (type == "integer") { return argument_type::INTEGER; }
    if (type == "number")  { return argument_type::NUMBER;  }
    if (type == "boolean") { return argument_type::BOOLEAN; }
    if (type == "null")    { return argument_type::NOTHING; }
    if (type == "object")  { return argument_type::OBJECT;  }
    if (type == "array")   { return argument_type::ARRAY;   }
    return 0;
}

static bool has_any(const json & schema, std::initializer_list<const char *> keywords) {
    for (const char * keyword : keywords) {
        if (schema.contains(keyword)) {
            return true;
        }
    }
    return false;
}

// The values that a schema lists; none if it lists none.
static std::vector<const json *> values_of(const json & schema) {
    std::vector<const json *> values;
    if (schema.contains("const")) {
        values.push_back(&schema.at("const"));
    } else if (schema.contains("enum") && schema.at("enum").is_array()) {
        const json & list = schema.at("enum");
        for (size_t i = 0; i < list.size(); i++) {
            values.push_back(&list.at(i));
        }
    }
    return values;
}

// What a schema says of its own type, unions left out; 0 if nothing.
static unsigned declared_kinds(const json & schema) {
    unsigned kinds = 0;
    if (schema.contains("type")) {
        const json & type = schema.at("type");
        if (!type.is_array()) {
            kinds = kind_named(type);
        } else {
            for (size_t i = 0; i < type.size(); i++) {
                kinds |= kind_named(type.at(i));
            }
        }
    }
    if (kinds == 0) {
        for (const json * value : values_of(schema)) {
            kinds |= kind_of(*value);
        }
    }
    if (kinds == 0) {
        kinds |= has_any(schema, {"properties", "additionalProperties"}) ? argument_type::OBJECT : 0;
        kinds |= has_any(schema, {"items", "prefixItems"}) ? argument_type::ARRAY : 0;
        kinds |= has_any(schema, {"pattern", "minLength", "maxLength", "format"}) ? argument_type::TEXT : 0;
        kinds |= has_any(schema, {"minimum", "maximum", "multipleOf"}) ? argument_type::NUMBER : 0;
    }
    if (kinds != 0 && schema.contains("nullable") && schema.at("nullable") == true) {
        kinds |= argument_type::NOTHING;
    }
    return kinds;
}

static std::string percent_decoded(const std::string & text) {
    std::string out;
    for (size_t i = 0; i < text.size(); i++) {
        const bool code = text[i] == '%' && i + 2 < text.size() && std::isxdigit((unsigned char) text[i + 1]) &&
            std::isxdigit((unsigned char) text[i + 2]);
        out += code ? (char) std::stoi(text.substr(i + 1, 2), nullptr, 16) : text[i];
        i   += code ? 2 : 0;
    }
    return out;
}

static std::string unescaped(const std::string & token) {
    std::string out;
    for (size_t i = 0; i < token.size(); i++) {
        const bool escape = token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1');
        i   += escape;
        out += !escape ? token[i] : token[i] == '1' ? '/' : '~';
    }
    return out;
}

static const json * step_into(const json & at, const std::string & token) {
    if (at.is_object() && at.contains(token)) {
        return &at.at(token);
    }
    const bool number = !token.empty() && token.size() < 9 && token.find_first_not_of("0123456789") == std::string::npos;
    if (at.is_array() && number && std::stoul(token) < at.size()) {
        return &at.at((size_t) std::stoul(token));
    }
    return nullptr;
}

// A reference is part of an address, where percent signs may stand for letters.
static const json * step_into_either(const json & at, const std::string & token) {
    const json * next = step_into(at, unescaped(token));
    return next ? next : step_into(at, unescaped(percent_decoded(token)));
}

// Null if the reference leads out of the document.
static const json * target_of(const json & document, const json & reference) {
    const std::string path = reference.is_string() ? reference.get<std::string>() : "";
    if (path.empty() || path[0] != '#') {
        return nullptr;
    }
    const json * at = &document;
    for (size_t start = path.find('/'); at && start != std::string::npos;) {
        const size_t end = path.find('/', start + 1);
        at    = step_into_either(*at, path.substr(start + 1, end == std::string::npos ? end : end - start - 1));
        start = end;
    }
    return at;
}

argument_type::argument_type(const json & document, const json & schema) : document(&document) {
    seen_schemas seen;
    add(schema, seen);
    anything |= kinds == 0;
}

void argument_type::add(const json & schema, seen_schemas & seen) {
    if (!schema.is_object() || seen.depth == MOST_FOLLOWED) {
        anything = true;
    } else if (seen.schemas.insert(&schema).second) {
        seen.depth++;
        add_new(schema, seen);
        seen.depth--;
    }
}

void argument_type::add_new(const json & schema, seen_schemas & seen) {
    if (schema.contains("$ref")) {
        const json * target = target_of(*document, schema.at("$ref"));
        anything |= target == nullptr;
        if (target) {
            add(*target, seen);
        }
        return;
    }
    const unsigned own = declared_kinds(schema);
    if (own != 0) {
        alternatives.push_back(&schema);
        kinds |= own;
        unlisted |= values_of(schema).empty() ? own : 0u;
    }
    bool typed = own != 0;
    for (const char * keyword : {"anyOf", "oneOf", "allOf"}) {
        typed |= add_union(schema, keyword, own != 0, seen);
    }
    anything |= !typed;
}

// Whether it says anything about the type. A part that does not say anything leaves a union of alternatives open, unless
// the type stands beside the union.
bool argument_type::add_union(const json & schema, const char * keyword, bool typed, seen_schemas & seen) {
    if (!schema.contains(keyword) || !schema.at(keyword).is_array()) {
        return false;
    }
    argument_type part(*document);
    part.anything = false;
    const json & schemas = schema.at(keyword);
    for (size_t i = 0; i < schemas.size(); i++) {
        part.add(schemas.at(i), seen);
    }
    alternatives.insert(alternatives.end(), part.alternatives.begin(), part.alternatives.end());
    kinds |= part.kinds;
    unlisted |= part.unlisted;
    anything |= part.anything && !typed && std::string_view(keyword) != "allOf";
    return part.kinds != 0;
}

bool argument_type::declares(const std::string & name) const {
    for (const json * schema : alternatives) {
        if (schema->contains("properties") && schema->at("properties").contains(name)) {
            return true;
        }
    }
    return false;
}

argument_type argument_type::member(const std::string & name) const {
    const bool    declared = declares(name);
    argument_type type(*document);
    seen_schemas  seen;
    type.anything = false;
    for (const json * schema : alternatives) {
        if (declared && schema->contains("properties") && schema->at("properties").contains(name)) {
            type.add(schema->at("properties").at(name), seen);
        } else if (!declared) {
            type.add_undeclared(*schema, seen);
        }
    }
    type.anything |= type.kinds == 0;
    return type;
}

// What a schema says of a member that it does not name. Which pattern a name fits does not matter for the type, mostly.
void argument_type::add_undeclared(const json & schema, seen_schemas & seen) {
    const bool patterns = schema.contains("patternProperties") && schema.at("patternProperties").is_object();
    if (patterns) {
        for (const auto & [pattern, pattern_schema] : schema.at("patternProperties").items()) {
            add(pattern_schema, seen);
        }
    }
    if (schema.contains("additionalProperties") && !(patterns && schema.at("additionalProperties").is_boolean())) {
        add(schema.at("additionalProperties"), seen);
    }
}

argument_type argument_type::item(size_t index) const {
    argument_type type(*document);
    seen_schemas  seen;
    type.anything = false;
    for (const json * schema : alternatives) {
        const char * tuple = schema->contains("prefixItems") ? "prefixItems" : "items";
        if (schema->contains(tuple) && schema->at(tuple).is_array() && index < schema->at(tuple).size()) {
            type.add(schema->at(tuple).at(index), seen);
        } else if (schema->contains("items") && schema->at("items").is_object()) {
            type.add(schema->at("items"), seen);
        }
    }
    type.anything |= type.kinds == 0;
    return type;
}

std::string json_string(std::string_view text) {
    return json::make(text).dump_safe();
}

static std::string_view trimmed(std::string_view text) {
    const size_t start = text.find_first_not_of(" \t\r\n");
    return start == text.npos ? "" : text.substr(start, text.find_last_not_of(" \t\r\n") - start + 1);
}

// The parser takes a zero byte for the end of the text.
static json parsed_whole(const std::string & text) {
    return json::parse_no_throw(text.find('\0') == text.npos ? text : "");
}

static bool nested_too_deep(std::string_view text) {
    int  depth  = 0;
    bool quoted = false;
    for (size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        if (c == '\\' && quoted) {
            i++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (c == '[' || c == '{') && ++depth > MOST_NESTED) {
            return true;
        } else if (!quoted && (c == ']' || c == '}')) {
            depth--;
        }
    }
    return false;
}

// Models slip into Python's spelling of three words.
static std::string json_spelling(std::string_view text) {
    if (text == "True")  { return "true";  }
    if (text == "False") { return "false"; }
    if (text == "None")  { return "null";  }
    return std::string(text);
}

bool argument_type::is_json(std::string_view written) const {
    const std::string_view text = trimmed(written);
    if (text.empty() || (text[0] != '{' && text[0] != '[') || nested_too_deep(text)) {
        return false;
    }
    const bool allowed = may_be(text[0] == '{' ? OBJECT : ARRAY) || (anything && !is_text());
    return allowed && !parsed_whole(std::string(text)).is_discarded();
}

std::string argument_type::value(std::string_view written) const {
    std::string out;
    if (listed(written, out)) {
        return out;
    }
    if (is_text()) {
        return may_be(NOTHING) && written == "null" ? "null" : json_string(written);
    }
    if (is_listed_text(written)) {
        return json_string(written);
    }
    if (!anything) {
        return typed_value(written);
    }
    if (written == "true" || written == "false") {
        return std::string(written);
    }
    const bool number = !written.empty() && written.find_first_not_of("+-.0123456789eE") == written.npos;
    const json parsed = number ? json::parse_no_throw(std::string(written)) : json();
    return parsed.is_number() && parsed.dump() == written ? std::string(written) : json_string(written);
}

// Whether it is one of the values, if all alternatives list theirs.
bool argument_type::listed(std::string_view written, std::string & out) const {
    const std::string spelled = json_spelling(trimmed(written));
    const json        parsed  = parsed_whole(nested_too_deep(spelled) ? "" : spelled);
    const common_json_value value_written(parsed);
    const common_json_value text_written(json::make(written));
    for (const json * schema : alternatives) {
        const auto values = values_of(*schema);
        if (values.empty()) {
            return false;
        }
        for (const json * value : values) {
            if (*value == text_written) {
                return false; // it is text, then
            }
            if (!value->is_string() && !parsed.is_discarded() && *value == value_written) {
                out = spelled;
            }
        }
    }
    return !out.empty();
}

bool argument_type::is_listed_text(std::string_view written) const {
    const common_json_value text(json::make(written));
    for (const json * schema : alternatives) {
        for (const json * value : values_of(*schema)) {
            if (*value == text) {
                return true;
            }
        }
    }
    return false;
}

std::string argument_type::typed_value(std::string_view written) const {
    const std::string spelled = json_spelling(trimmed(written));
    if (spelled.empty() && may_be(OBJECT | ARRAY)) {
        return may_be(OBJECT) ? "{}" : "[]";
    }
    if (spelled.empty() && may_be(NOTHING)) {
        return "null"; // as templates write it in an array
    }
    if (nested_too_deep(spelled)) {
        return json_string(written);
    }
    const json parsed = parsed_whole(spelled);
    return !parsed.is_discarded() && fits(parsed) ? spelled : json_string(written);
}

bool argument_type::fits(const json & value) const {
    if (value.is_number() && may_be(NUMBER)) {
        return true;
    }
    if (value.is_number_float() && may_be(INTEGER)) {
        const double number = value.get<double>();
        return std::isfinite(number) && number == std::floor(number);
    }
    return !value.is_string() && may_be(kind_of(value));
}

} // namespace ggufcluster
