"""The hyperparameters of the Dreamer agent, with the published defaults but for the size, which is size12m.

The configuration (`agent.*`) and the model read the same definitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

T = TypeVar("T")


def option(default: T, about: str, **bounds: Any) -> T:
    """A field with its meaning; `bounds` are checked by the configuration: ge, gt, le or a tuple of `choices`.

    A run that goes on from a snapshot may change it.
    """
    value: T = field(default=default, metadata={"about": about, **bounds})
    return value


def built(default: T, about: str, **bounds: Any) -> T:
    """An option that the shape or the meaning of weights depends on: fixed for a run that has weights."""
    return option(default, about, fixed="networks", **bounds)


def first(default: float, about: str) -> float:
    """The scale of some weights before they are trained."""
    return option(default, about, fixed="first weights", ge=0)


def group(kind: type[T], **changed: Any) -> T:
    value: T = field(default_factory=lambda: kind(**changed), metadata={"changed": changed})
    return value


@dataclass(frozen=True)
class RSSMOptions:
    """The recurrent state-space model."""

    deter: int = built(2048, "Size of the deterministic state.", ge=1)
    hidden: int = built(256, "Width of its layers.", ge=1)
    stoch: int = built(32, "Number of categorical latents.", ge=1)
    classes: int = built(16, "Classes of each latent.", ge=2, le=256)
    blocks: int = built(8, "Blocks of the recurrent weights; they divide deter.", ge=1)
    unimix: float = option(0.01, "Share of a uniform distribution mixed into the latents' probabilities.", ge=0, le=1)
    outscale: float = first(1.0, "Scale of the initial weights that give the latents' logits.")
    imglayers: int = built(2, "Layers of the prior.", ge=1)
    obslayers: int = built(1, "Layers of the posterior.", ge=1)
    dynlayers: int = built(1, "Layers before the recurrent gates.", ge=1)
    absolute: bool = built(False, "The posterior sees the observation alone, not the deterministic state.")
    free_nats: float = option(1.0, "Divergence of posterior and prior below which there is no loss.", ge=0)


@dataclass(frozen=True)
class EncoderOptions:
    """From observations to tokens."""

    depth: int = built(16, "Channels of the convolutions, times mults.", ge=1)
    mults: tuple[int, ...] = built((2, 3, 4, 4), "Channels of each convolution in units of depth.")
    layers: int = built(3, "Layers for vectors.", ge=1)
    units: int = built(256, "Width of the layers for vectors.", ge=1)
    kernel: int = built(5, "Size of the convolutions' kernels.", ge=1)
    symlog: bool = built(True, "Compress vectors by symlog.")


@dataclass(frozen=True)
class DecoderOptions:
    """From states back to observations."""

    depth: int = built(16, "Channels of the convolutions, times mults.", ge=1)
    mults: tuple[int, ...] = built((2, 3, 4, 4), "Channels of each convolution in units of depth.")
    layers: int = built(3, "Layers for vectors.", ge=1)
    units: int = built(256, "Width of the layers for vectors.", ge=1)
    kernel: int = built(5, "Size of the convolutions' kernels.", ge=1)
    symlog: bool = built(True, "Predict vectors compressed by symlog.")
    outscale: float = first(1.0, "Scale of the initial weights of the outputs.")
    bspace: int = built(8, "Blocks of the weights from the deterministic state to the smallest map.", ge=1)


@dataclass(frozen=True)
class RewardOptions:
    """Predicts the reward."""

    layers: int = built(1, "Layers of the reward head.", ge=1)
    units: int = built(256, "Width of its layers.", ge=1)
    outscale: float = first(0.0, "Scale of the initial output weights; at 0 it starts by predicting 0.")
    bins: int = built(255, "Bins of the predicted distribution, an odd number.", ge=3)


@dataclass(frozen=True)
class ContinueOptions:
    """Predicts whether the episode goes on."""

    layers: int = built(1, "Layers of the continue head.", ge=1)
    units: int = built(256, "Width of its layers.", ge=1)
    outscale: float = first(1.0, "Scale of the initial output weights.")


@dataclass(frozen=True)
class ValueOptions:
    """The critic."""

    layers: int = built(3, "Layers of the critic.", ge=1)
    units: int = built(256, "Width of its layers.", ge=1)
    outscale: float = first(0.0, "Scale of the initial output weights; at 0 it starts by predicting 0.")
    bins: int = built(255, "Bins of the predicted distribution, an odd number.", ge=3)


@dataclass(frozen=True)
class PolicyOptions:
    """The actor."""

    layers: int = built(3, "Layers of the actor.", ge=1)
    units: int = built(256, "Width of its layers.", ge=1)
    outscale: float = first(0.01, "Scale of the initial output weights.")
    minstd: float = option(0.1, "Smallest standard deviation of a continuous action.", gt=0)
    maxstd: float = option(1.0, "Largest standard deviation of a continuous action.", gt=0)
    unimix: float = option(
        0.0,
        "Share of a uniform distribution mixed into discrete actions; the published code ignores its 0.01.",
        ge=0,
        le=1,
    )


@dataclass(frozen=True)
class LossScales:
    """The weight of each loss."""

    rec: float = option(1.0, "Reconstruction of every observation key.", ge=0)
    rew: float = option(1.0, "Reward.", ge=0)
    con: float = option(1.0, "Continue.", ge=0)
    dyn: float = option(1.0, "Prior towards posterior.", ge=0)
    rep: float = option(0.1, "Posterior towards prior.", ge=0)
    policy: float = option(1.0, "Actor.", ge=0)
    value: float = option(1.0, "Critic on imagined states.", ge=0)
    repval: float = option(0.3, "Critic on replayed states.", ge=0)

    def of(self, loss: str) -> float:
        """Every decoded key has the scale `rec`."""
        return float(self.rec if loss.startswith("rec/") else getattr(self, loss))


@dataclass(frozen=True)
class OptimizerOptions:
    """How parameters follow gradients."""

    lr: float = option(4e-5, "Learning rate.", gt=0)
    agc: float = option(0.3, "Largest gradient of a tensor, relative to the tensor's norm.", gt=0)
    eps: float = option(1e-20, "Added to the running size of gradients.", ge=0)
    beta1: float = option(0.9, "Decay of the momentum.", ge=0, le=1)
    beta2: float = option(0.999, "Decay of the running size of gradients.", ge=0, le=1)
    wd: float = option(0.0, "Weight decay of kernels.", ge=0)
    schedule: str = option("const", "Learning rate after the warm-up.", choices=("const", "linear", "cosine"))
    warmup: int = option(1000, "Updates over which the learning rate rises from 0.", ge=0)
    anneal: int = option(0, "Update at which linear and cosine reach a tenth of the learning rate.", ge=0)


@dataclass(frozen=True)
class ImagLossOptions:
    """Actor and critic on imagined states."""

    slowtar: bool = option(False, "Returns are estimated with the slow critic.")
    lam: float = option(0.95, "Lambda of the returns.", ge=0, le=1)
    actent: float = option(3e-4, "Weight of the actor's entropy.", ge=0)
    slowreg: float = option(1.0, "Weight of staying close to the slow critic.", ge=0)


@dataclass(frozen=True)
class ReplLossOptions:
    """The critic on replayed states."""

    lam: float = option(0.95, "Lambda of the returns.", ge=0, le=1)
    slowreg: float = option(1.0, "Weight of staying close to the slow critic.", ge=0)


@dataclass(frozen=True)
class SlowValueOptions:
    """The slow critic, which follows the critic."""

    rate: float = option(0.02, "Share of the critic that the slow critic takes on.", ge=0, le=1)
    every: int = option(1, "Updates between two of its steps.", ge=1)


@dataclass(frozen=True)
class NormalizerOptions:
    """Scales values by their running statistics."""

    impl: str = built("none", "What values are scaled by.", choices=("none", "perc", "meanstd"))
    rate: float = option(0.01, "How quickly the running statistics follow.", ge=0, le=1)
    limit: float = option(1e-8, "Smallest scale.", gt=0)
    perclo: float = option(5.0, "Lower percentile.", ge=0, le=100)
    perchi: float = option(95.0, "Upper percentile.", ge=0, le=100)
    debias: bool = built(True, "Correct the running statistics for their start at zero.")


@dataclass(frozen=True)
class DreamerOptions:
    """The names are those of the published configuration."""

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
    imag_last: int = option(0, "Steps at the end of each sequence that rollouts start from; 0: all of them.", ge=0)
    imag_length: int = option(15, "Steps of a rollout.", ge=1)
    horizon: int = option(333, "Steps after which a reward counts a third: the discount is 1 - 1 / horizon.", ge=2)
    contdisc: bool = option(True, "The continue head predicts the discount too.")
    ac_grads: bool = option(False, "The actor's and critic's gradients reach the world model through the starts.")
    reward_grad: bool = option(True, "The reward's gradient reaches the world model.")
    repval_loss: bool = option(True, "Train the critic on replayed states too.")
    repval_grad: bool = option(True, "The gradient of that loss reaches the world model.")
    report_gradnorms: bool = option(False, "Report the gradient norm of each loss by itself.")


@dataclass(frozen=True)
class Size:
    """What a size preset sets; everything else is the same for all of them."""

    deter: int
    hidden: int
    classes: int
    depth: int
    units: int

    def keys(self) -> dict[str, int]:
        """By their place in `DreamerOptions`."""
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
    """The defaults at another size."""
    options = DreamerOptions()
    for key, value in SIZES[name].keys().items():
        part, _, leaf = key.partition(".")
        options = replace(options, **{part: replace(getattr(options, part), **{leaf: value})})
    return options
