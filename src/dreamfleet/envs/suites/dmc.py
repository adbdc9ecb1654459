"""DeepMind control suite: `DOMAIN_TASK`, such as `walker_walk`, from states, images or both."""

from __future__ import annotations

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.gym.dm_env import DmEnv
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.render.backend import require_renderer

CAMERAS = {"quadruped": 2}  # the others use 0


def make(
    task: str, options: EnvOptions, seed: int, *, proprio: bool = True, image: bool = True, camera: int = -1
) -> DmEnv:
    """`proprio` gives positions and velocities, `image` the view of `camera`, where -1 is the domain's usual one.

    Without images nothing is drawn, and no graphics library is needed.
    """
    if not proprio and not image:
        raise ConfigError(f"dmc:{task}: env.kwargs.proprio and env.kwargs.image are both off: nothing to observe")
    if image:
        require_renderer(f"dmc:{task}", "; without images it needs none: env.kwargs.image=False")
    from dm_control import suite

    known = {f"{domain}_{name}": (domain, name) for domain, name in suite.ALL_TASKS}
    if task not in known:
        raise unknown_task("dmc", task, known)
    domain, name = known[task]
    env = suite.load(domain, name, task_kwargs={"random": seed})
    repeat = options.repeat or 1
    if not image:
        return DmEnv(env, repeat=repeat)
    height, width = options.size or (64, 64)
    view = CAMERAS.get(domain, 0) if camera == -1 else camera
    return DmEnv(
        env,
        repeat=repeat,
        vectors=proprio,
        image=lambda: env.physics.render(height, width, camera_id=view),
        image_shape=(height, width, 3),
    )


def tasks() -> list[str]:
    from dm_control import suite

    return sorted(f"{domain}_{name}" for domain, name in suite.ALL_TASKS)
