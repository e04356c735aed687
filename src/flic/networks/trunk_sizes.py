"""Sizes of the CNN's two convolutions, which are those of the authors' program."""

FIRST, SECOND = 32, 20  # channels
KERNEL = 5  # side of a convolution
