// What the JSON schema of a tool says about the value at one place of a call.
#pragma once

#include "json.h"

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ggufcluster {

// The alternatives of a schema, with references followed. It types a value, it does not judge it: bounds, patterns and
// what is required are the tool's to check. A schema that makes no sense allows anything. The document must outlive it.
class argument_type {
public:
    // Types of JSON, as bits.
    enum : unsigned { TEXT = 1, NUMBER = 2, INTEGER = 4, BOOLEAN = 8, NOTHING = 16, OBJECT = 32, ARRAY = 64 };

    // Allows anything.
    explicit argument_type(const common_json & document) : document(&document), anything(true) {}

    argument_type(const common_json & document, const common_json & schema);

    // A value without elements is text, whatever it looks like. A list of texts beside other types allows no other text.
    bool is_text() const { return (kinds & TEXT) != 0 && ((unlisted & TEXT) != 0 || (unlisted & ~NOTHING) == 0); }

    bool may_be(unsigned kind) const { return (kinds & kind) != 0; }

    // Whether an object of this type declares a member of that name.
    bool declares(const std::string & name) const;

    argument_type member(const std::string & name) const;

    argument_type item(size_t index) const;

    // Whether it is the JSON of an object or an array that this type allows.
    bool is_json(std::string_view written) const;

    // The JSON of a value that was written without elements, numbers as they were written.
    std::string value(std::string_view written) const;

private:
    const common_json *              document;
    std::vector<const common_json *> alternatives; // none is a reference or a union
    unsigned                         kinds    = 0;
    unsigned                         unlisted = 0; // the kinds of those alternatives that do not list their values
    bool                             anything = false;

    struct seen_schemas {
        std::set<const common_json *> schemas;
        int                           depth = 0;
    };

    void add(const common_json & schema, seen_schemas & seen);
    void add_new(const common_json & schema, seen_schemas & seen);
    bool add_union(const common_json & schema, const char * keyword, bool typed, seen_schemas & seen);
    void add_undeclared(const common_json & schema, seen_schemas & seen);
    bool listed(std::string_view written, std::string & out) const;
    bool is_listed_text(std::string_view written) const;
    std::string typed_value(std::string_view written) const;
    bool fits(const common_json & value) const;
};

// The text as a JSON string.
std::string json_string(std::string_view text);

} // namespace ggufcluster
