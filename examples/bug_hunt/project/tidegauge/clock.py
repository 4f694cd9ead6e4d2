"""Local time for reports. Everything else is UTC."""

import datetime
import zoneinfo


def local(time, zone):
    """Return `time` in the zone called `zone`."""
    return time.astimezone(zoneinfo.ZoneInfo(zone))


def day_bounds(day):
    """Return the first and the last instant of a UTC day."""
    start = datetime.datetime.combine(day, datetime.time(), datetime.timezone.utc)
    return start, start + datetime.timedelta(days=1)


def stamp(time, zone):
    """Return a local time for people, such as `03-29 06:00 CEST`."""
    return local(time, zone).strftime("%m-%d %H:%M %Z")
