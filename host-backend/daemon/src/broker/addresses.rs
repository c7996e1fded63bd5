//! The addresses at which guests reach this host.

use paragpu_config::host::Host;
use paragpu_control::worker::Route;

use super::Broker;
use super::listeners::Listeners;
use crate::handshake::{Guest, SessionRequest};
use crate::listener::Peer;

/// What determines the addresses: the configuration, and the ports that the system chose.
pub(super) struct Addresses<'a> {
    host: &'a Host,
    listeners: &'a Listeners,
}

impl Addresses<'_> {
    /// The route by which the guest of an arriving session can reach it here; `None` if
    /// it need not be notified.
    pub fn home(&self, guest: &Guest, request: &SessionRequest) -> Result<Option<Route>, String> {
        let Some(arrival) = &request.arrives else {
            return Ok(None);
        };
        if !arrival.local && self.host.limits.reconnect == 0 {
            return Err(
                "sessions of the destination end with their connections, so none can come from \
                 another host: set limits.reconnect in its host.toml above 0"
                    .into(),
            );
        }
        match self.address(request.communicator, &request.vm, &guest.peer) {
            Ok(address) => Ok(Some(Route {
                communicator: request.communicator.to_owned(),
                address,
            })),
            Err(reason) if arrival.follows => Err(reason),
            Err(_) => Ok(None),
        }
    }

    /// The address at which guests of `vm` reach this daemon over a communicator.
    pub fn address(&self, communicator: &str, vm: &str, peer: &Peer) -> Result<String, String> {
        let (address, key) = match communicator {
            "unix" | "shm" => (
                Some(self.host.daemon.socket.to_string_lossy().into_owned()),
                "daemon.socket",
            ),
            "vsock" => (self.vsock_port(vm), "vsock.port or vsock.unix"),
            "tcp" => (self.tcp_address(peer), "tcp.listen"),
            // The guest's own device file.
            _ => (Some(String::new()), ""),
        };
        address.ok_or_else(|| {
            format!(
                "no guests are taken over {communicator} there: set {key} in that host's \
                 host.toml, or give another --communicator"
            )
        })
    }

    fn vsock_port(&self, vm: &str) -> Option<String> {
        if self.host.vsock.port != 0 {
            return Some(self.host.vsock.port.to_string());
        }
        let sockets = &self.host.vsock.unix.0;
        let socket = sockets.iter().find(|socket| socket.vm == vm)?;
        let (_, port) = socket.path.to_str()?.rsplit_once('_')?;
        port.parse::<u32>().ok().map(|port| port.to_string())
    }

    fn tcp_address(&self, peer: &Peer) -> Option<String> {
        if let Some(address) = &self.host.tcp.announce.0 {
            return Some(address.clone());
        }
        let mut address = self.listeners.tcp()?;
        if let Peer::Host { at, .. } = peer
            && address.ip().is_unspecified()
        {
            address.set_ip(at.ip());
        }
        Some(address.to_string())
    }

    /// The address at which users of leases reach this host.
    pub fn of_leases(&self) -> Result<String, String> {
        if let Some(address) = &self.host.tcp.announce.0 {
            return Ok(address.clone());
        }
        let at = self
            .listeners
            .tcp()
            .ok_or("the host does not accept guests over tcp: set tcp.listen in host.toml")?;
        match at.ip().is_unspecified() {
            true => Err("set tcp.announce in host.toml: other machines must know it".into()),
            false => Ok(at.to_string()),
        }
    }
}

impl Broker {
    /// The addresses at which guests reach this host.
    pub(super) fn guest_addresses(&self) -> Addresses<'_> {
        Addresses {
            host: &self.host,
            listeners: &self.listeners,
        }
    }
}
