# SPDX-License-Identifier: Apache-2.0
"""Layers of Keras over kf's ops, with the arguments and weights of Keras's layers.

`activation` is the name of an activation of kf or of Keras, with kf's defaults, a function of
keras.activations, or None. A model is compiled
without XLA, which does not know kf's op: jit_compile=True raises an error.
"""

from typing import Any

import keras
from kernel_fusion import _dispatch, _table

from kernel_fusion_tensorflow._functions import lookup

_register = keras.saving.register_keras_serializable(package="kernel_fusion")


def _check_backend() -> None:
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"kf.layers: Keras's backend is {keras.backend.backend()}, expected tensorflow: set "
            f"KERAS_BACKEND"
        )


# Names of keras.activations for those of kf that compute the same. Others have other defaults
# (leaky_relu), or no kernel (softmax).
OF_KERAS = {
    "linear": "none",
    "swish": "silu",
    "hard_sigmoid": "hardsigmoid",
    "hard_silu": "hardswish",
    "hard_swish": "hardswish",
    "hard_tanh": "hardtanh",
}


def _known(layer: str, activation: Any) -> str:
    """Returns kf's name of an activation."""
    _check_backend()
    name = "none" if activation is None else activation
    own = getattr(name, "__name__", "")
    if callable(name) and getattr(keras.activations, own, None) is name and own != "leaky_relu":
        name = own
    name = OF_KERAS.get(name, name) if isinstance(name, str) else name
    if name not in _table.activations():
        keras_names = ", ".join(OF_KERAS)
        raise ValueError(
            f"kf.layers.{layer}: activation is {activation!r}, expected None or one of "
            f"{', '.join(_table.activations())}, or of Keras's {keras_names}"
        )
    return str(name)


def _apply(op: str, activation: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls an op with an activation, after the op if it has none of this name."""
    if _dispatch.has(op, activation):
        return lookup(_dispatch.word(op, activation))(x, *args, **kwargs)
    found = lookup(_dispatch.word(op, "none"))(x, *args, **kwargs)
    return lookup(_dispatch.word("act", activation))(found)


class _Activated:
    """Stores the activation under its name, since Keras's layers hold a function of Keras."""

    fused_activation: str

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        name = self.fused_activation
        return config | {"activation": None if name == "none" else name}


@_register
class Dense(_Activated, keras.layers.Dense):  # type: ignore[misc]
    """keras.layers.Dense in one kernel: act(x @ kernel + bias)."""

    def __init__(self, units: int, activation: str | None = None, **kwargs: Any):
        name = _known("Dense", activation)
        super().__init__(units, **kwargs)
        self.fused_activation, self.supports_jit = name, False

    def call(self, inputs: Any, training: Any = None) -> Any:
        return _apply("linear_nn", self.fused_activation, inputs, self.kernel, self.bias)


@_register
class LayerNormalization(_Activated, keras.layers.LayerNormalization):  # type: ignore[misc]
    """keras.layers.LayerNormalization over the last dimension, then an activation."""

    def __init__(
        self, axis: int = -1, epsilon: float = 1e-3, activation: str | None = None, **kwargs: Any
    ):
        name = _known("LayerNormalization", activation)
        super().__init__(axis=axis, epsilon=epsilon, **kwargs)
        self.fused_activation, self.supports_jit = name, False

    def build(self, input_shape: Any) -> None:
        axes = self.axis if isinstance(self.axis, (list, tuple)) else [self.axis]
        rank = len(input_shape)
        if [axis % rank for axis in axes] != [rank - 1]:
            raise ValueError(
                f"kf.layers.LayerNormalization: axis is {self.axis}, expected the last dimension"
            )
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        return _apply(
            "layer_norm", self.fused_activation, inputs, self.gamma, self.beta, eps=self.epsilon
        )


@_register
class Dropout(_Activated, keras.layers.Dropout):  # type: ignore[misc]
    """An activation, then keras.layers.Dropout, in one kernel.

    Seed and offset come from the layer's seed generator: keras.utils.set_random_seed and `seed`
    determine the masks, which are kf's.
    """

    def __init__(self, rate: float, activation: str | None = None, **kwargs: Any):
        name = _known("Dropout", activation)
        if kwargs.get("noise_shape") is not None:
            raise ValueError("kf.layers.Dropout: noise_shape is given, expected None")
        super().__init__(rate, **kwargs)
        self.fused_activation, self.supports_jit = name, False

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training and self.rate > 0:
            return _apply(
                "act_dropout", self.fused_activation, inputs, p=self.rate, rng=_draw(self)
            )
        if self.fused_activation == "none":
            return inputs
        return lookup(_dispatch.word("act", self.fused_activation))(inputs)


@_register
class DenseDropout(Dense):
    """keras.layers.Dense, then a dropout, in one kernel: dropout(act(x @ kernel + bias)).

    Args:
        units: columns of the result
        rate: probability that an element is dropped
        activation: name of an activation, or None
        seed: seed of the masks, or None
        kwargs: arguments of keras.layers.Dense
    """

    def __init__(
        self,
        units: int,
        rate: float,
        activation: str | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        if not 0 <= rate < 1:
            raise ValueError(
                f"kf.layers.DenseDropout: rate is {rate}, expected at least 0 and less than 1"
            )
        super().__init__(units, activation, **kwargs)
        self.rate, self.seed = rate, seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or not self.rate:
            return super().call(inputs)
        drop = {"p": self.rate, "rng": _draw(self)}
        if not _dispatch.has("linear_act_dropout", self.fused_activation):
            found = lookup("linear_nn")(inputs, self.kernel, self.bias)
            return lookup(_dispatch.word("act_dropout", self.fused_activation))(found, **drop)
        fused = lookup(_dispatch.word("linear_act_dropout", self.fused_activation))
        return fused(inputs, keras.ops.transpose(self.kernel), self.bias, **drop)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"rate": self.rate, "seed": self.seed}


def _draw(layer: Any) -> Any:
    """Returns the next seed and offset of a layer's generator."""
    return keras.ops.cast(layer.seed_generator.next(), "int64")
