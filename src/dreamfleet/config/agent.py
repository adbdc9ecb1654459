"""The configuration group `agent`, derived from the definitions of the hyperparameters."""

from __future__ import annotations

from dataclasses import Field as DataclassField
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import BeforeValidator, Field, create_model

from dreamfleet.config.base import AGENT, FIRST_WEIGHTS, NETWORKS, Group, Whole, as_tuple
from dreamfleet.core.hyperparameters import SIZES, DreamerOptions

T = TypeVar("T")
FIXED = {"networks": NETWORKS, "first weights": FIRST_WEIGHTS}
TYPES: dict[Any, Any] = {
    int: Whole,
    tuple[int, ...]: Annotated[tuple[Whole, ...], BeforeValidator(as_tuple)],
}


def group_of(kind: type[Any], name: str, **changed: Any) -> type[Group]:
    """Return a group with one key per field of the dataclass `kind`. `changed` overrides defaults."""
    hints = get_type_hints(kind)
    keys: dict[str, Any] = {}
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            inner = group_of(hints[field.name], field.name.title(), **field.metadata["changed"])
            about = (hints[field.name].__doc__ or "").partition("\n")[0]
            keys[field.name] = (inner, Field(default_factory=inner, description=about))
        else:
            keys[field.name] = _key(field, hints[field.name], changed)
    return create_model(name, __base__=Group, **keys)


def _key(field: DataclassField[Any], hint: Any, changed: dict[str, Any]) -> tuple[Any, Any]:
    extra = dict(field.metadata)
    about, choices = extra.pop("about"), extra.pop("choices", None)
    kind = Literal[choices] if choices else TYPES.get(hint, hint)
    if fixed := extra.pop("fixed", None):
        kind = Annotated[kind, FIXED[fixed]]
    return kind, Field(changed.get(field.name, field.default), description=about, **extra)


_Hyperparameters: Any = group_of(DreamerOptions, "Hyperparameters")


class AgentGroup(_Hyperparameters):  # type: ignore[misc]
    name: Annotated[str, AGENT] = Field(
        "dreamer", min_length=1, description="Agent: dreamer, random or package.module:factory."
    )
    size: Annotated[Literal[tuple(SIZES)], NETWORKS] = Field(  # type: ignore[valid-type]
        "size12m", description="Width of all layers. Keys set after it override it."
    )
    report: bool = Field(True, description="Report losses and predicted videos every run.report_every seconds.")
    best_eval_action: bool = Field(
        False, description="Take the most likely action in evaluation environments instead of sampling."
    )


def hyperparameters(agent: Any) -> DreamerOptions:
    """Convert the validated configuration to the plain options that the model reads."""
    return _fill(DreamerOptions(), agent)


def _fill(plain: T, group: Any) -> T:
    changed: dict[str, Any] = {}
    for field in fields(plain):  # type: ignore[arg-type]
        old, new = getattr(plain, field.name), getattr(group, field.name)
        changed[field.name] = _fill(old, new) if is_dataclass(old) else new
    return replace(plain, **changed)  # type: ignore[type-var]
