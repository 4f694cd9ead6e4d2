import unittest

from tests.helpers import at
from tidegauge import aggregate


class Hourly(unittest.TestCase):
    def test_low_mean_high(self):
        levels = [(at(4, 5 * n), float(n)) for n in range(12)]
        (hour,) = aggregate.hourly(levels)
        self.assertEqual((hour.start, hour.samples, hour.low, hour.mean, hour.high), (at(4), 12, 0.0, 5.5, 11.0))

    def test_hour_with_few_readings_is_left_out(self):
        self.assertEqual(aggregate.hourly([(at(4, 5 * n), 1.0) for n in range(5)]), [])

    def test_hours_are_in_order(self):
        levels = [(at(hour, 5 * n), 1.0) for hour in (5, 3, 4) for n in range(6)]
        self.assertEqual([hour.start for hour in aggregate.hourly(levels)], [at(3), at(4), at(5)])


if __name__ == "__main__":
    unittest.main()
