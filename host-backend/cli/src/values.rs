//! Values of arguments that clap does not parse.

use paragpu_control::admin::MAX_EVERY;

/// Parses `30s`, `10m`, `2h`, `1d` into seconds, and `off` into 0.
pub(crate) fn interval(text: &str) -> Result<u64, String> {
    let advice = || "expected a time such as 30s, 10m, 2h or 1d, or off".to_owned();
    if text == "off" {
        return Ok(0);
    }
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(advice)?;
    let (count, unit) = text.split_at(split);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(advice()),
    };
    let count: u64 = count.parse().map_err(|_| advice())?;
    match count.checked_mul(unit) {
        Some(seconds @ 1..=MAX_EVERY) => Ok(seconds),
        _ => Err("expected at least 1s and at most 30d".into()),
    }
}

/// Parses `500ms` or `2s` into milliseconds.
pub(crate) fn pause(text: &str) -> Result<u64, String> {
    let (count, unit) = match text.strip_suffix("ms") {
        Some(count) => (count, 1),
        None => (text.strip_suffix('s').unwrap_or_default(), 1000),
    };
    let count: Option<u64> = count.parse().ok();
    count
        .and_then(|count| count.checked_mul(unit))
        .filter(|pause| (1..=60_000).contains(pause))
        .ok_or_else(|| "expected a pause of at most a minute, such as 500ms or 2s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_at_most_what_the_daemon_takes() {
        let good = ["30s", "10m", "2h", "1d", "30d", "off"].map(interval);
        assert_eq!(good, [30, 600, 7200, 86_400, MAX_EVERY, 0].map(Ok));
        for wrong in ["", "30", "0s", "31d", "721h", "-1s", "1.5h", "1w"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pause_is_milliseconds_or_seconds() {
        assert_eq!(["500ms", "2s"].map(pause), [Ok(500), Ok(2000)]);
        for wrong in [
            "",
            "s",
            "500",
            "0ms",
            "61s",
            "-1s",
            "1.5s",
            "99999999999999999999s",
        ] {
            assert!(pause(wrong).is_err(), "{wrong}");
        }
    }
}
