import unittest

from tests.helpers import at, hour
from tidegauge import alerts


class Find(unittest.TestCase):
    def test_alert_starts_at_the_threshold(self):
        (alert,) = alerts.find([hour(1, 4.0), hour(2, 5.0), hour(3, 4.0)], {"flood": 5.0})
        self.assertEqual((alert.level, alert.start, alert.end, alert.peak), ("flood", at(2), at(3), 5.0))

    def test_small_drop_does_not_end_it(self):
        (alert,) = alerts.find([hour(1, 5.1), hour(2, 4.9), hour(3, 5.2), hour(4, 4.0)], {"flood": 5.0})
        self.assertEqual((alert.start, alert.end, alert.peak), (at(1), at(4), 5.2))

    def test_active_alert_has_no_end(self):
        (alert,) = alerts.find([hour(1, 4.0), hour(2, 5.3)], {"flood": 5.0})
        self.assertIsNone(alert.end)

    def test_levels_are_independent(self):
        found = alerts.find([hour(1, 4.4), hour(2, 4.8), hour(3, 4.0)], {"watch": 4.3, "warning": 4.7, "flood": 5.0})
        self.assertEqual([each.level for each in found], ["watch", "warning"])

    def test_unknown_level_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "unknown alert levels: storm"):
            alerts.find([], {"storm": 6.0})


if __name__ == "__main__":
    unittest.main()
