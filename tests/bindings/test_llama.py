"""`ggufcluster.Llama` with the real engine and workers of this machine."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.toy import random_model
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.workflows.toy import publish_model
from tests.bindings.in_process import Programs
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine


def test_two_workers_answer_like_one_machine(programs: Programs) -> None:
    """Tokens, logits and a saved state are the same on two workers as without any, and silent."""
    found = programs.run(
        """
        import numpy
        here, there = load(logits_all=True), load("local:2", logits_all=True)
        tokens = [greedy(here), greedy(there)]
        logits = [model.scores[: model.n_tokens].copy() for model in (here, there)]
        state = there.save_state()
        here.reset()
        here.load_state(state)
        there.reset()
        follow = [there.input_ids[:206].tolist(), state.input_ids[:206].tolist()]
        after = [greedy(model, follow[1], 8) for model in (here, there)]
        sparse = [model.context_params.kv_unified for model in (here, there)]
        report(
            tokens=tokens,
            far=float(numpy.abs(logits[0] - logits[1]).max()),
            size=float(numpy.abs(logits[0]).max()),
            after=after,
            unified=sparse,
        )
        here.close()
        there.close()
        """
    )
    assert found["tokens"][0] == found["tokens"][1]
    assert len(set(found["tokens"][0])) > 4
    assert found["far"] <= 1e-3 * found["size"]
    assert found["after"][0] == found["after"][1]
    assert found["unified"] == [False, False]
    assert found["stdout"] == []
    assert found["stderr"] == ""


@pytest.mark.parametrize("path", ["native", "generic"])
def test_placements_agree_on_each_sparse_path(tmp_path: Path, engine: Engine, path: str) -> None:
    """Here, on one and on two workers the tokens are the same, and a state moves between them."""
    shape = ToyShape(layers=3, dense_layers=1, queries_per_group=1, selected_blocks=2)
    toy = publish_model(random_model("", shape), tmp_path / "sparse.gguf")
    found = Programs(tmp_path, engine, toy).run(
        """
        import logging
        paths = []
        class Keep(logging.Handler):
            def emit(self, record):
                if "sparse attention:" in record.getMessage():
                    paths.append(record.getMessage().split(": ")[-1])
        logging.getLogger("ggufcluster.engine").addHandler(Keep())
        logging.getLogger("ggufcluster.engine").setLevel(logging.DEBUG)

        # More blocks of 128 than are selected, else nothing is sparse.
        prompt = [10 + number * number % 211 for number in range(600)]
        places = [(), ("local:1",), ("local:2",)]
        models = [load(*place, n_ctx=1024, n_ubatch=256, msa=sys.argv[2]) for place in places]
        tokens = [greedy(model, prompt, 12) for model in models]
        states = [model.save_state() for model in models]
        after = []
        for state in states:
            for model in models:
                model.reset()
                model.load_state(state)
                seen = state.input_ids[: state.n_tokens].tolist()
                after.append(greedy(model, [*seen, 99], 4))
        counts = [len(workers()), len(models)]
        for model in models:
            model.close()
        report(tokens=tokens, after=after, paths=paths, counts=counts)
        """,
        path,
    )
    assert found["tokens"][0] == found["tokens"][1] == found["tokens"][2]
    assert len(set(found["tokens"][0])) > 4
    assert len(found["after"]) == 9
    assert all(tokens == found["after"][0] for tokens in found["after"])
    assert found["paths"] == [f"{path} path"]
    assert found["counts"] == [3, 3]


def test_it_chats_streams_and_embeds(programs: Programs) -> None:
    """What llama_cpp offers works over workers: chat, streaming, completion, embeddings."""
    found = programs.run(
        """
        import ggufcluster
        question = [{"role": "user", "content": "What is the weather?"}]
        with load("local:2", embedding=True) as model:
            whole = model.create_chat_completion(question, max_tokens=6, temperature=0)
            pieces = list(
                model.create_chat_completion(question, max_tokens=6, temperature=0, stream=True)
            )
            text = model("Paris", max_tokens=4, temperature=0)["choices"][0]["text"]
            vectors = model.create_embedding(["Paris", "Paris", "weather"])["data"]
            import llama_cpp
            kinds = [isinstance(model, llama_cpp.Llama), isinstance(model, ggufcluster.Llama)]
            width = model.n_embd()
        streamed = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
        report(
            whole=whole["choices"][0]["message"]["content"],
            streamed=streamed,
            text=text,
            same=vectors[0]["embedding"] == vectors[1]["embedding"],
            other=vectors[0]["embedding"] == vectors[2]["embedding"],
            width=[len(vectors[0]["embedding"][0]), width],
            kinds=kinds,
        )
        """
    )
    assert found["whole"]
    assert found["streamed"] == found["whole"]
    assert found["text"]
    assert (found["same"], found["other"]) == (True, False)
    assert found["width"][0] == found["width"][1]
    assert found["kinds"] == [True, True]


def test_a_lost_worker_is_an_exception(programs: Programs) -> None:
    """A killed worker raises and nothing else: other models go on, and new ones can be loaded."""
    found = programs.run(
        """
        other, model = load(), load("local:2")
        before = greedy(model)
        port, pid = sorted(workers().items())[1]
        os.kill(pid, 9)
        errors = [error_of(greedy, model), error_of(model.save_state), error_of(greedy, model)]
        model.close()
        left = workers()
        again = load("local:2")
        report(
            port=port,
            errors=errors,
            left=left,
            ports=sorted(workers()),
            tokens=[before, greedy(other), greedy(again)],
        )
        again.close()
        """
    )
    kinds = {kind for kind, _ in found["errors"]}
    assert kinds == {"WorkerLostError"}
    assert f"lost worker 127.0.0.1:{found['port']}" in found["errors"][0][1]
    assert found["left"] == {}
    assert found["port"] not in found["ports"]
    assert found["tokens"][0] == found["tokens"][1] == found["tokens"][2]
    assert found["stderr"] == ""


def test_a_worker_lost_while_loading_is_an_exception(programs: Programs) -> None:
    """A worker that ends between its start and the load raises, and no worker is left."""
    found = programs.run(
        """
        from ggufcluster.bindings import loading

        def lose(*arguments, **options):
            plan = real(*arguments, **options)
            os.kill(list(workers().values())[0], 9)
            return plan

        greedy(load())
        real, loading.make_plan = loading.make_plan, lose
        error = error_of(load, "local:2")
        loading.make_plan = real
        report(error=error, left=workers(), later=error_of(load, "local"))
        """
    )
    assert found["error"][0] == "WorkerLostError"
    assert found["left"] == {}
    # The engine holds a lock then: that is told, rather than waited for.
    assert found["later"][0] == "EngineFailedError"
    assert "end this process" in found["later"][1]


def test_loading_and_dropping_leaks_nothing(tmp_path: Path, engine: Engine, free_port: int) -> None:
    """Twenty loads leave what ten leave: memory, threads, open files, sockets and workers.

    Models are closed or just dropped; most are on a worker that lives on, some on two of their own.
    """
    # Without a template, which is rendered in a process of its own each time.
    toy = publish_model(random_model("", None), tmp_path / "toy.gguf")
    with _worker(engine, free_port):
        found = Programs(tmp_path, engine, toy).run(
            """
            import ctypes, gc, time
            def resident():
                gc.collect()
                ctypes.CDLL(None).malloc_trim(0)
                status = Path("/proc/self/status").read_text()
                return int(status.partition("VmRSS:")[2].split()[0])

            def counts():
                gc.collect()
                tasks = len(list(Path("/proc/self/task").iterdir()))
                open_files = len(os.listdir("/proc/self/fd"))
                return [tasks, threading.active_count(), open_files, workers()]

            def settled():
                # A thread that was joined is listed until the kernel has cleared it away.
                until = time.monotonic() + 60
                while len(seen) > 9 and counts() != seen[9] and time.monotonic() < until:
                    time.sleep(0.02)
                return counts()

            seen, kilobytes = [], []
            for number in range(20):
                own = number % 10 == 9
                places = {"workers": ["local:2"]} if own else {"endpoints": [sys.argv[2]]}
                model = load(**places, n_ctx=256)
                model.eval([1, 2, 3])
                if number % 2:
                    model.close()
                del model
                seen.append(settled())
                kilobytes.append(resident())
            left = Path(os.environ["XDG_STATE_HOME"]).rglob("pid")
            report(seen=seen, kilobytes=kilobytes, runs=[str(path) for path in left])
            """,
            f"127.0.0.1:{free_port}",
        )
    # The first with workers of its own opens what stays.
    settled = found["seen"][9:]
    assert len(settled) == 11
    assert all(counts == settled[0] for counts in settled)
    assert settled[0][3] == {}
    assert found["runs"] == []
    # Ten models with their caches would be fifty megabytes.
    assert found["kilobytes"][-1] - found["kilobytes"][9] < 20_000, found["kilobytes"]


def test_a_program_that_just_ends_leaves_no_worker(programs: Programs) -> None:
    """A model that nobody closed ends its workers when the interpreter ends, with exit code 0."""
    found = programs.run("model = load('local:2'); greedy(model); report(ports=sorted(workers()))")
    assert len(found["ports"]) == 2
    assert _pids(programs) == []


def test_what_a_killed_program_left_is_ended_by_the_next(programs: Programs) -> None:
    """Workers of a program that was killed are ended when the next one of the user starts some."""
    with pytest.raises(AssertionError):
        programs.run("model = load('local:2'); os.kill(os.getpid(), 9)")
    orphans = _pids(programs)
    found = programs.run(
        "model = load('local'); report(now=sorted(workers().values())); model.close()"
    )
    assert len(orphans) == 2
    assert len(found["now"]) == 1
    assert not set(found["now"]) & set(orphans)
    assert _pids(programs) == []


def test_closed_and_forked_models_say_so(programs: Programs) -> None:
    """After `close`, and in a forked process, every use raises its own exception."""
    found = programs.run(
        """
        model = load("local:2")
        before = greedy(model)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            error = error_of(greedy, model)
            model.close()
            os.write(writing, json.dumps([error, len(workers())]).encode())
            sys.exit(0)
        status = os.waitpid(child, 0)[1]
        forked, alive = json.loads(os.read(reading, 10000))
        after = greedy(model)
        model.close()
        model.close()
        uses = [(greedy, model), (model.tokenize, b"x"), (model.embed, "x"), (model.n_ctx,)]
        uses += [(model.detokenize, [1, 2]), (model, "Paris"), (model.save_state,)]
        uses += [(lambda: model.ctx,), (model.token_eos,)]
        closed = [error_of(*use) for use in uses]
        report(status=status, forked=forked, alive=alive, same=before == after, closed=closed)
        """
    )
    assert found["status"] == 0
    assert found["forked"][0] == "ForkedProcessError"
    assert found["alive"] == 2
    assert found["same"] is True
    assert {kind for kind, _ in found["closed"]} == {"ModelClosedError"}


def test_options_of_the_plan_are_refused(programs: Programs) -> None:
    """An argument that the plan decides, an unknown one and too many workers are each refused."""
    found = programs.run(
        """
        report(
            ours=error_of(load, "local", n_gpu_layers=3),
            swallowed=error_of(load, "local", rpc_servers="127.0.0.1:1"),
            unknown=error_of(load, "local", n_cxt=3),
            many=error_of(load, "local:9"),
            missing=error_of(load, "local", msa="fast"),
            left=workers(),
        )
        """
    )
    assert found["ours"] == ["ConfigError", "Llama: n_gpu_layers is decided by ggufcluster"]
    assert found["swallowed"][0] == "ConfigError"
    assert found["unknown"] == ["TypeError", "Llama() has no argument 'n_cxt'"]
    assert found["many"][0] == "ConfigError"
    assert found["many"][1].startswith("workers: 9 devices for the 8 layers")
    assert found["missing"][0] == "ConfigError"
    assert found["left"] == {}


def test_one_process_has_one_path_of_sparse_attention(programs: Programs) -> None:
    """Dense attention can be had as well, but not beside a model that is sparse."""
    found = programs.run(
        """
        sparse = load("local")
        error = error_of(load, "local", msa="dense")
        sparse.close()
        with load("local:2", msa="dense") as far, load(msa="dense") as near:
            report(error=error, tokens=[greedy(far), greedy(near)], left=len(workers()))
        """
    )
    assert found["error"][0] == "ConfigError"
    assert "generic" in found["error"][1]
    assert found["tokens"][0] == found["tokens"][1]
    assert found["left"] == 2


def test_a_load_that_is_interrupted_leaves_nothing(programs: Programs) -> None:
    """Ctrl-C while it loads raises KeyboardInterrupt and ends the workers; output is not lost."""
    found = programs.run(
        """
        import signal
        from ggufcluster.workflows.events import Started

        def interrupt(event):
            print("event", type(event).__name__)
            if isinstance(event, Started) and event.label.startswith("Loading"):
                begun.append(len(workers()))
                os.kill(os.getpid(), signal.SIGINT)

        begun = []
        error = error_of(load, "local:2", on_event=interrupt)
        import llama_cpp._internals
        with llama_cpp._internals.suppress_stdout_stderr(disable=False):
            print("still here")
        model = load("local", verbose=False)
        report(error=error, begun=begun, left=len(workers()), tokens=greedy(model))
        model.close()
        """
    )
    assert found["error"][0] == "KeyboardInterrupt"
    assert found["begun"] == [2]
    assert found["left"] == 1
    assert found["tokens"]
    assert "still here" in found["stdout"]


def test_the_engine_speaks_through_logging(programs: Programs) -> None:
    """What the engine says goes to its logger, whole lines with their levels, and nowhere else."""
    found = programs.run(
        """
        import logging
        lines = []
        class Keep(logging.Handler):
            def emit(self, record):
                lines.append((record.levelname, record.getMessage()))
        logger = logging.getLogger("ggufcluster.engine")
        logger.addHandler(Keep())
        logger.setLevel(logging.DEBUG)
        load("local").close()
        report(
            assigned=sum("assigned to device RPC" in text for _, text in lines),
            broken=[text for _, text in lines if "\\n" in text],
            levels=sorted({level for level, _ in lines}),
        )
        """
    )
    assert found["assigned"] == 9
    assert found["broken"] == []
    assert {"INFO", "DEBUG"} & set(found["levels"])
    assert found["stderr"] == ""


def test_a_frozen_worker_can_be_left(programs: Programs) -> None:
    """Two Ctrl-C leave a model whose worker is frozen; the program ends well, the worker too."""
    found = programs.run(
        """
        import signal, time
        model = load("local:2")
        greedy(model)
        frozen = workers()
        os.kill(list(frozen.values())[0], signal.SIGSTOP)
        def waits():
            frame = sys._current_frames()[threading.main_thread().ident]
            while frame and not frame.f_code.co_filename.endswith("engine_thread.py"):
                frame = frame.f_back
            time.sleep(0.1)
            return frame is not None
        def interrupt():
            for _ in range(2):
                while not all(waits() for _ in range(10)):
                    pass  # not yet in the step that never ends
                os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        first = error_of(greedy, model, range(20, 200))
        report(first=first, second=error_of(greedy, model))
        """
    )
    assert found["first"][0] == "KeyboardInterrupt"
    assert found["second"][0] == "EngineFailedError"
    assert _pids(programs) == []


def test_the_most_context_that_fits_can_be_asked_for(programs: Programs) -> None:
    """With ``max`` the plan decides about the context: here all that the toy was made for."""
    found = programs.run("report(context=[load('local', n_ctx=n).n_ctx() for n in ('max', 512)])")
    assert found["context"] == [8192, 512]


def test_a_pickled_model_is_loaded_anew(programs: Programs) -> None:
    """A copy through pickle has the same arguments and workers of its own."""
    found = programs.run(
        """
        import pickle
        with load("local", seed=3) as model:
            with pickle.loads(pickle.dumps(model)) as copy:
                report(tokens=[greedy(model), greedy(copy)], workers=len(workers()))
        """
    )
    assert found["tokens"][0] == found["tokens"][1]
    assert found["workers"] == 2


def test_a_model_that_does_not_fit_is_refused(programs: Programs) -> None:
    """The plan says what is missing before anything is loaded, and the workers are ended."""
    found = programs.run(
        """
        from dataclasses import replace
        from ggufcluster.bindings import loading
        real = loading.worker_devices
        small = lambda found: [replace(one, free=1 << 20, total=1 << 20) for one in real(found)]
        loading.worker_devices = small
        report(error=error_of(load, "local:2"), left=workers())
        """
    )
    assert found["error"][0] == "PlacementError"
    assert "the devices offer" in found["error"][1]
    assert found["left"] == {}


def test_workers_that_run_already_are_used_and_left_running(
    programs: Programs, engine: Engine, free_port: int
) -> None:
    """A worker given by its endpoint serves a model and outlives it; silent ones are refused."""
    with _worker(engine, free_port) as process:
        found = programs.run(
            """
            def over(endpoint):
                from ggufcluster import Llama
                return Llama(TOY, endpoints=[endpoint], n_ctx=1024, n_ubatch=128)

            with load() as here, over(sys.argv[2]) as there:
                tokens = [greedy(here), greedy(there)]
                from ggufcluster.workflows import worker_group
                worker_group._PROBE_SECONDS = 1.0
                used = error_of(over, sys.argv[2])
            report(tokens=tokens, used=used, gone=error_of(over, "127.0.0.1:1"))
            """,
            f"127.0.0.1:{free_port}",
        )
        assert process.poll() is None
    assert found["tokens"][0] == found["tokens"][1]
    assert found["gone"][0] == found["used"][0] == "WorkerNotReadyError"
    assert "is it in use?" in found["used"][1]
    assert "in use" not in found["gone"][1]


def test_without_an_engine_the_name_says_what_is_missing(
    programs: Programs, tmp_path: Path
) -> None:
    """With an empty cache, taking `Llama` names the engine and where it was looked for."""
    found = programs.run(
        "report(error=error_of(lambda: __import__('ggufcluster').Llama))",
        XDG_CACHE_HOME=str(tmp_path / "empty"),
    )
    assert found["error"][0] == "EngineMissingError"
    assert str(tmp_path / "empty") in found["error"][1]


def test_an_engine_of_another_commit_is_refused(
    programs: Programs, engine: Engine, tmp_path: Path
) -> None:
    """An engine that was built from another llama.cpp, or other bindings, are never loaded."""
    cache = tmp_path / "cache" / "ggufcluster" / "engines" / engine.build_id
    shutil.copytree(engine.folder, cache, symlinks=True)
    record = json.loads((cache / "build.json").read_text())
    take = """
