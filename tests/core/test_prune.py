"""What may go from a cache."""

from __future__ import annotations

from pathlib import PurePosixPath

from ggufcluster.core.prune import (
    CacheSurvey,
    Entry,
    Kept,
    Kind,
    choose,
    parse_survey,
)

NEW, OLD, OTHER = "0123456789abcdef", "fedcba9876543210", "aaaabbbbccccdddd"
CACHE = PurePosixPath("/c")


def test_a_survey_is_read() -> None:
    """Entries with a fingerprint count, whatever else is printed or lies there."""
    output = f"""Welcome to spark-2!
@cache /real/c
@building
@entry 4096 engines/{OLD}-cpu-x86_64-1
@entry 100 builds/{OLD}-cpu-x86_64-1.log
@entry 7 builds/lock
@entry 50 sources/{OLD}-main
@entry 60 sources/llama_cpp_python-0.3.36.tar.gz
@entry 9 engines/{OLD}-cpu-x86_64-1.partial-AbCd
@map 7f-8f r-xp 0 08:01 5   /real/c/engines/{OTHER}-cpu-x86_64-1/bin/lib x.so (deleted)
"""
    assert parse_survey(CACHE, output) == CacheSurvey(
        PurePosixPath("/real/c"),
        (
            Entry(Kind.ENGINE, f"{OLD}-cpu-x86_64-1", 4096),
            Entry(Kind.BUILD, f"{OLD}-cpu-x86_64-1.log", 100),
            Entry(Kind.SOURCE, f"{OLD}-main", 50),
        ),
        frozenset({f"{OTHER}-cpu-x86_64-1"}),
        building=True,
    )


def test_a_host_without_a_cache_has_nothing() -> None:
    """No output is an empty cache."""
    assert parse_survey(CACHE, "") == CacheSurvey(CACHE)


def test_other_versions_go_and_the_current_stays() -> None:
    """Engine, build, log and source of another version go; the current one is not even named."""
    old = tuple(Entry(kind, f"{OLD}-cpu", 1) for kind in Kind)
    new = tuple(Entry(kind, f"{NEW}-cpu", 1) for kind in Kind)
    assert choose(CacheSurvey(CACHE, old + new), fingerprints=frozenset({NEW})) == (old, ())


def test_what_is_used_or_recorded_stays() -> None:
    """The engine of a process or of the record stays with its log, and the reason is told."""
    used = Entry(Kind.ENGINE, f"{OLD}-cpu", 1)
    log = Entry(Kind.BUILD, f"{OLD}-cpu.log", 1)
    recorded = Entry(Kind.ENGINE, f"{OTHER}-cpu", 1)
    sibling = Entry(Kind.ENGINE, f"{OLD}-cuda", 1)
    found = CacheSurvey(CACHE, (used, log, recorded, sibling), used=frozenset({f"{OLD}-cpu"}))
    gone, kept = choose(found, fingerprints=frozenset({NEW}), recorded=frozenset({f"{OTHER}-cpu"}))
    assert gone == (sibling,)
    assert kept == (
        Kept(used, "a process runs from it"),
        Kept(log, "a process runs from it"),
        Kept(recorded, "the record of the cluster names it"),
    )


def test_a_build_keeps_what_it_may_need() -> None:
    """While something is built, engines go but no build folder and no source."""
    entries = tuple(Entry(kind, f"{OLD}-cpu", 1) for kind in Kind)
    gone, kept = choose(CacheSurvey(CACHE, entries, building=True), fingerprints=frozenset({NEW}))
    assert [entry.kind for entry in gone] == [Kind.ENGINE]
    assert {one.reason for one in kept} == {"a build is at work"}
