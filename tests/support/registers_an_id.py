"""A user's package that registers an environment with Gymnasium when it is imported."""

from __future__ import annotations

import gymnasium

gymnasium.register("Registered-v0", "support.gym_fakes:Recorder")
