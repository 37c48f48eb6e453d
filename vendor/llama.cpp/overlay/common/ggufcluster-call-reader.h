// Reads the tool calls that MiniMax-M3 writes:
//   ]<]minimax[>[<tool_call>
//   ]<]minimax[>[<invoke name="TOOL">]<]minimax[>[<NAME>VALUE]<]minimax[>[</NAME> ... ]<]minimax[>[</invoke> ...
//   ]<]minimax[>[</tool_call>
// A VALUE is text, or elements of the same form: the members of an object, or the items of an array, each named "item".
//
// With a template of our hybrid style it writes them plainly, where a VALUE is text or JSON:
//   <minimax:tool_call><invoke name="TOOL"><parameter name="NAME">VALUE</parameter> ... </invoke></minimax:tool_call>
#pragma once

#include "ggufcluster-argument-type.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ggufcluster {

// How calls are written.
struct call_form {
    std::string_view mark; // begins each tag
    std::string_view block_start;
    std::string_view block_end;
    std::string_view call_start;
    std::string_view call_end;
    std::string_view argument_start;
    char             name_end; // of an argument's name
    std::string_view argument_end; // if it does not repeat the name
};

inline constexpr call_form NATIVE_FORM = {
    "]<]minimax[>[", "]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>", "]<]minimax[>[<invoke name=\"",
    "]<]minimax[>[</invoke>", "]<]minimax[>[<", '>', "",
};
inline constexpr call_form PLAIN_FORM = {
    "<", "<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=\"", "</invoke>", "<parameter name=\"", '"', "</parameter>",
};

constexpr std::string_view WHITE_SPACE = " \t\r\n";

enum class reading {
    COMPLETE,
    UNFINISHED, // more text might complete it
    MALFORMED,  // no more text can
};

// The end of `text` that may be the beginning of `marker`.
size_t begun_marker(std::string_view text, std::string_view marker);

class call_reader {
public:
    struct call {
        std::string name;
        std::string arguments; // JSON; without its end if the call is unfinished
    };

    // `tools` is an object: the parameters' schema by a tool's name. All of them must outlive the reader.
    call_reader(std::string_view text, const common_json & tools, const call_form & form) : text(text), tools(tools), form(form) {}

    // Reads one block from `start`. The calls are those that were completed, whatever becomes of the block.
    reading read_block(size_t start);

    std::vector<call> calls;

    size_t position = 0;  // behind the block; if it is no block, behind the last complete call
    call   open;          // what was read of an unfinished call; no name if there is none

    // Bytes that were gone through, each time they were: what it took. The same for a longer text, if this is no block.
    size_t searched = 0;

private:
    using members = std::vector<std::pair<std::string, std::string>>; // names and JSON

    std::string_view    text;
    const common_json & tools;
    const call_form &   form;
    int                 retries = 0; // values that were read as text after all

    void    skip_white_space();
    reading expect(std::string_view literal);
    reading read_name(char end, std::string & name);
    reading read_argument_name(std::string & name);
    reading read_call();
    reading read_members(const argument_type & type, std::string_view end, int depth, members & out);
    reading read_member(const argument_type & type, size_t index, int depth, members & out);
    reading read_value(const argument_type & type, const std::string & end, int depth, std::string & out);
    bool    may_have_elements(const argument_type & type, const std::string & end, std::string_view rest) const;
    reading find_end(std::string_view end, std::string_view & written);
    bool    is_plain() const { return !form.argument_end.empty(); }
    reading follows(size_t at, std::string_view one, std::string_view other) const;
};

} // namespace ggufcluster
