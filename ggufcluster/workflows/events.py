"""What workflows report while they work.

A workflow is a generator: it yields events and returns its result. Callers that do not care use
`drain`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar


class Unit(Enum):
    """What a progress bar counts."""

    BYTES = "bytes"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class Started:
    """A step began; it may take a while."""

    label: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step is; `total` is None while unknown. The sink works out rate and time left.

    `within` is the label of the step that this one is a share of, if any.
    """

    label: str
    done: int
    total: int | None
    unit: Unit = Unit.STEPS
    within: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """A step ended well; `detail` says with what result, in a few words."""

    label: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A fact worth a line."""

    text: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know, though the work goes on."""

    text: str


Event = Started | Progress | Finished | Note | Warned

Result = TypeVar("Result")
Workflow = Generator[Event, None, Result]


def drain(workflow: Workflow[Result]) -> Result:
    """Run a workflow to its end and return its result, dropping the events."""
    try:
        while True:
            next(workflow)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
