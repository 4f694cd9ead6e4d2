import unittest

from tests.helpers import series
from tidegauge import quality
from tidegauge.readings import Reading


class Spikes(unittest.TestCase):
    def test_single_spike_is_dropped(self):
        good, counts = quality.check(series(2.0, 2.1, 2.2, 3.9, 2.3, 2.4, 2.5))
        self.assertEqual(counts.spike, 1)
        self.assertEqual(len(good), 6)

    def test_fast_rise_is_kept(self):
        levels = [2.0 + 0.12 * step for step in range(12)]
        good, counts = quality.check(series(*levels))
        self.assertEqual((len(good), counts.dropped), (12, 0))

    def test_too_few_neighbours_to_judge(self):
        good, _ = quality.check(series(2.0, 4.0))
        self.assertEqual(len(good), 2)


class Flat(unittest.TestCase):
    def test_stuck_sensor_is_dropped(self):
        _, counts = quality.check(series(*([2.0] * 24), 2.1, 2.2))
        self.assertEqual(counts.flat, 24)

    def test_slack_water_is_kept(self):
        good, counts = quality.check(series(*([2.0] * 10), 2.01))
        self.assertEqual((len(good), counts.flat), (11, 0))


class FlagsAndRange(unittest.TestCase):
    def test_maintenance_is_dropped(self):
        first, *others = series(2.0, 2.1, 2.2)
        good, counts = quality.check([Reading(first.time, first.level, "M"), *others])
        self.assertEqual((len(good), counts.flagged), (2, 1))

    def test_out_of_range_is_dropped(self):
        good, counts = quality.check(series(2.0, 2.1, 99.9, 2.2))
        self.assertEqual((len(good), counts.range), (3, 1))


if __name__ == "__main__":
    unittest.main()
