//! Which devices a program sees, and in which order: `CUDA_VISIBLE_DEVICES`
//! and `CUDA_DEVICE_ORDER` (CUDA C++ Programming Guide, CUDA Environment
//! Variables).

/// How devices are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As the host's configuration lists them.
    Configured,
    /// By PCI address on the host.
    PciBusId,
    /// The fastest first.
    FastestFirst,
}

impl Order {
    /// The value of `CUDA_DEVICE_ORDER`. Unknown values are ignored, as natively.
    #[must_use]
    pub fn of(value: Option<&str>) -> Self {
        match value {
            Some("PCI_BUS_ID") => Self::PciBusId,
            Some("FASTEST_FIRST") => Self::FastestFirst,
            _ => Self::Configured,
        }
    }
}

/// A device that may be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The guest's ordinal of it.
    pub ordinal: u32,
    /// Its UUID; zeros if no entry names one.
    pub uuid: [u8; 16],
    /// Its PCI address on the host.
    pub bus: String,
    /// A measure of its speed.
    pub speed: u64,
}

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A device by its number.
    Index(u32),
    /// Devices whose UUID begins with these hexadecimal digits.
    Uuid(String),
    /// A MIG instance, which is not supported.
    Mig(String),
    /// An invalid entry: it and all entries after it are ignored.
    Invalid,
}

impl Entry {
    fn of(text: &str) -> Self {
        let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
        if let Some(index) = leading_number(text) {
            return index.map_or(Self::Invalid, Self::Index);
        }
        let text = text.trim_end();
        if let Some(uuid) = text.strip_prefix("GPU-") {
            let digits: String = uuid.chars().filter(|letter| *letter != '-').collect();
            let is_hexadecimal = digits.chars().all(|letter| letter.is_ascii_hexdigit());
            return if is_hexadecimal && !digits.is_empty() {
                Self::Uuid(digits.to_ascii_lowercase())
            } else {
                Self::Invalid
            };
        }
        if text.starts_with("MIG-") {
            return Self::Mig(text.to_owned());
        }
        Self::Invalid
    }
}

/// The number that a text begins with, as C's `strtol` reads it, cut to 32 bits: NVIDIA's
/// driver ignores what is behind it. `Some(None)` if it is negative or overflows, `None` if
/// the text begins with no number.
fn leading_number(text: &str) -> Option<Option<u32>> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.find(|letter: char| !letter.is_ascii_digit());
    let digits = digits
        .get(..end.unwrap_or(digits.len()))
        .filter(|digits| !digits.is_empty())?;
    let number = digits.parse::<i64>().ok();
    Some(
        number
            .filter(|number| !negative || *number == 0)
            .map(|number| number as u32),
    )
}

/// The entries of `CUDA_VISIBLE_DEVICES`, up to the first that is invalid;
/// `None` if it is not set.
#[must_use]
pub fn entries(value: Option<&str>) -> Option<Vec<Entry>> {
    let entries = value?.split(',').map(Entry::of);
    Some(
        entries
            .take_while(|entry| *entry != Entry::Invalid)
            .collect(),
    )
}

/// A list that names a device twice. No device is seen then, and the driver's initialization
/// says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeated;

/// The guest's ordinals of the devices that the program sees.
pub fn select(
    mut candidates: Vec<Candidate>,
    order: Order,
    entries: Option<&[Entry]>,
) -> Result<Vec<u32>, Repeated> {
    match order {
        Order::Configured => {}
        Order::PciBusId => candidates.sort_by(|one, other| one.bus.cmp(&other.bus)),
        Order::FastestFirst => candidates.sort_by_key(|one| std::cmp::Reverse(one.speed)),
    }
    let Some(entries) = entries else {
        return Ok(candidates.iter().map(|one| one.ordinal).collect());
    };
    let mut seen = Vec::new();
    for entry in entries {
        let found = match entry {
            Entry::Index(index) => candidates.get(*index as usize),
            Entry::Uuid(digits) => by_uuid(&candidates, digits),
            Entry::Mig(_) | Entry::Invalid => None,
        };
        // An invalid entry ends the list.
        match found {
            Some(found) if seen.contains(&found.ordinal) => return Err(Repeated),
            Some(found) => seen.push(found.ordinal),
            None => break,
        }
    }
    Ok(seen)
}

