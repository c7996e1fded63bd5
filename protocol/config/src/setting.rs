//! The types of values.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::nearest::nearest;

/// Parses a value that is a string in TOML.
///
/// # Errors
/// The expected value, as the end of a sentence that begins with the key.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    T::deserialize(toml::Value::from(text)).map_err(|error| sentence(error.message()))
}

/// A value that can have a range.
pub(crate) trait Number: Copy + Serialize {
    /// The number; `None` if the value is a word instead.
    fn number(self) -> Option<u64>;

    /// A bound of its range, as it would be written.
    fn bound(bound: u64) -> String {
        bound.to_string()
    }
}

/// Accepts values from `MIN` to `MAX`.
pub(crate) fn between<const MIN: u64, const MAX: u64>(value: &impl Number) -> Result<(), String> {
    in_range(value, MIN, MAX)
}

fn in_range<T: Number>(value: &T, min: u64, max: u64) -> Result<(), String> {
    match value.number() {
        Some(number) if !(min..=max).contains(&number) => Err(format!(
            "expects a value from {} to {}, not {}",
            T::bound(min),
            T::bound(max),
            toml::Value::try_from(value).map_err(|error| error.to_string())?
        )),
        _ => Ok(()),
    }
}

/// Accepts absolute paths, and none.
pub(crate) fn absolute(path: &impl AsRef<Path>) -> Result<(), String> {
    let path = path.as_ref();
    match path.as_os_str().is_empty() || path.is_absolute() {
        true => Ok(()),
        false => Err(format!("expects a path that starts with /, not {path:?}")),
    }
}

/// Rephrases serde's message as the end of a sentence that begins with the key.
pub(crate) fn sentence(message: &str) -> String {
    if let Some(ours) = message.strip_prefix("validation failed: ") {
        return ours.to_owned();
    }
    let cut = |start: &str| message.strip_prefix(start)?.split_once(", expected ");
    if let Some((got, expected)) = cut("unknown variant ") {
        let (got, expected) = (got.trim_matches('`'), expected.replace('`', ""));
        let near = nearest(got, expected.trim_start_matches("one of ").split(", "));
        let near = near.map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
        return format!("expects {expected}, not {got:?}{near}");
    }
    match cut("invalid type: ").or_else(|| cut("invalid value: ")) {
        // serde's message for an enumeration, whose choices are unit variants.
        Some((_, "string only")) => "expects a string".to_owned(),
        Some((got, "u32")) => format!("expects a whole number from 0 to {}, not {got}", u32::MAX),
        Some((got, expected)) => format!("expects {expected}, not {got}"),
        None => message.to_owned(),
    }
}

impl Number for u32 {
    fn number(self) -> Option<u64> {
        Some(u64::from(self))
    }
}

/// Declares how a type is parsed from text and formatted.
macro_rules! text {
    ($type:ident, $read:expr, $write:expr) => {
        impl TryFrom<String> for $type {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                let read: fn(&str) -> Option<Self> = $read;
                read(&text).ok_or_else(|| format!("expects {}, not {text:?}", Self::EXPECTED))
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> Self {
                let write: fn($type) -> Self = $write;
                write(value)
            }
        }
    };
}
pub(crate) use text;

/// A value that is a number or a string in TOML.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expects a number or a text")]
enum Mixed {
    Number(u64),
    Text(String),
}

/// Bytes, written as a number or with a unit: 4096, "64MiB", "1GiB".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Mixed", into = "Mixed")]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl TryFrom<Mixed> for Size {
    type Error = String;
    fn try_from(value: Mixed) -> Result<Self, String> {
        let text = match value {
            Mixed::Number(bytes) => return Ok(Self(bytes)),
            Mixed::Text(text) => text,
        };
        let (digits, shift) = UNITS
            .iter()
            .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
            .unwrap_or((&text, 0));
        let number = digits.trim_end().parse::<u64>().ok();
        number
            .and_then(|number| number.checked_mul(1 << shift))
            .map(Self)
            .ok_or_else(|| format!("expects a size in bytes, KiB, MiB, GiB or TiB, not {text:?}"))
    }
}

impl From<Size> for Mixed {
    fn from(size: Size) -> Self {
        match size.to_string() {
            text if text.ends_with('B') => Self::Text(text),
            _ => Self::Number(size.0),
        }
    }
}

impl Number for Size {
    fn number(self) -> Option<u64> {
        Some(self.0)
    }

    fn bound(bound: u64) -> String {
        Self(bound).to_string()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in UNITS {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(formatter, "{}{unit}", self.0 >> shift);
            }
        }
        write!(formatter, "{}", self.0)
    }
}

/// How long a waiting thread polls before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Mixed", into = "Mixed")]
pub enum Spin {
    /// Adapted to recent waits.
    Auto,
    /// This many microseconds; 0 sleeps at once.
    Microseconds(u32),
}

