//! The command line of `paragpud`. Each option sets a key of host.toml.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use clap::Parser;
use paragpu_config::Sources;
use paragpu_config::host::Host;

/// Serves GPUs to guests: admits their sessions and passes each to a worker process.
///
/// Reads /etc/paragpu/host.toml, /etc/paragpu/host.d/*.toml and the variables
/// PARAGPU_HOST_*; options override them. SIGTERM ends all sessions and the
/// daemon; SIGHUP rereads the configuration and applies limits, shares, placement,
/// pool, confinement, windows, image caches, sockets of VMs, certificates and log
/// level. The log names changed keys that need a restart.
#[derive(Debug, Clone, Parser)]
#[command(name = "paragpud", version)]
pub struct Arguments {
    /// Read this file instead of those in /etc/paragpu.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kind of GPU: auto, cuda or software.
    #[arg(long, value_name = "KIND")]
    device: Option<String>,
    /// Listen for guests on this unix socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen for the paragpu command on this unix socket.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Keep the records of sessions in this directory [default: `state` next to the
    /// control socket].
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
    /// Listen for guests on this TCP address, for example 127.0.0.1:7474.
    #[arg(long, value_name = "ADDRESS:PORT")]
    tcp: Option<String>,
    /// Listen for VMs on this port of the host's vsock.
    #[arg(long, value_name = "PORT")]
    vsock: Option<u32>,
    /// Listen on this unix socket for the vsock connections of one VM.
    #[arg(long, value_name = "[VM=]PATH")]
    vsock_unix: Vec<String>,
    /// The worker program [default: `paragpu-worker` next to paragpud].
    #[arg(long, value_name = "PATH")]
    worker: Option<PathBuf>,
    /// Workers to keep warm for each device.
    #[arg(long, value_name = "COUNT")]
    warm: Option<u32>,
    /// Log level: off, error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Set any other key of host.toml, for example limits.sessions=8. A list is items between
    /// commas, as in device.indices=0,2, or an array of TOML.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
    /// Print the addresses as one line of JSON once the daemon listens on them.
    #[arg(long)]
    pub print_addresses: bool,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))
}

impl Arguments {
    /// The sources of the daemon's configuration. Rereading it keeps the settings
    /// of the command line.
    #[must_use]
    pub fn sources(&self) -> Sources {
        let mut sources = Sources::system::<Host>();
        if let Some(file) = &self.config {
            sources.file = Some(file.clone());
            sources.required = true;
            sources.fragments = None;
        }
        let path = |path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            Some(absolute.to_string_lossy().into_owned())
        };
        let options = [
            ("device.kind", self.device.clone()),
            ("daemon.socket", path(&self.socket)),
            ("daemon.control", path(&self.control)),
            ("daemon.state", path(&self.state)),
            ("daemon.worker", path(&self.worker)),
            ("tcp.listen", self.tcp.clone()),
            ("vsock.port", self.vsock.map(|port| port.to_string())),
            (
                "vsock.unix",
                (!self.vsock_unix.is_empty()).then(|| self.vsock_unix.join(",")),
            ),
            ("pool.warm", self.warm.map(|count| count.to_string())),
            ("log.level", self.log.clone()),
        ];
        sources.arguments = options
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .chain(self.set.iter().cloned())
            .collect();
        sources
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn options_are_keys() {
        Arguments::command().debug_assert();
        let arguments = Arguments::parse_from([
            "paragpud",
            "--device",
            "software",
            "--socket",
            "/a",
            "--control",
            "/b/c",
            "--tcp",
            "127.0.0.1:0",
            "--warm",
            "3",
            "--log",
            "debug",
            "--worker",
            "/w",
            "--set",
            "limits.sessions = 8",
        ]);
        let mut sources = arguments.sources();
        sources.file = None;
        sources.fragments = None;
        let host = sources.load::<Host>().unwrap().values;
        assert_eq!(host.limits.sessions, 8);
        assert_eq!(host.pool.warm, 3);
        assert_eq!(host.daemon.socket, PathBuf::from("/a"));
        assert_eq!(host.state_directory(), PathBuf::from("/b/state"));
        assert!(host.tcp.listen.0.is_some());
    }
}