error = error_of(lambda: __import__('ggufcluster').Llama)
report(error=error, loaded='llama_cpp' in sys.modules)
"""

    (cache / "build.json").write_text(json.dumps(record | {"origin": "tree:abc"}))
    tree = programs.run(take, XDG_CACHE_HOME=str(tmp_path / "cache"))
    pin = record["pin"] | {"llama_cpp_python": "0.3.35"}
    origin = f"sdist:{pin['sdist_sha256']}:{pin['sdist_subdir']}"
    (cache / "build.json").write_text(json.dumps(record | {"pin": pin, "origin": origin}))
    version = programs.run(take, XDG_CACHE_HOME=str(tmp_path / "cache"))
    early = programs.run("import llama_cpp\n" + take, LLAMA_CPP_LIB_PATH=str(cache / "bin"))

    assert tree["error"][0] == version["error"][0] == early["error"][0] == "EngineMismatchError"
    assert "0.3.35" in version["error"][1]
    assert "imported before" in early["error"][1]
    assert (tree["loaded"], version["loaded"]) == (False, False)


def _pids(programs: Programs) -> list[int]:
    state = programs.env["XDG_STATE_HOME"]
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name = (entry / "cmdline").read_bytes().split(b"\0")[0]
            environ = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if name.endswith(b"ggml-rpc-server") and f"XDG_STATE_HOME={state}".encode() in environ:
            found.append(int(entry.name))
    return found


@contextlib.contextmanager
def _worker(engine: Engine, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run an RPC server that somebody else started."""
    words = [str(engine.program("ggml-rpc-server")), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while f"0100007F:{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
            assert time.monotonic() < deadline, "the worker does not listen"
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait()
