//! Kubernetes' quantities: `20Gi`, `1500M`, `250`, `500m`, `2e9`.

/// Parses a quantity and rounds it up to an integer. `None` if it is malformed, negative or
/// too large.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let digits: u128 = format!("{whole}{part}").parse().ok()?;
    let mut divisor = 10_u128.checked_pow(u32::try_from(part.len()).ok()?)?;
    let factor = match suffix {
        "" => 1,
        "m" | "u" | "n" => {
            let part = match suffix {
                "m" => 1_000,
                "u" => 1_000_000,
                _ => 1_000_000_000,
            };
            divisor = divisor.checked_mul(part)?;
            1
        }
        "k" => 1000,
        "M" => 1000_u128.pow(2),
        "G" => 1000_u128.pow(3),
        "T" => 1000_u128.pow(4),
        "P" => 1000_u128.pow(5),
        "E" => 1000_u128.pow(6),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        "Ei" => 1 << 60,
        _ => {
            let power = suffix.strip_prefix(['e', 'E'])?;
            10_u128.checked_pow(power.parse().ok()?)?
        }
    };
    u64::try_from(digits.checked_mul(factor)?.div_ceil(divisor)).ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn quantities_are_whole_numbers_rounded_up() {
        for (text, value) in [
            ("250", 250),
            ("20Gi", 20 << 30),
            ("1.5Ki", 1536),
            ("2k", 2000),
            ("1500m", 2),
            ("1u", 1),
            ("3000000000n", 3),
            ("2e3", 2000),
            ("1E", 1_000_000_000_000_000_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for text in ["", "Gi", ".", "-1", "1x", "1.2.3", "20E", "1e99", "é"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
