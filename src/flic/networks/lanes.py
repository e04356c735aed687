"""Sixteen float32 as one value of a compiled kernel, on any processor; importing it needs numba.

A compiler that is left to find such values itself must first rule out that arrays overlap, which
costs more than the work where runs are short.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, register_model

WIDTH = 16
VECTOR = ir.VectorType(ir.FloatType(), WIDTH)


class Lanes(types.Type):
    """Type of the value."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


LANES = Lanes()


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """Sixteen numbers in registers."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that kernels may call, without its first argument, from what writes its code."""
    return intrinsic(function)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), VECTOR.as_pointer())


@operation
def load(typing: Any, array: Any, index: Any) -> Any:
    """The numbers array[index : index + 16]; array is flat and contiguous."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], *args), align=4)

    return LANES(array, types.intp), code


@operation
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write the numbers to array[index : index + 16]."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = _pointer(context, builder, signature.args[0], *args[:2])
        builder.store(args[2], where, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, LANES), code


@operation
def plus(typing: Any, total: Any, factor: Any, array: Any, index: Any) -> Any:
    """The numbers total + factor · array[index : index + 16]."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = _pointer(context, builder, signature.args[2], *args[2:])
        number = ir.IntType(32)
        empty = ir.Constant(VECTOR, ir.Undefined)
        one = builder.insert_element(empty, args[1], number(0))
        first = ir.Constant(ir.VectorType(number, WIDTH), [0] * WIDTH)
        factors = builder.shuffle_vector(one, empty, first)
        # Contracted: one instruction for product and sum, where the processor has one.
        product = builder.fmul(factors, builder.load(where, align=4), flags=("contract",))
        return builder.fadd(args[0], product, flags=("contract",))

    return LANES(LANES, types.float32, array, types.intp), code
