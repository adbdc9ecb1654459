"""Train DreamerV3 agents with many processes. Importing the package loads nothing else.

`train`, `load_policy` and `export` are the Python versions of the commands. `dreamfleet.parallel` contains the
functions of the fleet.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dreamfleet.api import TrainResult, export, load_policy, train

__version__ = "0.1.0"
__all__ = ["TrainResult", "__version__", "export", "load_policy", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dreamfleet' has no attribute {name!r}")
    from dreamfleet import api

    return getattr(api, name)
