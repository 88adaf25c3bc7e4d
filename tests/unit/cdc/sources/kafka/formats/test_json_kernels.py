"""The JSON slicer equals Python's ``json``, names faults, and reads nothing outside of its buffer."""

from __future__ import annotations

import ctypes
import json
import mmap
import random

import numpy as np
import pytest

from cdc.sources.kafka.formats import json_kernels as kernels
from cdc.sources.kafka.formats.json_slices import (
    LISTS,
    ONE,
    ONE_OR_ABSENT,
    Names,
    group_rows,
    slice_objects,
    words_of,
)
from cdc.sources.kafka.messages import PADDING
from tests.support.kafka_messages import packed
from tests.support.seeds import seed_of

NAMES = ("a", "näme", 'b"\\', "😀", "", "a much longer name of a column")
TEXTS = ("", "x", 'g"ü😀\n\\', "\x00\x01", "0123456789" * 5, "a\tb/c", "ÿ" * 9)


def random_value(rng: random.Random, depth: int = 0):
    kind = rng.randrange(10 if depth < 4 else 7)
    if kind < 3:
        return rng.choice(TEXTS)
    if kind < 5:
        return rng.choice((0, -1, 10**18, 1.5, -2.5e-7, 1e300, 123456789))
    if kind < 7:
        return rng.choice((None, True, False))
    if kind < 9:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice((*NAMES, "z")): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def random_object(rng: random.Random) -> str:
    """Return a JSON object with random keys (also twice), escapes and blanks."""
    pairs = []
    for _ in range(rng.randrange(9)):
        name = json.dumps(rng.choice((*NAMES, "other", "Näme")), ensure_ascii=rng.random() < 0.5)
        if rng.random() < 0.2:
            name = '"' + "".join(f"\\u{unit:04X}" for unit in units(json.loads(name))) + '"'
        separators = rng.choice(((",", ":"), (", ", ": "), (" ,\n", "\t:\r")))
        value = json.dumps(random_value(rng), ensure_ascii=rng.random() < 0.5, separators=separators)
        pairs.append(name + separators[1] + value)
    return rng.choice(("", " ", "\n\t")) + "{" + rng.choice((",", " , ")).join(pairs) + rng.choice(("}", " } "))


def units(text: str):
    raw = text.encode("utf-16-be")
    return [raw[at] << 8 | raw[at + 1] for at in range(0, len(raw), 2)]


def strict(raw: bytes):
    """Return what ``json`` reads. Raises: ValueError."""

    def refuse(constant):
        raise ValueError(constant)

    return json.loads(raw.decode("utf-8-sig"), parse_constant=refuse)


def assert_equals(found, row, document):
    for slot, name in enumerate(NAMES):
        if name not in document:
            assert found.kinds[slot, row] == kernels.ABSENT
        else:
            assert found.kinds[slot, row] != kernels.ABSENT
            assert found[slot].value(row) == document[name]
            assert (found.lengths[slot, row] < 0) == (document[name] is None)


def test_slice_objects_random_documents_equal_json():
    rng = random.Random(seed_of())
    texts = [random_object(rng).encode() for _ in range(3000)]
    found = slice_objects(*packed(texts), Names(NAMES))
    assert not found.faults.any() and len(found) == len(texts)
    assert found.source.tolist() == list(range(len(texts)))
    for row, text in enumerate(texts):
        assert_equals(found, row, json.loads(text))


def test_slice_objects_lists_of_rows_equal_json():
    rng = random.Random(seed_of())
    lists = [[random_object(rng) for _ in range(rng.choice((0, 1, 1, 2, 40)))] for _ in range(300)]
    texts = [("[" + " , ".join(each) + "]").encode() for each in lists]
    found = slice_objects(*packed(texts), Names(NAMES), LISTS)
    assert not found.faults.any()
    assert found.source.tolist() == [number for number, each in enumerate(lists) for _ in each]
    for row, text in enumerate(text for each in lists for text in each):
        assert_equals(found, row, json.loads(text))


