"""The Minecraft world that MineRL 0.4 starts: what it tells, what it lets the player do, how fast blocks break."""

from __future__ import annotations

from typing import Any

KEYS = ("forward", "back", "left", "right", "jump", "sneak", "sprint", "attack")


def make_world(size: tuple[int, int], break_speed: float) -> tuple[Any, list[str]]:
    """MineRL's environment (the old gym interface) and the names of all items."""
    from minerl.herobraine.env_spec import EnvSpec
    from minerl.herobraine.hero import handler, handlers, mc

    class BreakSpeed(handler.Handler):  # type: ignore[misc]
        """Known to builds of MineRL that were patched for it; at 1 it is left out, so that any build will do."""

        multiplier = break_speed

        def to_string(self) -> str:
            return "how_fast_blocks_break"

        def xml_template(self) -> str:
            return "<BreakSpeedMultiplier>{{multiplier}}</BreakSpeedMultiplier>"

    class World(EnvSpec):  # type: ignore[misc]
        """A new survival world by day, with monsters. There is no reward: the task gives it."""

        def create_observables(self) -> list[Any]:
            return [
                handlers.POVObservation((size[1], size[0])),
                handlers.FlatInventoryObservation(mc.ALL_ITEMS),
                handlers.EquippedItemObservation(items=mc.ALL_ITEMS, _default="air", _other="other"),
                handlers.ObservationFromLifeStats(),
            ]

        def create_actionables(self) -> list[Any]:
            keys = [handlers.KeybasedCommandAction(name, mc.INVERSE_KEYMAP[name]) for name in KEYS]
            with_item = ("PlaceBlock", "EquipAction", "CraftAction", "CraftNearbyAction", "SmeltItemNearby")
            choices = ["none", *mc.ALL_ITEMS]
            commands = [getattr(handlers, name)(choices, _other="none", _default="none") for name in with_item]
            return [*keys, handlers.CameraAction(), *commands]

        def create_agent_start(self) -> list[Any]:
            return [BreakSpeed()] if break_speed != 1 else []

        def create_server_world_generators(self) -> list[Any]:
            return [handlers.DefaultWorldGenerator(force_reset=True)]

        def create_server_quit_producers(self) -> list[Any]:
            return [handlers.ServerQuitWhenAnyAgentFinishes()]

        def create_server_initial_conditions(self) -> list[Any]:
            time = handlers.TimeInitialCondition(start_time=0, allow_passage_of_time=True)
            return [time, handlers.SpawningInitialCondition(allow_spawning=True)]

        def _nothing(self) -> list[Any]:
            return []

        create_rewardables = create_agent_handlers = create_monitors = create_server_decorators = _nothing

        def is_from_folder(self, folder: str) -> bool:
            return False

        def determine_success_from_rewards(self, rewards: list[float]) -> bool:
            return True

        def get_docstring(self) -> str:
            return ""

    return World("DreamfleetDiamond-v0").make(), list(mc.ALL_ITEMS)
