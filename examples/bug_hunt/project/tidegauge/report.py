"""Results as text for people. Levels are rounded here and nowhere else."""

from . import clock


def metres(level):
    return f"{level:.2f} m"


def hour_line(hour, zone):
    return f"  {clock.stamp(hour.start, zone)}  {metres(hour.high):>8}  mean {metres(hour.mean):>8}  {hour.samples} readings"


def alert_line(alert, zone):
    end = clock.stamp(alert.end, zone) if alert.end is not None else "still active"
    return f"  {alert.level:<8} from {clock.stamp(alert.start, zone)} to {end}, peak {metres(alert.peak)}"


def summary(result):
    """Return a page about one station's day."""
    lines = [f"station {result.station} ({result.name}), {result.day}, instrument {', '.join(result.serials)}"]
    lines += [f"  {result.used} readings used, {result.dropped} dropped, {result.skipped} rows skipped"]
    lines += [hour_line(hour, result.zone) for hour in result.hours]
    lines += ["alerts:"] if result.alerts else ["no alert"]
    lines += [alert_line(alert, result.zone) for alert in result.alerts]
    return "\n".join(lines)
