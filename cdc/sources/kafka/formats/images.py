"""Rows of changes that have a before and an after image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cdc.sources.kafka.formats.json_slices import Slices


def rows_of_images(
    before: Slices, after: Slices, deletes: NDArray[np.bool_], changed: NDArray[np.bool_]
) -> tuple[Slices, NDArray[np.bool_], NDArray[np.int64]]:
    """Return the rows of changes, whether each is deleted, and the number of rows of each change.

    A change of ``deletes`` gives its before image. A change of ``changed``, which changes the key, gives two rows: the
    before image, which is deleted, and the after image. Any other change gives its after image.
    """
    repeats = np.where(changed, 2, 1)
    rows = after.take(np.repeat(np.arange(len(after)), repeats))
    deleted = np.repeat(deletes, repeats)
    deleted[(np.cumsum(repeats) - repeats)[changed]] = True
    sources, targets = np.flatnonzero(deletes | changed), np.flatnonzero(deleted)
    for target, source in ((rows.starts, before.starts), (rows.lengths, before.lengths), (rows.kinds, before.kinds)):
        target[:, targets] = source[:, sources]
    return rows, deleted, repeats
