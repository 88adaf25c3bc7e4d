"""Labels: the name of a load at a sink, made of a LoadName alone, so that a repeat bears the same label.

Source: Doris, ``FeNameFormat`` (``^[-_A-Za-z0-9]{1,128}$`` in the oldest version supported); StarRocks has the same.
"""

from __future__ import annotations

import hashlib
import re

from cdc.batch import LoadName

_READABLE = 32  # characters of the target's name kept for people; its digest tells targets apart


def label_prefix(job: str, incarnation: str, fence: int, checkpoint: int) -> str:
    """What all labels of one run and checkpoint begin with, and no other label does."""
    return f"cdc-{job}-{incarnation}-{fence}-{checkpoint}-"


def label_for(name: LoadName) -> str:
    """The label of a load: repeatable, and within every sink's pattern and length (128)."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", name.channel)[:_READABLE]
    digest = hashlib.blake2s(name.channel.encode(), digest_size=5).hexdigest()
    prefix = label_prefix(name.job, name.incarnation, name.fence, name.checkpoint)
    return f"{prefix}{readable}-{digest}-{name.task}-{name.part}-{name.attempt}"
