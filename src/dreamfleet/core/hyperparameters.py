"""Dreamer's hyperparameters with the published defaults, except for the default size of size12m.

The configuration (`agent.*`) and the model read the same definitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

T = TypeVar("T")


def option(default: T, about: str, **bounds: Any) -> T:
    """Return a field that a resumed run may change.

    The configuration checks its `bounds`: ge, gt, le or a tuple of `choices`.
    """
    value: T = field(default=default, metadata={"about": about, **bounds})
    return value


def built(default: T, about: str, **bounds: Any) -> T:
    """Return an option that affects the shape or meaning of the weights. It is fixed once a run has weights."""
    return option(default, about, fixed="networks", **bounds)


def first(default: float, about: str) -> float:
    """Return an option for the scale of some initial weights."""
    return option(default, about, fixed="first weights", ge=0)


def group(kind: type[T], **changed: Any) -> T:
    value: T = field(default_factory=lambda: kind(**changed), metadata={"changed": changed})
    return value


@dataclass(frozen=True)
class RSSMOptions:
    """The recurrent state-space model."""

    deter: int = built(2048, "Size of the deterministic state.", ge=1)
    hidden: int = built(256, "Width of the RSSM's layers.", ge=1)
    stoch: int = built(32, "Number of categorical latents.", ge=1)
    classes: int = built(16, "Classes per latent.", ge=2, le=256)
    blocks: int = built(8, "Number of blocks in the recurrent weights. Must divide deter.", ge=1)
    unimix: float = option(0.01, "Uniform share mixed into the latents' probabilities.", ge=0, le=1)
    outscale: float = first(1.0, "Initial scale of the weights for the latents' logits.")
    imglayers: int = built(2, "Number of layers in the prior.", ge=1)
    obslayers: int = built(1, "Number of layers in the posterior.", ge=1)
    dynlayers: int = built(1, "Number of layers before the recurrent gates.", ge=1)
    absolute: bool = built(False, "Compute the posterior from the observation only, without the deterministic state.")
    free_nats: float = option(1.0, "Free nats: KL divergence below which the loss is zero.", ge=0)


@dataclass(frozen=True)
class EncoderOptions:
    """The encoder, which maps observations to tokens."""

    depth: int = built(16, "Channels of the convolutions, times mults.", ge=1)
    mults: tuple[int, ...] = built((2, 3, 4, 4), "Channels of each convolution in units of depth.")
    layers: int = built(3, "Layers for vectors.", ge=1)
    units: int = built(256, "Width of the layers for vectors.", ge=1)
    kernel: int = built(5, "Size of the convolutions' kernels.", ge=1)
    symlog: bool = built(True, "Apply symlog to vector inputs.")


@dataclass(frozen=True)
class DecoderOptions:
    """The decoder, which reconstructs observations from states."""

    depth: int = built(16, "Channels of the convolutions, times mults.", ge=1)
    mults: tuple[int, ...] = built((2, 3, 4, 4), "Channels of each convolution in units of depth.")
    layers: int = built(3, "Layers for vectors.", ge=1)
    units: int = built(256, "Width of the layers for vectors.", ge=1)
    kernel: int = built(5, "Size of the convolutions' kernels.", ge=1)
    symlog: bool = built(True, "Predict vectors in symlog space.")
    outscale: float = first(1.0, "Initial scale of the output weights.")
    bspace: int = built(
        8, "Number of blocks in the weights from the deterministic state to the smallest feature map.", ge=1
    )


@dataclass(frozen=True)
class RewardOptions:
    """The reward head."""

    layers: int = built(1, "Number of layers in the reward head.", ge=1)
    units: int = built(256, "Width of its layers.", ge=1)
    outscale: float = first(0.0, "Scale of the initial output weights; at 0 it starts by predicting 0.")
    bins: int = built(255, "Bins of the predicted distribution, an odd number.", ge=3)


@dataclass(frozen=True)
class ContinueOptions:
    """The continue head, which predicts whether the episode continues."""

    layers: int = built(1, "Number of layers in the continue head.", ge=1)
    units: int = built(256, "Width of its layers.", ge=1)
    outscale: float = first(1.0, "Scale of the initial output weights.")


@dataclass(frozen=True)
class ValueOptions:
    """The critic."""

    layers: int = built(3, "Number of layers in the critic.", ge=1)
    units: int = built(256, "Width of its layers.", ge=1)
    outscale: float = first(0.0, "Scale of the initial output weights; at 0 it starts by predicting 0.")
    bins: int = built(255, "Bins of the predicted distribution, an odd number.", ge=3)


@dataclass(frozen=True)
class PolicyOptions:
    """The actor."""

    layers: int = built(3, "Number of layers in the actor.", ge=1)
    units: int = built(256, "Width of its layers.", ge=1)
    outscale: float = first(0.01, "Scale of the initial output weights.")
    minstd: float = option(0.1, "Minimum standard deviation of continuous actions.", gt=0)
    maxstd: float = option(1.0, "Maximum standard deviation of continuous actions.", gt=0)
    unimix: float = option(
        0.0,
        "Uniform share mixed into discrete actions. The published code ignores its own value of 0.01.",
        ge=0,
        le=1,
    )


@dataclass(frozen=True)
class LossScales:
    """The weight of each loss."""

    rec: float = option(1.0, "Reconstruction of every observation key.", ge=0)
    rew: float = option(1.0, "Reward.", ge=0)
    con: float = option(1.0, "Continue.", ge=0)
    dyn: float = option(1.0, "KL divergence that trains the prior.", ge=0)
    rep: float = option(0.1, "KL divergence that regularizes the posterior.", ge=0)
    policy: float = option(1.0, "Actor.", ge=0)
    value: float = option(1.0, "Critic on imagined states.", ge=0)
    repval: float = option(0.3, "Critic on replayed states.", ge=0)

    def of(self, loss: str) -> float:
        """Return the scale of `loss`. All reconstruction losses share `rec`."""
        return float(self.rec if loss.startswith("rec/") else getattr(self, loss))


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer."""

    lr: float = option(4e-5, "Learning rate.", gt=0)
    agc: float = option(
        0.3, "Adaptive gradient clipping: maximum gradient norm relative to the norm of the tensor.", gt=0
    )
    eps: float = option(1e-20, "Epsilon added to the root of the second moment.", ge=0)
    beta1: float = option(0.9, "Decay of the first moment.", ge=0, le=1)
    beta2: float = option(0.999, "Decay of the second moment.", ge=0, le=1)
    wd: float = option(0.0, "Weight decay, applied to kernels only.", ge=0)
    schedule: str = option("const", "Learning rate schedule after the warm-up.", choices=("const", "linear", "cosine"))
    warmup: int = option(1000, "Number of warm-up updates.", ge=0)
    anneal: int = option(0, "Update at which the linear and cosine schedules reach a tenth of the learning rate.", ge=0)


