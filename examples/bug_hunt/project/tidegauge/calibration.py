"""Offsets of instruments: which one applied when, so that levels refer to chart datum."""

import bisect
import csv
import dataclasses


class NoCalibration(LookupError):
    """A station has no calibration at that time."""


@dataclasses.dataclass(frozen=True)
class Calibration:
    """From `valid_from` on, `offset` metres are added to the levels of instrument `serial`."""

    station: int
    valid_from: str
    serial: str
    offset: float
    note: str = ""


def load(path):
    """Return the calibrations of each station, ordered by the day from which they are valid."""
    table = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            entry = Calibration(
                int(row["station"]), row["valid_from"].strip(), row["serial"].strip(), float(row["offset"]), row["note"] or ""
            )
            table.setdefault(entry.station, []).append(entry)
    for entries in table.values():
        entries.sort(key=lambda entry: entry.valid_from)
    return table


def applicable(table, station, time):
    """Return the calibration of `station` at `time`. Raises NoCalibration before the first."""
    entries = table.get(station, [])
    place = bisect.bisect_right([entry.valid_from for entry in entries], time.date().isoformat())
    if not place:
        raise NoCalibration(f"station {station} has no calibration on {time.date()}")
    return entries[place - 1]


def apply(readings, table, station):
    """Return `(time, level)` pairs with levels above chart datum, and the serials that were used."""
    levels, serials = [], []
    for reading in readings:
        entry = applicable(table, station, reading.time)
        levels.append((reading.time, reading.level + entry.offset))
        if entry.serial not in serials:
            serials.append(entry.serial)
    return levels, serials
