"""Operations on images: uint8, one image or several stacked frames per row.

Layouts: (H, W), (H, W, C), (C, H, W) or stacked frames (F, H, W), and (F, H, W, C). Of three axes, the smallest of the
outer two is that of channels or frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outplay.arguments import integer, real
from outplay.errors import ConfigError, DataError
from outplay.preprocessors.base import Preprocessor
from outplay.preprocessors.statistics import Array, Statistics

if TYPE_CHECKING:
    from gymnasium import Space

    from outplay.preprocessors.modules import Op

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in OpenCV and Pillow


def axes(shape: Sequence[int], who: str) -> tuple[int, int, int | None]:
    """(axis of height, of width, of channels or frames if there is one) of one row, as negative numbers."""
    if len(shape) == 2:
        return -2, -1, None
    if len(shape) == 3:
        return (-3, -2, -1) if shape[-1] < shape[0] else (-2, -1, -3)
    if len(shape) == 4:
        return -3, -2, -1
    raise DataError(f"{who} takes images of shape (H, W), (H, W, C), (C, H, W) or (F, H, W, C), not {tuple(shape)}")


def resampling(old: int, new: int) -> Array:
    """The matrix (new, old) of a linear interpolation; for a smaller image, with a wider filter (antialiasing)."""
    scale = old / new
    support = max(scale, 1.0)
    centres = (np.arange(new) + 0.5) * scale
    distance = np.abs(np.arange(old) + 0.5 - centres[:, None]) / support
    weights = np.maximum(0.0, 1.0 - distance)
    return np.asarray(weights / weights.sum(1, keepdims=True))


class _FrameOperation(Preprocessor):
    needs_fit = False
    accepts = "u"

    def _chosen(self, rows: Any) -> list[str]:
        names = super()._chosen(rows)
        if self.columns is None:  # of a data set, the images
            images = [name for name in names if len(_row_shape(rows[name])) >= 2]
            names = images or names
        return names

    def ops(self, path: str, space: Space[Any]) -> list[Op]:
        shape = space.shape or ()
        if self.columns is None and not (space.dtype == np.uint8 and len(shape) >= 2):
            return []  # another part of the observation
        return super().ops(path, space)


def _row_shape(column: Any) -> tuple[int, ...]:
    return tuple(column.shape[1:]) if isinstance(column, np.ndarray) else tuple(column.shape)


class Grayscale(_FrameOperation):
    """Images with three channels as one: 0.299 R + 0.587 G + 0.114 B. The axis of the channels disappears."""

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:  # noqa: ARG002
        axis = channel_axis(column.shape[1:], name)
        weights = np.asarray(LUMINANCE, np.float32)
        return _as_bytes(np.moveaxis(column, axis, -1).astype(np.float32) @ weights)

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:  # noqa: ARG002
        from outplay.preprocessors.modules import Gray

        return Gray(space, channel_axis(tuple(space.shape or ()), name))


def channel_axis(shape: Sequence[int], name: str) -> int:
    axis = axes(shape, "Grayscale")[2]
    if axis is None or shape[axis] != 3:
        raise DataError(f"Grayscale: {name or 'the image'} has shape {tuple(shape)}; it must have three channels")
    return axis


class Resize(_FrameOperation):
    """Images of another size: linear interpolation, with antialiasing when they become smaller."""

    def __init__(self, height: int, width: int, columns: Sequence[str] | None = None) -> None:
        super().__init__(columns)
        self.height = integer(height, "Resize: height", least=1)
        self.width = integer(width, "Resize: width", least=1)

    def arguments(self) -> dict[str, Any]:
        return {"height": self.height, "width": self.width, **super().arguments()}

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:  # noqa: ARG002
        vertical, horizontal, _ = axes(column.shape[1:], "Resize")
        x = column.astype(np.float32)
        for axis, size in ((vertical, self.height), (horizontal, self.width)):
            matrix = resampling(x.shape[axis], size).astype(np.float32)
            x = np.moveaxis(np.moveaxis(x, axis, -1) @ matrix.T, -1, axis)
        return _as_bytes(x)

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:  # noqa: ARG002
        from outplay.preprocessors.modules import Resampled

        return Resampled(space, axes(tuple(space.shape or ()), "Resize")[:2], (self.height, self.width))


class Crop(_FrameOperation):
    """A part of each image: `height` rows from `top` on, `width` columns from `left` on."""

    def __init__(self, top: int, left: int, height: int, width: int, columns: Sequence[str] | None = None) -> None:
        super().__init__(columns)
        self.top, self.left = integer(top, "Crop: top", least=0), integer(left, "Crop: left", least=0)
        self.height, self.width = integer(height, "Crop: height", least=1), integer(width, "Crop: width", least=1)

    def arguments(self) -> dict[str, Any]:
        own = {"top": self.top, "left": self.left, "height": self.height, "width": self.width}
        return {**own, **super().arguments()}

    def index(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """The part of one row of this shape."""
        vertical, horizontal, _ = axes(shape, "Crop")
        if self.top + self.height > shape[vertical] or self.left + self.width > shape[horizontal]:
            raise DataError(
                f"Crop: rows {self.top} to {self.top + self.height} and columns {self.left} to "
                f"{self.left + self.width} are not all inside an image of {shape[vertical]} × {shape[horizontal]}"
            )
        index = [slice(None)] * len(shape)
        index[vertical] = slice(self.top, self.top + self.height)
        index[horizontal] = slice(self.left, self.left + self.width)
        return tuple(index)

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:  # noqa: ARG002
        return np.ascontiguousarray(column[(slice(None), *self.index(column.shape[1:]))])

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:  # noqa: ARG002
        from outplay.preprocessors.modules import Part

        return Part(space, self.index(tuple(space.shape or ())))


class Rescale(_FrameOperation):
    """x · scale + offset, as float32: by default from 0 … 255 to 0 … 1.

    The networks of agents scale uint8 images themselves. An image that is no uint8 is a vector for them.
    """

    accepts = "biuf"

    def __init__(self, scale: float = 1 / 255, offset: float = 0.0, columns: Sequence[str] | None = None) -> None:
        super().__init__(columns)
        self.scale, self.offset = real(scale, "Rescale: scale"), real(offset, "Rescale: offset")
        if not self.scale:
            raise ConfigError("Rescale: scale must not be 0")

    def arguments(self) -> dict[str, Any]:
        return {"scale": self.scale, "offset": self.offset, **super().arguments()}

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:  # noqa: ARG002
        return (column.astype(np.float64) * self.scale + self.offset).astype(np.float32)

    def invert(self, column: Array, learned: Statistics, name: str) -> Array:  # noqa: ARG002
        return ((column.astype(np.float64) - self.offset) / self.scale).astype(np.float32)

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:  # noqa: ARG002
        from outplay.preprocessors.modules import Affine

        shape = tuple(space.shape or ())
        return Affine(space, np.zeros(shape), np.full(shape, self.scale), self.offset, None, name)


def _as_bytes(x: Array) -> Array:
    return np.asarray(np.rint(x).clip(0, 255).astype(np.uint8))
