"""A running cluster as a Python object."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ggufcluster.bindings.client import open_client
from ggufcluster.bindings.options import UpOptions, flags_of
from ggufcluster.bindings.steps import Steps, begin_in_thread
from ggufcluster.core.record import ClusterRecord
from ggufcluster.core.secret import Secret
from ggufcluster.errors import ClusterUnhealthyError, ConfigError
from ggufcluster.wiring import settings_of, streaming_api, wish_of, world
from ggufcluster.workflows import down as taking_down
from ggufcluster.workflows import status as looking
from ggufcluster.workflows.up import Up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self, Unpack

    from ggufcluster.bindings.client import Client
    from ggufcluster.workflows.events import Event, Workflow
    from ggufcluster.workflows.status import Status

_WORDS = {"loading": "is still loading", "down": "does not answer"}


class Cluster:
    """A running head and its workers.

    As a context manager it takes the cluster down at the end if it was `up` that started it; one
    that ran before, and one that was attached to, are left running.

    Attributes:
        record: What was started where; of a head that another machine started, only its address.
    """

    def __init__(self, record: ClusterRecord, *, key: Secret | None = None, started: bool) -> None:
        self.record = record
        self._key = key
        self._started = started

    @classmethod
    def up(
        cls,
        workers: Iterable[str] | None = None,
        *,
        on_event: Callable[[Event], object] | None = None,
        extra: Sequence[str] = (),
        **options: Unpack[UpOptions],
    ) -> Self:
        """Bring a cluster up as ``ggufcluster up`` does: build, copy, start, load, prove.

        Args:
            workers: ``[user@]host[:ssh-port]``, ``local`` or ``local:N``; None takes the settings.
            on_event: Called with each event of the work.
            extra: Further llama-server options.
            options: See `UpOptions`.

        Raises:
            GgufClusterError: Of the kind that tells what failed; nothing is left running then.
        """
        return cls.starting(workers, extra=extra, **options).result(on_event)

    @classmethod
    def starting(
        cls,
        workers: Iterable[str] | None = None,
        *,
        extra: Sequence[str] = (),
        **options: Unpack[UpOptions],
    ) -> Steps[Self]:
        """Do what `up` does as an iterator of events, whose ``result()`` is the cluster."""
        return Steps(cls._bring_up(flags_of(workers, options), tuple(extra)))

    @classmethod
    async def up_async(
        cls,
        workers: Iterable[str] | None = None,
        *,
        on_event: Callable[[Event], object] | None = None,
        extra: Sequence[str] = (),
        **options: Unpack[UpOptions],
    ) -> Self:
        """Do what `up` does in a thread; cancelled, it undoes what it began and then ends."""
        steps = cls.starting(workers, extra=extra, **options)
        return await begin_in_thread(steps.result, on_event=on_event, undo=cls.down)

    @classmethod
    def attach(cls, name_or_url: str | None = None, *, api_key: str | None = None) -> Self:
        """Find a cluster that runs.

        Args:
            name_or_url: Model or id of the cluster of this user and machine, or the root URL of
                any llama-server; None means the cluster of this user and machine.
            api_key: Key of a head that another machine started.

        Raises:
            ClusterUnhealthyError: There is none.
        """
        with world(settings_of({})) as outside:
            record = outside.store.load()
        if name_or_url and "://" in name_or_url:
            root = name_or_url.rstrip("/").removesuffix("/v1")
            if record is None or root != record.root:
                return cls(_elsewhere(root), key=_secret(api_key), started=False)
        elif record and name_or_url and name_or_url not in {record.id, record.model}:
            problem = f"no cluster {name_or_url!r} is up; the one that is serves {record.model}"
            raise ClusterUnhealthyError((problem,))
        if record is None:
            raise ClusterUnhealthyError(("no cluster is up",))
        return cls(record, key=_secret(api_key), started=False)

    @property
    def base_url(self) -> str:
        """Root of the OpenAI-compatible API."""
        return f"{self.record.root}/v1"

    @property
    def api_key(self) -> str | None:
        """Key of the API for other clients, None if the head asks for none; keep it out of logs."""
        key = self._api_key()
        return key.reveal() if key else None

    @property
    def is_ours(self) -> bool:
        """Whether this machine started it, so that `down` can end it."""
        return bool(self.record.head_run)

    def status(self) -> Status:
        """Look at every process and ask the head; never raises for what is merely unhealthy."""
        if not self.is_ours:
            return self._status_from_afar()
        with world(settings_of({})) as outside:
            return looking.status(outside.seams(), self.record)

    def down(self, *, on_event: Callable[[Event], object] | None = None) -> bool:
        """End exactly what `up` started; return whether it still ran.

        Raises:
            ConfigError: Another machine started it.
            HostError: A host could not be reached; a later `down` can finish.
        """
        if not self.is_ours:
            raise ConfigError("only the machine that started it ends it", source=self.record.root)
        return Steps(self._take_down()).result(on_event)

    async def down_async(self) -> bool:
        """Do what `down` does in a thread."""
        return await asyncio.to_thread(self.down)

    def client(self, *, timeout: float = 600.0) -> Client:
        """Return an OpenAI-compatible client of the head.

        It is the `openai` package's if that is installed, else a small one with the same calls.

        Args:
            timeout: Seconds to wait for an answer, or for each piece of a streamed one.
        """
        return open_client(self.base_url, self._api_key(), timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self.down()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._started:
            await self.down_async()

    def __repr__(self) -> str:
        return f"<Cluster {self.record.model or 'head'} at {self.record.root}>"

    @classmethod
    def _bring_up(cls, flags: dict[str, object], extra: tuple[str, ...]) -> Workflow[Self]:
        settings = settings_of(flags, name_of=lambda setting: setting.argument)
        wish = wish_of(settings, extra=extra)
        with world(settings) as outside:
            before = outside.store.load()
            up = Up(outside.seams(), outside.engines(), outside.store, wish)
            record = yield from up.run()
        return cls(record, started=before is None or before.id != record.id)

    def _take_down(self) -> Workflow[bool]:
        with world(settings_of({})) as outside:
            record = outside.store.load()
            if record is None or record.id != self.record.id:
                return False  # ended meanwhile, perhaps for another cluster
            return (yield from taking_down.down(outside.seams(), outside.store))

    def _api_key(self) -> Secret | None:
        return self._key or looking.read_key(self.record.api_key_file)

    def _status_from_afar(self) -> Status:
        api = streaming_api(self.record.root, self._api_key())
        head = api.health()
        return looking.Status(
            record=self.record,
            head=head,
            workers={},
            slots=None,
            engine="",
            uptime=0.0,
            problems=() if head == "ok" else (f"the head {_WORDS.get(head, 'is ' + head)}",),
        )


def _secret(text: str | None) -> Secret | None:
    return Secret(text) if text else None


def _elsewhere(root: str) -> ClusterRecord:
    """Return the record of a head of which only the address is known."""
    return ClusterRecord(
        id="",
        created=0.0,
        wish="{}",
        build_id="",
        head_run="",
        root=root,
        api_key_file=None,
        model="",
        workers=(),
    )
