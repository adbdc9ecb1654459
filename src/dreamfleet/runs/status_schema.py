"""Writes the JSON schema of `status.json`.

python -m dreamfleet.runs.status_schema > docs/schemas/status.json
"""

from __future__ import annotations

import json
import sys

from dreamfleet.runs.status import RunStatus


def schema() -> str:
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunStatus.model_json_schema()}
    return json.dumps(found, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema())
