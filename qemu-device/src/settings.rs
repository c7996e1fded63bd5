//! The command line, and the settings checked from it.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use paragpu_protocol::is_vm_name;
use tracing::level_filters::LevelFilter;

use crate::Error;
use crate::layout::Layout;

/// Serves the paragpu PCI device of one VM.
///
/// Start it before the VM. Then pass QEMU
/// `-chardev socket,id=paragpu,path=SOCKET
/// -device ivshmem-doorbell,chardev=paragpu,vectors=1`;
/// or, with `--protocol vfio-user`, QEMU from 10.1 on `-device
/// '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"SOCKET"}}'`,
/// and Cloud Hypervisor `--user-device socket=SOCKET`.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Arguments {
    /// Unix socket to create, to which the hypervisor connects.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Protocol of the hypervisor on that socket.
    #[arg(long, value_enum, default_value_t = Protocol::Ivshmem)]
    pub protocol: Protocol,
    /// The VM's name in the daemon's listings and limits.
    #[arg(long, value_name = "NAME")]
    pub vm: String,
    /// The daemon's unix socket for guests; the one for device processes is next to it.
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/paragpu/paragpud.sock"
    )]
    pub daemon: PathBuf,
    /// Size of the shared window, a power of two such as 256M or 1G.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub window_size: u64,
    /// Maximum number of guest processes that use the device at once; the window is
    /// divided among them.
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    pub channels: u16,
    /// With vfio-user: copy only through the window, even if the VM shares its
    /// memory with the host.
    #[arg(long)]
    pub no_guest_memory: bool,
    /// Access mode of the socket, octal.
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    pub socket_mode: u32,
    /// Log level: off, error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", env = "PARAGPU_LOG", default_value = "info", value_parser = parse_level)]
    pub log: LevelFilter,
}

/// The protocol between hypervisor and device process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// That of `ivshmem-doorbell`: any QEMU since 2.6, and libvirt's `<shmem>`.
    Ivshmem,
    /// That of `vfio-user-pci`: QEMU since 10.1, Cloud Hypervisor.
    VfioUser,
}

/// The checked settings of the process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// See [`Arguments::socket`].
    pub socket: PathBuf,
    /// See [`Arguments::protocol`].
    pub protocol: Protocol,
    /// See [`Arguments::vm`].
    pub vm: String,
    /// See [`Arguments::daemon`].
    pub daemon: PathBuf,
    /// The window and its channels.
    pub layout: Layout,
    /// See [`Arguments::socket_mode`].
    pub socket_mode: u32,
}

impl TryFrom<Arguments> for Settings {
    type Error = Error;

    fn try_from(arguments: Arguments) -> Result<Self, Error> {
        // The name is part of paths. systemd's `%I` makes a slash of a dash.
        if !is_vm_name(&arguments.vm, |c| c.is_ascii_graphic() && c != '/') {
            return Err(Error::VmName(arguments.vm));
        }
        Ok(Self {
            layout: if arguments.protocol == Protocol::VfioUser && !arguments.no_guest_memory {
                Layout::with_lists(arguments.window_size, arguments.channels)?
            } else {
                Layout::new(arguments.window_size, arguments.channels)?
            },
            socket: arguments.socket,
            protocol: arguments.protocol,
            vm: arguments.vm,
            daemon: arguments.daemon,
            socket_mode: arguments.socket_mode,
        })
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    // As in the configurations, 1GiB is 1G.
    let short = text.strip_suffix("iB").unwrap_or(text);
    let units = [('K', 10), ('M', 20), ('G', 30)];
    let unit = units
        .into_iter()
        .find_map(|(unit, shift)| Some((short.strip_suffix(unit)?, shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    let number: u64 = digits
        .parse()
        .map_err(|_| "a number of bytes, or one with K, M or G".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too large".to_owned())
}

fn parse_level(text: &str) -> Result<LevelFilter, String> {
    // An empty text and numbers would be levels, too.
    let level = text.parse().ok();
    level
        .filter(|_| text.starts_with(|first: char| first.is_ascii_alphabetic()))
        .ok_or_else(|| "off, error, warn, info, debug or trace".to_owned())
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("an octal access mode, such as 600 or 660".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Settings, String> {
        let program = ["paragpu-qemu-device"];
        let all = program.iter().chain(arguments);
        let arguments = Arguments::try_parse_from(all).map_err(|error| error.to_string())?;
        Settings::try_from(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_make_a_device() {
        let settings = parse(&["--socket", "/run/x", "--vm", "one"]).unwrap();
        assert_eq!(settings.layout.window_size, 1 << 30);
        assert_eq!(settings.socket_mode, 0o600);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let base = ["--socket", "/run/x", "--vm"];
        let with = |more: &[&str]| parse(&[&base[..], more].concat()).unwrap_err();
        assert!(with(&["two words"]).contains("two words"));
        assert!(with(&["web/1"]).contains("without spaces and slashes"));
        assert!(with(&["10.0.0.1"]).contains("no address"));
        assert!(with(&["one", "--window-size", "1T"]).contains("number of bytes"));
        let size = |text| parse(&[&base[..], &["one", "--window-size", text]].concat());
        assert_eq!(size("256MiB").unwrap().layout.window_size, 256 << 20);
        assert!(with(&["one", "--window-size", "300M"]).contains("power of two"));
        assert!(with(&["one", "--window-size", "99999999999G"]).contains("too large"));
        assert!(with(&["one", "--window-size", "lots"]).contains("number of bytes"));
        assert!(with(&["one", "--channels", "0"]).contains("1 to 512"));
        assert!(with(&["one", "--channels", "500"]).contains("too small"));
        assert!(with(&["one", "--socket-mode", "999"]).contains("octal"));
        assert!(with(&["one", "--log", "loud"]).contains("debug or trace"));
        assert!(with(&["one", "--log", "3"]).contains("debug or trace"));
    }
}
