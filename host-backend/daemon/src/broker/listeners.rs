//! The listening sockets, and the certificates shown to peers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use paragpu_communicator_secure::Credentials;
use paragpu_config::host::{Host, Vsock};
use paragpu_config::{Endpoint, VmSocket};
use paragpu_protocol::handshake::device_socket;

use crate::error::chain;
use crate::listener::{Listener, group};
use crate::{Error, tls};

/// The daemon's listening sockets.
#[derive(Debug)]
pub(super) struct Listeners {
    /// For guests.
    pub guests: Vec<Listener>,
    /// For the command-line tool.
    pub commands: Option<Listener>,
    /// For agents of leases.
    pub agents: Option<Listener>,
    /// For collectors of metrics.
    pub metrics: Option<Listener>,
    /// For daemons of other hosts.
    pub far: Option<Listener>,
    /// The certificates for other hosts.
    pub tls: Option<Credentials>,
    /// The certificates for guests at `tcp.listen`.
    pub guest_tls: Option<Credentials>,
    /// No connection is accepted until this time.
    pause: Option<Instant>,
}

impl Listeners {
    /// Listens at the configured addresses.
    pub fn open(host: &Host) -> Result<Self, Error> {
        let control_group = named("daemon.control_group", group(&host.daemon.control_group))?;
        let guest_group = named("daemon.group", group(&host.daemon.group))?;
        let commands = retry(|| Listener::unix(&host.daemon.control, control_group));
        let commands = named("daemon.control", commands)?;
        let agents = match host.lease.socket.as_os_str().is_empty() {
            true => None,
            false => Some(named(
                "lease.socket",
                retry(|| Listener::agents(&host.lease.socket)),
            )?),
        };
        let devices = device_socket(&host.daemon.socket);
        let at_socket = retry(|| Listener::unix(&host.daemon.socket, guest_group));
        let for_devices = retry(|| Listener::devices(&devices));
        let mut guests = vec![
            named("daemon.socket", at_socket)?,
            named("daemon.socket", for_devices)?,
        ];
        if let Some(address) = host.tcp.listen.0 {
            guests.push(named("tcp.listen", Listener::tcp(address))?);
        }
        if host.vsock.port != 0 {
            guests.push(Listener::vsock(host.vsock.port)?);
        }
        let metrics = match &host.metrics.listen {
            Endpoint::Nowhere => None,
            Endpoint::Tcp(address) => Some(Listener::tcp(*address)),
            Endpoint::Unix(path) => Some(retry(|| Listener::unix(path, None))),
        };
        let far = host.migration.listen.0.map(Listener::tcp);
        let mut listeners = Self {
            guests,
            commands: Some(commands),
            agents,
            metrics: named("metrics.listen", metrics.transpose())?,
            tls: tls::among_hosts(&host.migration)?,
            guest_tls: tls::for_guests(host)?,
            far: named("migration.listen", far.transpose())?,
            pause: None,
        };
        // Without another try: if an earlier daemon was ending, it has ended.
        listeners.follow_vm_sockets(&host.vsock)?;
        Ok(listeners)
    }

    /// Closes all sockets.
    pub fn close(&mut self) {
        self.guests.clear();
        self.commands = None;
        self.agents = None;
        self.metrics = None;
        self.far = None;
    }

    /// The address for guests over TCP.
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.guests.iter().find_map(Listener::address)
    }

    /// The address for daemons of other hosts.
    pub fn arrivals(&self) -> Option<SocketAddr> {
        self.far.as_ref().and_then(Listener::address)
    }

    /// Accepts nothing until `end`, unless there already is a pause.
    pub fn pause(&mut self, end: Instant) {
        self.pause.get_or_insert(end);
    }

    /// The end of the current pause, if there is one.
    pub fn pause_at(&mut self, now: Instant) -> Option<Instant> {
        self.pause = self.pause.filter(|end| *end > now);
        self.pause
    }

    /// Whether connections are accepted.
    pub fn accepts(&self) -> bool {
        self.pause.is_none()
    }

    /// Rereads the configured certificates. If one cannot be read, the earlier one stays
    /// in use.
    pub fn renew_certificates(&mut self, host: &Host) {
        match tls::among_hosts(&host.migration) {
            Ok(tls) => self.tls = tls,
            Err(error) => {
                let error = chain(&error);
                tracing::error!(error, "the previous certificate stays in use");
            }
        }
        match tls::for_guests(host) {
            // Guests that rely on TLS keep it.
            Ok(None) if self.guest_tls.is_some() => {
                tracing::warn!("TLS for guests can be turned off only by a restart");
            }
            Ok(tls) => self.guest_tls = tls,
            Err(error) => {
                let error = chain(&error);
                tracing::error!(error, "the previous certificate stays in use");
            }
        }
    }

    /// Opens and closes sockets of VMs according to the configuration. Sessions
    /// continue.
    ///
    /// # Errors
    /// [`Error::Group`].
    pub fn follow_vm_sockets(&mut self, vsock: &Vsock) -> Result<(), Error> {
        let configured = &vsock.unix.0;
        let is = |listener: &Listener, socket: &VmSocket| {
            listener.of_vm() == Some((socket.vm.as_str(), socket.path.as_path()))
        };
        self.guests.retain(|listener| {
            listener.of_vm().is_none() || configured.iter().any(|socket| is(listener, socket))
        });
        let group = named("vsock.group", group(&vsock.group))?;
        for socket in configured {
            if self.guests.iter().any(|listener| is(listener, socket)) {
                continue;
            }
            match Listener::vm(socket, group) {
                Ok(listener) => self.guests.push(listener),
                // The VM's hypervisor may write to the socket's directory, and must not keep
                // other VMs from the daemon.
                Err(error) => {
                    let error = chain(&Error::of_key("vsock.unix")(error));
                    tracing::error!(error, "cannot listen on a VM's socket");
                }
            }
        }
        Ok(())
    }
}

/// Names the key whose value caused an error.
fn named<T>(key: &'static str, opened: Result<T, Error>) -> Result<T, Error> {
    opened.map_err(Error::of_key(key))
}

/// Retries for a second while another daemon seems to run: a daemon that was killed
/// between fork and exec of a worker keeps its locks until the exec.
pub(super) fn retry<T>(try_it: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..20 {
        match try_it() {
            Err(Error::Running(_)) => std::thread::sleep(Duration::from_millis(50)),
            other => return other,
        }
    }
    try_it()
}
