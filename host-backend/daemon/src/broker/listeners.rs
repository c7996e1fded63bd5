//! The listening sockets, and the certificates that peers are shown.

use std::net::SocketAddr;
use std::time::Instant;

use paragpu_communicator_secure::Credentials;
use paragpu_config::host::{Host, Vsock};
use paragpu_config::{Endpoint, VmSocket};
use paragpu_protocol::handshake::device_socket;

use super::patiently;
use crate::listener::{Listener, group};
use crate::{Error, tls};

/// The sockets that the daemon listens at.
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
    /// What guests at `tcp.listen` are shown.
    pub guest_tls: Option<Credentials>,
    /// No connection is accepted until then.
    pause: Option<Instant>,
}

impl Listeners {
    /// Listens wherever the configuration says.
    pub fn open(host: &Host) -> Result<Self, Error> {
        let control_group = group(&host.daemon.control_group)?;
        let guest_group = group(&host.daemon.group)?;
        let commands = patiently(|| Listener::unix(&host.daemon.control, control_group))?;
        let agents = match host.lease.socket.as_os_str().is_empty() {
            true => None,
            false => Some(patiently(|| Listener::agents(&host.lease.socket))?),
        };
        let devices = device_socket(&host.daemon.socket);
        let mut guests = vec![
            patiently(|| Listener::unix(&host.daemon.socket, guest_group))?,
            patiently(|| Listener::devices(&devices))?,
        ];
        if let Some(address) = host.tcp.listen.0 {
            guests.push(Listener::tcp(address)?);
        }
        if host.vsock.port != 0 {
            guests.push(Listener::vsock(host.vsock.port)?);
        }
        let vsock_group = group(&host.vsock.group)?;
        for socket in &host.vsock.unix.0 {
            guests.push(patiently(|| Listener::vm(socket, vsock_group))?);
        }
        let metrics = match &host.metrics.listen {
            Endpoint::Nowhere => None,
            Endpoint::Tcp(address) => Some(Listener::tcp(*address)?),
            Endpoint::Unix(path) => Some(patiently(|| Listener::unix(path, None))?),
        };
        Ok(Self {
            guests,
            commands: Some(commands),
            agents,
            metrics,
            tls: tls::among_hosts(&host.migration)?,
            guest_tls: tls::for_guests(host)?,
            far: host.migration.listen.0.map(Listener::tcp).transpose()?,
            pause: None,
        })
    }

    /// Listens nowhere any more.
    pub fn close(&mut self) {
        self.guests.clear();
        self.commands = None;
        self.agents = None;
        self.metrics = None;
        self.far = None;
    }

    /// Where guests connect over TCP.
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.guests.iter().find_map(Listener::address)
    }

    /// Where daemons of other hosts connect.
    pub fn arrivals(&self) -> Option<SocketAddr> {
        self.far.as_ref().and_then(Listener::address)
    }

    /// Accepts nothing until `end`, unless a pause lasts already.
    pub fn pause(&mut self, end: Instant) {
        self.pause.get_or_insert(end);
    }

    /// Until when nothing is accepted. A pause that is over is forgotten.
    pub fn pause_at(&mut self, now: Instant) -> Option<Instant> {
        self.pause = self.pause.filter(|end| *end > now);
        self.pause
    }

    /// Are connections accepted?
    pub fn accepts(&self) -> bool {
        self.pause.is_none()
    }

    /// Shows the certificates that are configured now. One that cannot be
    /// read leaves the earlier one.
    pub fn renew_certificates(&mut self, host: &Host) {
        match tls::among_hosts(&host.migration) {
            Ok(tls) => self.tls = tls,
            Err(error) => tracing::error!(%error, "the earlier certificate stays"),
        }
        match tls::for_guests(host) {
            // What was promised to guests is not taken back under them.
            Ok(None) if self.guest_tls.is_some() => {
                tracing::warn!("guests leave TLS with a restart only");
            }
            Ok(tls) => self.guest_tls = tls,
            Err(error) => tracing::error!(%error, "the earlier certificate stays"),
        }
    }

    /// Listens at the sockets of VMs that are configured now, and no longer at
    /// others. Sessions continue.
    pub fn follow_vm_sockets(&mut self, vsock: &Vsock) -> Result<(), Error> {
        let configured = &vsock.unix.0;
        let is = |listener: &Listener, socket: &VmSocket| {
            listener.of_vm() == Some((socket.vm.as_str(), socket.path.as_path()))
        };
        self.guests.retain(|listener| {
            listener.of_vm().is_none() || configured.iter().any(|socket| is(listener, socket))
        });
        let group = group(&vsock.group)?;
        let mut failed = Ok(());
        for socket in configured {
            if self.guests.iter().any(|listener| is(listener, socket)) {
                continue;
            }
            match Listener::vm(socket, group) {
                Ok(listener) => self.guests.push(listener),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }
}
