//! The types that a value can have.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use toml::de::DeValue;

/// A type of value: how it is read from TOML and from text, and shown.
pub trait Setting: Sized {
    /// Reads a TOML value.
    ///
    /// # Errors
    /// What the value should be, as the end of a sentence that begins with the key.
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String>;

    /// Reads an environment variable or command line argument.
    ///
    /// # Errors
    /// As [`from_toml`](Self::from_toml).
    fn from_text(text: &str) -> Result<Self, String>;

    /// The value as TOML.
    fn to_toml(&self) -> String;

    /// The value as a number, where it has a range.
    fn number(&self) -> Option<u64> {
        None
    }
}

fn expects<T>(what: &str, value: &DeValue<'_>) -> Result<T, String> {
    Err(format!("expects {what}, not {}", kind(value)))
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

impl Setting for bool {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        value
            .as_bool()
            .map_or_else(|| expects("true or false", value), Ok)
    }
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            other => Err(format!("expects true or false, not {}", quoted(other))),
        }
    }
    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Setting for u32 {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        if !value.is_integer() {
            return expects("an integer", value);
        }
        integer(value)
            .and_then(|number| Self::try_from(number).ok())
            .ok_or_else(|| "expects an integer from 0 to 4294967295".into())
    }
    fn from_text(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| format!("expects an integer, not {}", quoted(text)))
    }
    fn to_toml(&self) -> String {
        self.to_string()
    }
    fn number(&self) -> Option<u64> {
        Some(u64::from(*self))
    }
}

/// Types that TOML has as a text.
macro_rules! text_setting {
    ($type:ty, $what:literal) => {
        impl Setting for $type {
            fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
                match value.as_str() {
                    Some(text) => Self::from_text(text),
                    None => expects($what, value),
                }
            }
            fn from_text(text: &str) -> Result<Self, String> {
                Self::read(text)
            }
            fn to_toml(&self) -> String {
                quoted(&self.written())
            }
        }
    };
}

trait Text: Sized {
    fn read(text: &str) -> Result<Self, String>;
    fn written(&self) -> String;
}

impl Text for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
    fn written(&self) -> String {
        self.clone()
    }
}
text_setting!(String, "a text");

impl Text for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        let path = Self::from(text);
        if text.is_empty() || path.is_absolute() {
            Ok(path)
        } else {
            Err(format!(
                "expects a path that starts with /, not {}",
                quoted(text)
            ))
        }
    }
    fn written(&self) -> String {
        self.display().to_string()
    }
}
text_setting!(PathBuf, "a path");

/// Bytes, written as a number or with a unit: 4096, "64MiB", "1GiB".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl Setting for Size {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match (integer(value), value.as_str()) {
            (Some(bytes), _) => Ok(Self(bytes)),
            (_, Some(text)) => Self::from_text(text),
            _ => expects("a size such as \"64MiB\"", value),
        }
    }
    fn from_text(text: &str) -> Result<Self, String> {
        let (digits, shift) = UNITS
            .iter()
            .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
            .unwrap_or((text, 0));
        digits
            .trim_end()
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(1 << shift))
            .map(Self)
            .ok_or_else(|| {
                format!(
                    "expects a size in bytes, KiB, MiB, GiB or TiB, not {}",
                    quoted(text)
                )
            })
    }
    fn to_toml(&self) -> String {
        let text = self.to_string();
        if self.0.to_string() == text {
            text
        } else {
            quoted(&text)
        }
    }
    fn number(&self) -> Option<u64> {
        Some(self.0)
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

/// How long a waiting side polls before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spin {
    /// As long as recent waits suggest.
    Auto,
    /// This many microseconds; 0 sleeps at once.
    Microseconds(u32),
}

impl Setting for Spin {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value.as_str() {
            Some(text) => Self::from_text(text),
            None if value.is_integer() => u32::from_toml(value).map(Self::Microseconds),
            None => expects("\"auto\" or microseconds", value),
        }
    }
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            number => number
                .parse()
                .map(Self::Microseconds)
                .map_err(|_| format!("expects \"auto\" or microseconds, not {}", quoted(number))),
        }
    }
    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::Microseconds(number) => number.to_string(),
        }
    }
    fn number(&self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Microseconds(number) => Some(u64::from(*number)),
        }
    }
}

/// A host and a port to connect to, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Address(pub Option<String>);

impl Text for Address {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let port = text
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty())
            .and_then(|(_, port)| port.parse::<u16>().ok());
        match port {
            Some(1..) => Ok(Self(Some(text.to_owned()))),
            _ => Err(format!("expects \"host:port\", not {}", quoted(text))),
        }
    }
    fn written(&self) -> String {
        self.0.clone().unwrap_or_default()
    }
}
text_setting!(Address, "a text \"host:port\"");

/// An address to listen at, or nothing; port 0 lets the system choose one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Listen(pub Option<SocketAddr>);

impl Text for Listen {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        text.parse().map(|address| Self(Some(address))).map_err(|_| {
            format!(
                "expects an address and port such as \"127.0.0.1:7474\" or \"[::1]:7474\", not {}",
                quoted(text)
            )
        })
    }
    fn written(&self) -> String {
        self.0
            .map(|address| address.to_string())
            .unwrap_or_default()
    }
}
text_setting!(Listen, "a text \"address:port\"");

