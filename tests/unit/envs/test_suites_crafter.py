"""Crafter against its own library, and its ends, logs and seeds."""

from __future__ import annotations

import inspect
from typing import Any

import crafter
import numpy as np
import opensimplex
import pytest
from crafter import worldgen

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites.crafter import Crafter, make
from dreamfleet.envs.suites.crafter.game import MAX_KEPT, QuickItems, QuickView, distance, order_chunks
from dreamfleet.envs.suites.crafter.worlds import Draws, Lattice, QuickWorlds


def run(env: Crafter, steps: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [env.step({"action": np.int32(rng.integers(17)), "reset": np.bool_(False)}) for _ in range(steps)]


def test_an_episode_begins_as_the_librarys_own_does() -> None:
    own = crafter.Env(seed=3)
    first = make("reward", EnvOptions(), 3).step({"action": np.int32(0), "reset": np.bool_(False)})
    assert np.array_equal(first["image"], own.reset())
    assert first["image"].shape == (64, 64, 3)


def test_one_seed_gives_one_game_wherever_its_objects_lie_in_memory() -> None:
    one, same = make("reward", EnvOptions(), 7), make("reward", EnvOptions(), 7)
    for mine, other in zip(run(one, 150), run(same, 150), strict=True):
        assert np.array_equal(mine["image"], other["image"])


def test_the_length_truncates_and_dying_terminates() -> None:
    flags = [
        (bool(obs["is_last"]), bool(obs["is_terminal"])) for obs in run(make("reward", EnvOptions(), 0, length=5), 6)
    ]
    assert flags == [(False, False)] * 5 + [(True, False)]
    env = make("reward", EnvOptions(), 0)
    run(env, 3)
    env._env._player.health = 0
    last = env.step({"action": np.int32(0), "reset": np.bool_(False)})
    assert (last["is_last"], last["is_terminal"]) == (True, True)
    assert env.step({"action": np.int32(0), "reset": np.bool_(False)})["is_first"]


def test_rewards_are_the_games_own_or_none() -> None:
    rewards, nothing = (
        [float(obs["reward"]) for obs in run(make(task, EnvOptions(), 1), 60)] for task in ("reward", "noreward")
    )
    assert any(rewards)
    assert not any(nothing)


def test_logs_count_what_was_achieved_and_carried() -> None:
    env = make("reward", EnvOptions(), 1, logs=True)
    observations = run(env, 60)
    assert not any(obs["is_last"] for obs in observations)
    for obs in observations:
        assert {key: space.violation(obs[key]) for key, space in env.obs_space.items()} == dict.fromkeys(obs)
    sums = {key: sum(float(obs[key]) for obs in observations) for key in env.obs_space if "/achievement/" in key}
    assert len(sums) == 22
    assert {key.rpartition("/")[2]: total for key, total in sums.items()} == env._env._player.achievements
    assert sum(total > 0 for total in sums.values()) >= 1
    assert float(observations[-1]["log/inventory/health"]) == env._env._player.inventory["health"]


def test_the_size_comes_from_the_options() -> None:
    env = make("reward", EnvOptions(size=(80, 96)), 0)
    assert run(env, 1)[0]["image"].shape == env.obs_space["image"].shape == (80, 96, 3)


def test_a_task_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="suite 'crafter' has no task 'rewards': did you mean crafter:reward"):
        make("rewards", EnvOptions(), 0)


@pytest.mark.parametrize("area", [(64, 64), (40, 24)])
def test_quick_worlds_are_the_librarys_own_to_the_last_creature(area: tuple[int, int]) -> None:
    worlds, generate = QuickWorlds(), worldgen.generate_world
    found = set()
    for seed in (5, 6, 7, 8):
        own, quick = crafter.Env(area, seed=seed), crafter.Env(area, seed=seed)
        own.reset()
        with worlds.used():
            quick.reset()
        for name in ("_mat_map", "_obj_map"):
            assert np.array_equal(getattr(own._world, name), getattr(quick._world, name))
        kinds = [[(type(thing), *thing.pos) for thing in env._world.objects] for env in (own, quick)]
        assert kinds[0] == kinds[1]
        assert own._world.random.randint(2**31) == quick._world.random.randint(2**31)  # and so everything after it
        found |= {own._world._mat_names[number] for number in np.unique(own._world._mat_map)}
        found |= {type(thing).__name__ for thing in own._world.objects}
    everything = {"Player", "Cow", "Zombie", "Skeleton", "diamond", "lava", "iron", "coal", "tree", "sand", "water"}
    assert found >= everything or area != (64, 64), "these seeds leave something untested"
    assert worldgen.generate_world is generate