@dataclass(frozen=True)
class ImagLossOptions:
    """The actor and critic losses on imagined states."""

    slowtar: bool = option(False, "Estimate returns with the slow critic.")
    lam: float = option(0.95, "Lambda of the returns.", ge=0, le=1)
    actent: float = option(3e-4, "Weight of the actor's entropy bonus.", ge=0)
    slowreg: float = option(1.0, "Weight of staying close to the slow critic.", ge=0)


@dataclass(frozen=True)
class ReplLossOptions:
    """The critic loss on replayed states."""

    lam: float = option(0.95, "Lambda of the returns.", ge=0, le=1)
    slowreg: float = option(1.0, "Weight of staying close to the slow critic.", ge=0)


@dataclass(frozen=True)
class SlowValueOptions:
    """The slow critic, a moving average of the critic."""

    rate: float = option(0.02, "Weight of the critic in each update of the slow critic.", ge=0, le=1)
    every: int = option(1, "Update the slow critic every N updates.", ge=1)


@dataclass(frozen=True)
class NormalizerOptions:
    """Normalization of values by running statistics."""

    impl: str = built("none", "Statistic to normalize by.", choices=("none", "perc", "meanstd"))
    rate: float = option(0.01, "Update rate of the running statistics.", ge=0, le=1)
    limit: float = option(1e-8, "Minimum scale.", gt=0)
    perclo: float = option(5.0, "Lower percentile.", ge=0, le=100)
    perchi: float = option(95.0, "Upper percentile.", ge=0, le=100)
    debias: bool = built(True, "Correct the bias of running statistics that start at zero.")


