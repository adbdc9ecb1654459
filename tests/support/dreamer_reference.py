"""The model once more, as slow loops in float64 NumPy written from its specification. Reads weights, calls no model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def f64(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def symlog(x: Any) -> Array:
    return np.sign(x) * np.log(1 + np.abs(f64(x)))


def symexp(x: Any) -> Array:
    return np.sign(x) * (np.exp(np.abs(f64(x))) - 1)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# Layers


def rms_norm(x: Array, scale: Any) -> Array:
    out = np.empty_like(f64(x))
    for index in np.ndindex(x.shape[:-1]):
        row = f64(x[index])
        out[index] = row / math.sqrt(sum(v * v for v in row) / len(row) + 1e-4) * f64(scale)
    return out


def linear(layer: Any, x: Array) -> Array:
    return f64(x) @ f64(layer.kernel) + f64(layer.bias)


def dense(layer: Any, x: Array) -> Array:
    return silu(rms_norm(linear(layer.linear, x), layer.norm.scale))


def mlp(module: Any, x: Array) -> Array:
    for layer in module.layers:
        x = dense(layer, x)
    return x


def block_linear(layer: Any, x: Array) -> Array:
    kernel = f64(layer.kernel)
    blocks, width, _ = kernel.shape
    parts = [f64(x[..., i * width : (i + 1) * width]) @ kernel[i] for i in range(blocks)]
    return np.concatenate(parts, -1) + f64(layer.bias)


def convolve(layer: Any, x: Array) -> Array:
    """Stride 1, zeros around the image, one output pixel at a time."""
    kernel = f64(layer.kernel)
    size, _, _, outputs = kernel.shape
    n, height, breadth, _ = x.shape
    out = np.zeros((n, height, breadth, outputs))
    for image, row, column, a, b in np.ndindex(n, height, breadth, size, size):
        y, z = row + a - size // 2, column + b - size // 2
        if 0 <= y < height and 0 <= z < breadth:
            out[image, row, column] += f64(x[image, y, z]) @ kernel[a, b]
    return out + f64(layer.bias)


def max_pool(x: Array) -> Array:
    n, height, breadth, channels = x.shape
    out = np.empty((n, height // 2, breadth // 2, channels))
    for i, row, column in np.ndindex(out.shape[:3]):
        out[i, row, column] = x[i, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].max((0, 1))
    return out


def upsample(x: Array) -> Array:
    n, height, breadth, channels = x.shape
    out = np.empty((n, 2 * height, 2 * breadth, channels))
    for i, row, column in np.ndindex(out.shape[:3]):
        out[i, row, column] = x[i, row // 2, column // 2]
    return out


# The recurrent model


def core(module: Any, deter: Array, stoch: Array, action: Array) -> Array:
    """Of one row."""
    blocks = module.gates.kernel.shape[0]
    size = len(deter) // blocks
    action = action / np.maximum(1, np.abs(action))
    shared = np.concatenate(
        [
            dense(module.from_deter, deter),
            dense(module.from_stoch, stoch.reshape(-1)),
            dense(module.from_action, action),
        ]
    )
    x = np.concatenate([np.concatenate([deter[i * size : (i + 1) * size], shared]) for i in range(blocks)])
    for layer, norm in zip(module.hidden, module.norms, strict=True):
        x = silu(rms_norm(block_linear(layer, x), norm.scale))
    gates = block_linear(module.gates, x)
    new = np.empty_like(deter)
    for i in range(blocks):
        reset, candidate, update = np.split(gates[3 * i * size : 3 * (i + 1) * size], 3)
        candidate = np.tanh(sigmoid(reset) * candidate)
        update = sigmoid(update - 1)
        own = slice(i * size, (i + 1) * size)
        new[own] = update * candidate + (1 - update) * deter[own]
    return new


def latent_log_probs(logits: Array, stoch: int, classes: int, unimix: float = 0.01) -> Array:
    logits = logits.reshape(*logits.shape[:-1], stoch, classes)
    return np.log((1 - unimix) * softmax(logits) + unimix / classes)


def observe(
    rssm: Any, deter: Array, stoch: Array, token: Array, action: Array, reset: bool, noise: Array
) -> tuple[Array, Array, Array]:
    """Of one row: deter, one-hot stoch and log-probabilities."""
    if reset:
        deter, stoch, action = (np.zeros_like(x) for x in (deter, stoch, action))
    deter = core(rssm.core, deter, stoch, action)
    x = token if rssm.options.absolute else np.concatenate([deter, token])
    for layer in rssm.post:
        x = dense(layer, x)
    log_probs = latent_log_probs(linear(rssm.post_logits, x), *stoch.shape, rssm.options.unimix)
    onehot = np.eye(stoch.shape[1])[(log_probs + noise).argmax(-1)]
    return deter, onehot, log_probs


def prior(rssm: Any, deter: Array) -> Array:
    options = rssm.options
    logits = linear(rssm.prior_logits, mlp(rssm.prior, deter))
    return latent_log_probs(logits, options.stoch, options.classes, options.unimix)


def kl(post: Array, other: Array) -> float:
    """Of one step, over all latents."""
    return sum(math.exp(p) * (p - q) for p, q in zip(post.reshape(-1), other.reshape(-1), strict=True))


# Spaces


def one_hot_vector(space: Any, value: Any) -> Array:
    parts = []
    lows, highs = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
    for low, high, v in zip(lows.flat, highs.flat, np.asarray(value).reshape(-1), strict=True):
        part = np.zeros(int(high) - int(low))
        if 0 <= int(v) - int(low) < len(part):
            part[int(v) - int(low)] = 1
        parts.append(part)
    return np.concatenate(parts)


def is_unknown(space: Any, value: Any) -> bool:
    """An integer of -1 where -1 is no class."""
    return bool((space.low >= 0).all() and (np.asarray(value).astype(np.int64) == -1).any())


def observation_vector(spaces: Mapping[str, Any], obs: Mapping[str, Any]) -> Array:
    """Of one step, with symlog."""
    parts = []
    for key in sorted(key for key, space in spaces.items() if len(space.shape) < 3):
        space, value = spaces[key], np.asarray(obs[key])
        if space.discrete:
            part = one_hot_vector(space, value)
            parts.append(part * 0 if is_unknown(space, value) else part)
        else:
            gone = np.isneginf(value).any()
            parts.append(np.zeros(value.size) if gone else symlog(value).reshape(-1))
    return np.concatenate(parts)


def action_vector(spaces: Mapping[str, Any], action: Mapping[str, Any]) -> Array:
    return np.concatenate(
        [
            one_hot_vector(spaces[key], action[key]) if spaces[key].discrete else f64(action[key]).reshape(-1)
            for key in sorted(spaces)
        ]
    )


# Encoder and decoder


def encode(encoder: Any, spaces: Mapping[str, Any], obs: Mapping[str, Any]) -> Array:
    """Of one step."""
    parts = []
    if any(len(space.shape) < 3 for space in spaces.values()):
        parts.append(mlp(encoder.mlp, observation_vector(spaces, obs)))
    images = sorted(key for key, space in spaces.items() if len(space.shape) == 3)
    if images:
        x = np.concatenate([f64(obs[key]) for key in images], -1)[None] / 255 - 0.5
        for conv, norm in zip(encoder.convs, encoder.norms, strict=True):
            x = silu(rms_norm(max_pool(convolve(conv, x)), norm.scale))
        parts.append(x.reshape(-1))
    return np.concatenate(parts)


def decode_images(decoder: Any, deter: Array, stoch: Array, size: tuple[int, int]) -> Array:
    """Brightness between 0 and 1 of all channels, of one step."""
    blocks = decoder.from_deter.kernel.shape[0]
    height, breadth = size
    flat = block_linear(decoder.from_deter, deter)
    depth = len(flat) // (height * breadth)
    x = np.empty((height, breadth, depth))
    each = depth // blocks
    for block, row, column, channel in np.ndindex(blocks, height, breadth, each):
        index = ((block * height + row) * breadth + column) * each + channel
        x[row, column, block * each + channel] = flat[index]
    x = x + linear(decoder.to_map, dense(decoder.from_stoch, stoch.reshape(-1))).reshape(x.shape)
    x = x[None]
    for norm, conv in zip(decoder.norms, decoder.convs, strict=True):
        x = convolve(conv, upsample(silu(rms_norm(x, norm.scale))))
    return sigmoid(x[0])


def reconstruction_losses(
    decoder: Any, spaces: Mapping[str, Any], deter: Array, stoch: Array, obs: Mapping[str, Any], size: tuple[int, int]
) -> dict[str, float]:
    """Of one step, by key."""
    losses = {}
    trunk = None
    for key, space in spaces.items():
        if len(space.shape) == 3:
            continue
        if trunk is None:
            trunk = mlp(decoder.mlp, np.concatenate([stoch.reshape(-1), deter]))
        out, value = linear(decoder.heads[key], trunk), np.asarray(obs[key])
        if not space.discrete:
            gone = np.isneginf(value).any()
            losses[key] = 0.0 if gone else float(((out - symlog(value).reshape(-1)) ** 2).sum())
            continue
        gone = is_unknown(space, value)
        losses[key] = 0.0 if gone else -sum(log_probs_of(space, out)[i] for i in hot_places(space, value))
    images = [key for key, space in spaces.items() if len(space.shape) == 3]
    if images:
        pixels, start = decode_images(decoder.images, deter, stoch, size), 0
        for key in images:
            channels = spaces[key].shape[-1]
            part = pixels[..., start : start + channels]
            losses[key] = float(((part - f64(obs[key]) / 255) ** 2).sum())
            start += channels
    return losses


def log_probs_of(space: Any, logits: Array) -> Array:
    """Of each class of each element of a discrete space, joined."""
    counts = [int(n) for n in np.broadcast_to(space.high - space.low, space.shape).flat]
    parts, start = [], 0
    for count in counts:
        parts.append(np.log(softmax(logits[start : start + count])))
        start += count
    return np.concatenate(parts)


def hot_places(space: Any, value: Any) -> Sequence[int]:
    return [int(i) for i in np.flatnonzero(one_hot_vector(space, value))]


# Distributions


def bins(count: int) -> Array:
    half = [float(symexp(-20 + 20 * i / (count // 2))) for i in range(count // 2)]
    return np.array([*half, 0.0, *[-x for x in reversed(half)]])


def two_hot(target: float, count: int) -> Array:
    edges, out = bins(count), np.zeros(count)
    if target <= edges[0]:
        out[0] = 1
    elif target >= edges[-1]:
        out[-1] = 1
    else:
        above = next(i for i, edge in enumerate(edges) if edge > target)
        share = (target - edges[above - 1]) / (edges[above] - edges[above - 1])
        out[above - 1], out[above] = 1 - share, share
    return out


def two_hot_loss(logits: Array, target: float) -> float:
    return float(-(two_hot(target, len(logits)) * np.log(softmax(f64(logits)))).sum())


def two_hot_mean(logits: Array) -> float:
    return float((softmax(f64(logits)) * bins(len(logits))).sum())


def bernoulli_loss(logit: float, target: float) -> float:
    p = 1 / (1 + math.exp(-logit))
    return -(target * math.log(p) + (1 - target) * math.log(1 - p))


def policy_log_prob_and_entropy(
    policy: Any, spaces: Mapping[str, Any], features: Array, action: Mapping[str, Any]
) -> tuple[float, float]:
    """Of one state, summed over the keys."""
    x = mlp(policy.mlp, features)
    log_prob = entropy = 0.0
    for key, space in spaces.items():
        heads = policy.heads[key]
        if space.discrete:
            log_probs = log_probs_of(space, linear(heads["logits"], x))
            log_prob += sum(log_probs[i] for i in hot_places(space, action[key]))
            entropy -= float((np.exp(log_probs) * log_probs).sum())
            continue
        mean = np.tanh(linear(heads["mean"], x))
        std = 0.9 * sigmoid(linear(heads["std"], x) + 2) + 0.1
        for m, s, a in zip(mean, std, f64(action[key]).reshape(-1), strict=True):
            log_prob += -((a - m) ** 2) / (2 * s * s) - math.log(s) - 0.5 * math.log(2 * math.pi)
            entropy += 0.5 * math.log(2 * math.pi * math.e * s * s)
    return log_prob, entropy


# Returns and normalisation


def lambda_return(reward: Array, boot: Array, last: Array, term: Array, disc: float, lam: float) -> Array:
    """Of one sequence; `last` and `term` between 0 and 1."""
    n = len(reward)
    out = np.empty(n - 1)
    following = boot[-1]
    for t in reversed(range(n - 1)):
        live = disc * (1 - term[t + 1])
        keep = lam * (1 - last[t + 1])
        following = reward[t + 1] + live * ((1 - keep) * boot[t + 1] + keep * following)
        out[t] = following
    return out


def percentile(values: Array, percent: float) -> float:
    """Linear between the two nearest ranks."""
    ordered = sorted(float(v) for v in np.asarray(values).reshape(-1))
    place = percent / 100 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


class Normalizer:
    """Running statistics as a loop keeps them; corrected for their start at zero if `debias` asks for it."""

    def __init__(self, options: Any, first: float = 0.0, second: float = 0.0) -> None:
        self.options = options
        self.first, self.second, self.weight = first, second, 0.0

    def update(self, values: Any) -> None:
        numbers = [float(v) for v in np.asarray(values).reshape(-1)]
        if self.options.impl == "perc":
            new = percentile(values, self.options.perclo), percentile(values, self.options.perchi)
        else:
            new = sum(numbers) / len(numbers), sum(v * v for v in numbers) / len(numbers)
        rate = self.options.rate
        self.first = (1 - rate) * self.first + rate * new[0]
        self.second = (1 - rate) * self.second + rate * new[1]
        self.weight = (1 - rate) * self.weight + rate

    def statistics(self) -> tuple[float, float]:
        """Offset and scale."""
        if self.options.impl == "none":
            return 0.0, 1.0
        correction = max(self.options.rate, self.weight) if self.options.debias else 1.0
        first, second = self.first / correction, self.second / correction
        if self.options.impl == "perc":
            return first, max(self.options.limit, second - first)
        return first, max(self.options.limit, math.sqrt(max(0.0, second - first * first)))
