//! Points in time as text. Owns the RFC 3339 form that state files and audit lines use; reads no clock.

use std::fmt::{self, Write as _};

/// A point in time since 1970-01-01T00:00:00Z, written as RFC 3339 in UTC with microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds since the epoch.
    pub seconds: u64,
    /// Microseconds within the second, below 1,000,000.
    pub micros: u32,
}

impl Timestamp {
    /// The point in time that lies `since_epoch` after the epoch.
    pub fn from_duration(since_epoch: std::time::Duration) -> Self {
        Self {
            seconds: since_epoch.as_secs(),
            micros: since_epoch.subsec_micros(),
        }
    }

    /// Appends the text form to a buffer that the caller reuses.
    pub fn write_to(self, buffer: &mut String) {
        // Writing to a String cannot fail.
        let _ = write!(buffer, "{self}");
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_from_days(self.seconds / 86_400);
        let of_day = self.seconds % 86_400;
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z",
            self.micros.min(999_999)
        )
    }
}

/// The Gregorian date of a day number (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days).
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_points_in_time_have_their_known_text() {
        for (seconds, micros, text) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, 1, "2000-02-29T00:00:00.000001Z"),
            (1_796_034_896, 999_999, "2026-11-30T10:34:56.999999Z"),
            (4_107_542_399, 0, "2100-02-28T23:59:59.000000Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(Timestamp { seconds, micros }.to_string(), text);
        }
    }
}