@dataclass(frozen=True)
class DreamerOptions:
    """All of Dreamer's options, under the names of the published configuration."""

    dyn: RSSMOptions = group(RSSMOptions)
    enc: EncoderOptions = group(EncoderOptions)
    dec: DecoderOptions = group(DecoderOptions)
    rewhead: RewardOptions = group(RewardOptions)
    conhead: ContinueOptions = group(ContinueOptions)
    policy: PolicyOptions = group(PolicyOptions)
    value: ValueOptions = group(ValueOptions)
    loss_scales: LossScales = group(LossScales)
    opt: OptimizerOptions = group(OptimizerOptions)
    imag_loss: ImagLossOptions = group(ImagLossOptions)
    repl_loss: ReplLossOptions = group(ReplLossOptions)
    slowvalue: SlowValueOptions = group(SlowValueOptions)
    retnorm: NormalizerOptions = group(NormalizerOptions, impl="perc", limit=1.0, debias=False)
    valnorm: NormalizerOptions = group(NormalizerOptions)
    advnorm: NormalizerOptions = group(NormalizerOptions)
    imag_last: int = option(0, "Start rollouts from the last N steps of each sequence (0 = all steps).", ge=0)
    imag_length: int = option(15, "Length of imagined rollouts in steps.", ge=1)
    horizon: int = option(333, "Discount horizon: gamma = 1 - 1 / horizon.", ge=2)
    contdisc: bool = option(True, "Include the discount in the continue head's prediction.")
    ac_grads: bool = option(False, "Propagate gradients of the actor and critic losses into the world model.")
    reward_grad: bool = option(True, "Propagate gradients of the reward loss into the world model.")
    repval_loss: bool = option(True, "Also train the critic on replayed states.")
    repval_grad: bool = option(True, "Propagate gradients of the replay critic loss into the world model.")
    report_gradnorms: bool = option(False, "Report a separate gradient norm for each loss.")


@dataclass(frozen=True)
class Size:
    """The hyperparameters that a size preset sets."""

    deter: int
    hidden: int
    classes: int
    depth: int
    units: int

    def keys(self) -> dict[str, int]:
        """Return the values by their paths in `DreamerOptions`."""
        units = {f"{part}.units": self.units for part in ("enc", "dec", "rewhead", "conhead", "policy", "value")}
        depths = {f"{part}.depth": self.depth for part in ("enc", "dec")}
        return {
            "dyn.deter": self.deter,
            "dyn.hidden": self.hidden,
            "dyn.classes": self.classes,
            **depths,
            **units,
        }


SIZES = {
    "tiny": Size(256, 32, 4, 4, 32),
    "size1m": Size(512, 64, 4, 4, 64),
    "size12m": Size(2048, 256, 16, 16, 256),
    "size25m": Size(3072, 384, 24, 24, 384),
    "size50m": Size(4096, 512, 32, 32, 512),
    "size100m": Size(6144, 768, 48, 48, 768),
    "size200m": Size(8192, 1024, 64, 64, 1024),
    "size400m": Size(12288, 1536, 96, 96, 1536),
}


def sized(name: str) -> DreamerOptions:
    """Return the default options with the size `name`."""
    options = DreamerOptions()
    for key, value in SIZES[name].keys().items():
        part, _, leaf = key.partition(".")
        options = replace(options, **{part: replace(getattr(options, part), **{leaf: value})})
    return options
