"""How `inspect` looks."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ggufcluster.core.kv_cache import KV_ELEMENT_BYTES
from ggufcluster.core.model import ModelKind
from ggufcluster.core.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.cli.output import Output
    from ggufcluster.core.inspection import Inspection
    from ggufcluster.core.model import ModelFacts
    from ggufcluster.core.tensor_classes import ClassQuantisation

_SHOWN_KV_TYPES = ("f16", "q8_0", "q4_0")
_ATTENTION = {
    ModelKind.M3_SPARSE: "sparse: the indexer is there",
    ModelKind.M3_DENSE: "dense: no indexer",
    ModelKind.OTHER: "as the architecture has it",
}


def show(output: Output, found: Inspection, *, template: str | None, as_json: bool) -> None:
    """Print what is known of a model as tables or as JSON.

    Args:
        output: Where to.
        found: What is known.
        template: Template file that the settings put in the place of the model's own.
        as_json: Print JSON.
    """
    if as_json:
        output.data(_as_data(found, template))
        return
    output.pairs(_pairs(found, template))
    output.line()
    output.table(
        ("tensors", "types", "bits", "memory"),
        [_class_row(group) for group in found.facts.quantisation],
    )
    output.line()
    output.table(("layers", "each", "memory"), list(_layer_rows(found.facts)))
    for warning in found.warnings:
        output.line()
        output.paragraph(f"note: {warning}")


def _pairs(found: Inspection, template: str | None) -> Iterator[tuple[str, str]]:
    facts = found.facts
    files = f"{len(found.files)} files" if len(found.files) > 1 else "1 file"
    yield "model", facts.name
    yield "architecture", facts.architecture
    yield "attention", _ATTENTION[facts.kind]
    yield "layers", _layers(facts)
    yield "experts", _experts(found)
    yield "context", f"{facts.train_context:,} tokens"
    yield "tokenizer", _tokenizer(found)
    for line in _templates(found, template):
        yield "template", line
    yield "size", f"{size_text(found.file_bytes)} in {files}, {found.tensors:,} tensors"
    yield "read per token", f"{size_text(facts.bytes_per_token)} of weights"
    sizes = (f"{size_text(_kv_token_bytes(facts, kind))} in {kind}" for kind in _SHOWN_KV_TYPES)
    yield "KV cache a token", ", ".join(sizes)


def _layers(facts: ModelFacts) -> str:
    if not facts.experts or not facts.dense_layers:
        return str(facts.layers)
    return f"{facts.layers}, the first {facts.dense_layers} without experts"


def _experts(found: Inspection) -> str:
    if not found.facts.experts:
        return "none"
    shared = f", {found.shared_experts} shared" if found.shared_experts else ""
    return f"{found.facts.experts}, of which a token uses {found.facts.experts_used}{shared}"


def _tokenizer(found: Inspection) -> str:
    if found.tokenizer is None:
        return "none"
    return f"{found.tokenizer.model} ({found.tokenizer.pre}), {found.tokenizer.entries:,} tokens"


def _templates(found: Inspection, override: str | None) -> Iterator[str]:
    if override:
        yield f"{override} is used (a setting)"
    elif not found.templates:
        yield "none: llama.cpp would guess one"
    for template in found.templates:
        used = "used" if template.used and not override else "not used"
        yield f"{template.name}: {template.parser} parser, {used}"


def _class_row(group: ClassQuantisation) -> tuple[str, str, str, str]:
    types = ", ".join(f"{use.type.name} x {use.tensors}" for use in group.uses)
    bits = f"{group.bits_per_weight:.2f}"
    return group.tensor_class.value, types, bits, size_text(group.size)


def _layer_rows(facts: ModelFacts) -> Iterator[tuple[str, str, str]]:
    """Yield one row for each run of layers that show the same size."""
    yield "embedding", "", size_text(facts.embedding_bytes)
    for each, run in groupby(enumerate(facts.layer_bytes), key=lambda layer: size_text(layer[1])):
        layers = list(run)
        first, last = layers[0][0], layers[-1][0]
        name = str(first) if first == last else f"{first}-{last}"
        yield name, each, size_text(sum(size for _layer, size in layers))
    yield "output", "", size_text(facts.output_bytes)


def _kv_token_bytes(facts: ModelFacts, kind: str) -> float:
    return sum(facts.kv_token_bytes(layer, kv_type=kind) for layer in range(facts.layers))


def _as_data(found: Inspection, template: str | None) -> dict[str, Any]:
    facts = found.facts
    return {
        "name": facts.name,
        "architecture": facts.architecture,
        "kind": facts.kind.name.lower(),
        "indexer": facts.has_indexer,
        "layers": facts.layers,
        "dense_layers": facts.dense_layers,
        "experts": facts.experts,
        "experts_used": facts.experts_used,
        "shared_experts": found.shared_experts,
        "context": facts.train_context,
        "tokenizer": asdict(found.tokenizer) if found.tokenizer else None,
        "templates": [asdict(known) for known in found.templates],
        "template_override": template,
        "quantisation": [_class_data(group) for group in facts.quantisation],
        "layer_bytes": list(facts.layer_bytes),
        "embedding_bytes": facts.embedding_bytes,
        "output_bytes": facts.output_bytes,
        "weight_bytes": facts.weight_bytes,
        "bytes_per_token": round(facts.bytes_per_token),
        "kv_bytes_per_token": {kind: _kv_token_bytes(facts, kind) for kind in KV_ELEMENT_BYTES},
        "file_bytes": found.file_bytes,
        "files": [asdict(file) for file in found.files],
        "warnings": list(found.warnings),
    }


def _class_data(group: ClassQuantisation) -> dict[str, Any]:
    return {
        "class": group.tensor_class.value,
        "bytes": group.size,
        "bits_per_weight": round(group.bits_per_weight, 3),
        "types": {use.type.name: {"tensors": use.tensors, "bytes": use.size} for use in group.uses},
    }
