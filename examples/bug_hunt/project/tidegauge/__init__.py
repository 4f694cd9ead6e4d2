"""Water levels of tide gauges: parse, check, calibrate, aggregate, alert."""

__version__ = "2.4.1"
