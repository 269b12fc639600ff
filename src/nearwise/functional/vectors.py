"""Vectors for compiled loops, where the compiler finds none by itself.

A vector is a value of a compiled function like a number: `load` makes one of numbers that lie side
by side behind an `address`, the other functions compute with it. It becomes LLVM's vector of that
length, which runs on every processor, in as many registers as it takes there. Nothing is looked
after at run time: what is loaded or stored must lie inside the array.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic, register_model

LANES = 16  # numbers of a vector
WIDE = 64  # numbers of a wide one, as many as a word has bits

_INT32 = ir.IntType(32)
_WORD = ir.IntType(64)
_SUM = ("contract", "reassoc")


def _instruction(function: Callable[..., Any]) -> Any:
    """Make a function of compiled code: what is given are types, what is returned writes code."""
    return intrinsic(function)


class Vector(types.Type):
    """Type of a vector of `length` numbers of a numba type."""

    def __init__(self, number: Any, length: int) -> None:
        self.number, self.length = number, length
        super().__init__(name=f"Vector({number}, {length})")


@register_model(Vector)
class _VectorModel(PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        number = manager.lookup(kind.number).get_value_type()
        super().__init__(manager, kind, ir.VectorType(number, kind.length))


@_instruction
def address(typing: Any, array: Any) -> Any:
    """Return the address of a flat array's numbers, which can be indexed like the array.

    It does not keep the array alive: take it of arguments, which the caller keeps. Unlike an array
    it costs nothing to hand on.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(array)(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), code


def _place(context: Any, builder: Any, array_type: Any, array: Any, at: Any, kind: Any) -> Any:
    """Return where a vector lies behind an address, and how far it is aligned."""
    number = context.get_data_type(array_type.dtype)
    address = builder.bitcast(builder.gep(array, [at]), kind.as_pointer())
    return address, context.get_abi_sizeof(number)


def _repeated(builder: Any, number: Any, length: int) -> Any:
    nothing = ir.Constant(ir.VectorType(number.type, length), ir.Undefined)
    one = builder.insert_element(nothing, number, _INT32(0))
    return builder.shuffle_vector(
        one, nothing, ir.Constant(ir.VectorType(_INT32, length), [0] * length)
    )


def _folded(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the numbers of a vector, halves first."""
    nothing = ir.Constant(vector.type, ir.Undefined)
    n = length = vector.type.count
    while n > 1:
        n //= 2
        order = [i + n if i < n else i for i in range(length)]
        other = ir.Constant(ir.VectorType(_INT32, length), order)
        vector = combine(vector, builder.shuffle_vector(vector, nothing, other))
    return builder.extract_element(vector, _INT32(0))


def _loader(length: int) -> Any:
    def load(typing: Any, array: Any, at: Any) -> Any:
        kind = Vector(array.dtype, length)

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = context.get_value_type(kind)
            address, size = _place(context, builder, array, args[0], args[1], vector)
            return builder.load(address, align=size)

        return kind(array, types.intp), code

    return _instruction(load)


load = _loader(LANES)
load_wide = _loader(WIDE)


@_instruction
def store(typing: Any, vector: Any, array: Any, at: Any) -> Any:
    """Write a vector behind an address."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> None:
        kind = context.get_value_type(vector)
        address, size = _place(context, builder, array, args[1], args[2], kind)
        builder.store(args[0], address, align=size)

    return types.void(vector, array, types.intp), code


@_instruction
def repeated(typing: Any, number: Any, like: Any) -> Any:
    """Return a vector like another, all of whose numbers are the same."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _repeated(builder, args[0], like.length)

    return like(like.number, like), code


@_instruction
def no_counts(typing: Any, like: Any) -> Any:
    """Return a vector of as many zeros of 32 bits."""
    kind = Vector(types.int32, like.length)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(kind), None)

    return kind(like), code


@_instruction
def add_product(typing: Any, total: Any, a: Any, b: Any) -> Any:
    """Return ``total + a * b``."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        product = builder.fmul(args[1], args[2], flags=_SUM)
        return builder.fadd(args[0], product, flags=_SUM)

    return total(total, total, total), code


@_instruction
def product(typing: Any, a: Any, b: Any) -> Any:
    """Return ``a * b``."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fmul(*args, flags=_SUM)

    return a(a, a), code


@_instruction
def larger(typing: Any, a: Any, b: Any) -> Any:
    """Return the larger numbers of two vectors; those of `b` where one is NaN."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, a), code


@_instruction
def total(typing: Any, vector: Any) -> Any:
    """Return the sum of the numbers of a vector."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _folded(builder, args[0], lambda a, b: builder.fadd(a, b, flags=_SUM))

    return vector.number(vector), code


@_instruction
def smallest_of(typing: Any, vector: Any, counts: Any, limit: Any) -> Any:
    """Return the smallest of the numbers whose count lies below the limit; infinity if none."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        most = _repeated(builder, args[2], vector.length)
        infinity = _repeated(
            builder,
            ir.Constant(context.get_value_type(vector.number), float("inf")),
            vector.length,
        )
        chosen = builder.select(builder.icmp_signed("<", args[1], most), args[0], infinity)

        def smaller(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered("<", a, b), a, b)

        return _folded(builder, chosen, smaller)

    return vector.number(vector, counts, types.int32), code


@_instruction
def bits_from(typing: Any, vector: Any, limit: Any) -> Any:
    """Return a word whose bit i tells that number i reaches that of the limit, or is NaN."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(builder.fcmp_unordered(">=", *args), ir.IntType(vector.length))
        return bits if vector.length == WIDE else builder.zext(bits, _WORD)

    return types.uint64(vector, vector), code


@_instruction
def lowest_bit(typing: Any, word: Any) -> Any:
    """Return the position of the lowest bit that is set."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.intp(types.uint64), code


@_instruction
def count_larger(typing: Any, counts: Any, number: Any, vector: Any) -> Any:
    """Add 1 to the counts of the vector's numbers that the given number exceeds."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = _repeated(builder, args[1], vector.length)
        hits = builder.fcmp_ordered(">", given, args[2])
        return builder.sub(args[0], builder.sext(hits, args[0].type))

    return counts(counts, vector.number, vector), code


@_instruction
def count_ahead(typing: Any, counts: Any, number: Any, i: Any, vector: Any, first: Any) -> Any:
    """Add 1 to the counts of the vector's numbers that number `i` of a list comes before.

    It does so where it is larger, or the same and earlier in the list; the vector's numbers are
    those from `first` on.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = _repeated(builder, args[1], vector.length)
        offset = builder.sub(args[2], args[4])
        places = ir.Constant(ir.VectorType(_INT32, vector.length), list(range(vector.length)))
        later = builder.icmp_signed(">", places, _repeated(builder, offset, vector.length))
        same = builder.and_(builder.fcmp_ordered(">=", given, args[3]), later)
        hits = builder.or_(builder.fcmp_ordered(">", given, args[3]), same)
        return builder.sub(args[0], builder.sext(hits, args[0].type))

    return counts(counts, vector.number, types.int32, vector, types.int32), code
