// Streams in Anthropic's dialect: blocks that follow one another, each with an index of its own.
#pragma once

#include "chat.h"

#include <map>
#include <string>
#include <vector>

struct server_task_result_cmpl_final;
struct server_task_result_cmpl_partial;

// The events of one part of an answer.
struct ggufcluster_anthropic_part {
    bool        first  = false;
    common_json events = common_json::array();
};

// Which blocks of an answer a client knows.
class ggufcluster_anthropic_stream {
public:
    ggufcluster_anthropic_part next(const std::vector<common_chat_msg_diff> & diffs);

    // The same, with the end of the last block.
    ggufcluster_anthropic_part last(const std::vector<common_chat_msg_diff> & diffs);

private:
    bool                     begun = false;
    int                      count = 0; // blocks
    std::string              open;      // kind of the open block
    std::map<size_t, int>    calls;     // their blocks
    common_json              events;

    ggufcluster_anthropic_part taken();
    void add(const std::vector<common_chat_msg_diff> & diffs);
    void add_call(const common_chat_msg_diff & diff);
    void begin_block(const std::string & kind, common_json content);
    void end_block();
    void add_delta(int block, const std::string & kind, const std::string & field, const std::string & text);
    void add_event(const std::string & name, common_json data);
};

common_json ggufcluster_anthropic_events(const server_task_result_cmpl_partial & result);
common_json ggufcluster_anthropic_events(const server_task_result_cmpl_final & result);

// The arguments of a call that was cut off, without those that were not finished: this dialect cannot leave them open.
common_json ggufcluster_finished_arguments(const std::string & arguments);