/// Where this host listens for programs on it, or nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Endpoint {
    /// Nowhere.
    #[default]
    Nowhere,
    /// At an address; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// At a unix socket.
    Unix(PathBuf),
}

impl Text for Endpoint {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::Nowhere),
            path if path.starts_with('/') => Ok(Self::Unix(path.into())),
            address => address.parse().map(Self::Tcp).map_err(|_| {
                format!(
                    "expects an address and port such as \"127.0.0.1:9101\", or a path that starts \
                     with /, not {}",
                    quoted(text)
                )
            }),
        }
    }
    fn written(&self) -> String {
        match self {
            Self::Nowhere => String::new(),
            Self::Tcp(address) => address.to_string(),
            Self::Unix(path) => path.display().to_string(),
        }
    }
}
text_setting!(Endpoint, "a text \"address:port\" or a path");

/// A list of device numbers; empty means all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Indices(pub Vec<u32>);

impl Setting for Indices {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let Some(list) = value.as_array() else {
            return expects("a list of device numbers", value);
        };
        list.iter()
            .map(|item| u32::from_toml(item.get_ref()))
            .collect::<Result<_, _>>()
            .map(Self)
            .map_err(|_| "expects a list of device numbers such as [0, 1]".into())
    }
    fn from_text(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(|item| item.parse().ok())
            .collect::<Option<_>>()
            .map(Self)
            .ok_or_else(|| {
                format!(
                    "expects device numbers such as \"0,1\", not {}",
                    quoted(text)
                )
            })
    }
    fn to_toml(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// A unix socket at which one VM's vsock connections come out: its hypervisor
/// or vhost-user daemon connects to it for a guest that connects to the port
/// at the end of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmSocket {
    /// The VM.
    pub vm: String,
    /// The socket.
    pub path: PathBuf,
}

impl VmSocket {
    fn read(text: &str) -> Result<Self, String> {
        let (vm, path) = match text.split_once('=') {
            Some((vm, path)) if !text.starts_with('/') => (vm.to_owned(), path),
            _ => (Self::name(text).to_owned(), text),
        };
        let good_name = !vm.is_empty() && vm.len() <= 64 && !vm.contains(char::is_control);
        if !good_name || !path.starts_with('/') || path.ends_with('/') {
            return Err(format!(
                "expects a path that starts with /, or VM=PATH, not {}",
                quoted(text)
            ));
        }
        Ok(Self {
            vm,
            path: path.into(),
        })
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

    fn written(&self) -> String {
        let path = self.path.display().to_string();
        if Self::name(&path) == self.vm {
            path
        } else {
            format!("{}={path}", self.vm)
        }
    }
}

/// The vsock sockets of VMs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VmSockets(pub Vec<VmSocket>);

impl Setting for VmSockets {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let Some(list) = value.as_array() else {
            return expects("a list of paths", value);
        };
        list.iter()
            .map(|item| match item.get_ref().as_str() {
                Some(text) => VmSocket::read(text),
                None => expects("a list of paths", item.get_ref()),
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
    fn from_text(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(VmSocket::read)
            .collect::<Result<_, _>>()
            .map(Self)
    }
    fn to_toml(&self) -> String {
        let items: Vec<String> = self.0.iter().map(|item| quoted(&item.written())).collect();
        format!("[{}]", items.join(", "))
    }
}

/// Declares an enum of named choices.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $( $(#[$variant_meta:meta])* $variant:ident = $text:literal ),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $( $(#[$variant_meta])* $variant ),* }

        impl $name {
            /// The name in the configuration.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $( Self::$variant => $text ),* }
            }
        }

        impl $crate::setting::Setting for $name {
            fn from_toml(value: &toml::de::DeValue<'_>) -> Result<Self, String> {
                match value.as_str() {
                    Some(text) => Self::from_text(text),
                    None => Err(format!("expects one of {}", [$($text),*].join(", "))),
                }
            }
            fn from_text(text: &str) -> Result<Self, String> {
                match text {
                    $( $text => Ok(Self::$variant), )*
                    other => {
                        let nearest = $crate::schema::nearest(other, [$($text),*].into_iter())
                            .map(|near| format!("; did you mean \"{near}\"?"))
                            .unwrap_or_default();
                        Err(format!(
                            "expects one of {}, not {other:?}{nearest}",
                            [$($text),*].join(", ")
                        ))
                    }
                }
            }
            fn to_toml(&self) -> String {
                format!("\"{}\"", self.name())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }
    };
}
pub(crate) use choice;

choice! {
    /// How the guest reaches its backend.
    Communicator {
        /// The first that answers: pci, shm, unix, vsock, tcp.
        Auto = "auto",
        /// Shared memory with a worker on the same host.
        Shm = "shm",
        /// A unix socket.
        Unix = "unix",
        /// TCP.
        Tcp = "tcp",
        /// The paragpu PCI device of a virtual machine.
        Pci = "pci",
        /// A socket between a virtual machine and its host.
        Vsock = "vsock",
    }
}

choice! {
    /// How much is said.
    Level {
        /// Nothing.
        Off = "off",
        /// What failed.
        Error = "error",
        /// And what may surprise: a function that is not served.
        Warn = "warn",
        /// And what happens: sessions, processes.
        Info = "info",
        /// And why.
        Debug = "debug",
        /// And each step.
        Trace = "trace",
    }
}
