"""Groups of runs that differ in the seed only: the inter-quartile mean of their curves, with a bootstrap band."""

from __future__ import annotations

from typing import Any

import numpy as np

from outplay.curves import aggregated
from outplay.dashboard.catalog import Catalog, UnknownError
from outplay.dashboard.entries import Entry
from outplay.dashboard.series import SeriesStore
from outplay.errors import ConfigError, shortened

CUSTOM = "custom"  # the key of a group that the request lists run by run


def groups_answer(
    catalog: Catalog, store: SeriesStore, keys: list[str], ids: list[str], metric: str, x: str, points: int
) -> dict[str, Any]:
    """The answer of /api/groups. `ids`: the runs of the group `custom`."""
    if (CUSTOM in keys) != bool(ids):
        raise ConfigError("runs are listed for group=custom, and only for it: group=custom&run=A&run=B")
    members: dict[str, list[Entry]] = {key: [] for key in keys}
    for entry in catalog.runs():
        if (key := entry.run.get("group")) in members and key != CUSTOM:
            members[str(key)].append(entry)
    if ids:
        members[CUSTOM] = [catalog.run(run_id) for run_id in dict.fromkeys(ids)]
    if missing := [key for key, entries in members.items() if not entries]:
        raise UnknownError(f"there is no group {shortened(missing[0])!r}")
    return {"groups": [_group(key, entries, store, metric, x, points) for key, entries in members.items()]}


def _group(key: str, entries: list[Entry], store: SeriesStore, metric: str, x: str, points: int) -> dict[str, Any]:
    found = store.curves(entries, metric, x, points, -np.inf, np.inf)
    curves = [(curve.x, curve.mean) for _, curve, _ in found]
    # Stratified by environment: a group of the user's own may have several.
    band = aggregated(curves, points, strata=[str(entry.run.get("env")) for entry in entries])
    first = entries[0].run
    return {
        "group": key,
        "label": "selected runs" if key == CUSTOM else f"{first['experiment']}: {first['algorithm']}, {first['env']}",
        "runs": [entry.id for entry in entries],
        "x": band.x.tolist(),
        "iqm": band.iqm.tolist(),
        "low": band.low.tolist(),
        "high": band.high.tolist(),
        "exact": all(is_exact for *_, is_exact in found),
    }
