#include "ggufcluster-call-reader.h"

#include <algorithm>
#include <unordered_map>

using json = common_json;

namespace ggufcluster {

static constexpr int MOST_NESTED  = 64;
static constexpr int MOST_RETRIES = 64;

static constexpr size_t MEMBER_COST = 128; // in bytes of a value that are searched for its end

static bool starts_with(std::string_view text, std::string_view beginning) {
    return text.substr(0, beginning.size()) == beginning;
}

static bool is_begun(std::string_view text, std::string_view literal) {
    return text.size() < literal.size() && starts_with(literal, text);
}

size_t begun_marker(std::string_view text, std::string_view marker) {
    for (size_t size = std::min(text.size(), marker.size() - 1); size > 0; size--) {
        if (starts_with(marker, text.substr(text.size() - size))) {
            return size;
        }
    }
    return 0;
}

// A name that was written twice has its last value, as parsers of JSON have it.
static std::string object_of(const std::vector<std::pair<std::string, std::string>> & members) {
    std::unordered_map<std::string, std::string> values;
    for (const auto & [name, value] : members) {
        values[name] = value;
    }
    std::string out;
    for (const auto & [name, value] : members) {
        if (auto found = values.extract(name)) {
            out += (out.empty() ? "{" : ", ") + json_string(name) + ": " + found.mapped();
        }
    }
    return out.empty() ? "{}" : out + "}";
}

static std::string array_of(const std::vector<std::pair<std::string, std::string>> & items) {
    std::string out;
    for (const auto & item : items) {
        out += (out.empty() ? "[" : ", ") + item.second;
    }
    return out.empty() ? "[]" : out + "]";
}

// Elements have the form they were written in; the type decides only where they could be either.
static std::string structure_of(const argument_type & type, const std::vector<std::pair<std::string, std::string>> & members) {
    const bool items = std::all_of(members.begin(), members.end(), [](const auto & member) { return member.first == "item"; });
    const bool one_member = members.size() == 1 && type.may_be(argument_type::OBJECT) &&
        (type.declares("item") || !type.may_be(argument_type::ARRAY));
    return items && !one_member ? array_of(members) : object_of(members);
}

void call_reader::skip_white_space() {
    position = std::min(text.find_first_not_of(WHITE_SPACE, position), text.size());
}

reading call_reader::expect(std::string_view literal) {
    const std::string_view rest = text.substr(position);
    if (starts_with(rest, literal)) {
        position += literal.size();
        return reading::COMPLETE;
    }
    return is_begun(rest, literal) ? reading::UNFINISHED : reading::MALFORMED;
}

reading call_reader::read_block(size_t start) {
    position = start;
    reading state = expect(form.block_start);
    while (state == reading::COMPLETE) {
        const size_t behind_last = position;
        skip_white_space();
        if (!calls.empty() && expect(form.block_end) == reading::COMPLETE) {
            return reading::COMPLETE;
        }
        const bool may_end = !calls.empty() && is_begun(text.substr(position), form.block_end);
        state = may_end ? reading::UNFINISHED : read_call();
        if (state != reading::COMPLETE) {
            position = calls.empty() ? start : behind_last;
        }
    }
    return state;
}

reading call_reader::read_call() {
    std::string name;
    reading     state = expect(form.call_start);
    if (state == reading::COMPLETE) {
        state = read_name('"', name);
    }
    if (state == reading::COMPLETE) {
        state = expect(">");
    }
    if (state != reading::COMPLETE) {
        return state;
    }
    const json undeclared;
    const json & schema = tools.contains(name) ? tools.at(name) : undeclared;
    members arguments;
    state = read_members(argument_type(schema, schema), form.call_end, 0, arguments);
    if (state == reading::COMPLETE) {
        calls.push_back({name, object_of(arguments)});
    } else if (state == reading::UNFINISHED) {
        const std::string begun = open.arguments; // text that was cut off, with its name
        std::string       whole = object_of(arguments);
        whole.pop_back();
        open = {name, whole + (arguments.empty() || begun.empty() ? "" : ", ") + begun};
    }
    return state;
}

// A name ends in the line it begins in.
reading call_reader::read_name(char end, std::string & name) {
    const size_t stop = std::min(text.find_first_of(std::string{end, '\n'}, position), text.size());
    name = text.substr(position, stop - position);
    if ((!is_plain() && name.find(form.mark) != name.npos) || (stop < text.size() && (text[stop] != end || name.empty()))) {
        return reading::MALFORMED;
    }
    position = stop + 1;
    return stop < text.size() ? reading::COMPLETE : reading::UNFINISHED;
}

reading call_reader::read_members(const argument_type & type, std::string_view end, int depth, members & out) {
    for (reading state = reading::COMPLETE; state == reading::COMPLETE;) {
        skip_white_space();
        if (expect(end) == reading::COMPLETE) {
            return reading::COMPLETE;
        }
        if (is_begun(text.substr(position), end)) {
            return reading::UNFINISHED;
        }
        state = read_member(type, out.size(), depth, out);
        if (state != reading::COMPLETE) {
            return state;
        }
    }
    return reading::COMPLETE;
}

reading call_reader::read_argument_name(std::string & name) {
    reading state = expect(form.argument_start);
    if (state == reading::COMPLETE) {
        state = read_name(form.name_end, name);
    }
    return state == reading::COMPLETE && is_plain() ? expect(">") : state;
}

reading call_reader::read_member(const argument_type & type, size_t index, int depth, members & out) {
    searched += MEMBER_COST;
    std::string name;
    reading     state = read_argument_name(name);
    if (state != reading::COMPLETE) {
        return state;
    }
    const bool object = type.may_be(argument_type::OBJECT);
    if (name[0] == '/' && !is_plain() && !(object && (depth > 0 || type.declares(name)))) {
        return reading::MALFORMED; // the end of something else
    }
    const bool member = object && (type.declares(name) || !type.may_be(argument_type::ARRAY));
    const bool item   = depth > 0 && name == "item" && !member;
    const argument_type own = item ? type.item(index) : type.member(name);
    std::string value;
    state = read_value(own, is_plain() ? std::string(form.argument_end) : std::string(form.mark) + "</" + name + ">", depth, value);
    if (state == reading::COMPLETE) {
        out.emplace_back(name, value);
    } else if (state == reading::UNFINISHED && depth == 0 && !value.empty()) {
        open.arguments = json_string(name) + ": " + value;
    }
    return state;
}

// What begins like elements may be text that a tag begins.
bool call_reader::may_have_elements(const argument_type & type, const std::string & end, std::string_view rest) const {
    const std::string element(form.argument_start);
    if (is_plain() || !starts_with(rest, element) || starts_with(rest, end)) {
        return false;
    }
    const bool structure = type.may_be(argument_type::OBJECT | argument_type::ARRAY);
    if (type.is_text()) {
        return structure && retries < MOST_RETRIES;
    }
    // Only a member of an object has a name like an end tag: a path.
    return !starts_with(rest, element + "/") || (type.may_be(argument_type::OBJECT) && retries < MOST_RETRIES);
}

reading call_reader::read_value(const argument_type & type, const std::string & end, int depth, std::string & out) {
    const size_t start = position;
    skip_white_space();
    const std::string_view rest = text.substr(position);
    if (may_have_elements(type, end, rest)) {
        members       inside;
        const reading state = depth < MOST_NESTED ? read_members(type, end, depth + 1, inside) : reading::MALFORMED;
        if (state != reading::MALFORMED || !(type.is_text() || starts_with(rest, std::string(form.mark) + "</"))) {
            out = state == reading::COMPLETE ? structure_of(type, inside) : "";
            return state;
        }
        retries++;
    }
    position = start;
    std::string_view written;
    const reading    state = find_end(end, written);
    if (state == reading::COMPLETE) {
        out = is_plain() && type.is_json(written) ? std::string(written) : type.value(written);
    } else if (state == reading::UNFINISHED && !starts_with("null", written) && type.is_text() &&
               !(is_plain() && type.may_be(argument_type::OBJECT | argument_type::ARRAY))) {
        out = json_string(written);
        out.pop_back(); // the quote
    }
    return state;
}

// Text ends at its own end tag only, which in the plain form counts where an argument can end. If it runs over the end of
// its call, the model has forgotten that tag.
reading call_reader::find_end(std::string_view end, std::string_view & written) {
    const size_t start = position;
    int          calls_inside = 0;
    for (size_t at = start; (at = text.find(form.mark, at)) != text.npos; at += form.mark.size()) {
        const std::string_view rest = text.substr(at);
        if (starts_with(rest, end)) {
            const reading ends = is_plain() ? follows(at + end.size(), form.call_end, form.argument_start) : reading::COMPLETE;
            if (ends != reading::MALFORMED) {
                written   = text.substr(start, at - start);
                position  = at + end.size();
                searched += position - start;
                return ends;
            }
        }
        calls_inside += starts_with(rest, form.call_start);
        if (starts_with(rest, form.call_end) && calls_inside-- == 0) {
            const reading ends = follows(at + form.call_end.size(), form.block_end, form.call_start);
            if (ends != reading::MALFORMED) {
                searched += at - start;
                return ends == reading::COMPLETE ? reading::MALFORMED : reading::UNFINISHED;
            }
            calls_inside = 0;
        }
    }
    written = text.substr(start);
    written.remove_suffix(begun_marker(written, end));
    return reading::UNFINISHED;
}

// Whether one of two markers comes next.
reading call_reader::follows(size_t at, std::string_view one, std::string_view other) const {
    const std::string_view rest = text.substr(std::min(text.find_first_not_of(WHITE_SPACE, at), text.size()));
    if (starts_with(rest, one) || starts_with(rest, other)) {
        return reading::COMPLETE;
    }
    return is_begun(rest, one) || is_begun(rest, other) ? reading::UNFINISHED : reading::MALFORMED;
}

} // namespace ggufcluster