def has_half_pair(document):
    """Whether a text in the document has one half of a surrogate pair, which is not a character."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def test_slice_objects_mutated_documents_equal_json_or_are_faulty():
    rng = random.Random(seed_of())
    texts = []
    for _ in range(6000):
        raw = bytearray(random_object(rng).encode())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(raw))
            change = rng.randrange(3)
            if change == 0:
                raw[at] = rng.choice(b'"\\{}[]:,0-.eEtfnu \x00\x1f')
            elif change == 1:
                raw.insert(at, rng.choice(b'"\\{}[]:,0-.eE '))
            elif len(raw) > 1:
                del raw[at]
        texts.append(bytes(raw))
    found = slice_objects(*packed(texts), Names(NAMES))
    rows = {int(source): row for row, source in enumerate(found.source)}
    accepted = 0
    for number, text in enumerate(texts):
        try:
            document = strict(text)
        except UnicodeDecodeError:
            continue  # text that is not UTF-8 is found where it is converted
        except ValueError:
            document = None
        if isinstance(document, dict):
            assert found.faults[number] == 0, text
            if has_half_pair(document):
                continue  # a value with it is refused where it is converted
            assert_equals(found, rows[number], document)
            accepted += 1
        else:
            assert found.faults[number] != 0 and number not in rows, text
    assert 100 < accepted < 5900


@pytest.fixture
def guarded():
    """Return a function that puts a text at the end of readable memory: a read after the padding ends the process."""
    size = 16 * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    view = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(view.ctypes.data + size), mmap.PAGESIZE, 0) == 0

    def place(text: bytes, after: int):
        begin = size - PADDING - len(text)
        view[begin : size - PADDING] = np.frombuffer(text, np.uint8)
        view[size - PADDING : size] = after
        return view[:size], np.array([begin]), np.array([len(text)])

    yield place
    libc.mprotect(ctypes.c_void_p(view.ctypes.data + size), mmap.PAGESIZE, 3)


def test_slice_objects_cut_at_every_byte_is_faulty(guarded):
    rng = random.Random(seed_of())
    names = Names(NAMES)
    for _ in range(40):
        text = random_object(rng).encode().rstrip()
        for end in range(len(text)):
            # the bytes after the end would complete many texts
            for after in (0, 0x22, 0x7D):
                found = slice_objects(*guarded(text[:end], after), names)
                assert found.faults[0] in (kernels.CUT, kernels.MALFORMED) and not len(found), text[:end]
        assert not slice_objects(*guarded(text, 0x22), names).faults[0]


def test_slice_objects_mutated_at_the_end_of_memory_reads_nothing_outside(guarded):
    rng = random.Random(seed_of())
    for _ in range(3000):
        raw = bytearray(random_object(rng).encode())[-rng.randrange(1, 200) :]
        raw[rng.randrange(len(raw))] = rng.randrange(256)
        slice_objects(*guarded(bytes(raw), 0), Names(NAMES), rng.choice((LISTS, ONE, ONE_OR_ABSENT)))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a":1} {"a":2}', kernels.TRAILING),
        ('{"a":1}x', kernels.TRAILING),
        ('{"a":NaN}', kernels.MALFORMED),
        ('{"a":Infinity}', kernels.MALFORMED),
        ('{"a":01}', kernels.MALFORMED),
        ('{"a":"\n"}', kernels.MALFORMED),
        ('{"a":"\\x"}', kernels.MALFORMED),
        ('{"a":"\\u12g4"}', kernels.MALFORMED),
        ('{"a" 1}', kernels.MALFORMED),
        ('{"a":1,}', kernels.MALFORMED),
        ('{"z":[1,]}', kernels.MALFORMED),
        ('{"z":[1}}', kernels.MALFORMED),
        ("", kernels.CUT),
        ("  ", kernels.CUT),
        ("[1]", kernels.NOT_OBJECT),
        ('"text"', kernels.NOT_OBJECT),
        ("null", kernels.NOT_OBJECT),
        ('{"z":' + "[" * 65 + "]" * 65 + "}", kernels.DEEP),
    ],
)
def test_slice_objects_bad_text_is_a_named_fault_of_its_message(text, fault):
    good = b'{"a":"g"}'
    found = slice_objects(*packed([good, text.encode(), good]), Names(("a",)))
    assert found.faults.tolist() == [0, fault, 0]
    assert [found[0].value(row) for row in range(2)] == ["g", "g"] and found.source.tolist() == [0, 2]


def test_slice_objects_last_duplicate_key_and_byte_order_mark():
    text = b'\xef\xbb\xbf{"a":1,"\\u0061":null,"b":[0],"b":"x"}'
    found = slice_objects(*packed([text]), Names(("a", "b")))
    assert found[0].value(0) is None and found.kinds[0, 0] == kernels.NULL and found[1].value(0) == "x"


def test_slice_objects_list_with_a_bad_row_has_no_rows():
    found = slice_objects(*packed([b'[{"a":1},{"a":2},{"a":}]', b'[{"a":3}]', b'[{"a":4},5]']), Names(("a",)), LISTS)
    assert found.faults.tolist() == [kernels.MALFORMED, 0, kernels.NOT_OBJECT]
    assert [found[0].value(row) for row in range(len(found))] == [3]


def test_slice_objects_any_value_gives_an_absent_row():
    texts = [b'{"a":1}', b"[1]", b"null", None, b'"t"']
    found = slice_objects(*packed(texts), Names(("a",)), ONE_OR_ABSENT)
    assert found.kinds[0].tolist() == [kernels.NUMBER] + [kernels.ABSENT] * 4 and not found.faults.any()


def test_slice_objects_equal_prefix_of_a_longer_value_is_not_reused():
    texts = [b'{"s":{"a":1},"v":1}', b'{"s":{"a":1},"v":2}', b'{"s":{"a":12},"v":3}', b'{"s":{"a":1}', b'{"s":{}}']
    found = slice_objects(*packed(texts), Names(("s", "v")))
    assert [found[0].value(row) for row in range(4)] == [{"a": 1}, {"a": 1}, {"a": 12}, {}]
    assert found.faults.tolist() == [0, 0, 0, kernels.CUT, 0]


def test_unescape_values_equals_json_and_refuses_half_a_pair():
    texts = [json.dumps({"a": text}, ensure_ascii=True).encode() for text in TEXTS] + [b'{"a":null}']
    values = slice_objects(*packed(texts), Names(("a",)))[0]
    out = np.empty(int(np.maximum(values.lengths, 0).sum()) + 8, np.uint8)
    starts, lengths = np.empty_like(values.starts), np.empty_like(values.lengths)
    row = kernels.unescape_values(values.data, values.starts, values.lengths, values.kinds, out, starts, lengths)
    assert row == -1
    found = [
        None if size < 0 else out[at : at + size].tobytes().decode() for at, size in zip(starts, lengths, strict=True)
    ]
    assert found == [*TEXTS, None]
    for half in ("\\ud83d", "\\ude00", "\\ud83dx", "\\ud83d\\ud83d", "\\ud83d\\u0041"):
        values = slice_objects(*packed([b'{"a":"x"}', b'{"a":"' + half.encode() + b'"}']), Names(("a",)))[0]
        row = kernels.unescape_values(values.data, values.starts, values.lengths, values.kinds, out, starts, lengths)
        assert row == 1


def test_group_rows_equal_texts_have_equal_numbers():
    rng = random.Random(seed_of())
    rows = [(rng.choice("abc"), rng.choice(("x" * 20, "x" * 19 + "y", None))) for _ in range(500)]
    texts = [json.dumps({"t": table, "m": types}).encode() for table, types in rows]
    groups, firsts = group_rows(slice_objects(*packed(texts), Names(("t", "m"))), (0, 1))
    order = list(dict.fromkeys(rows))
    assert groups.tolist() == [order.index(row) for row in rows]
    assert firsts == [rows.index(row) for row in order]


def test_words_of_finds_whole_words_only():
    texts = [json.dumps({"t": word}).encode() for word in ("INSERT", "INSER", "UPDATE", "", None, "INSERTS")]
    found = slice_objects(*packed(texts), Names(("t",)))
    assert words_of(found[0], Names(("INSERT", "UPDATE"))).tolist() == [0, -1, 1, -1, -2, -1]
