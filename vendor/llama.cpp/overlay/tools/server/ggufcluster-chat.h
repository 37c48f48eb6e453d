// Chat for programs that compute by themselves: what llama-server makes of a request before the model writes and of the
// text afterwards, by its own functions, as a C interface. Exported by libllama-server-impl.
//
// Text that comes back is JSON from malloc, to be given to ggufcluster_chat_free. What fails gives {"error": "..."}.
// One object is used by one thread at a time.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct llama_model;
struct llama_sampler;
struct llama_vocab;
struct ggufcluster_chat;
struct ggufcluster_answer;

// A chat template, with the tokens of `model`, which may be null. Null if the template cannot be read, with the reason in
// *error. Once for a template: it is tried out here. Log messages of llama.cpp's common library are off from then on.
struct ggufcluster_chat * ggufcluster_chat_open(const struct llama_model * model, const char * source, char ** error);
void                      ggufcluster_chat_close(struct ggufcluster_chat * chat);

// Takes the body of a chat completion request in OpenAI's form, gives llama-server's parameters of it: "prompt", "stop",
// "preserved_tokens" (texts of control tokens that belong to the answer), "grammar", "grammar_lazy" and others. *answer
// is what will read the text, null after an error; it needs the chat no more.
char * ggufcluster_chat_ask(struct ggufcluster_chat * chat, const char * request, struct ggufcluster_answer ** answer);

// The grammar by which the request binds the model, past what the prompt holds already. Null if nothing binds it from its
// first token on, or, with the reason in *error, if the grammar cannot be had. It belongs to the caller.
struct llama_sampler * ggufcluster_answer_grammar(
    const struct ggufcluster_answer * answer, const struct llama_vocab * vocab, char ** error);

enum ggufcluster_answer_state {
    GGUFCLUSTER_ANSWER_GOES_ON = 0,
    GGUFCLUSTER_ANSWER_ENDED   = 1, // by the model
    GGUFCLUSTER_ANSWER_CUT     = 2, // by the limit of tokens
};

// Adds text that the model wrote. Gives {"deltas": [...]}, each as in a streamed answer; at the end also "message".
char * ggufcluster_answer_read(struct ggufcluster_answer * answer, const char * text, size_t size, int state);
void   ggufcluster_answer_close(struct ggufcluster_answer * answer);

void ggufcluster_chat_free(char * text);

#ifdef __cplusplus
}
#endif