def test_quick_noise_is_the_same_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    grid = [(x / 5, y / 15, float(z)) for x in range(12) for y in range(12) for z in (0, 3)]
    points = [*grid, *map(tuple, rng.uniform(-300, 300, (400, 3)).tolist())]
    lattice = Lattice(points)
    for seed in (1, 2, 3):
        own = opensimplex.OpenSimplex(seed)
        values = lattice.values(own._perm, own._perm_grad_index3)
        assert values.tolist() == [own.noise3(*point) for point in points]


def test_numbers_drawn_ahead_are_those_that_the_generator_would_give() -> None:
    own, ahead = np.random.RandomState(3), np.random.RandomState(3)
    with Draws(ahead, 100) as draws:
        for _ in range(7):
            assert draws.above(0.4) == (own.uniform() > 0.4)
    assert own.uniform() == ahead.uniform()


def other_rules(world: Any, player: Any) -> None:
    world._mat_map[:] = 1


@pytest.mark.parametrize("changed", ["opensimplex.internals._extrapolate3", "opensimplex.OpenSimplex.noise3"])
def test_a_noise_that_is_not_as_expected_is_used_as_it_is(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert QuickWorlds().known
    monkeypatch.delattr(changed)
    assert not QuickWorlds().known


def test_a_crafter_with_rules_of_its_own_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "getsource", lambda module: "other rules")
    monkeypatch.setattr(worldgen, "generate_world", other_rules)
    env = crafter.Env(seed=0)
    with QuickWorlds().used():
        env.reset()
    assert np.unique(env._world._mat_map).tolist() == [1]
    assert worldgen.generate_world is other_rules


@pytest.mark.parametrize("size", [(64, 64), (96, 100)])
def test_the_quick_view_shows_the_same_pixels_everywhere(size: tuple[int, int]) -> None:
    env = crafter.Env(seed=2, size=size)
    env.reset()
    own = env._local_view
    quick = QuickView(env._world, env._textures, own._grid)
    unit = env._size // env._view
    rng = np.random.default_rng(0)
    places = [(0, 0), (63, 63), (0, 63), (31, 2), *map(tuple, rng.integers(0, 64, (40, 2)))]  # corners and edges too
    for number, place in enumerate(places):
        env._player.pos = np.array(place)
        env._player.sleeping = number % 5 == 0
        env._world.daylight = number % 11 / 10  # the dark is drawn with noise
        before = env._world.random.get_state()
        expected = own(env._player, unit)
        after = env._world.random.get_state()[1]
        env._world.random.set_state(before)
        assert np.array_equal(quick(env._player, unit), expected)
        assert np.array_equal(env._world.random.get_state()[1], after)


def test_a_game_is_the_librarys_own_pixel_by_pixel() -> None:
    env, own = make("reward", EnvOptions(), 4), crafter.Env(seed=4)
    assert np.array_equal(env.step({"action": np.int32(0), "reset": np.bool_(True)})["image"], own.reset())
    order_chunks(own)  # which else depends on addresses in memory
    rng = np.random.default_rng(1)
    for _ in range(120):
        action = int(rng.integers(17))
        obs = env.step({"action": np.int32(action), "reset": np.bool_(False)})
        image, reward, done, _ = own.step(action)
        assert np.array_equal(obs["image"], image)
        assert obs["reward"] == np.float32(reward)
        assert bool(obs["is_last"]) == done


def test_quick_drawings_of_belongings_are_the_librarys_own() -> None:
    env = crafter.Env(seed=0)
    env.reset()
    own, unit = env._item_view, env._size // env._view
    quick = QuickItems(env._textures, own._grid)
    rng = np.random.default_rng(0)
    for _ in range(2 * MAX_KEPT):
        amounts = {name: int(rng.integers(0, 12)) for name in env._player.inventory}
        for size in (unit, 2 * unit):
            assert np.array_equal(quick(amounts, size), own(amounts, size))
            assert np.array_equal(quick(dict(amounts), size), own(amounts, size)), "drawn before"
    assert len(quick._kept) <= MAX_KEPT


def test_the_quick_distance_is_the_librarys_own() -> None:
    env = crafter.Env(seed=0)
    env.reset()
    player = env._player
    for thing in env._world.objects:
        assert distance(player, thing) == player.distance(thing) == distance(player, thing.pos)
