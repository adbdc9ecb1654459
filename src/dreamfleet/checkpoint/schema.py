"""What a manifest may say. One that says anything else is damaged."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

FORMAT = 3  # 1 has neither checksums nor a list of its files, 2 no list of its parts and no checksum of its own
AGENT = "agent.safetensors"
CONFIG_FILE = "config.yaml"
AGENT_FILES = (AGENT, CONFIG_FILE)  # what is left of a snapshot whose agent alone is kept
# The files of each part of a run's snapshot.
PARTS = {
    "agent": (AGENT,),
    "replay": ("replay_train.safetensors", "replay_eval.safetensors", "limiter.safetensors"),
    "logger": ("logger.safetensors",),
}
MAX_COUNT = 10**15  # steps, updates and bytes: nothing that was ever counted comes near
CHECKSUM = "checksum"


def _plain(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise ValueError("it is not the name of a file in the folder")
    return name


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Checksum = Annotated[int, Field(ge=0, lt=1 << 32)]
FileName = Annotated[str, Field(max_length=255), AfterValidator(_plain)]
PartName = Literal["agent", "replay", "logger"]


class FileFacts(BaseModel):
    model_config = ConfigDict(strict=True)

    size: Count
    crc32: Checksum


class Manifest1(BaseModel):
    """Keys that are not here may be anything."""

    model_config = ConfigDict(strict=True)

    format: Annotated[int, Field(ge=1, le=FORMAT)]
    step: Count
    updates: Count
    time: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    score: FiniteFloat | None = None
    lost: Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)] = 0
    version: str | None = None
    config: FileName | None = None
    spaces: dict[str, dict[str, list[Any]]] = Field(default_factory=dict)
    imported: bool = False
    agent_only: bool = False
    files: dict[FileName, FileFacts] = Field(default_factory=dict)


class Manifest2(Manifest1):
    files: dict[FileName, FileFacts]


class Manifest3(Manifest2):
    parts: Annotated[list[PartName], Field(min_length=1)]
    elsewhere: list[PartName]  # in the run folders of roles on other machines
    checksum: Checksum


MANIFESTS: dict[int, type[Manifest1]] = {1: Manifest1, 2: Manifest2, 3: Manifest3}


def find_error(manifest: Any) -> str | None:
    """Return what is wrong with the manifest, on one line; what it says of files is not compared with them here."""
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is not int or found not in MANIFESTS:
        return f"it has the format {str(found)[:40]!r}" if isinstance(manifest, dict) else "it is no JSON object"
    if (expected := manifest.get(CHECKSUM)) is not None and expected != checksum_of(manifest):
        return "it does not match its checksum"
    try:
        checked = MANIFESTS[found].model_validate(manifest)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part)[:40] for part in problem["loc"])
        return f"{where!r}: {problem['msg']}"
    return _missing_part(checked) if isinstance(checked, Manifest3) else None


def checksum_of(manifest: Mapping[str, Any]) -> int:
    """Of all that it says, in whatever order and spacing."""
    rest = {key: value for key, value in manifest.items() if key != CHECKSUM}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def _missing_part(manifest: Manifest3) -> str | None:
    """A snapshot has all parts, here or elsewhere, but for imported steps, and for what is kept for its agent alone."""
    needed = set(PARTS) - {"agent"} if manifest.imported else set(PARTS)
    there = {*manifest.parts, *manifest.elsewhere}
    if missing := {"agent"} - {*manifest.parts} if manifest.agent_only else needed - there:
        return f"it has no part {min(missing)!r}"
    unlisted = [file for part in manifest.parts for file in PARTS[part] if file not in manifest.files]
    return f"its part lacks {unlisted[0]}" if unlisted else None
