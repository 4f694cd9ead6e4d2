"""Results on disk: one JSON file per day, written whole."""

import dataclasses
import datetime
import json
import os


def path_of(data, day):
    return data / "results" / f"{day.isoformat()}.json"


def _plain(value):
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def save(data, result):
    """Write `result` beside those of the other stations of its day."""
    path = path_of(data, result.day)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {row["station"]: row for row in _rows(path)}
    rows[result.station] = _plain(result)
    text = json.dumps(sorted(rows.values(), key=lambda row: row["station"]), indent=1)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def _rows(path):
    return json.loads(path.read_text()) if path.exists() else []


def load_day(data, day):
    """Return the results of a day as plain objects with attributes."""
    from .pipeline import Result

    return [Result.from_plain(row) for row in _rows(path_of(data, day))]
