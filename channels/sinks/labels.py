"""Labels: names of loads in a sink. A label depends only on the LoadName, so a repeated load has the same label.

Source: Doris, ``FeNameFormat`` (``^[-_A-Za-z0-9]{1,128}$`` in the oldest version supported); StarRocks has the same.
"""

from __future__ import annotations

import hashlib
import re

from cdc.model.batch import LoadName

_READABLE = 32  # characters of the target name, for people; a digest makes the label unique


def job_prefix(job: str, incarnation: str) -> str:
    """Return the prefix of all labels of one incarnation of a job, which no other label has."""
    return f"cdc-{job}-{incarnation}-"


def label_prefix(job: str, incarnation: str, fence: int, checkpoint: int) -> str:
    """Return the prefix of all labels of one run and checkpoint, which no other label has."""
    return f"{job_prefix(job, incarnation)}{fence}-{checkpoint}-"


def label_for(name: LoadName) -> str:
    """Return the label of a load: repeatable, and valid for every sink (128 characters at most)."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", name.channel)[:_READABLE]
    digest = hashlib.blake2s(name.channel.encode(), digest_size=5).hexdigest()
    prefix = label_prefix(name.job, name.incarnation, name.fence, name.checkpoint)
    return f"{prefix}{readable}-{digest}-{name.task}-{name.part}-{name.attempt}"