/// The one device whose UUID begins with `digits`.
fn by_uuid<'a>(candidates: &'a [Candidate], digits: &str) -> Option<&'a Candidate> {
    let mut matching = candidates.iter().filter(|candidate| {
        let uuid = u128::from_be_bytes(candidate.uuid);
        format!("{uuid:032x}").starts_with(digits)
    });
    let found = matching.next()?;
    matching.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Vec<Candidate> {
        let one = |ordinal: u32, first: u8, bus: &str, speed| {
            let mut uuid = [0xab; 16];
            uuid[0] = first;
            Candidate {
                ordinal,
                uuid,
                bus: bus.into(),
                speed,
            }
        };
        vec![
            one(0, 0x10, "0000:41:00.0", 5),
            one(1, 0x11, "0000:01:00.0", 9),
            one(2, 0x22, "0000:81:00.0", 7),
        ]
    }

    fn seen(value: Option<&str>) -> Vec<u32> {
        select(three(), Order::Configured, entries(value).as_deref()).unwrap()
    }

    #[test]
    fn without_a_list_all_are_seen() {
        assert_eq!(seen(None), [0, 1, 2]);
    }

    #[test]
    fn an_empty_list_and_a_negative_number_hide_all() {
        assert!(seen(Some("")).is_empty());
        assert!(seen(Some("-1")).is_empty());
        assert!(seen(Some("NoDevFiles")).is_empty());
    }

    #[test]
    fn the_list_determines_the_order() {
        assert_eq!(seen(Some("2,0")), [2, 0]);
        assert_eq!(seen(Some(" 1 , 2 ")), [1, 2]);
    }

    #[test]
    fn an_invalid_entry_ends_the_list() {
        assert_eq!(seen(Some("0,-1,1")), [0]);
        assert_eq!(seen(Some("0,3,1")), [0]);
        assert_eq!(seen(Some("1,x,0")), [1]);
        assert_eq!(seen(Some("2,MIG-GPU-22abab/1/0,0")), [2]);
    }

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        // As an H100's driver did (580.159.04), where these chose the only device or none.
        for zero in [
            "0gpu0",
            "0;1",
            "0x0",
            "+0",
            "00",
            " 0",
            "0 ",
            "-0",
            "4294967296",
            "0.5",
            "0 1",
            "\t0",
            "0\n",
        ] {
            assert_eq!(seen(Some(zero)), [0], "{zero:?}");
        }
        for none in [
            "",
            "  ",
            "x",
            ",0",
            "-1,0",
            "99999999999999999999",
            "GPU-x,0",
            "NoDevFiles",
        ] {
            assert!(seen(Some(none)).is_empty(), "{none:?}");
        }
        assert_eq!(seen(Some("0,,1")), [0]);
    }

    #[test]
    fn a_list_that_repeats_a_device_is_refused() {
        for value in ["0,0", "0,0x0", "1,0,1"] {
            let chosen = select(three(), Order::Configured, entries(Some(value)).as_deref());
            assert_eq!(chosen, Err(Repeated), "{value}");
        }
        // After the first that is invalid nothing is read. Of one GPU, "0,1,0" names it once.
        assert_eq!(seen(Some("0,3,0")), [0]);
    }

    #[test]
    fn uuids_may_be_shortened_but_not_ambiguous() {
        assert_eq!(seen(Some("GPU-22ababab-abab")), [2]);
        assert_eq!(seen(Some("GPU-11AB,GPU-10")), [1, 0]);
        assert!(seen(Some("GPU-1")).is_empty(), "two devices");
        assert!(seen(Some("GPU-33")).is_empty());
        assert!(seen(Some("GPU-")).is_empty());
    }

    #[test]
    fn numbers_count_in_the_order_that_is_set() {
        let with =
            |order, value: &str| select(three(), order, entries(Some(value)).as_deref()).unwrap();
        assert_eq!(with(Order::PciBusId, "0,1,2"), [1, 0, 2]);
        assert_eq!(with(Order::FastestFirst, "0,1,2"), [1, 2, 0]);
        assert_eq!(Order::of(Some("PCI_BUS_ID")), Order::PciBusId);
        assert_eq!(Order::of(Some("slowest")), Order::Configured);
    }
}
