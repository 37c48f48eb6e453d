"""What llama_cpp would crash on, and what it leaves to chance, with the real engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ggufcluster.testing import HubServer

if TYPE_CHECKING:
    from tests.bindings.in_process import Programs

pytestmark = pytest.mark.engine


def test_calls_that_cannot_be_leave_the_model_well(programs: Programs) -> None:
    """Each is refused by name before the engine or the interpreter ends over it."""
    found = programs.run(
        """
        from ggufcluster import Llama
        from llama_cpp import LlamaGrammar, LogitsProcessorList

        def processor(tokens, scores):
            raise KeyError("mine")

        with load(n_ctx=256, embedding=True) as model, load(n_ctx=256) as other:
            def text():
                return model("abc", max_tokens=8, temperature=0)["choices"][0]["text"]

            before = text()
            model.eval([70, 71])
            state = model.save_state()
            wrong = [
                (model.create_completion, "a", {"grammar": LlamaGrammar(_grammar='a ::= "b"')}),
                (model.detokenize, [512], {}),
                (model.detokenize, [-1], {}),
                (model.eval, [70, 512], {}),
                (model.eval, [70] * 300, {}),
                (other.sample, 40, {}),
                (model.sample, 40, {"idx": 0}),
                (model.embed, ["a", ""], {}),
            ]
            errors = [error_of(call, what, **options)[0] for call, what, options in wrong]
            other.load_state(state)
            errors.append(error_of(other.sample)[0])
            processors = LogitsProcessorList([processor])
            mine = error_of(model, "a", logits_processor=processors)
            bias = error_of(model, "a", logit_bias={512: 1.0})[0]
            report(errors=errors, mine=mine, bias=bias, same=text() == before, text=before)
        """
    )
    assert set(found["errors"]) == {"ModelCallError"}
    assert len(found["errors"]) == 9
    assert found["mine"] == ["KeyError", "'mine'"]
    assert found["bias"] == "IndexError"
    assert found["text"]
    assert found["same"] is True
    assert (found["stdout"], found["stderr"]) == ([], "")


def test_one_answer_has_the_model_for_itself(programs: Programs) -> None:
    """Whole answers of threads wait for one another; a stream that lost its context says so."""
    found = programs.run(
        """
        with load(n_ctx=256) as model:
            def text(prompt):
                return model(prompt, max_tokens=8, temperature=0)["choices"][0]["text"]

            prompts = ["abc", "xyz"] * 3
            alone = {prompt: text(prompt) for prompt in prompts}
            together = []
            threads = [
                threading.Thread(target=lambda one=one: together.append((one, text(one))))
                for one in prompts
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            same = [alone[prompt] == said for prompt, said in together]

            first = model("abc", max_tokens=20, stream=True)
            second = model("xyz", max_tokens=20, temperature=0, stream=True)
            next(first), next(second)
            lost = error_of(next, first)[0]
            rest = len(list(second))
            left = model("abc", max_tokens=20, stream=True)
            next(left)
            report(same=same, differ=len({*alone.values()}), lost=lost, rest=rest,
                   after=text("abc") == alone["abc"], left=error_of(next, left)[0])
        """
    )
    assert found["same"] == [True] * 6
    assert found["differ"] == 2
    assert (found["lost"], found["left"]) == ("ModelCallError", "ModelCallError")
    assert found["rest"] > 1
    assert found["after"] is True
    assert found["stderr"] == ""


def test_a_state_fits_other_sizes(programs: Programs) -> None:
    """Saved with another ubatch, context or kept logits it loads; a wrong one leaves no context."""
    found = programs.run(
        """
        with (
            load(n_ctx=512, n_ubatch=64, logits_all=True) as wide,
            load(n_ctx=256, n_ubatch=32) as small,
        ):
            tokens = [70 + number % 9 for number in range(150)]
            wide.eval(tokens)
            state = wide.save_state()
            small.load_state(state)
            small.eval([80])
            wide.eval([80])
            same = small.sample(temp=0.0) == wide.sample(temp=0.0)
            back = small.save_state()
            wide.load_state(back)
            wide.eval([70] * 300)
            total = wide.n_tokens
            long = error_of(small.load_state, wide.save_state())
            back.llama_state = back.llama_state[:100]
            kept = small.n_tokens
            damaged = error_of(small.load_state, back)
            report(same=same, total=total, long=long, kept=kept, damaged=damaged,
                   left=small.n_tokens, good=greedy(small, tokens[:5], 2))
        """
    )
    assert found["same"] is True
    assert found["total"] == 451
    assert found["long"] == [
        "ModelCallError",
        "the model cannot do that: the state has 451 tokens, the context room for 256",
    ]
    assert found["kept"] == 151
    assert found["damaged"][0] == "ModelCallError"
    assert found["left"] == 0
    assert len(found["good"]) == 2


def test_arguments_of_llama_cpp_are_taken_or_named(programs: Programs) -> None:
    """Prompt lookup, odd and zero contexts work; adapters that are none and old names are told."""
    found = programs.run(
        """
        from ggufcluster import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
        prompt = [70 + number % 3 for number in range(180)]
        drafted = load(n_ctx=0, draft_model=LlamaPromptLookupDecoding())
        with load(n_ctx=333, logits_all=True) as odd, drafted:
            same = greedy(odd, prompt, 40) == greedy(drafted, prompt, 40)
            odd.reset()
            odd.eval([70] * 400)
            kept = [odd.n_ctx(), len(odd.eval_tokens), len(odd.scores)]
            context = drafted.n_ctx()
        Path("none.gguf").write_bytes(Path(TOY).read_bytes())
        wrong = [
            {"lora_path": "nowhere.gguf"},
            {"lora_path": "none.gguf"},
            {"rpc_servers": "10.0.0.1:50052"},
            {"n_batch": 64},
            {"n_ctx": -1},
            {"endpoints": "10.0.0.1"},
        ]
        told = [error_of(load, **options) for options in wrong]
        report(same=same, kept=kept, context=context, told=told)
        """
    )
    assert found["same"] is True
    assert found["kept"] == [512, 400, 512]
    assert found["context"] > 512
    kinds = [kind for kind, _ in found["told"]]
    assert kinds == ["ConfigError", "EngineFailedError", *["ConfigError"] * 3, "WorkerAddressError"]
    assert "nowhere.gguf: no such file" in found["told"][0][1]
    assert "general.type" in found["told"][1][1]
    assert "workers" in found["told"][2][1]
    assert "n_ubatch" in found["told"][3][1]
    assert found["told"][4][1].startswith("n_ctx: ")
    assert "address:port" in found["told"][5][1]
    assert found["stderr"] == ""


def test_what_refers_to_a_model_does_not_keep_it(programs: Programs) -> None:
    """Dropped in a cycle, or after a logit bias, it is freed; its tokenizer says so."""
    found = programs.run(
        """
        import gc, weakref
        model = load("local")
        model("a", max_tokens=2, logit_bias={65: 1.0})
        model.friend = [model]
        tokenizer, gone, before = model.tokenizer(), weakref.ref(model), len(workers())
        del model
        gc.collect()
        report(before=before, gone=gone() is None, after=len(workers()),
               told=error_of(tokenizer.encode, "a")[0])
        """
    )
    assert (found["before"], found["gone"], found["after"]) == (1, True, 0)
    assert found["told"] == "ModelClosedError"


def test_a_model_of_the_hub_is_fetched_and_loaded(programs: Programs) -> None:
    """`from_pretrained` downloads as the command does, with its events, and loads what came."""
    with HubServer() as hub:
        hub.publish("me/toy", {"toy.gguf": programs.toy})
        found = programs.run(
            """
            from ggufcluster import Llama
            seen = []
            with Llama.from_pretrained(
                "me/toy", "*.gguf", local_dir="here", workers=[], n_ctx=256, on_event=seen.append
            ) as model:
                report(path=model.model_path, events=len(seen),
                       wrong=error_of(Llama.from_pretrained, "me/other"))
            """,
            HF_ENDPOINT=hub.root,
        )
    assert found["path"].endswith("here/toy.gguf")
    assert found["events"] > 3
    assert found["wrong"][0] == "RepositoryMissingError"
    assert (found["stdout"], found["stderr"]) == ([], "")
