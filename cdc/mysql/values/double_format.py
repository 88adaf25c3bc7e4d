"""Format doubles: the shortest decimal digits that convert back to the same double, in the format of the server.

The format is that of JSON in MySQL 9.7: without an exponent if the decimal point is between the digits or at most 15
digits from the first digit, else with an exponent; always with a fraction or an exponent.

Source: Raffaello Giulietti, "The Schubfach way to render doubles".
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import multiply_high, part

MOST_BYTES = 40  # longest text of a double: sign, "0.", 15 zeros, 17 digits

_LEAST_POWER = -292


def _powers_of_ten() -> tuple[np.ndarray, np.ndarray]:
    """Return the upper 128 bits of 10^k, rounded up, for every k that a double needs."""
    high, low = [], []
    for power in range(_LEAST_POWER, 325):
        if power >= 0:
            shift = (10**power).bit_length() - 128
            bits = -(-(10**power) >> shift) if shift > 0 else 10**power << -shift
        else:
            divisor = 10**-power
            # 2^(127 + n) / 10^-k is in [2^127, 2^128) for n = bit length of 10^-k
            bits = -(-(1 << (127 + divisor.bit_length())) // divisor)
        high.append(bits >> 64)
        low.append(bits & (1 << 64) - 1)
    return np.array(high, np.uint64), np.array(low, np.uint64)


_HIGH, _LOW = _powers_of_ten()
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_FOUR = np.uint64(4)
_TEN = np.uint64(10)
_FORTY = np.uint64(40)
_FRACTION = np.uint64((1 << 52) - 1)


@part
def _scaled(power, factor):  # type: ignore[no-untyped-def]
    """Return ``factor`` times a power of ten, divided by 2^128, rounded to odd."""
    high, low = _HIGH[power - _LEAST_POWER], _LOW[power - _LEAST_POWER]
    middle = high * factor
    carried = middle + multiply_high(low, factor)
    top = multiply_high(high, factor)
    if carried < middle:
        top += _ONE
    if carried > _ONE:
        top |= _ONE
    return top


@part
def shortest(bits):  # type: ignore[no-untyped-def]
    """Return (digits, exponent) of a finite, positive double: digits * 10^exponent, without trailing zeros."""
    fraction = bits & _FRACTION
    biased = np.int64(bits >> np.uint64(52) & np.uint64(0x7FF))
    if biased:
        significand = fraction | np.uint64(1 << 52)
        binary = biased - 1075
    else:
        significand = fraction
        binary = np.int64(-1074)
    closer = fraction == 0 and biased > 1  # the next smaller double is only half as far away
    decimal = (binary * 1262611 - (524031 if closer else 0)) >> 22
    shift = np.uint64(binary + ((-decimal * 1741647) >> 19) + 1)
    value = _scaled(-decimal, (_FOUR * significand) << shift)
    lower = _scaled(-decimal, (_FOUR * significand - (_ONE if closer else _TWO)) << shift)
    upper = _scaled(-decimal, (_FOUR * significand + _TWO) << shift)
    if significand & _ONE:  # the bounds themselves round to this double only if its significand is even
        lower += _ONE
        upper -= _ONE
    digits = value >> _TWO
    found = False
    if digits >= _TEN:
        tens = digits // _TEN
        down, up = lower <= _FORTY * tens, _FORTY * tens + _FORTY <= upper
        if down != up:
            digits = tens + (_ONE if up else np.uint64(0))
            decimal += 1
            found = True
    if not found:
        down, up = lower <= _FOUR * digits, _FOUR * digits + _FOUR <= upper
        if down != up:
            digits += _ONE if up else np.uint64(0)
        else:
            middle = _FOUR * digits + _TWO
            if value > middle or (value == middle and digits & _ONE):
                digits += _ONE
    while digits % _TEN == 0:
        digits //= _TEN
        decimal += 1
    return digits, decimal


@part
def put_unsigned(out, at, value):  # type: ignore[no-untyped-def]
    """Write a word in decimal. Return the offset after it."""
    rest = value
    end = at + 1
    while rest >= _TEN:
        rest //= _TEN
        end += 1
    rest = value
    position = end - 1
    while position >= at:
        quotient = rest // _TEN
        out[position] = np.uint8(0x30) + np.uint8(rest - quotient * _TEN)
        rest = quotient
        position -= 1
    return end


@part
def put_double(out, at, bits):  # type: ignore[no-untyped-def]
    """Write a finite double as in the server's JSON text, at most MOST_BYTES. Return the offset after it."""
    if bits >> np.uint64(63):
        out[at] = 0x2D
        at += 1
        bits &= np.uint64((1 << 63) - 1)
    if bits == 0:
        out[at] = 0x30
        out[at + 1] = 0x2E
        out[at + 2] = 0x30
        return at + 3
    digits, exponent = shortest(bits)
    end = put_unsigned(out, at, digits)
    count = end - at
    point = count + exponent  # number of digits before the decimal point
    if point < -14 or (point > 15 and exponent >= 0):
        if count > 1:
            for i in range(end, at + 1, -1):
                out[i] = out[i - 1]
            out[at + 1] = 0x2E
            end += 1
        out[end] = 0x65
        end += 1
        power = point - 1
        if power < 0:
            out[end] = 0x2D
            end += 1
            power = -power
        return put_unsigned(out, end, np.uint64(power))
    if point <= 0:
        moved = 2 - point
        for i in range(end - 1, at - 1, -1):
            out[i + moved] = out[i]
        out[at] = 0x30
        out[at + 1] = 0x2E
        for i in range(at + 2, at + moved):
            out[i] = 0x30
        return end + moved
    if point >= count:
        for _ in range(point - count):
            out[end] = 0x30
            end += 1
        out[end] = 0x2E
        out[end + 1] = 0x30
        return end + 2
    for i in range(end, at + point, -1):
        out[i] = out[i - 1]
    out[at + point] = 0x2E
    return end + 1
