//! Rereads the configuration.

use paragpu_config::host::{Confine, Device, Host, Lease, Migration, Tcp, Vsock};

use super::Broker;
use crate::error::chain;
use crate::logging;

impl Broker {
    /// SIGHUP: applies the changes that need no restart, and names the others.
    pub(super) fn reload(&mut self) {
        if !self.operator.signals.take_reload() {
            return;
        }
        let Some(new) = self.operator.read() else {
            return;
        };
        let applied = applied(&self.host, &new);
        if applied != new {
            let keys = paragpu_config::differing(&applied, &new).join(", ");
            tracing::warn!(keys, "changes of these keys need a restart");
        }
        self.host = applied;
        self.warn_of_missing_devices();
        self.tenants.limit(&self.host);
        self.follow_shares();
        self.listeners.renew_certificates(&self.host);
        if let Err(error) = self.listeners.follow_vm_sockets(&self.host.vsock) {
            let error = chain(&error);
            tracing::error!(error, "cannot listen on a VM's socket");
        }
        let filter = logging::filter(self.host.log.level);
        if let Err(error) = self.operator.log.reload(filter) {
            tracing::warn!(%error, "the log level is unchanged");
        }
        tracing::info!("configuration reloaded");
    }
}

/// `old`, with the settings of `new` that may change while the daemon runs.
fn applied(old: &Host, new: &Host) -> Host {
    Host {
        limits: new.limits.clone(),
        vm: new.vm.clone(),
        device: Device {
            placement: new.device.placement,
            ..old.device.clone()
        },
        pool: new.pool.clone(),
        lease: Lease {
            share_time: new.lease.share_time,
            ..old.lease.clone()
        },
        confine: Confine {
            // The spawner of their workers starts before the daemon has a thread.
            users: old.confine.users,
            ..new.confine.clone()
        },
        log: new.log.clone(),
        shm: new.shm.clone(),
        cache: new.cache.clone(),
        vsock: Vsock {
            port: old.vsock.port,
            ..new.vsock.clone()
        },
        tcp: Tcp {
            listen: old.tcp.listen,
            allow_remote: old.tcp.allow_remote,
            announce: old.tcp.announce.clone(),
            ..new.tcp.clone()
        },
        migration: Migration {
            listen: old.migration.listen,
            ..new.migration.clone()
        },
        ..old.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_config::host::Users;

    #[test]
    fn users_of_vms_need_a_restart() {
        let mut new = Host::default();
        new.confine.users = Users::Range(200_000, 200_010);
        new.confine.cuda_users = false;
        let applied = applied(&Host::default(), &new);
        assert!(!applied.confine.cuda_users);
        let differing = paragpu_config::differing(&applied, &new);
        assert_eq!(differing, ["confine.users"]);
    }
}