impl TryFrom<Mixed> for Spin {
    type Error = String;
    fn try_from(value: Mixed) -> Result<Self, String> {
        let number = match &value {
            Mixed::Text(text) if text == "auto" => return Ok(Self::Auto),
            Mixed::Number(number) => u32::try_from(*number).ok(),
            Mixed::Text(text) => text.parse().ok(),
        };
        let expected = || "expects \"auto\" or microseconds".to_owned();
        number.map(Self::Microseconds).ok_or_else(expected)
    }
}

impl From<Spin> for Mixed {
    fn from(spin: Spin) -> Self {
        match spin {
            Spin::Auto => Self::Text("auto".into()),
            Spin::Microseconds(number) => Self::Number(number.into()),
        }
    }
}

impl Number for Spin {
    fn number(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Microseconds(number) => Some(u64::from(number)),
        }
    }
}

/// A host and port to connect to, or none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(pub Option<String>);

impl Address {
    const EXPECTED: &'static str = "\"host:port\"";

    fn read(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self(None));
        }
        let (host, port) = text.rsplit_once(':')?;
        // No URL, for example.
        let strange = |letter: char| letter == '/' || letter.is_whitespace();
        let named = !host.is_empty() && !host.contains(strange);
        let good = named && port.parse::<u16>().is_ok_and(|port| port != 0);
        good.then(|| Self(Some(text.to_owned())))
    }
}
text!(Address, Self::read, |address| address.0.unwrap_or_default());

/// An address to listen on, or none. Port 0 lets the system choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Listen(pub Option<SocketAddr>);

impl Listen {
    const EXPECTED: &'static str =
        "an address and port such as \"127.0.0.1:7474\" or \"[::1]:7474\"";
}
text!(
    Listen,
    |text| match text {
        "" => Some(Self(None)),
        address => address.parse().ok().map(|address| Self(Some(address))),
    },
    |listen| listen
        .0
        .map(|address| address.to_string())
        .unwrap_or_default()
);

/// An endpoint for programs on this host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Endpoint {
    /// None.
    #[default]
    Nowhere,
    /// An address; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    const EXPECTED: &'static str =
        "an address and port such as \"127.0.0.1:9101\", or a path that starts with /";
}
text!(
    Endpoint,
    |text| match text {
        "" => Some(Self::Nowhere),
        path if path.starts_with('/') => Some(Self::Unix(path.into())),
        address => address.parse().ok().map(Self::Tcp),
    },
    |endpoint| match endpoint {
        Endpoint::Nowhere => Self::new(),
        Endpoint::Tcp(address) => address.to_string(),
        Endpoint::Unix(path) => path.display().to_string(),
    }
);

/// A list of device numbers; empty means all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Indices(pub Vec<u32>);

/// A unix socket for the vsock connections of one VM. The VM's hypervisor or vhost-user
/// daemon connects to it when the guest connects to the port at the end of its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VmSocket {
    /// The VM.
    pub vm: String,
    /// The socket.
    pub path: PathBuf,
}

impl VmSocket {
    const EXPECTED: &'static str = "a path that starts with /, or VM=PATH";

    fn read(text: &str) -> Option<Self> {
        let (vm, path) = match text.split_once('=') {
            Some((vm, path)) if !text.starts_with('/') => (vm.to_owned(), path),
            _ => (Self::name(text).to_owned(), text),
        };
        let good_name = !vm.is_empty() && vm.len() <= 64 && !vm.contains(char::is_control);
        let good = good_name && path.starts_with('/') && !path.ends_with('/');
        let path = path.into();
        good.then_some(Self { vm, path })
    }

    /// `alpha` of `/run/vm/alpha.vsock_7014`.
    fn name(path: &str) -> &str {
        let file = path.rsplit('/').next().unwrap_or_default();
        let stem = match file.rsplit_once('_') {
            Some((stem, port)) if port.parse::<u32>().is_ok() => stem,
            _ => file,
        };
        [".vsock", ".sock", ".socket"]
            .iter()
            .find_map(|ending| stem.strip_suffix(ending))
            .unwrap_or(stem)
    }

    fn written(self) -> String {
        let path = self.path.display().to_string();
        match Self::name(&path) == self.vm {
            true => path,
            false => format!("{}={path}", self.vm),
        }
    }
}
text!(VmSocket, Self::read, VmSocket::written);

/// The vsock sockets of VMs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmSockets(pub Vec<VmSocket>);

/// How the guest reaches its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Communicator {
    /// The first that answers: pci, shm, unix, vsock, tcp.
    Auto,
    /// Shared memory with a worker on the same host.
    Shm,
    /// A unix socket.
    Unix,
    /// TCP.
    Tcp,
    /// The paragpu PCI device of a virtual machine.
    Pci,
    /// A socket between a virtual machine and its host.
    Vsock,
}

/// The log level.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Level {
    /// Nothing.
    Off,
    /// Failures.
    Error,
    /// Also surprises, such as a function that is not served.
    Warn,
    /// Also events: sessions, processes.
    Info,
    /// Also the reasons.
    Debug,
    /// Also each step.
    Trace,
}
