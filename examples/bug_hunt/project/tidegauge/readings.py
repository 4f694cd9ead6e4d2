"""Parsing of station files: `time,level,flag`, one row every five minutes."""

import csv
import dataclasses
import datetime


class BadRow(ValueError):
    """A row that cannot be parsed; the message names the line."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """One level. `time` is UTC and aware; `level` is in metres above the gauge's zero."""

    time: datetime.datetime
    level: float
    flag: str = ""


def parse_time(text):
    """Return an aware UTC time for `2026-03-29T04:05:00Z` or an offset such as `+02:00`."""
    time = datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if time.tzinfo is None:
        raise ValueError(f"time without a zone: {text!r}")
    return time.astimezone(datetime.timezone.utc)


def parse_row(number, row):
    if len(row) < 2:
        raise BadRow(f"line {number}: expected time,level[,flag], got {row!r}")
    try:
        time = parse_time(row[0])
        level = float(row[1])
    except ValueError as error:
        raise BadRow(f"line {number}: {error}") from error
    return Reading(time, level, row[2].strip() if len(row) > 2 else "")


def read_file(path):
    """Return the readings of a file in order of time, and how many rows were skipped.

    Rows that cannot be parsed are skipped. Of two rows with the same time the later one in the file wins: loggers send a
    corrected value again.
    """
    by_time, skipped = {}, 0
    with open(path, newline="") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        if [name.strip() for name in header[:2]] != ["time", "level"]:
            raise BadRow(f"{path}: expected a header time,level[,flag], got {header!r}")
        for number, row in enumerate(rows, 2):
            try:
                reading = parse_row(number, row)
            except BadRow:
                skipped += 1
                continue
            by_time[reading.time] = reading
    return [by_time[time] for time in sorted(by_time)], skipped
