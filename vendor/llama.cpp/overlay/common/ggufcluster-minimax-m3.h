// MiniMax-M3's answers: what binds the model while it writes, and what a client gets of it.
#pragma once

#include "chat-auto-parser.h"
#include "chat.h"

#include <optional>
#include <string>

// Takes the place of common_chat_params_init_minimax_m3. The model is bound only where the client asks for it: to begin a
// call of one of the tools if it must call one, and to the schema if the answer must be JSON.
common_chat_params ggufcluster_minimax_m3_params(const common_chat_template & tmpl, const autoparser::generation_params & inputs);

// Reads an answer, nothing if `parser` is not the one of ggufcluster_minimax_m3_params. It never fails: what is no call comes
// back as content, in the words of the model. Of an answer that is not complete it gives what will not change any more.
std::optional<common_chat_msg> ggufcluster_minimax_m3_read(
    const common_peg_arena & parser, const std::string & input, bool is_partial, const common_chat_parser_params & params);
