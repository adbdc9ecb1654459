"""Loads an exported policy in a process that may import JAX and NumPy only, and writes down what it does.

    python jax_only.py POLICY INPUTS RESULTS [block]

INPUTS is an .npz with `obs/KEY` of [time, rows, ...] and `reset` of [time, rows].
"""

import sys
from importlib.machinery import PathFinder

ALLOWED = {"jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "opt_einsum", "dreamfleet_policy"}


class Block:
    """Finds the standard library, JAX, NumPy and what these need, and nothing else that is installed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ALLOWED or top in sys.stdlib_module_names or top.startswith("_"):
            return PathFinder.find_spec(name, path, target)
        return None


def main(policy_file: str, inputs: str, results: str, *block: str) -> None:
    if block:
        sys.meta_path[:] = [Block if finder is PathFinder else finder for finder in sys.meta_path]
    sys.path.insert(0, policy_file)
    import dreamfleet_policy
    import numpy as np

    policy = dreamfleet_policy.load(policy_file)
    data = np.load(inputs)
    keys = [key for key in data.files if key.startswith("obs/")]
    out: dict[str, list] = {"deter": [], "stoch": []}
    state = None
    for time in range(len(data["reset"])):
        obs = {key.removeprefix("obs/"): data[key][time] for key in keys}
        actions, state = policy.act({**obs, "is_first": data["reset"][time]}, state)
        deter, stoch, _ = state[0]
        out["deter"].append(np.asarray(deter, np.float32))
        out["stoch"].append(np.asarray(stoch))
        for key, value in actions.items():
            out.setdefault(f"action/{key}", []).append(value)
    np.savez(results, **{key: np.stack(values) for key, values in out.items()})
    others = {"dreamfleet", "equinox", "optax", "gymnasium", "safetensors"} & set(sys.modules)
    assert not others, others


if __name__ == "__main__":
    main(*sys.argv[1:])
