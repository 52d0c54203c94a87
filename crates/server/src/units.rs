//! Durations and sizes as people write them: `500ms`, `10s`, `1m30s`; `64KiB`, `1.5MiB`, `8GB`.
//!
//! The command line and the TOML file read them with the same two functions, so that a value can be
//! carried from one to the other. A number without a unit is refused: nobody should have to guess.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("invalid duration {0:?}: use a number with ms, s, m or h, for example 30s or 1m30s")]
    Duration(String),
    #[error("invalid size {0:?}: use a number with B, KiB, MiB or GiB, for example 64MiB")]
    Size(String),
}

const DURATIONS: &[(&str, f64)] = &[("ms", 1.0), ("s", 1e3), ("m", 60e3), ("h", 3_600e3), ("d", 86_400e3)];

const SIZES: &[(&str, f64)] = &[
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
];

pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let ms = parse_parts(text).ok_or_else(|| UnitError::Duration(text.to_owned()))?;
    Ok(Duration::from_millis(ms))
}

/// Adds up parts from the largest unit to the smallest, as in `1h30m`.
fn parse_parts(text: &str) -> Option<u64> {
    let (mut rest, mut total, mut last_factor) = (text.trim(), 0u64, f64::INFINITY);
    loop {
        let unit = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let end = rest[unit..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |length| unit + length);
        let part = &rest[..end];
        let name = part[unit..].trim();
        let (_, factor) = DURATIONS.iter().find(|(known, _)| *known == name)?;
        if *factor >= last_factor {
            return None;
        }
        (last_factor, total) = (*factor, total.checked_add(parse(part, DURATIONS, false)?)?);
        rest = &rest[end..];
        if rest.is_empty() {
            return Some(total);
        }
    }
}

pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    parse(text, SIZES, true).ok_or_else(|| UnitError::Size(text.to_owned()))
}

/// The largest unit that tells the duration exactly.
pub fn format_duration(duration: Duration) -> String {
    let ms = duration.as_millis() as u64;
    let (unit, factor) =
        DURATIONS.iter().rev().find(|(_, factor)| ms.is_multiple_of(*factor as u64)).unwrap_or(&DURATIONS[0]);
    if ms == 0 { "0s".to_owned() } else { format!("{}{unit}", ms / *factor as u64) }
}

/// The largest binary unit that tells the size exactly.
pub fn format_size(bytes: u64) -> String {
    let binary = SIZES[..4].iter().rev().find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor as u64));
    match binary {
        Some((unit, factor)) => format!("{}{unit}", bytes / *factor as u64),
        None => format!("{bytes}B"),
    }
}

fn parse(text: &str, units: &[(&str, f64)], ignore_case: bool) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let number: f64 = text[..end].parse().ok()?;
    let name = text[end..].trim_start();
    let (_, factor) =
        units.iter().find(|(unit, _)| *unit == name || (ignore_case && unit.eq_ignore_ascii_case(name)))?;
    let value = (number * factor).round();
    (value <= 9e18).then_some(value as u64)
}

/// For `#[serde(with = …)]`.
pub mod duration {
    use super::*;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse_duration(&String::deserialize(deserializer)?).map_err(Error::custom)
    }

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*duration))
    }
}

macro_rules! size_module {
    ($name:ident, $integer:ty) => {
        /// For `#[serde(with = …)]`.
        pub mod $name {
            use super::*;
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$integer, D::Error> {
                let text = String::deserialize(deserializer)?;
                let bytes = parse_size(&text).map_err(Error::custom)?;
                <$integer>::try_from(bytes).map_err(|_| Error::custom(format!("{text} is too large")))
            }

            pub fn serialize<S: Serializer>(bytes: &$integer, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&format_size(*bytes as u64))
            }
        }
    };
}

size_module!(size_u32, u32);
size_module!(size_u64, u64);
size_module!(size_usize, usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("5 m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1h 0.5m 2s 5ms"), Ok(Duration::from_millis(3_632_005)));
        for bad in ["", "10", "ten s", "1x", "-1s", "1..5s", "99999999999999999999d", "1m30", "30s1m", "1s1s", "1m s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(parse_size("1.5MiB"), Ok(1_572_864));
        assert_eq!(parse_size("8GB"), Ok(8_000_000_000));
        assert_eq!(parse_size("64kib"), Ok(65_536));
        assert_eq!(parse_size("0B"), Ok(0));
        assert!(parse_size("10").is_err());
        assert!(parse_size("10 bananas").is_err());
    }

    #[test]
    fn what_is_written_reads_back() {
        for ms in [0, 1, 500, 1000, 90_000, 3_600_000, 86_400_000] {
            let duration = Duration::from_millis(ms);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        for bytes in [0, 1, 1000, 1024, 1_572_864, 8 << 30] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_duration(Duration::from_secs(3600)), "1h");
        assert_eq!(format_size(1_572_864), "1536KiB");
    }
}
