// What clients ask for in words that the server does not know.
#pragma once

#include "server-common.h"

// Throws std::invalid_argument if a request, of any dialect, is nested so deep that the stack might not hold what is made of it.
// To be called before it is copied.
void ggufcluster_refuse_nested(const json & request);

// To be called with an Anthropic request and what the server has made of it: thinking that is disabled or enabled, a choice
// of one tool or of none, and one call at a time.
void ggufcluster_map_anthropic_request(const json & request, json & body);

// To be called with an image of a message where no vision is loaded: words take its place, so that a conversation goes on.
void ggufcluster_leave_image_out(json & part);

// To be called with a chat completion request before it is read: a choice of some of the tools leaves those only, and
// enable_thinking reaches the template. Throws std::invalid_argument if a chosen tool is not offered,
// or the request is nested too deep.
void ggufcluster_map_chat_request(json & body);
